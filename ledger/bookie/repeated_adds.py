"""Adds of entries that a bookie has: retries, other payloads, and repairs of corrupt copies."""

from __future__ import annotations

import errno

from ledger.bookie.ledger_descriptor import EntryLocation, LedgerDescriptor, QueuedRecord
from ledger.bookie.storage import BookieStorage
from ledger.core.fencing import has_valid_digest, same_entry
from ledger.core.journal_format import RecordType
from ledger.errors import CorruptFormat
from ledger.ports.bookies import OnAdded, Status


class RepeatedAdds:
    """Compares repeated adds with what one bookie has stored."""

    def __init__(self, storage: BookieStorage) -> None:
        self._storage = storage
        self._index = storage.index
        self._files = storage.files
        self._journal = storage.journal
        # Adds refused because a different payload is stored for the entry, which indicates a client
        # bug. Only rises.
        self.conflicts = 0

    async def compare(
        self,
        state: LedgerDescriptor,
        entry: int,
        body: bytes,
        stored_at: EntryLocation | QueuedRecord,
        on_added: OnAdded,
        recovery: bool,
    ) -> None:
        """Accept a repeated add if the stored entry is equal; otherwise refuse the add.

        A recovery add may replace a stored entry that is corrupt.
        """
        stored = b""
        try:
            if isinstance(stored_at, QueuedRecord):
                stored = b"".join(stored_at.body)
                await self._journal.settled()
                if not isinstance(self._index.find(state, entry), EntryLocation):
                    raise OSError(errno.EIO, "the first add failed")
            else:
                stored = await self._files.read_entry(state.ledger, entry, stored_at)
        except CorruptFormat:
            pass  # the location holds another entry, or only part of one
        except OSError:
            on_added(Status.IO_ERROR)
            return
        stored_is_corrupt = has_valid_digest(body) and not has_valid_digest(stored)
        if same_entry(stored, body):
            on_added(Status.OK)
        elif not stored_is_corrupt and stored:
            self.conflicts += 1
            on_added(Status.BAD_REQUEST)
        elif stored_is_corrupt and recovery:
            self._replace(state.ledger, entry, body, stored_at, on_added)
        else:
            on_added(Status.IO_ERROR)

    def _replace(
        self,
        ledger: int,
        entry: int,
        body: bytes,
        corrupt: EntryLocation | QueuedRecord,
        on_added: OnAdded,
    ) -> None:
        """Log the entry again, so that the index points to the new copy."""
        state = self._index.state(ledger)  # the ledger's state may have changed since the add
        changed = state is None or state.deleted or self._index.find(state, entry) != corrupt
        if state is None or changed or self._storage.failure is not None:
            on_added(Status.IO_ERROR)
            return

        repairs = self._storage.repairs

        def on_put(status: Status) -> None:
            state.busy -= 1
            if repairs.get((ledger, entry)) is record:
                del repairs[ledger, entry]
            on_added(status)

        state.busy += 1  # keeps `state` in memory while the record is in the journal
        record = QueuedRecord(RecordType.ADD, state, entry, -1, (body,), len(body), on_put)
        repairs[ledger, entry] = record
        self._journal.append(record)
