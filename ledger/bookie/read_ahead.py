"""Announces to the disk what the readers of ledgers will read next, so that the system reads ahead.

Entries of a ledger lie in the log in their order, between those of others. So a ledger that is read
in order from disk is about to read the bytes behind its last entry. The system's page cache holds
what was read ahead; memory of the bookie does not. Only durable bytes are announced: those behind
them are about to be written past the page cache.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from ledger.bookie.journal import Journal
from ledger.bookie.log_file_cache import LogFileCache
from ledger.core.extents import Extent

_READERS_MAX: Final = 1024
_STEP_BYTES: Final = 1024 * 1024
"""Bytes of one announcement. Linux shortens one beyond the larger of the disk's largest request and
its read-ahead setting. Source: Linux, `force_page_cache_readahead`.
"""
_SPREAD_MAX: Final = 4  # entries of one read lie within so many times the bytes that are read ahead
_SKIPPED_MAX: Final = 4  # a reader asks several bookies, so it skips entries at each
_FILES_MAX: Final = 64
_SHARED_TIMES: Final = 4  # a shared stretch covers at most so many times `bytes_ahead`
_SHARED_S: Final = 5.0  # then the page cache may have lost the bytes of a stretch


class _Place(NamedTuple):
    """The place of the reader of a ledger."""

    next_entry: int
    announced: tuple[int, int]  # file and position up to which reads are announced


class ReadAhead:
    """What is announced for the ledgers that were read last, at most `_READERS_MAX`."""

    def __init__(self, files: LogFileCache, journal: Journal, bytes_ahead: int) -> None:
        self._files = files
        self._journal = journal
        self._bytes_ahead = bytes_ahead
        # Places by ledger, least recently read first.
        self._places: OrderedDict[int, _Place] = OrderedDict()
        # The stretch of each file that was announced last, with the time of its last announcement,
        # least recently announced first.
        self._stretches: OrderedDict[int, tuple[int, int, float]] = OrderedDict()

    def on_read(self, ledger: int, first: int, extents: Sequence[Extent]) -> None:
        """Note a read of entries from `first` on. If it is in order, announce those behind it."""
        if not self._bytes_ahead or not extents:
            return
        count = extents[-1].last + 1 - first
        before = self._places.pop(ledger, None)
        announced = (0, 0)
        if before is not None:
            gap = first - before.next_entry
            if 0 <= gap <= _SKIPPED_MAX * count:
                announced = self._announce(extents, before.announced)
        self._places[ledger] = _Place(first + count, announced)
        if len(self._places) > _READERS_MAX:
            self._places.popitem(last=False)

    def _announce(self, extents: Sequence[Extent], announced: tuple[int, int]) -> tuple[int, int]:
        """Announce these entries and the bytes behind them, unless enough is announced already.

        Entries that lie far apart are not: most of what would be read ahead is of other ledgers.
        """
        file_id, end = extents[-1].file_id, extents[-1].end
        begin = next(at.position for at in extents if at.file_id == file_id)
        if end - begin > _SPREAD_MAX * self._bytes_ahead:
            return announced
        if announced[0] == file_id:
            begin = max(begin, announced[1])
        now_s = asyncio.get_running_loop().time()
        first, behind, at_s = self._stretches.get(file_id, (0, 0, 0.0))
        if now_s - at_s > _SHARED_S or not first - self._bytes_ahead <= begin <= behind:
            first = behind = begin
        if behind - end > self._bytes_ahead // 2 and first <= begin:
            return file_id, behind
        stop = end + self._bytes_ahead
        durable = self._journal.end
        if file_id == durable.file_id:
            stop = min(stop, durable.position)
        if stop <= begin:
            return announced
        stop = max(stop, behind)
        with suppress(OSError):  # a file that was just deleted; the read itself may succeed
            self._expect(file_id, begin, first)
            self._expect(file_id, behind, stop)
        first = max(min(begin, first), stop - _SHARED_TIMES * self._bytes_ahead)
        self._share(file_id, (first, stop, now_s))
        return file_id, stop

    def _expect(self, file_id: int, begin: int, end: int) -> None:
        for at in range(begin, end, _STEP_BYTES):
            self._files.expect_reads(file_id, at, min(_STEP_BYTES, end - at))

    def _share(self, file_id: int, stretch: tuple[int, int, float]) -> None:
        """Record the stretch, so that readers of other ledgers in this file go on behind it."""
        self._stretches[file_id] = stretch
        self._stretches.move_to_end(file_id)
        if len(self._stretches) > _FILES_MAX:
            self._stretches.popitem(last=False)
