"""Goal: bookies that lose their data or their company never lose an acknowledged entry.

Method: as in test_faults, on a cluster of three, so that nobody can take the place of one that is
lost: old directories, empty ones, too few bookies; and ledgers that are deleted.
"""

import asyncio
import shutil

import pytest

from ledger.bookie.config import BookieConfig
from ledger.errors import NotEnoughBookies
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.ports.bookies import Status
from tests.cluster.client import Session
from tests.cluster.history import AGAIN_S, COPY_PATIENCE_S
from tests.cluster.world import MORE, ONCE, World, wait
from tests.peers.bookie import SESSION
from tests.peers.processes import wait_until

pytestmark = [pytest.mark.alone, pytest.mark.proof]

BIG_BYTES = 64 * 1024
FILE_BYTES = BookieConfig().file_bytes
# Longer than a busy machine stands still: of three bookies, no other one could replace one whose
# session ended by itself. Sessions end by `World.lose`. Where the wait for that is the subject,
# they are as usual.
LONG_SESSION = "20s"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    place = tmp_path_factory.mktemp("three")
    options = ("--gc-interval", "500ms")
    with World(place, 3, options=options, session=LONG_SESSION) as cluster:
        yield cluster
        cluster.end_clients()
        cluster.heal()
        assert cluster.judge_ever() == []


def test_a_bookie_that_is_put_back_to_old_data_denies_nothing_and_is_mended(world):
    old = world.bookies[0]
    copy = world.directory / "copy"
    assert old.stop() == 0
    shutil.copytree(old.data, copy)
    newest = max(world.ledgers())
    old.start()
    world.wait_acked(2 * MORE, "writers to go on")
    wait(
        lambda: world.writers_stand_still(lambda: unknown_to_copy(world, old.id, newest)),
        "a ledger at work that the copy does not know",
    )
    world.end_clients()
    known = world.told().acked
    old.kill()
    shutil.rmtree(old.data)
    shutil.copytree(copy, old.data)
    old.start()
    assert "may have lost entries" in old.output()
    open_here = open_on(world, old.id)

    async def ask(session):
        until_s = asyncio.get_running_loop().time() + COPY_PATIENCE_S
        return {
            await status_of(session, BookieId(old.id), one.ledger, EntryId(entry), until_s)
            for one in open_here
            for entry in known[one.ledger]
        }

    assert world.ask(ask) <= {Status.OK, Status.UNKNOWN_LEDGER_STATE}
    assert Status.UNKNOWN_LEDGER_STATE in world.ask(ask)
    assert world.judge() == []
    world.audit_once()
    assert world.ask(ask) == {Status.OK}, "the limbo is over"
    assert world.judge(all_copies=True) == []


def open_on(world, bookie):
    """Metadata of the open ledgers that are written to this bookie."""
    return [
        metadata
        for metadata in world.metadata()
        if not metadata.closed and bookie in metadata.last_fragment.ensemble
    ]


def unknown_to_copy(world, bookie, newest):
    """Return whether an open ledger of this bookie, newer than that, has acknowledged entries.

    A ledger that began while the bookie was away does not name it.
    """
    acked = world.told("write").acked
    return any(one.ledger > newest and one.ledger in acked for one in open_on(world, bookie))


async def status_of(session, bookie, ledger, entry, until_s):
    """Return the answer of the bookie; ask one that is unreachable again, up to `until_s`."""
    loop = asyncio.get_running_loop()
    while True:
        status = (await session.bookies.read(bookie, ledger, entry)).status
        if status is not Status.UNREACHABLE or loop.time() > until_s:
            return status
        await asyncio.sleep(AGAIN_S)


def test_with_two_of_three_bookies_dead_nothing_is_acknowledged_and_nothing_is_lost(world):
    for bookie in world.bookies[1:]:
        bookie.kill()
    wait(world.all_gave_up, "both writers to give up")
    for bookie in world.bookies[1:]:
        world.lose(bookie)
    wait(lambda: refuses(world), "the dead to be missed")
    before = world.acked()
    world.start_clients("write")  # somebody who does not even know the old ledgers
    with pytest.raises(AssertionError, match="not within"):
        world.wait_acked(1, "an acknowledgement by one bookie", 3.0)
    assert world.acked() == before
    world.keeps_all()


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


def test_what_was_acknowledged_outlives_the_loss_of_any_one_disk(world):
    """Of the entries that only one bookie got before its disk was lost, nobody was told."""
    lost, *others = world.bookies
    for bookie in others:
        world.proxies[world.bookies.index(bookie)].drop()
    wait(world.all_gave_up, "both writers to give up")
    world.lose(lost)
    shutil.rmtree(lost.data)
    world.heal()
    world.wait_acked(MORE, "writers to go on")
    world.finish()
    world.audit_once()
    assert world.judge(all_copies=True) == []


def test_an_audit_counts_a_bookie_that_died_just_before_it_as_lost(world):
    """Its session lives a few seconds longer than it does, so that it is registered at first."""
    world.wait_acked(MORE, "writers to go on")
    world.finish()
    dead = world.bookies[0]
    assert dead.stop() == 0
    dead.session = SESSION
    dead.start()
    dead.kill()
    dead.session = LONG_SESSION  # of its next run
    shutil.rmtree(dead.data)
    assert BookieId(dead.id) in world.registered()
    auditor = world.auditor(*ONCE)
    assert auditor.wait_exit(90.0) == 1, "two of three bookies cannot hold three copies"
    assert f"{dead.id} did not list its entries" not in auditor.output()
    world.heal()
    world.audit_once()
    assert world.judge(all_copies=True) == []


def test_an_audit_that_a_bookie_did_not_answer_does_not_call_the_copies_complete(world):
    """It is registered, but neither the writers' third copies reach it nor the auditor."""
    deaf, proxy = world.bookies[0], world.proxies[0]
    proxy.drop()
    world.wait_acked(MORE, "writers to go on with two copies")
    world.finish()
    auditor = world.audited()
    assert auditor.exit_code == 1, auditor.output()[-3000:]
    assert f"{deaf.id} did not list its entries" in auditor.output()
    proxy.heal()
    world.audit_once()
    assert world.judge(all_copies=True) == []


def test_deleted_ledgers_give_their_room_back_and_no_other_ledger_goes(world):
    world.finish()
    world.audit_once()  # all copies are there; what is gone later, somebody deleted
    big = world.ask(write_big)
    before = [set(logs(bookie)) for bookie in world.bookies]
    world.judged = big + 1
    world.start_clients("write", "write", "read")
    world.delete(big)
    for bookie, held in zip(world.bookies, before, strict=True):
        wait_until(lambda bookie=bookie, held=held: not held & set(logs(bookie)), "files to go")
        assert sum(file.stat().st_size for file in logs(bookie)) <= FILE_BYTES, "the live one"
    world.keeps_all()
    assert world.judge_ever(big, all_copies=True) == []


async def write_big(session: Session) -> LedgerId:
    """A closed ledger of 20 MiB."""
    writer = await session.client.create(ensemble_size=3, write_quorum=3, ack_quorum=3)
    for _ in range(320):
        await writer.room()
        writer.add((bytes(BIG_BYTES),), lambda error: None)
    await writer.close()
    return writer.ledger


def logs(bookie):
    return sorted(bookie.data.glob("log-*"))


def test_a_writer_whose_ledger_is_deleted_acknowledges_nothing_more(world):
    ended = {}

    def deleted_under_both():
        """Delete everything there is, the ledgers that are written to first."""
        ended.update(world.delete(*sorted(world.ledgers(), reverse=True)))
        return world.all_gave_up()

    wait(deleted_under_both, "both writers to give up", 60.0)
    world.wait_acked(MORE, "writers to begin other ledgers")
    for ledger, acked in world.told().acked.items():
        assert acked[-1] <= ended.get(ledger, acked[-1])
    world.keeps_all()
