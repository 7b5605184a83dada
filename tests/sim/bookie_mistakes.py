"""Mistakes planted into the real bookie, and the seeds of its simulated disk that find them.

`python -m tests.sim.bookie_mistakes` prints for each mistake how many seeds it took and what was
found. A mistake that ends the work of the journal counts as found, because the process would end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple
from unittest import mock

from ledger.adapters.posix.uring import Submission
from ledger.bookie import entry_index, log_file_cache
from ledger.bookie.entry_index import EntryIndex
from ledger.bookie.entry_reader import EntryReader
from ledger.bookie.gc.log_cleaner import LogCleaner
from ledger.bookie.journal import Journal
from ledger.bookie.ledger_descriptor import QueuedRecord
from ledger.bookie.replay import LogReplay
from ledger.bookie.write_cache import WriteCache
from ledger.core.extents import EntryLocation, Extent, extents_of
from ledger.core.journal_format import GROUP_HEADER_BYTES, align, parse_file_name
from ledger.ports.bookies import ReadReply, Status
from ledger.tasks import ends_by
from tests.sim.bookie_world import BookieWorld
from tests.sim.disk import MISDIRECTED_WRITE, SimDisk
from tests.sim.loop import simulate
from tests.sim.planting import check_shapes
from tests.sim.table import SimTable

BOOTS = 3
IDLE_S = 0.1  # longer than the idle time after which a MARK says that all is durable


# -- worlds ---------------------------------------------------------------------------------------


async def crashes(world: BookieWorld, *, boots: int = BOOTS, sync_fails: bool = True) -> None:
    """Load and accidents of the disk, then a power cut, a kill or a clean stop; several times."""
    await world.start()
    for _ in range(boots):
        await world.work(world.random.randint(5, 60))
        if sync_fails and world.random.random() < 0.2:
            world.disk.fail_next_sync = True
            await world.work(10)
        if world.random.random() < 0.3:
            await world.check_answered()
        world.stop_tasks()
        fate = world.random.random()
        if fate < 0.6:
            world.power_cut()
        elif fate < 0.85:
            world.kill()
        else:
            await world.bookie.stop()
        await world.start()
        assert world.bookie.replayed.corrupt == (), "damage where there was none"
        await world.check()
    await world.bookie.stop()


async def glanced(world: BookieWorld) -> None:
    """As `crashes`, with reads of what is on its way and of what was just deleted."""
    world.glance()
    await crashes(world)


async def submitted(world: BookieWorld) -> None:
    """As `crashes`, on a disk that completes writes as io_uring does."""
    world.use_uring()
    await crashes(world)


async def submitted_misdirected(world: BookieWorld) -> bool:
    """As `misdirected`, on a disk that completes writes as io_uring does."""
    world.use_uring()
    return await misdirected(world)


async def misdirected(world: BookieWorld) -> bool:
    """One write lands at another place. Later groups and a MARK say that it was durable."""
    world.accidents = ()
    await world.start()
    await world.work(40)
    await asyncio.sleep(IDLE_S)
    world.disk.accidents.append(MISDIRECTED_WRITE)
    world.rotten = True
    await world.work(20)
    world.disk.full = False
    await asyncio.sleep(IDLE_S)
    world.add_some()
    await asyncio.sleep(IDLE_S)
    world.stop_tasks()
    world.kill()
    await world.start()
    rotten = bool(world.bookie.replayed.corrupt)
    await world.check(limbo=rotten, corrupt=True)
    return rotten


async def missing(world: BookieWorld) -> bool:
    """A log file from the replay mark on is gone at a start; the index is whole."""
    world.accidents = ()
    await world.start()
    await world.work(60)
    await asyncio.sleep(IDLE_S)
    world.stop_tasks()
    mark = world.bookie.storage.index.flushed.file_id
    world.kill()
    logs = [(parse_file_name(name), name) for name in world.disk.names()]
    lost = [name for number, name in logs if number is not None and number >= mark]
    world.disk.lose(world.random.choice(lost[:-1] or lost))
    await world.start()
    gone = bool(world.bookie.replayed.corrupt)
    await world.check(limbo=gone, corrupt=True)
    return gone


async def collected(world: BookieWorld) -> None:
    """Collections beside load, while only they flush the index, slowly; then a crash."""
    world.accidents = ()
    batch = world.random.choice([1, 4, 512])
    world.config = replace(world.config, index_flush_bytes=1 << 40, index_batch_entries=batch)
    world.table = SimTable(world.random, flush_s_max=0.3)
    await world.start()
    for _ in range(world.random.randint(2, 5)):
        await world.work(20)
        world.collect_soon()
        await world.work(20)
        await asyncio.sleep(world.random.random() * 0.3)
    world.stop_tasks()
    world.random.choice([world.power_cut, world.kill])()
    await world.start()
    assert world.bookie.replayed.corrupt == (), "damage where there was none"
    await world.check()


async def repaired(world: BookieWorld) -> None:
    """Entries rot within their extents and are repaired, beside collections; then a crash."""
    world.accidents = ()
    batch = world.random.choice([1, 4, 512])
    world.config = replace(world.config, write_cache_bytes=0, index_batch_entries=batch)
    await world.start()
    await world.work(40)
    world.disk.full = False
    await asyncio.sleep(IDLE_S)
    for place in world.random.sample(sorted(world.acked), min(8, len(world.acked))):
        if place[0] not in world.delete_asked:
            await world.rot_and_repair(*place)
        if world.random.random() < 0.3:
            world.collect_soon()
    await asyncio.sleep(IDLE_S)
    world.stop_tasks()
    await world.bookie.storage.checkpoint()  # the log behind it is not replayed: it has rot
    world.random.choice([world.power_cut, world.kill])()
    await world.start()
    await world.check()


# -- mistakes -------------------------------------------------------------------------------------

_sync_directory = SimDisk.sync_directory
_flush = EntryIndex.flush


def refused_group_is_acknowledged(self, error):
    self._on_synced(None)


def refused_group_leaves_a_gap(self, error):
    records, self._in_flight = self._in_flight, []
    end = self._position + GROUP_HEADER_BYTES + self._in_flight_bytes
    self._settle_group(records, self.end, error)
    self._position = align(end)
    self._resume()


_synced = Journal._on_synced


def failed_sync_is_ignored(self, error):
    _synced(self, None)


def failed_directory_sync_is_ignored(self):
    try:
        _sync_directory(self)
    except OSError:
        return


def directory_is_never_synced(self):
    return


async def unreadable_is_absent(self, ledger, entry, room=None):
    reply = await _read(self, ledger, entry, room)
    return ReadReply(Status.NO_ENTRY) if reply.status is Status.IO_ERROR else reply


_read = EntryReader.read


async def serves_what_is_queued(self, ledger, entry, room=None):
    """As a cache that takes an entry when it is accepted."""
    state = self._index.state(ledger)
    queued = state and self._index.find(state, entry if entry >= 0 else state.last_entry)
    if isinstance(queued, QueuedRecord):
        return ReadReply(Status.OK, b"".join(queued.body))
    return await _read(self, ledger, entry, room)


async def asks_memory_first(self, ledger, entry, room=None):
    """It believes that nothing of a deleted ledger is cached."""
    cached = self._written.find(ledger, entry, entry, 0)
    if cached:
        return ReadReply(Status.OK, bytes(cached[0]))
    return await _read(self, ledger, entry, room)


async def mark_read_after_the_flush(self):
    await self._table.flush()
    self.entries_since_flush = 0
    self.flushed = max(self.flushed, self._written)


def completes_whatever_the_result(self, expected, result):
    return _complete(self, expected, expected)


def completes_when_cut_short(self, expected, result):
    cut = 0 <= result < expected
    return _complete(self, expected, expected if cut else result)


_complete = Submission.complete


def joins_over_holes(located):
    """As `extents_of`, but the ids between two neighbours in a file are not looked at."""
    found = []
    for extent in extents_of(located):
        before = found[-1] if found else None
        if before is None or before.file_id != extent.file_id or before.end > extent.position:
            found.append(extent)
            continue
        moved = tuple(extent.anchor + offset - before.anchor for offset in extent.offsets)
        places = before.offsets + moved, before.lengths + extent.lengths
        found[-1] = Extent(before.first, before.file_id, before.anchor, *places)
    return found


def old_extents_stay(self, state, entries, puts, deletes):
    state.stored_last, stored = -1, state.stored_last
    _put_entries(self, state, entries, puts, deletes)
    state.stored_last = stored


def what_is_not_indexed_stays(self, ledgers):
    gone = [self.state(ledger) for ledger in ledgers]
    kept = [(state, dict(state.recent)) for state in gone if state is not None]
    _delete(self, ledgers)
    for state, recent in kept:
        state.recent |= {e: it for e, it in recent.items() if isinstance(it, EntryLocation)}


def keeps_what_it_found(self, mark):
    found = dict(self._found)
    _write_batch(self, mark)
    self._found |= found


_write_batch = EntryIndex.write_batch
_put_entries = EntryIndex._put_entries
_delete = EntryIndex.delete


class Mistake(NamedTuple):
    """A mistake, where it is planted, and the world that finds it."""

    name: str
    owner: object
    attributes: dict[str, object]
    world: Callable = crashes
    also: tuple[tuple[object, dict[str, object]], ...] = ()  # other owners with their attributes

    def plant(self):
        planted = contextlib.ExitStack()
        for owner, attributes in ((self.owner, self.attributes), *self.also):
            check_shapes(owner, attributes)
            planted.enter_context(mock.patch.multiple(owner, **attributes))
        return planted


MISTAKES = (
    Mistake(
        "a group that ENOSPC cut short is acknowledged",
        Journal,
        {"_refuse_group": refused_group_is_acknowledged},
    ),
    Mistake(
        "the next group follows the place of a refused one",
        Journal,
        {"_refuse_group": refused_group_leaves_a_gap},
    ),
    Mistake("a failed sync is ignored", Journal, {"_on_synced": failed_sync_is_ignored}),
    Mistake(
        "a completion counts as durable, whatever its result",
        Submission,
        {"complete": completes_whatever_the_result},
        submitted,
    ),
    Mistake(
        "a completion counts as durable, though it was cut short",
        Submission,
        {"complete": completes_when_cut_short},
        submitted,
    ),
    Mistake(
        "a failed sync is ignored, io_uring",
        Journal,
        {"_on_synced": failed_sync_is_ignored},
        submitted,
    ),
    Mistake(
        "EIO on the directory is ignored",
        SimDisk,
        {"sync_directory": failed_directory_sync_is_ignored},
    ),
    Mistake(
        "the directory is never synced", SimDisk, {"sync_directory": directory_is_never_synced}
    ),
    Mistake("what cannot be read is absent", EntryReader, {"read": unreadable_is_absent}),
    Mistake(
        "a file that fills during a flush of the index counts as unused",
        LogCleaner,
        {"_is_indexed": lambda self, file_id: file_id < self._journal.file_id},
        collected,
    ),
    Mistake(
        "the flushed mark is read after the flush",
        EntryIndex,
        {"flush": mark_read_after_the_flush},
        collected,
    ),
    Mistake(
        "bytes at a place are believed to be the entry",
        log_file_cache,
        {"_check": lambda *_: None},
        misdirected,
    ),
    Mistake("an extent covers a hole", entry_index, {"extents_of": joins_over_holes}),
    Mistake("an old extent stays beside a new one", EntryIndex, {"_put_entries": old_extents_stay}),
    Mistake(
        "what is left of an old extent has entries that were moved",
        Extent,
        {"without": lambda self, entries: [self]},
        collected,
    ),
    Mistake(
        "an extent of a deleted ledger is written",
        EntryIndex,
        {"delete": what_is_not_indexed_stays},
        collected,
    ),
    Mistake(
        "an entry is served before it is durable",
        EntryReader,
        {"read": serves_what_is_queued},
        glanced,
    ),
    Mistake(
        "an entry is served from memory after its ledger was deleted",
        EntryReader,
        {"read": asks_memory_first},
        glanced,
        also=((WriteCache, {"drop": lambda self, ledgers: None}),),
    ),
    Mistake(
        "a repaired entry is looked for at its old place",
        EntryIndex,
        {"write_batch": keeps_what_it_found},
        repaired,
    ),
    Mistake(
        "a missing log file is not looked for",
        LogReplay,
        {"_find_missing_files": lambda *_: None},
        missing,
    ),
)


def finds(seed: int, world: Callable) -> str:
    """Return what this seed found wrong, or ""."""
    ended: list[str] = []
    with ends_by(lambda name, error: ended.append(f"the process ends: {name}: {error!r}")):
        try:
            simulate(world(BookieWorld(seed)))
        except Exception as error:  # a planted mistake may raise anything
            return f"{type(error).__name__}: {error}"
    return ended[0] if ended else ""


def hunt(mistake: Mistake, seeds_max: int) -> tuple[int, str]:
    """Return the number of seeds that it took, and what was found; "" if nothing was."""
    with mistake.plant():
        for seed in range(seeds_max):
            if how := finds(seed, mistake.world):
                return seed + 1, how
    return seeds_max, ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds-max", type=int, default=3_000)
    seeds_max = parser.parse_args().seeds_max
    logging.disable(logging.CRITICAL)
    missed = 0
    for mistake in MISTAKES:
        seeds, how = hunt(mistake, seeds_max)
        missed += not how
        print(f"{mistake.name} | {mistake.world.__name__} | {seeds} | {how[:90] or 'NOT FOUND'}")
    raise SystemExit(missed > 0)


if __name__ == "__main__":
    main()
