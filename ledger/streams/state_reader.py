"""The owner's state of a stream as a reader finds it: the newest snapshot and the records after it.

    advance      the state moves to the end that the reader knows: about `snapshot_bytes` are read
    state_behind the state at the end of an older segment, from the head of the next one

A reader writes nothing and fences nothing. Only durable records count, so the owner has had the
same state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ledger.client.client import LedgerClient
from ledger.client.reader import LedgerReader
from ledger.core.accepted_losses import StreamLosses
from ledger.core.segment_table import SegmentTable
from ledger.core.segments import Segment
from ledger.errors import StreamUnavailable
from ledger.ids import LedgerId
from ledger.streams.followed_state import (
    SnapshotPlace,
    StateWithin,
    read_newer_state,
    read_state_within,
)
from ledger.streams.reads import SegmentReads
from ledger.streams.recovery import OwnerState
from ledger.streams.tail_cache import StoredRecord

_READ_BYTES = 1024 * 1024
_NOWHERE = -1


class StateReader:
    """Keeps the state of one stream as of the last `advance`. Used by one task at a time."""

    def __init__(
        self,
        client: LedgerClient,
        table: SegmentTable,
        reads: SegmentReads,
        refresh: Callable[[], Awaitable[None]],
        state: OwnerState,
    ) -> None:
        """`refresh` updates the table after a segment was removed."""
        self._client = client
        self._table = table
        self._reads = reads
        self._refresh = refresh
        self._state = state
        # The state is that after all records below it, -1 before the first `advance`. Never falls.
        self.position = _NOWHERE
        # The start of the segment whose snapshot was loaded last. Records from there on are in the
        # state, or follow it.
        self.covered_from = 0
        # Where that snapshot is. None before the first one.
        self._loaded: SnapshotPlace | None = None
        # The ledger that was read last. It stays open.
        self._reader: tuple[LedgerId, LedgerReader] | None = None

    async def advance(self) -> int:
        """Move the state to the end of the table, and return that end.

        After an error the state is unusable until the next call, which begins again. Raises
        EntryLost at a loss that no operator accepted, and StreamUnavailable if no snapshot precedes
        the records.
        """
        end = self._table.end_sequence_id
        if self.position == end:
            return end
        at, self.position = self.position, _NOWHERE
        at = await self._load_newest(at)
        while at < end:
            at = await self._replay_some(at, end)
        self.position = at
        return at

    @property
    def rewrites(self) -> int:
        """Counts the cleaned segments. See `ListedStream.rewrites`."""
        return self._table.rewrites

    def cleaned_at(self, sequence_id: int) -> bool:
        """Return whether the segment that holds `sequence_id` was cleaned."""
        return self._table.cleaned_at(sequence_id)

    async def aborted_in(self, sequence_id: int) -> tuple[int, int, bytes] | None:
        """Return the list of a cleaned segment. See `SegmentReads.aborted_in`."""
        return await self._reads.aborted_in(sequence_id)

    async def state_behind(self, sequence_id: int) -> tuple[int, int, bytes] | None:
        """Return the owner's state behind a segment. See `SegmentReads.state_behind`."""
        return await self._reads.state_behind(sequence_id)

    @property
    def accepted_losses(self) -> StreamLosses:
        """The losses of the stream that an operator accepted."""
        return self._table.losses

    async def state_within(self, sequence_id: int) -> StateWithin | None:
        """Read the newest state up to the end of a segment. See `read_state_within`."""
        return await read_state_within(self._client, self._table, sequence_id)

    async def read_any(self, sequence_id: int, bytes_max: int) -> list[StoredRecord]:
        """Read records, also below the start of the stream while they still exist."""
        return await self._reads.read(sequence_id, bytes_max, self._refresh)

    async def _load_newest(self, at: int) -> int:
        """Load the newest snapshot if it is past `at`. Returns where the replay begins."""
        known = None if at == _NOWHERE else self._loaded
        found = await read_newer_state(self._open, self._table, known)
        if found is None or at > found.sequence_id:
            return at
        await self._load(found.data)
        self.covered_from, self._loaded = found.segment_start, found.place
        return found.sequence_id

    async def _load(self, data: bytes) -> None:
        for _ in self._state.load(data):
            await asyncio.sleep(0)

    async def _replay_some(self, at: int, end: int) -> int:
        """Replay some records from `at` on. Returns the sequence id behind the last one."""
        records = await self._reads.read(at, _READ_BYTES, self._refresh)
        if not records:
            raise StreamUnavailable(f"record {at} of {end} cannot be read now")
        for record in records:
            if record.sequence_id >= end:
                break
            if record.lost is None:
                self._state.replay(record.sequence_id, memoryview(b"".join(record.data)))
            else:
                self._state.pass_loss(record.sequence_id, record.end_sequence_id - 1)
            at = record.end_sequence_id
        await asyncio.sleep(0)
        return at

    async def _open(self, segment: Segment) -> LedgerReader:
        if self._reader is None or self._reader[0] != segment.ledger:
            self._reader = segment.ledger, await self._client.open(segment.ledger, read_lac=False)
        return self._reader[1]
