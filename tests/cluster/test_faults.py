"""Goal: whatever happens to real bookies and ZooKeeper, no acknowledged entry is lost or moved.

Method: processes on loopback: ZooKeeper, five bookies behind proxies, two writers and a reader that
log what they are told. Each test does one kind of harm while they work, heals, kills the writers,
lets the reader see the rest, and judges every ledger: each acknowledged entry once, in order, on Qa
good copies. The tests share one cluster; what one leaves is the next one's past, and at the end
everything is judged once more.
"""

import shutil

import pytest

from ledger.errors import Fenced
from tests.cluster.client import ENTRIES_PER_LEDGER
from tests.cluster.world import LOOK_S, MORE, World, fill, small_disk, wait
from tests.peers.bookie import BookieProcess
from tests.peers.processes import wait_until

pytestmark = pytest.mark.alone

SMALL_MIB = 384  # the disk of the first bookie
STILL_S = 4.0  # longer than any session here
LONG = 100  # entries of a ledger that a slow auditor copies for a second or so
MUCH = 4  # of these ledgers: the auditor is killed after the first and before the last


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    place = tmp_path_factory.mktemp("cluster")
    small = small_disk(place / "bookie-0", SMALL_MIB)
    with small, World(place, options=("--disk-free-min", "64MiB")) as cluster:
        yield cluster
        cluster.end_clients()
        cluster.heal()
        assert cluster.judge_ever() == []


def test_killed_bookies_cost_no_write(world):
    for bookie in world.bookies[:2]:
        bookie.kill()
        world.wait_acked(MORE, "writers to go on without it")
        bookie.start()
    assert world.keeps_all().given_up == []


def test_bookies_that_stop_and_go_on_are_replaced_meanwhile(world):
    for bookie in world.bookies[:2]:
        bookie.pause()
        wait(lambda bookie=bookie: bookie.id not in world.written_to(), "it to be replaced")
        world.wait_acked(MORE, "writers to go on without it")
        bookie.resume()
    assert world.keeps_all().given_up == []


def test_a_bookie_that_is_cut_off_or_answers_late_costs_no_write(world):
    cut, slow, deaf, mute = world.proxies[:4]
    cut.refuse()
    world.wait_acked(MORE, "writers to go on past a refused connection")
    cut.heal()
    slow.slow(latency_s=0.2)
    world.wait_acked(MORE, "writers to go on past a slow connection")
    slow.heal()
    deaf.drop("to server")
    world.wait_acked(MORE, "writers to go on past lost requests")
    deaf.heal()
    mute.drop("to client")
    world.wait_acked(MORE, "writers to go on past lost answers")
    assert world.keeps_all().given_up == []


def test_a_rolling_restart_of_all_bookies_beside_an_auditor_costs_no_write(world):
    world.auditor()
    for bookie in world.bookies:
        assert bookie.stop() == 0
        bookie.start()
        world.wait_acked(MORE // 5, "writers to go on")
    assert world.keeps_all().given_up == []
    world.audit_once()
    wait(lambda: world.under_replicated() == [], "the list to be empty")
    assert world.judge(all_copies=True) == []


def test_a_killed_zookeeper_stops_nobody_who_writes_already(world):
    world.zookeeper.kill()
    world.zookeeper.start()
    world.bookies[0].kill()
    world.wait_acked(MORE, "writers to replace a bookie after the restart")
    assert world.keeps_all().count() >= 2 * MORE


def test_a_zookeeper_that_is_silent_for_longer_than_sessions_costs_nothing_but_time(world):
    processes = [bookie.process for bookie in world.bookies]
    world.zookeeper.pause()
    # Ledgers are full within a second, and nobody can make new ones: writers stand still.
    wait_until(lambda: stands_still(world), "the writers to need it")
    world.zookeeper.resume()
    world.wait_acked(MORE, "writers to go on")
    world.keeps_all()
    assert [bookie.process for bookie in world.bookies] == processes
    assert all(bookie.running for bookie in world.bookies)


def stands_still(world):
    """For longer than any session here, nothing more is acknowledged."""
    before = world.acked()
    try:
        wait_until(lambda: world.acked() > before, "more", STILL_S)
    except AssertionError:
        return True
    return False


def test_writers_that_zookeeper_does_not_hear_go_on_with_what_they_have(world):
    world.to_zookeeper["clients"].freeze()
    wait_until(lambda: stands_still(world), "the writers to need it")
    world.bookies[0].kill()
    world.to_zookeeper["clients"].heal()
    world.wait_acked(MORE, "writers to go on with new sessions")
    world.keeps_all()


def test_after_a_kill_of_everything_all_is_there(world):
    for bookie in world.bookies:
        bookie.kill()
    world.zookeeper.kill()
    world.end_clients()
    world.heal()
    world.start_clients("write", "read")
    assert world.keeps_all().count() >= 2 * MORE


def test_killed_writers_leave_ledgers_that_others_complete(world):
    world.end_clients()
    world.start_clients("write", "read")
    assert world.keeps_all().count() >= 2 * MORE


def test_a_writer_that_sleeps_through_its_takeover_acknowledges_nothing_more(world):
    ended = {}

    def taken_over():
        """Close the ledgers of both while they sleep; False if one has nothing more to add."""
        if not world.writers_stand_still(lambda: at_work(world)):
            return False
        taken = {metadata.ledger for metadata in open_ledgers(world)}
        world.close_all()  # by another process: this one
        ended.update((metadata.ledger, metadata.last_entry) for metadata in world.metadata())
        for process in world.writers:
            process.resume()
        # A writer whose entries were all sent may still close its ledger at that end.
        whole = any(ended[ledger] == ENTRIES_PER_LEDGER - 1 for ledger in taken)
        return set() if whole else taken

    taken = wait_until(taken_over, "both to sleep at work", 60.0, pause_s=LOOK_S)
    wait(lambda: taken <= given_up(world), "both to give up")
    facts = world.keeps_all()
    assert all(why.split()[2] == f"{Fenced.__name__}:" for why in facts.given_up)
    for ledger, acked in facts.acked.items():
        assert acked[-1] <= ended.get(ledger, acked[-1])


def at_work(world):
    """Return True if each writer has much to add to an open ledger.

    A writer between two ledgers has none to give up.
    """
    acked = world.told("write").acked
    begun = [len(acked.get(metadata.ledger, ())) for metadata in open_ledgers(world)]
    return len(begun) == len(world.writers) and max(begun) <= ENTRIES_PER_LEDGER // 2


def open_ledgers(world):
    """Metadata of the ledgers that were begun since the test began, and are open."""
    return [one for one in world.metadata() if one.ledger >= world.judged and not one.closed]


def given_up(world):
    """The ledgers that writers gave up."""
    return {int(why.split()[1]) for why in world.told("write").given_up}


def test_a_directory_serves_one_bookie_and_the_second_is_refused(world):
    first = world.bookies[0]
    second = BookieProcess(
        first.data, world.zookeeper.servers, ["--advertised-host", "127.0.0.31"], name=first.name
    )
    second.data = world.directory / "second" / "data"
    second.data.parent.mkdir(exist_ok=True)
    second.data.symlink_to(first.data, target_is_directory=True)
    assert second.begin().wait_exit() == 78
    assert "another process" in second.output()
    world.wait_acked(MORE, "writers to go on")
    assert first.running
    assert world.keeps_all().given_up == []


def test_a_reader_that_sleeps_is_shown_all_of_it_later(world):
    readers = [process for log, process in world.clients if log.name.startswith("read")]
    for process in readers:
        process.pause()
    world.wait_acked(3 * MORE, "writers to close ledgers meanwhile")
    for process in readers:
        process.resume()
    assert world.keeps_all().given_up == []


def test_a_wiped_bookie_comes_back_as_another_and_its_share_is_made_anew(world):
    world.auditor()
    wiped = world.bookies[1]
    before = wiped.id
    wiped.kill()
    shutil.rmtree(wiped.data)
    world.wait_acked(MORE, "writers to go on without it")
    wiped.start()
    assert wiped.id != before
    world.keeps_all()
    wait(lambda: before not in world.members(), "every copy of the lost bookie to be replaced", 60)
    world.audit_once()
    assert world.judge(all_copies=True) == []
    wait(lambda: world.under_replicated() == [], "the list to be empty")


def test_a_full_disk_makes_a_bookie_read_only_and_costs_no_write(world):
    full = world.bookies[0]
    ballast = full.data.parent / "ballast"
    said = full.output().count("short of room: read-only")
    fill(ballast)
    wait(lambda: full.id not in world.written_to(), "it to be passed by")
    wait_until(lambda: full.output().count("short of room: read-only") > said, "it to say so")
    world.wait_acked(MORE, "writers to go on without it")
    said = full.output().count("writable again")
    ballast.unlink()
    wait_until(lambda: full.output().count("writable again") > said, "it to see the room")
    assert world.keeps_all().given_up == []
    assert full.running


def test_an_auditor_that_is_killed_at_work_is_followed_by_another(world):
    dead = world.bookies[2]
    wait(lambda: much_on(world, dead.id) >= MUCH, "ledgers to mend", 60.0)
    dead.kill()
    slow = world.auditor("--copy-rate", "32KiB", "--ledgers-at-once", "1")
    world.end_clients("write")
    world.close_all()
    named = sum(dead.id in str(metadata.fragments) for metadata in world.metadata())
    wait(lambda: 0 < left(world, dead.id) < named, "some ledgers to be mended", 60)
    slow.kill()
    assert left(world, dead.id) > 0, "it died in the middle"
    assert world.under_replicated() != []
    world.auditor()
    wait(lambda: left(world, dead.id) == 0, "another to go on", 60)
    wait(lambda: world.under_replicated() == [], "the list to be empty")
    world.finish()
    assert world.judge(all_copies=True) == []


def much_on(world, bookie):
    """Ledgers that name it, and take a while to copy."""
    acked = world.told("write").acked
    return sum(
        bookie in str(metadata.fragments) and len(acked.get(metadata.ledger, ())) > LONG
        for metadata in world.metadata()
    )


def left(world, bookie):
    """Ledgers that name it."""
    return sum(bookie in str(metadata.fragments) for metadata in world.metadata())
