"""Goal: what metadata no longer name is given back, and nothing else, whatever the store says.

Method: a bookie over the simulated disk, metadata in the simulated tree; the store is made to
lie by leaving out, by failing, by being another one, by being put back.
"""

from __future__ import annotations

import asyncio
import copy
import errno
from contextlib import asynccontextmanager
from random import Random

import pytest

from ledger.bookie.directory import remember_damaged, write_file
from ledger.bookie.gc.log_cleaner import LogCleaner
from ledger.bookie.gc.scheduler import GcScheduler
from ledger.bookie.identity_file import StartCount
from ledger.client import metadata_format
from ledger.core.journal_format import file_name
from ledger.errors import MetadataUnavailable
from ledger.ids import LedgerId
from ledger.node.cluster_ledgers import ClusterLedgers, MetadataMismatch
from ledger.node.identity import load_identity
from ledger.ports.bookies import Status
from ledger.registry import layout
from ledger.registry.cookie import cookie_path
from tests.ledger.bookie_rig import started_bookie
from tests.sim.disk import SimDisk
from tests.sim.metadata import MetadataFaults, MetadataTree, SimMetadata
from tests.sim.surprises import SurprisingDisk
from tests.sim.table import SimTable


class Log:
    """What was said, instead of stderr."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self) -> Log:
        return self

    def warning(self, event: str, **more) -> None:
        self.lines.append(f"{event} {more}")

    info = warning


class World:
    """A bookie with ledgers 1, 2 and 3, all named by metadata, and its collector."""

    def __init__(self, rig, bookie) -> None:
        self.rig, self.bookie, self.log = rig, bookie, Log()
        self.tree = MetadataTree()
        self.store = SimMetadata(self.tree)

    async def start(self) -> None:
        store, name = self.store, self.bookie.bookie_id
        cluster = await layout.init_layout(store, lambda: "cluster-1")
        standing = StartCount(cluster, name, 0, "stopped", 1)
        self.identity = await load_identity(SimDisk(Random(3)), store, standing, b"cookie")
        await self.identity.started()
        self.collector = self.new_collector(store)
        for ledger in (1, 2, 3):
            await store.create(path_of(ledger), b"metadata", parents=True)
            assert await self.rig.add(ledger, 0) is Status.OK

    def new_collector(self, store, interval_s=600.0) -> GcScheduler:
        ledgers = ClusterLedgers(store, self.identity)
        return GcScheduler(
            *(self.bookie, ledgers.list_all, ledgers.exists),
            interval_s=interval_s,
            compaction_threshold=0.0,
            log=self.log,
        )

    async def expect(self, *ledgers: int) -> None:
        assert self.bookie.ledgers() == list(ledgers)
        for ledger in ledgers:
            assert (await self.bookie.read(ledger, 0)).status is Status.OK


def path_of(ledger: int) -> str:
    return metadata_format.ledger_path(LedgerId(ledger))


@asynccontextmanager
async def new_world():
    async with started_bookie() as (rig, bookie):
        world = World(rig, bookie)
        await world.start()
        yield world


async def test_a_deleted_ledger_goes_and_the_others_stay():
    async with new_world() as world:
        assert (await world.collector.collect()).ledgers == 0
        await world.store.delete(path_of(2))
        assert (await world.collector.collect()).ledgers == 1
        await world.expect(1, 3)


async def test_the_last_ledger_goes_too():
    async with new_world() as world:
        for ledger in (1, 2, 3):
            await world.store.delete(path_of(ledger))
        assert (await world.collector.collect()).ledgers == 3
        await world.expect()


class Forgetful(SimMetadata):
    """Its listings leave out what they like."""

    async def paths(self, path):
        return [each for each in await super().paths(path) if "/00/" not in each]


async def test_a_listing_that_leaves_ledgers_out_deletes_nothing():
    async with new_world() as world:
        collector = world.new_collector(Forgetful(world.tree))
        assert (await collector.collect()).ledgers == 0
        await world.expect(1, 2, 3)


class FailsLater(SimMetadata):
    """Answers `left` calls, then no more."""

    left = 0

    async def _call(self, step, *args):
        if self.left == 0:
            raise MetadataUnavailable("gone")
        self.left -= 1
        return await super()._call(step, *args)


async def test_a_store_that_stops_answering_at_any_point_deletes_nothing():
    async with new_world() as world:
        await world.store.delete(path_of(2))
        for left in range(100):
            store = FailsLater(world.tree)
            store.left = left
            try:
                await world.new_collector(store).collect()
                break
            except MetadataUnavailable:
                await world.expect(1, 2, 3)
        assert left > 5
        await world.expect(1, 3)


async def test_metadata_of_another_cluster_delete_nothing():
    async with new_world() as world:
        other = SimMetadata()
        await layout.init_layout(other, lambda: "cluster-2")
        with pytest.raises(MetadataMismatch, match="cluster-2"):
            await world.new_collector(other).collect()
        await world.expect(1, 2, 3)


async def test_metadata_that_were_put_back_to_an_older_state_delete_nothing():
    async with new_world() as world:
        nodes = world.tree.nodes
        older = {path: node for path, node in nodes.items() if path != path_of(3)}
        world.tree.nodes = copy.deepcopy(older)
        world.tree.nodes[cookie_path(world.bookie.bookie_id)].version -= 1
        with pytest.raises(MetadataMismatch, match="starts of this bookie"):
            await world.collector.collect()
        await world.store.delete(cookie_path(world.bookie.bookie_id))
        with pytest.raises(MetadataMismatch, match="starts of this bookie"):
            await world.collector.collect()
        await world.expect(1, 2, 3)


async def test_ledgers_in_limbo_are_kept_until_they_are_deleted():
    async with new_world() as world:
        await world.bookie.enter_limbo([LedgerId(1), LedgerId(9)], fenced_below=LedgerId(50))
        await world.store.create(path_of(9), b"metadata", parents=True)
        assert (await world.collector.collect()).ledgers == 0
        unsure = Status.UNKNOWN_LEDGER_STATE
        assert (await world.bookie.read(9, 0)).status is unsure
        assert (await world.bookie.read(1, 1)).status is unsure
        await world.store.delete(path_of(9))
        assert (await world.collector.collect()).ledgers == 1
        assert (await world.bookie.read(9, 0)).status is Status.NO_LEDGER


async def test_a_ledger_learnt_while_metadata_are_listed_is_kept():
    async with new_world() as world:

        class Slow(SimMetadata):
            async def paths(self, path):
                found = await super().paths(path)
                assert await world.rig.add(77, 0) is Status.OK
                return found

        await world.store.delete(path_of(2))
        assert (await world.new_collector(Slow(world.tree)).collect()).ledgers == 1
        await world.expect(1, 3, 77)


async def test_it_looks_by_itself_now_and_then_and_when_asked():
    async with new_world() as world:
        world.collector.start()
        await world.store.delete(path_of(2))
        await asyncio.sleep(599)
        await world.expect(1, 2, 3)
        await asyncio.sleep(2)
        await world.expect(1, 3)
        await world.store.delete(path_of(1))
        world.collector.request()
        await asyncio.sleep(1)
        await world.expect(3)
        await world.collector.stop()


async def test_what_failed_is_said_and_tried_again():
    async with new_world() as world:
        world.store.faults = MetadataFaults(Random(1), unsent=1.0)
        world.collector.start()
        await asyncio.sleep(601)
        assert "garbage collection failed" in world.log.lines[0]
        world.store.faults = None
        await world.store.delete(path_of(2))
        await asyncio.sleep(600)
        await world.expect(1, 3)
        await world.collector.stop()


# -- damaged files ---------------------------------------------------------------------------------


async def fill(rig, ledger: int, files: int) -> None:
    for entry in range(1, files * 15):
        assert await rig.add(ledger, entry, bytes(4000)) is Status.OK


@pytest.mark.parametrize("threshold", [0.0, 0.9])
async def test_a_file_with_a_broken_header_is_never_believed_to_be_dead(threshold):
    async with new_world() as world:
        await fill(world.rig, 8, 3)
        damaged = file_name(2)
        world.rig.disk.flip_bit(damaged, 3)
        collector = world.new_collector(world.store)
        collector._compaction_threshold = threshold
        done = await collector.collect()
        assert done.ledgers == 1  # 8, which metadata never named
        assert done.files_damaged == 1
        assert done.files_dropped >= 1
        assert damaged in world.rig.disk.names()


async def test_a_file_in_which_rot_was_found_is_kept():
    async with new_world() as world:
        await fill(world.rig, 1, 3)
        world.rig.disk.flip_bit(file_name(2), 12_500)
        world.rig.disk, world.rig.table = world.rig.disk.restart(), SimTable(Random(4))
        bookie = await world.rig.start()
        assert bookie.replayed.corrupt
        world.bookie = bookie
        for ledger in (1, 2, 3):
            await world.store.delete(path_of(ledger))
        done = await world.new_collector(world.store).collect()
        assert done.files_damaged == 1
        assert file_name(2) in world.rig.disk.names()
        assert file_name(3) not in world.rig.disk.names()


async def rot_found(world):
    """A start that finds rot in log file 2; the index goes on behind that file."""
    await fill(world.rig, 1, 3)
    world.rig.disk.flip_bit(file_name(2), 12_500)
    world.rig.disk, world.rig.table = world.rig.disk.restart(), SimTable(Random(4))
    return await world.rig.start()


@pytest.mark.parametrize("again", ["restart", "kill"])
async def test_rot_that_was_found_is_remembered_by_later_starts(again):
    async with new_world() as world:
        assert (await rot_found(world)).replayed.corrupt
        for _ in range(2):
            world.bookie = await getattr(world.rig, again)()
            assert not world.bookie.replayed.corrupt
        for ledger in (1, 2, 3):
            await world.store.delete(path_of(ledger))
        done = await world.new_collector(world.store).collect()
        assert done.files_damaged == 1
        assert file_name(2) in world.rig.disk.names()
        assert file_name(3) not in world.rig.disk.names()


@pytest.mark.parametrize("seed", range(10))
async def test_a_marker_that_a_failed_start_left_unsynced_is_synced_by_the_next_start(seed):
    disk = SurprisingDisk(SimDisk(Random(seed)))
    await write_file(disk, file_name(2), b"the log")
    disk.planted["sync_directory"] = OSError(errno.EIO, "planted")
    with pytest.raises(OSError, match="planted"):
        await remember_damaged(disk, [2])
    assert await remember_damaged(disk, [2]) == {2}
    after_power_cut = disk.adapter.crash()
    assert await remember_damaged(after_power_cut, []) == {2}


async def test_a_damaged_file_that_an_operator_removed_leaves_no_marker():
    async with new_world() as world:
        await rot_found(world)
        before = set(world.rig.disk.names())
        world.rig.disk.unlink(file_name(2))
        bookie = await world.rig.restart()
        assert before - set(world.rig.disk.names()) == {file_name(2), f"damaged-{file_name(2)}"}
        assert bookie.storage.damaged_files == frozenset()


async def test_one_unreadable_file_does_not_keep_the_others_from_being_rewritten():
    async with new_world() as world:
        for ledger in (1, 8) * 3:
            state = world.bookie._index.state(ledger)
            first = state.last_entry + 1 if state else 0
            for at in range(first, first + 14):
                assert await world.rig.add(ledger, at, bytes(4000 if ledger == 8 else 100)) is (
                    Status.OK
                )
        await world.bookie.storage.checkpoint()
        files = LogCleaner(world.bookie.storage).files()
        assert len(files) >= 3
        location = world.bookie._index.find(world.bookie._index.state(1), 1)
        assert location.file_id == files[0].file_id
        world.rig.disk.flip_bit(file_name(location.file_id), location.position + 15)  # its entry id
        collector = world.new_collector(world.store)
        collector._compaction_threshold = 0.9
        done = await collector.collect()
        assert done.files_damaged == 1
        assert done.files_rewritten >= 1
        assert (await world.bookie.read(1, 2)).status is Status.OK
        assert (await world.bookie.read(1, 1)).status is Status.IO_ERROR
