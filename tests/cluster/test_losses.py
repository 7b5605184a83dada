"""Goal: bookies that lose their data, their room or their company never lose an acknowledged entry.

Method: as in test_faults, each test on a cluster of its own, because the harm stays: wiped and old
directories, full disks, too few bookies, an auditor that dies at work, deleted ledgers.
"""

import shutil

import pytest

from ledger.errors import NotEnoughBookies
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.world.bookies import Status
from tests.cluster.client import Session
from tests.cluster.test_faults import MORE, keeps_all
from tests.cluster.world import World, fill, small_disk
from tests.peers.processes import wait_until

BIG_BYTES = 64 * 1024


def begun(world):
    world.begin()
    world.wait_acked(MORE, "writers to write")
    return world


@pytest.fixture
def world(tmp_path):
    with World(tmp_path) as world:
        yield begun(world)


@pytest.fixture
def world_of_three(tmp_path):
    with World(tmp_path, 3) as world:
        yield begun(world)


def test_a_wiped_bookie_comes_back_as_another_and_its_share_is_made_anew(world):
    world.auditor()
    wiped = world.bookies[0]
    before = wiped.id
    wiped.kill()
    shutil.rmtree(wiped.data)
    world.wait_acked(MORE, "writers to go on without it")
    wiped.start()
    assert wiped.id != before
    keeps_all(world)
    wait_until(
        lambda: before not in world.members(), "every copy of the lost bookie to be replaced", 60
    )
    world.audit_once()
    assert world.judge(all_copies=True) == []
    assert world.under_replicated() == []


def test_a_bookie_that_is_put_back_to_old_data_denies_nothing_and_is_mended(world_of_three):
    world = world_of_three
    old = world.bookies[0]
    copy = world.directory / "copy"
    assert old.stop() == 0
    shutil.copytree(old.data, copy)
    old.start()
    world.wait_acked(2 * MORE, "ledgers to begin that the copy does not know")
    world.end_clients()
    known = world.told().acked
    old.kill()
    shutil.rmtree(old.data)
    shutil.copytree(copy, old.data)
    old.start()
    assert "may have lost entries" in old.output()
    open_here = [
        metadata
        for metadata in world.metadata()
        if not metadata.closed and old.id in metadata.last_fragment.ensemble
    ]
    assert open_here

    async def ask(session):
        return {
            (await session.bookies.read(BookieId(old.id), one.ledger, EntryId(entry))).status
            for one in open_here
            for entry in known[one.ledger]
        }

    assert world.ask(ask) <= {Status.OK, Status.UNKNOWN_LEDGER_STATE}
    assert Status.UNKNOWN_LEDGER_STATE in world.ask(ask)
    assert world.judge() == []
    world.audit_once()
    assert world.ask(ask) == {Status.OK}, "the limbo is over"
    assert world.judge(all_copies=True) == []


def test_with_two_of_three_bookies_dead_nothing_is_acknowledged_and_nothing_is_lost(
    world_of_three,
):
    world = world_of_three
    for bookie in world.bookies[1:]:
        bookie.kill()
    wait_until(lambda: len(world.told().given_up) == 2, "both writers to give up")
    wait_until(lambda: refuses(world), "the dead to be missed")
    before = world.acked()
    world.start_clients("write")  # somebody who does not even know the old ledgers
    with pytest.raises(AssertionError, match="not within"):
        world.wait_acked(1, "an acknowledgement by one bookie", 3.0)
    assert world.acked() == before
    keeps_all(world)


def refuses(world):
    """No new ledger can be made."""

    async def create(session):
        with pytest.raises(NotEnoughBookies):
            await session.client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)

    try:
        world.ask(create)
    except pytest.fail.Exception:
        return False
    return True


def test_what_was_acknowledged_outlives_the_loss_of_any_one_disk(world_of_three):
    """Of the entries that only one bookie got before its disk was lost, nobody was told."""
    world = world_of_three
    lost, *others = world.bookies
    for bookie in others:
        world.proxies[world.bookies.index(bookie)].drop()
    wait_until(lambda: len(world.told().given_up) == 2, "both writers to give up")
    lost.kill()
    shutil.rmtree(lost.data)
    world.heal()
    world.wait_acked(MORE, "writers to go on")
    world.finish()
    world.audit_once()
    assert world.judge(all_copies=True) == []


def test_a_full_disk_makes_a_bookie_read_only_and_costs_no_write(tmp_path):
    small = tmp_path / "bookie-0"
    with small_disk(small, 160), World(tmp_path, options=("--disk-free-min", "64MiB")) as world:
        begun(world)
        full = world.bookies[0]
        wait_until(lambda: full.id in world.members(), "it to be written to")
        assert "read-only" not in full.output()
        ballast = small / "ballast"
        fill(ballast)
        wait_until(lambda: full.id not in world.written_to(), "it to be passed by")
        wait_until(lambda: "short of room: read-only" in full.output(), "it to say so")
        world.wait_acked(MORE, "writers to go on without it")
        ballast.unlink()
        wait_until(lambda: "writable again" in full.output(), "it to see the room")
        assert keeps_all(world).given_up == []
        assert full.running


def test_an_auditor_that_is_killed_at_work_is_followed_by_another(world):
    world.wait_acked(10 * MORE, "ledgers to mend")
    dead = world.bookies[0]
    dead.kill()
    slow = world.auditor("--bytes-per-s", "64KiB")
    world.end_clients("write")
    world.close_all()
    named = sum(dead.id in str(metadata.fragments) for metadata in world.metadata())
    wait_until(lambda: 0 < left(world, dead.id) < named, "some ledgers to be mended", 60)
    slow.kill()
    assert left(world, dead.id) > 0, "it died in the middle"
    assert world.under_replicated() != []
    world.auditor()
    wait_until(lambda: left(world, dead.id) == 0, "another to go on", 60)
    wait_until(lambda: world.under_replicated() == [], "the list to be empty")
    world.finish()
    assert world.judge(all_copies=True) == []


def left(world, bookie):
    """Ledgers that name it."""
    return sum(bookie in str(metadata.fragments) for metadata in world.metadata())


def test_deleted_ledgers_give_their_room_back_and_no_other_ledger_goes(tmp_path):
    with World(tmp_path, 3, options=("--gc-interval", "500ms")) as world:
        begun(world)
        world.finish()
        world.audit_once()  # all copies are there; what is gone later, somebody deleted
        big = world.ask(write_big)
        before = [disk_bytes(bookie) for bookie in world.bookies]
        world.judged = big + 1
        world.start_clients("write", "write", "read")
        world.delete(big)
        for bookie, held in zip(world.bookies, before, strict=True):
            wait_until(
                lambda bookie=bookie, held=held: disk_bytes(bookie) < held - 100 * BIG_BYTES,
                "the room to come back",
            )
        keeps_all(world)
        assert world.judge_ever(big, all_copies=True) == []


async def write_big(session: Session) -> LedgerId:
    """A closed ledger of 20 MiB."""
    writer = await session.client.create(ensemble_size=3, write_quorum=3, ack_quorum=3)
    for _ in range(320):
        await writer.room()
        writer.add((bytes(BIG_BYTES),), lambda error: None)
    await writer.close()
    return writer.ledger


def disk_bytes(bookie):
    return sum(file.stat().st_blocks * 512 for file in bookie.data.glob("log-*"))


def test_a_writer_whose_ledger_is_deleted_acknowledges_nothing_more(world_of_three):
    world = world_of_three

    ended = world.delete(*world.ledgers())
    wait_until(lambda: len(world.told().given_up) == 2, "both writers to give up")
    world.wait_acked(MORE, "writers to begin other ledgers")
    for ledger, acked in world.told().acked.items():
        assert acked[-1] <= ended.get(ledger, acked[-1])
    keeps_all(world)
