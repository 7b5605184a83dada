"""Goal: after a start that may have lost entries a bookie takes no add of any older ledger and
denies nothing of those that are not closed; that outlives restarts, evictions and the index.

Method: a bookie over the simulated disk and table; metadata of ledgers in the simulated tree. A
node over a real directory for the order of its start.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random

import pytest

from ledger.bookie.gc.collector import collect
from ledger.bookie.gc.log_cleaner import LogCleaner
from ledger.client import metadata_format
from ledger.core.journal_format import file_name
from ledger.core.ledger_metadata import Fragment, LedgerMetadata
from ledger.errors import MetadataUnavailable
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.log import logger
from ledger.node.cluster_ledgers import list_ledgers
from ledger.node.config import NodeConfig
from ledger.node.losses import ledgers_at_risk
from ledger.node.storage_node import StorageNode
from ledger.ports.bookies import Status
from ledger.registry import layout
from ledger.registry.ledger_ids import next_ledger_id
from ledger.registry.limbo_bookies import LIMBO
from tests.ledger.bookie_rig import KEY, SMALL, add, started_bookie
from tests.sim.bookie_world import entry_bytes
from tests.sim.metadata import SimMetadata
from tests.sim.table import SimTable

OURS, OTHERS = BookieId("ours"), (BookieId("b"), BookieId("c"), BookieId("d"))
NEXT = LedgerId(100)


# -- who is at risk --------------------------------------------------------------------------------


def metadata_of(ledger: int, *ensembles: tuple[str, ...]) -> LedgerMetadata:
    return LedgerMetadata(
        ledger=LedgerId(ledger),
        ensemble_size=len(ensembles[0]),
        write_quorum=2,
        ack_quorum=2,
        fragments=tuple(
            Fragment(EntryId(at * 10), tuple(map(BookieId, ensemble)))
            for at, ensemble in enumerate(ensembles)
        ),
    )


async def store_with(*ledgers: LedgerMetadata) -> SimMetadata:
    store = SimMetadata()
    await layout.init_layout(store, lambda: "cluster-1")
    for metadata in ledgers:
        path = metadata_format.ledger_path(metadata.ledger)
        await store.create(path, metadata_format.encode(metadata), parents=True)
    return store


async def test_ledgers_open_or_closed_that_name_the_bookie_anywhere_are_at_risk():
    lists_us = metadata_of(1, ("ours", "b"))
    store = await store_with(
        lists_us,
        replace(lists_us, ledger=LedgerId(2)).in_recovery(),
        replace(lists_us, ledger=LedgerId(3)).close(EntryId(5), 50),
        metadata_of(4, ("b", "c")),
        metadata_of(5, ("b", "ours"), ("b", "c")),
        metadata_of(2**31 + 7, ("c", "ours")),
    )
    assert await list_ledgers(store) == [1, 2, 3, 4, 5, 2**31 + 7]
    assert await ledgers_at_risk(store, OURS) == [1, 2, 3, 5, 2**31 + 7]


async def test_a_ledger_whose_metadata_cannot_be_read_is_at_risk():
    store = await store_with(metadata_of(1, ("b", "c")))
    await store.set(metadata_format.ledger_path(LedgerId(1)), b"rotten", 0)
    assert await ledgers_at_risk(store, OURS) == [1]


class Lagging(SimMetadata):
    """A server that is behind the others until it is told to catch up."""

    behind = True

    async def paths(self, path):
        return [] if self.behind else await super().paths(path)

    async def sync(self, path):
        self.behind = False


async def test_a_server_that_lags_is_told_to_catch_up_first():
    store = await store_with(metadata_of(1, ("ours", "b")))
    assert await ledgers_at_risk(Lagging(store.tree), OURS) == [1]


async def test_many_ledgers_are_asked_for_in_turns():
    store = await store_with(*[metadata_of(ledger, ("ours", "b")) for ledger in range(700)])
    assert await ledgers_at_risk(store, OURS) == list(range(700))


# -- what the bookie makes of it -------------------------------------------------------------------


async def lose(rig) -> None:
    """Ledgers 1 and 2 have an entry each; 1 and 3 are at risk."""
    for ledger in (1, 2):
        assert await rig.add(ledger, 0, b"x" * 50) is Status.OK
    await rig.bookie.enter_limbo([LedgerId(1), LedgerId(3)], fenced_below=NEXT)


async def lose_index(rig) -> None:
    rig.table, rig.disk = SimTable(Random(3)), rig.disk.restart()
    await rig.start()


async def is_fenced_and_unsure(rig) -> None:
    bookie = rig.bookie
    for ledger in (1, 3):
        assert (await bookie.read(ledger, 7)).status is Status.UNKNOWN_LEDGER_STATE
        assert (await bookie.read_lac(ledger)).status is Status.UNKNOWN_LEDGER_STATE
        assert (await bookie.read(ledger, -1)).status is Status.UNKNOWN_LEDGER_STATE
    assert (await bookie.read(1, 0)).body == entry_bytes(1, 0, b"x" * 50)
    assert (await bookie.read(2, 7)).status is Status.NO_ENTRY
    assert (await bookie.read(4, 7)).status is Status.NO_LEDGER
    for ledger in (1, 2, 3, 4, NEXT - 1):
        assert await rig.add(ledger, 5) is Status.FENCED


@pytest.mark.parametrize("how", ["as it is", "restart", "kill", "index lost"])
async def test_what_is_at_risk_is_never_denied_and_nothing_older_takes_adds(how):
    async with started_bookie() as (rig, _bookie):
        await lose(rig)
        if how == "restart":
            await rig.restart()
        elif how == "kill":
            await rig.kill()
        elif how == "index lost":
            await lose_index(rig)
        await is_fenced_and_unsure(rig)


async def test_ledgers_made_later_are_taken_and_answered_plainly():
    async with started_bookie() as (rig, bookie):
        await lose(rig)
        assert await rig.add(NEXT, 0) is Status.OK
        assert (await bookie.read(NEXT, 1)).status is Status.NO_ENTRY


async def test_recovery_passes_and_the_end_of_limbo_leaves_the_fence():
    async with started_bookie() as (rig, bookie):
        await lose(rig)
        assert await rig.add(3, 0, recovery=True) is Status.OK
        assert await bookie.end_limbo(LedgerId(3), KEY) is Status.OK
        for again in (rig.restart, rig.kill):
            await again()
            assert (await rig.bookie.read(3, 1)).status is Status.NO_ENTRY
            assert await rig.add(3, 1) is Status.FENCED
            assert (await rig.bookie.read(1, 7)).status is Status.UNKNOWN_LEDGER_STATE


async def test_the_fence_stays_when_limbo_has_ended_and_its_file_is_rewritten():
    async with started_bookie() as (rig, bookie):
        assert await rig.add(1, 0) is Status.OK
        await bookie.enter_limbo([LedgerId(1)], fenced_below=LedgerId(0))
        await bookie.end_limbo(LedgerId(1), KEY)
        for entry in range(60):
            await rig.add(2, entry, bytes(4000))

        async def list_ledgers():
            return [1]

        done = await collect(bookie, list_ledgers, compaction_threshold=0.9)
        assert done.files_rewritten
        await lose_index(rig)
        assert await rig.add(1, 1) is Status.FENCED


async def test_a_second_loss_puts_what_was_repaired_back_into_limbo():
    async with started_bookie() as (rig, bookie):
        await lose(rig)
        await bookie.end_limbo(LedgerId(1), KEY)
        await bookie.enter_limbo([LedgerId(1)], fenced_below=LedgerId(200))
        assert (await bookie.read(1, 7)).status is Status.UNKNOWN_LEDGER_STATE
        assert await rig.add(150, 0) is Status.FENCED


async def test_compaction_does_not_bring_back_a_limbo_whose_end_is_queued():
    async with started_bookie() as (rig, bookie):
        await lose(rig)
        await bookie.storage.journal.roll()
        await bookie.storage.checkpoint()
        compacting = LogCleaner(bookie.storage).compact_file(1)
        ended, _ = await asyncio.gather(bookie.end_limbo(LedgerId(1), KEY), compacting)
        assert ended is Status.OK
        for again in (rig.restart, lambda: lose_index(rig)):
            assert (await rig.bookie.read(1, 7)).status is Status.NO_ENTRY
            await again()
        assert (await rig.bookie.read(1, 7)).status is Status.NO_ENTRY


@pytest.mark.parametrize("index_lost", [False, True])
async def test_fences_and_limbo_outlive_the_file_that_first_said_so(index_lost):
    async with started_bookie() as (rig, bookie):
        await lose(rig)
        for entry in range(60):
            await rig.add(NEXT, entry, bytes(4000))
        living = [1, 2, 3, NEXT]

        async def list_ledgers():
            return living

        living.remove(NEXT)
        cleaner = LogCleaner(bookie.storage)
        await cleaner.index_complete_files()
        first = min(file.file_id for file in cleaner.files())
        await collect(bookie, list_ledgers, compaction_threshold=0.9)
        assert first not in [file.file_id for file in cleaner.files()]
        await is_fenced_and_unsure(rig)
        if index_lost:
            await lose_index(rig)
            assert rig.bookie.replayed.incomplete  # whoever started it knows that it cannot be sure
        else:
            await rig.kill()
        await is_fenced_and_unsure(rig)


async def test_a_fence_born_of_a_loss_outlives_the_ledgers_eviction():
    async with started_bookie(replace(SMALL, ledgers_in_memory_max=2)) as (rig, bookie):
        await rig.add(1, 0)
        await bookie.enter_limbo([], fenced_below=NEXT)
        for ledger in range(NEXT, NEXT + 10):
            await rig.add(ledger, 0)
        assert await rig.add(1, 1) is Status.FENCED
        assert await rig.add(2, 0) is Status.FENCED


async def test_deleted_ledgers_stay_deleted():
    async with started_bookie() as (rig, bookie):
        await rig.add(1, 0)
        await bookie.delete_ledgers([LedgerId(1)])
        await bookie.enter_limbo([LedgerId(1)], fenced_below=NEXT)
        assert (await bookie.read(1, 0)).status is Status.NO_LEDGER


# -- the order of a start --------------------------------------------------------------------------


class Session(SimMetadata):
    """A session of one process, whose server fails when a bookie announces its limbo."""

    fails = False

    async def set(self, path, data, version):
        if self.fails and path.startswith(LIMBO):
            raise MetadataUnavailable("no server answers")
        return await super().set(path, data, version)


@asynccontextmanager
async def started_node(data, tree, *, fails=False):
    async def connect(new):
        session = Session(tree)
        session.fails = fails
        return session

    config = NodeConfig(data=data, port=0, disk_free_min=0, disk_used_max=100)
    node = StorageNode(config, connect, logger)
    try:
        await node.start()
        yield node.bookie
    finally:
        await node.stop()


@pytest.mark.real_loop
async def test_a_node_whose_start_failed_behind_a_lost_index_knows_it_at_the_next_start(tmp_path):
    tree, data = SimMetadata().tree, tmp_path / "bookie"
    for entry in range(2):  # each in a log file
        async with started_node(data, tree) as bookie:
            assert await add(bookie, 1, entry) is Status.OK
    while await next_ledger_id(SimMetadata(tree)) < NEXT:
        pass
    shutil.rmtree(data / "index")
    (data / file_name(1)).unlink()
    with pytest.raises(MetadataUnavailable):
        async with started_node(data, tree, fails=True):
            raise AssertionError("it started")
    async with started_node(data, tree) as bookie:
        assert (await bookie.read(1, 9)).status is Status.UNKNOWN_LEDGER_STATE
        assert await add(bookie, 2, 0) is Status.FENCED
