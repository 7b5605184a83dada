"""Compaction of a mostly dead log file: copy its live entries into the current log file."""

from __future__ import annotations

import asyncio
import errno
from typing import Final

from ledger.bookie.ledger_descriptor import EntryLocation, QueuedRecord
from ledger.bookie.storage import BookieStorage
from ledger.core.extents import extents_of
from ledger.core.journal_format import RecordType
from ledger.ids import Buffer
from ledger.ports.bookies import Status

_BATCH_BYTES: Final = 4 * 1024 * 1024  # bytes copied between two waits for the journal
_ROWS: Final = 320  # index rows per turn of the loop; the same as `_GROUP_ENTRIES`
_GROUP_ENTRIES: Final = 320  # entries appended in one turn, which share a group and its padding
_GROUP_BYTES: Final = 1024 * 1024
_NOWHERE: Final = EntryLocation(0, 0, 0)  # stands beside a ledger's state


class LogCompactor:
    """The move of one file's live entries and of their ledgers' state. Used once.

    Copies the entries that the index lists. At an unreadable entry the compaction stops, and the
    file is still needed. A copy is appended only while the index names the location that was read:
    a repair may have put a sound copy elsewhere meanwhile.
    """

    def __init__(self, file_id: int, storage: BookieStorage) -> None:
        self._file_id = file_id
        self._storage = storage
        self._index = storage.index
        self._journal = storage.journal
        # Status of the last entry whose append failed. None while all appends have succeeded.
        self._failed: Status | None = None
        # Results of the ledgers' state records. Emptied by `_wait_durable`, which checks them.
        self._states_logged: list[asyncio.Future[Status]] = []
        # Bytes appended since the last wait for the journal; bounds the journal's queue.
        self._appended_bytes = 0
        # Entries read and not yet appended: (ledger, entry, location, body). Entry -1 stands for
        # the ledger's state, which precedes the ledger's entries. Emptied by `_append_read`.
        self._read: list[tuple[int, int, EntryLocation, Buffer]] = []
        # Sum of the bodies in `_read`.
        self._read_bytes = 0
        # True if an entry was left out because its repair is queued. If the repair fails, the entry
        # is copied by another pass.
        self._left_out = False

    async def run(self) -> None:
        """Append all live data of the file to the log again, and wait until it is durable.

        Raises OSError if a write fails, CorruptFormat if the file cannot be read.
        """
        await self._pass()
        while self._left_out:
            self._left_out = False
            await self._pass()

    async def _pass(self) -> None:
        """Append what the index lists in the file now, and wait until it is durable."""
        self._index.write_batch(self._journal.end)
        try:
            for ledger in self._index.ledgers_in(self._file_id):
                self._read.append((ledger, -1, _NOWHERE, b""))
                await self._read_entries(ledger)
                if len(self._read) >= _GROUP_ENTRIES:
                    self._append_read()
        finally:
            self._append_read()
        await self._wait_durable()

    def _append_state(self, ledger: int) -> None:
        """Log the ledger's state again: the key, then the fence, then all other state."""
        state = self._index.state(ledger)
        if state is None or state.deleted:
            return
        append = self._storage.append
        logged = self._states_logged
        if state.master_key is not None:
            logged.append(append(RecordType.LEDGER_KEY, state, -1, state.master_key))
        if state.fenced:
            logged.append(append(RecordType.FENCE, state, -1))
        if state.lac >= 0:
            logged.append(append(RecordType.EXPLICIT_LAC, state, state.lac))
        if state.limbo or state.limbo_ended:
            limbo = state.limbo and not state.limbo_ends_queued
            logged.append(append(RecordType.LIMBO, state, int(limbo)))

    async def _read_entries(self, ledger: int) -> None:
        first = 0
        while rows := self._index.rows(ledger, first, _ROWS):
            for run in _consecutive(rows, self._file_id):
                await self._read_run(ledger, run)
            first = rows[-1][0] + 1
            await asyncio.sleep(0)

    async def _read_run(self, ledger: int, run: list[tuple[int, EntryLocation]]) -> None:
        """Read neighbouring entries together and append them together.

        A group begins at a block boundary, so entries appended one by one would each take a block.
        """
        files = self._storage.files
        while run:
            bodies = await files.read_entries(ledger, run[0][0], extents_of(run))
            for (entry, location), body in zip(run, bodies, strict=False):
                self._read.append((ledger, entry, location, body))
                self._read_bytes += len(body)
            run = run[len(bodies) :]
            if len(self._read) >= _GROUP_ENTRIES or self._read_bytes >= _GROUP_BYTES:
                self._append_read()
            if self._appended_bytes >= _BATCH_BYTES:
                await self._wait_durable()

    def _append_read(self) -> None:
        """Append everything in `_read` to the journal, in order."""
        read, self._read, self._read_bytes = self._read, [], 0
        for ledger, entry, location, body in read:
            if entry < 0:
                self._append_state(ledger)
            else:
                self._append_entry(ledger, entry, location, body)

    def _append_entry(self, ledger: int, entry: int, location: EntryLocation, body: Buffer) -> None:
        state = self._index.state(ledger)  # the ledger's state may have changed since the read
        if state is None or state.deleted or self._journal.failed is not None:
            return
        if (ledger, entry) in self._storage.repairs:
            self._left_out = True
            return
        if self._index.find(state, entry) != location:
            return  # repaired meanwhile

        def on_moved(status: Status) -> None:
            state.busy -= 1
            if status not in (Status.OK, Status.NO_LEDGER):  # a deleted ledger needs no copy
                self._failed = status

        state.busy += 1  # keeps the state in memory while the record is in the journal
        record = QueuedRecord(RecordType.ADD, state, entry, -1, (body,), len(body), on_moved)
        self._journal.append(record)
        self._appended_bytes += record.size

    async def _wait_durable(self) -> None:
        """Wait until everything appended is durable. Raises OSError if an append failed."""
        self._appended_bytes = 0
        await self._journal.settled()
        if self._journal.failed is not None:
            raise self._journal.failed
        states, self._states_logged = self._states_logged, []
        if self._failed is not None or any(one.result() is not Status.OK for one in states):
            raise OSError(errno.ENOSPC, "no room to compact a log file")


def _consecutive(
    rows: list[tuple[int, EntryLocation]], file_id: int
) -> list[list[tuple[int, EntryLocation]]]:
    """Group the rows in `file_id` into runs of consecutive entries of at most `_GROUP_BYTES`."""
    runs: list[list[tuple[int, EntryLocation]]] = []
    size = 0
    for entry, location in rows:
        if location.file_id != file_id:
            continue
        if not runs or runs[-1][-1][0] != entry - 1 or size + location.length > _GROUP_BYTES:
            runs.append([])
            size = 0
        runs[-1].append((entry, location))
        size += location.length
    return runs
