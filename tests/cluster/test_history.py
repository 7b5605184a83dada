"""Goal: the judge of the cluster tests sees every fault that it is there for.

Method: a simulated cluster with a few good ledgers and true logs, which must pass; then one lie or
one loss is planted, and its line must be among the faults. At the end real bookies lose real files.
"""

import shutil

import pytest

from ledger.core.entry_format import EntryFormat
from tests.cluster.history import Judge, Log, judge_readers, longest_gap_ms, payload, told
from tests.cluster.world import World
from tests.ledger.calm_cluster import cluster
from tests.sim.loop import simulate

ENTRIES = 5
LAST = ENTRIES - 1


class Stage:
    """Ledger `id` on all three bookies, and what its writer and a reader said of it."""

    def __init__(self, world, ledger, directory):
        self.world = world
        self.ledger = ledger
        self.copies = [bookie.ledgers[ledger].entries for bookie in world.bookies.values()]
        self.acked = [f"A {ledger} {entry} {entry}.0" for entry in range(ENTRIES)]
        self.ends = [f"C {ledger} {LAST}"]
        self.shown = [f"D {ledger} {entry}" for entry in range(ENTRIES)]
        self.directory = directory

    def body(self, entry, data):
        """A copy that verifies and holds other data."""
        header = EntryFormat(*self.format).pack(self.ledger, entry, -1, len(data), (data,))
        return bytes(header) + data

    async def judge(self, **how):
        logs = {"write-0.log": self.acked + self.ends, "read-0.log": self.shown}
        for name, lines in logs.items():
            log = Log(self.directory / name)
            for line in lines:
                log.write(line)
        facts = told(*(self.directory / name for name in logs))
        client = self.world.client("judge")
        faults = await Judge(client, self.world.ports["judge"]).judge(facts, **how)
        return faults + judge_readers(facts)


def faults_of(directory, plant=lambda stage: None, **how):
    """What the judge says once `plant` has done its harm."""

    async def main():
        world = cluster()
        writer = await world.client("writer").create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        for entry in range(ENTRIES):
            writer.add((payload(writer.ledger, entry),), lambda error: None)
        await writer.close()
        stage = Stage(world, writer.ledger, directory)
        stage.format = (writer.metadata.digest_type, writer.metadata.password)
        result = plant(stage)
        if result is not None:
            await result
        return await stage.judge(**how)

    return simulate(main())


def lose(*places):
    """A plant: these (copy, entry) are gone."""

    def plant(stage):
        for copy, entry in places:
            del stage.copies[copy][entry]

    return plant


def test_nothing_is_said_of_what_is_as_it_was_told(tmp_path):
    assert faults_of(tmp_path, all_copies=True) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda acked: acked.pop(2), "acknowledged out of order: 3 as number 2"),
        (lambda acked: acked.pop(0), "acknowledged out of order: 1 as number 0"),
        (lambda acked: acked.insert(2, acked[2]), "acknowledged out of order: 2 as number 3"),
        (lambda acked: acked.reverse(), "acknowledged out of order: 4 as number 0"),
        (lambda acked: acked.append("A 0 5 5.0"), "acknowledged 5, closed at 4"),
    ],
)
def test_acknowledgements_that_are_missing_doubled_moved_or_never_kept(tmp_path, change, fault):
    def plant(stage):
        stage.acked = [line.replace(f"A {stage.ledger} ", "A 0 ") for line in stage.acked]
        change(stage.acked)
        stage.acked = [line.replace("A 0 ", f"A {stage.ledger} ") for line in stage.acked]

    assert any(fault in said for said in faults_of(tmp_path, plant))


def test_an_acknowledged_ledger_that_is_gone(tmp_path):
    def plant(stage):
        stage.acked.append("A 77 0 9.0")

    assert faults_of(tmp_path, plant) == ["ledger 77: acknowledged, and gone"]


def test_a_ledger_that_was_to_be_deleted_may_be_gone(tmp_path):
    def plant(stage):
        stage.acked += ["A 77 0 9.0", "X 77"]

    assert faults_of(tmp_path, plant) == []


def test_a_writer_that_closed_elsewhere(tmp_path):
    def plant(stage):
        stage.ends = [f"C {stage.ledger} {LAST - 1}"]

    (said,) = faults_of(tmp_path, plant)
    assert said.endswith("its writer closed it at 3, not at 4")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda shown: shown.pop(2), "was shown 3 as number 2"),
        (lambda shown: shown.insert(2, shown[2]), "was shown 2 as number 3"),
        (lambda shown: shown.append(shown[0]), "was shown 0 as number 5"),
        (lambda shown: shown.append("D 0 5"), "was shown 5, closed at 4"),
    ],
)
def test_a_reader_with_a_hole_with_something_twice_or_with_what_never_was(tmp_path, change, fault):
    def plant(stage):
        stage.shown = [line.replace(f"D {stage.ledger} ", "D 0 ") for line in stage.shown]
        change(stage.shown)
        stage.shown = [line.replace("D 0 ", f"D {stage.ledger} ") for line in stage.shown]

    assert any(fault in said for said in faults_of(tmp_path, plant))


def test_an_entry_of_which_one_good_copy_is_left(tmp_path):
    said = faults_of(tmp_path, lose((0, 3), (1, 3)))
    assert ["entry 3 only on ['b2'] of" in line for line in said] == [True]


def test_an_entry_without_a_copy(tmp_path):
    said = faults_of(tmp_path, lose((0, 1), (1, 1), (2, 1)))
    assert any("unreadable: EntryLost" in line for line in said)


def test_one_copy_less_than_asked_for_is_seen_only_when_all_are_asked_for(tmp_path):
    assert faults_of(tmp_path, lose((0, 0))) == []
    again = tmp_path / "again"
    again.mkdir()
    (said,) = faults_of(again, lose((0, 0)), all_copies=True)
    assert "entry 0 only on " in said and "'b0'] of" not in said


def test_one_copy_that_verifies_and_says_something_else(tmp_path):
    def plant(stage):
        stage.copies[1][2] = stage.body(2, b"something else")

    said = faults_of(tmp_path, plant)
    assert any("entry 2 is wrong on b1: b'something else'" in line for line in said)


def test_one_copy_that_does_not_verify(tmp_path):
    def plant(stage):
        stage.copies[2][0] = stage.copies[2][0][:-1] + b"\xff"

    said = faults_of(tmp_path, plant)
    assert any("entry 0 is wrong on b2" in line for line in said)


def test_an_entry_in_the_place_of_another(tmp_path):
    def plant(stage):
        for copy in stage.copies:
            copy[1] = stage.body(1, payload(stage.ledger, 2))

    said = faults_of(tmp_path, plant)
    assert any("entry 1 reads as 1" in line for line in said)


def test_a_line_that_was_torn_was_not_told(tmp_path):
    log = tmp_path / "write-0.log"
    log.write_text("A 1 0 5.0\nA 1 1 6.0\nA 1 2")
    assert told(log).acked == {1: [0, 1]}


def test_a_silence_counts_from_its_last_word_to_the_next_or_to_the_end():
    assert longest_gap_ms([1, 2, 30, 31, 70], 0, 50) == 28
    assert longest_gap_ms([1, 2, 10], 0, 50) == 40
    assert longest_gap_ms([], 0, 50) == 50


def test_bookies_that_lose_the_newest_file_of_their_log(tmp_path):
    """Two of three, one with its index: more than is promised, so something must be missed."""
    with World(tmp_path, 3) as world:
        world.begin()
        world.wait_acked(300, "writers to write")
        world.end_clients()
        for bookie in world.bookies[:2]:
            bookie.kill()
            max(bookie.data.glob("log-*")).unlink()
        shutil.rmtree(world.bookies[0].data / "index")
        world.heal()
        faults = world.judge(patience_s=3.0)
        assert any(" only on " in said or " unreadable" in said for said in faults)
