"""Reclaim disk space: delete ledgers that metadata no longer lists, then unused log files."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple

from ledger.bookie.bookie import Bookie
from ledger.bookie.gc.log_cleaner import LogCleaner
from ledger.errors import CorruptFormat
from ledger.ids import LedgerId

ListLedgers = Callable[[], Awaitable[Iterable[LedgerId]]]
"""Lists every ledger in metadata, linearizably. Raises if metadata is unavailable."""

LedgerExists = Callable[[LedgerId], Awaitable[bool]]
"""True if metadata has this ledger now. Raises if metadata is unavailable."""

_DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class GcResult(NamedTuple):
    """The result of one garbage collection."""

    ledgers: int
    files_dropped: int
    files_rewritten: int
    files_damaged: int = 0  # files kept because their contents are uncertain


async def collect(
    bookie: Bookie,
    list_ledgers: ListLedgers,
    *,
    ledger_exists: LedgerExists | None = None,
    compaction_threshold: float = 0.0,
    compaction_bytes_max: int = 64 * 1024 * 1024,
) -> GcResult:
    """Delete ledgers that two listings lack, then delete or compact log files.

    Only ledgers that the bookie had before the first listing are deleted. Metadata is written
    before the first entry, so a new ledger is never mistaken for a deleted one. `ledger_exists`
    confirms each candidate, in case a listing was incomplete. The current log file is closed if it
    is mostly dead. Only files that the durable index covers wholly are chosen. Files with a live
    share below `compaction_threshold` are compacted, at most `compaction_bytes_max` per call and
    never into the reserved disk space. Damaged files are kept. Raises OSError, LogFileInUse, and
    the errors of the listing before anything is deleted. Source: seed 001, garbage collection;
    BookKeeper GarbageCollectorThread, which leaves out the log files of the unflushed part.
    """
    storage = bookie.storage
    async with storage.gc_lock:
        deleted = await find_deleted_ledgers(bookie, list_ledgers, ledger_exists)
        if deleted:
            await bookie.delete_ledgers(deleted)
        cleaner = LogCleaner(storage)
        await cleaner.roll_if_mostly_dead()
        await cleaner.index_complete_files()
        dropped, damaged = await _delete_unused_files(cleaner)
        compacted, unreadable = await _compact_files(
            bookie, cleaner, compaction_threshold, compaction_bytes_max
        )
        if compacted:
            dropped += (await _delete_unused_files(cleaner))[0]
        return GcResult(len(deleted), dropped, compacted, damaged + unreadable)


async def find_deleted_ledgers(
    bookie: Bookie, list_ledgers: ListLedgers, ledger_exists: LedgerExists | None
) -> list[LedgerId]:
    """Return the bookie's ledgers that two listings lack and that `ledger_exists` denies."""
    missing = bookie.ledgers()
    for _ in range(2):
        if missing:
            live = set(await list_ledgers())
            missing = [ledger for ledger in missing if ledger not in live]
    if ledger_exists is None:
        return missing
    return [ledger for ledger in missing if not await ledger_exists(ledger)]


async def _delete_unused_files(cleaner: LogCleaner) -> tuple[int, int]:
    """Delete files without live bytes. Returns the numbers of deleted and of damaged files."""
    unused = [file.file_id for file in cleaner.files() if file.bytes_used == 0]
    intact = [file_id for file_id in unused if await cleaner.is_intact(file_id)]
    if intact:
        await cleaner.delete_files(intact)
    return len(intact), len(unused) - len(intact)


async def _compact_files(
    bookie: Bookie, cleaner: LogCleaner, threshold: float, bytes_max: int
) -> tuple[int, int]:
    """Compact mostly dead files. Returns the numbers of compacted and of unreadable files."""
    compacted = unreadable = 0
    for file in cleaner.files():
        room = min(bytes_max, cleaner.spare_bytes)
        if not 0 < file.bytes_used < threshold * cleaner.file_bytes or file.bytes_used > room:
            continue
        if not await _compact_file(bookie, cleaner, file.file_id):
            unreadable += 1
            continue
        bytes_max -= file.bytes_used
        compacted += 1
    return compacted, unreadable


async def _compact_file(bookie: Bookie, cleaner: LogCleaner, file_id: int) -> bool:
    """Compact one file. Returns False, and keeps the file, if it cannot be read."""
    try:
        await cleaner.compact_file(file_id)
    except CorruptFormat:
        return False
    except OSError as error:
        if bookie.failure is not None or error.errno in _DISK_FULL:
            raise
        return False
    return True
