"""What is still needed of a mostly dead file moves into the live log, so that it can go."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Final

from ledger.bookie.entries import EntryIndex
from ledger.bookie.files import LogFiles
from ledger.bookie.journal import Journal
from ledger.bookie.state import LedgerState, LogRecord, Place
from ledger.core.journal_format import RecordType
from ledger.ids import Buffer
from ledger.ports.bookies import Status

Append = Callable[[RecordType, LedgerState, int, bytes], asyncio.Future[Status]]
_BATCH_BYTES: Final = 4 * 1024 * 1024  # moved before the log is waited for
_ROWS: Final = 320  # index rows looked at in one turn of the loop; as many as a group takes
_TOGETHER: Final = 320  # entries appended in one turn: they share a group, and its padding
_TOGETHER_BYTES: Final = 1024 * 1024


class Rewriter:
    """Moves one file's living entries and the state of their ledgers. Used once.

    It follows the index: an entry that it cannot read stops it, and the file stays needed.
    """

    def __init__(
        self, file_id: int, index: EntryIndex, files: LogFiles, journal: Journal, append: Append
    ) -> None:
        self._file_id = file_id
        self._index = index
        self._files = files
        self._journal = journal
        self._append = append
        self._failed: Status | None = None
        self._bytes = 0  # appended since the log was waited for
        self._read: list[tuple[int, int, Buffer]] = []  # ledger, entry, body; -1: its state
        self._read_bytes = 0

    async def run(self) -> None:
        """All that is needed of the file stands in the log again, durably.

        Raises OSError when it could not be written, CorruptFormat when it could not be read.
        """
        self._index.write_batch(self._journal.end)
        try:
            for ledger in self._index.users(self._file_id):
                self._read.append((ledger, -1, b""))
                await self._read_entries(ledger)
                if len(self._read) >= _TOGETHER:
                    self._append_read()
        finally:
            self._append_read()
        await self._settle()

    def _move_state(self, ledger: int) -> None:
        """The key before the fence before the rest, as they came."""
        state = self._index.state(ledger)
        if state is None or state.deleted:
            return
        if state.master_key is not None:
            self._append(RecordType.LEDGER_KEY, state, -1, state.master_key)
        if state.fenced:
            self._append(RecordType.FENCE, state, -1, b"")
        if state.lac >= 0:
            self._append(RecordType.EXPLICIT_LAC, state, state.lac, b"")
        if state.limbo or state.limbo_ended:
            self._append(RecordType.LIMBO, state, int(state.limbo), b"")

    async def _read_entries(self, ledger: int) -> None:
        first = 0
        while rows := self._index.rows(ledger, first, _ROWS):
            for run in _runs(rows, self._file_id):
                await self._read_run(ledger, run)
            first = rows[-1][0] + 1
            await asyncio.sleep(0)

    async def _read_run(self, ledger: int, run: list[tuple[int, Place]]) -> None:
        """Neighbours are read at once. What was read is appended at once too: a group begins at
        a block, so entries one by one would take a block each."""
        while run:
            bodies = await self._files.read_entries(ledger, run[0][0], [place for _, place in run])
            for (entry, _), body in zip(run, bodies, strict=False):
                self._read.append((ledger, entry, body))
                self._read_bytes += len(body)
            run = run[len(bodies) :]
            if len(self._read) >= _TOGETHER or self._read_bytes >= _TOGETHER_BYTES:
                self._append_read()
            if self._bytes >= _BATCH_BYTES:
                await self._settle()

    def _append_read(self) -> None:
        """What was read is on its way into the log, a ledger's state before its entries."""
        read, self._read, self._read_bytes = self._read, [], 0
        for ledger, entry, body in read:
            if entry < 0:
                self._move_state(ledger)
            else:
                self._move_entry(ledger, entry, body)

    def _move_entry(self, ledger: int, entry: int, body: Buffer) -> None:
        state = self._index.state(ledger)  # asked again: the bookie went on meanwhile
        if state is None or state.deleted or self._journal.failed is not None:
            return

        def on_moved(status: Status) -> None:
            state.busy -= 1
            if status not in (Status.OK, Status.NO_LEDGER):  # deleted meanwhile: not needed
                self._failed = status

        state.busy += 1  # not forgotten while the record is on its way
        record = LogRecord(RecordType.ADD, state, entry, -1, (body,), len(body), on_moved)
        self._journal.append(record)
        self._bytes += record.size

    async def _settle(self) -> None:
        self._bytes = 0
        await self._journal.settled()
        if self._journal.failed is not None:
            raise self._journal.failed
        if self._failed is not None:
            raise OSError(errno.ENOSPC, "no room to rewrite a log file")


def _runs(rows: list[tuple[int, Place]], file_id: int) -> list[list[tuple[int, Place]]]:
    """Those rows that lie in the file, cut where an id is missing, or much was taken."""
    runs: list[list[tuple[int, Place]]] = []
    size = 0
    for entry, place in rows:
        if place.file_id != file_id:
            continue
        if not runs or runs[-1][-1][0] != entry - 1 or size + place.length > _TOGETHER_BYTES:
            runs.append([])
            size = 0
        runs[-1].append((entry, place))
        size += place.length
    return runs
