"""Shared by the owner and the followers of a stream: its segment table and the reads of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile

from ledger.core.accepted_losses import StreamLosses
from ledger.core.epoch_table import EpochEnd, EpochStart, EpochTable
from ledger.core.segment_table import SegmentTable
from ledger.core.segments import Segment
from ledger.core.sparse_index import ANY_TIMESTAMP
from ledger.streams.followed_state import StateWithin, read_state_within
from ledger.streams.reads import SegmentReads
from ledger.streams.services import StreamServices
from ledger.streams.tail_cache import StoredRecord, StreamTail

__all__ = ["EpochEnd", "EpochTable", "ListedStream", "Segment"]


class ListedStream:
    """A stream whose segments are in a table, which the subclass keeps up to date."""

    def __init__(
        self, name: str, services: StreamServices, timestamp_max: Callable[[memoryview], int]
    ) -> None:
        self.name = name
        self.services = services
        # The segments, the start and the end that readers may see.
        self._table = SegmentTable()
        # The newest durable records.
        self._tail = StreamTail(services.cache)
        self._reads = SegmentReads(
            services.client, self._table, services.limits, services.cursors, timestamp_max
        )

    @property
    def epoch(self) -> int:
        """The epoch of the owner from `open` on: its first segment number, less the base.

        For a follower, the newest known epoch, -1 if none is known.
        """
        return self._table.epoch

    @property
    def start_sequence_id(self) -> int:
        return self._table.start_sequence_id

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self._table.segments

    @property
    def rewrites(self) -> int:
        """Counts the segments whose records were replaced by cleaned ones.

        Records and facts about them belong together only if they were read under one count.
        """
        return self._table.rewrites

    @property
    def summary_changes(self) -> int:
        """Counts the corrections of sizes and timestamps of segments that stay as they are."""
        return self._table.summary_changes

    def starts_above(self, sequence_id: int) -> list[int]:
        """Return the starts of segments above `sequence_id`, the greatest first."""
        starts = (each.start_sequence_id for each in reversed(self.segments))
        return list(takewhile(lambda start: start > sequence_id, starts))

    @property
    def accepted_losses(self) -> StreamLosses:
        """The losses of this stream that an operator accepted."""
        return self._table.losses

    @property
    def size_bytes(self) -> int:
        return self._table.size_bytes

    def segment_bytes(self, segment: Segment) -> int:
        """Return the bytes in the ledger of a listed segment, or 0 if they are unknown."""
        return self._table.size_of(segment)

    def segment_timestamp_max(self, segment: Segment) -> int:
        """Return an upper bound of the timestamps in a completed segment.

        It is the time of its completion if no record has a timestamp, or if the bound is unknown.
        """
        bound = self._table.timestamp_max_of(segment)
        return bound if 0 <= bound < ANY_TIMESTAMP else segment.completion_ms

    def timestamp_near(self, sequence_id: int) -> int | None:
        """Return the greatest timestamp of the records around this one, or None if unknown.

        Nothing is read. They are those of its own batch if that is in memory, otherwise of about
        `StreamLimits.index_stride_bytes`, or of a segment whose index is not in memory.
        """
        cached = self._tail.timestamp_at(sequence_id)
        if cached is not None and cached >= 0:
            return cached
        segment = self._table.find(sequence_id)
        if segment is None:
            return None
        index, bound = self._table.index(segment.number), None
        if index is not None:
            bound = index.timestamp_max_between(sequence_id, sequence_id + 1)
        if bound is None:
            bound = self._table.timestamp_max_of(segment)
        return bound if 0 <= bound < ANY_TIMESTAMP else None

    def epoch_at(self, sequence_id: int) -> int:
        """Return the epoch of the ownership that wrote this sequence id, or will write it."""
        return self._table.epoch_at(sequence_id)

    def epochs_between(self, first: int, end: int) -> tuple[EpochStart, ...]:
        """Return the epochs that begin above `first` and below `end`."""
        return self._table.epochs_between(first, end)

    def cleaned_at(self, sequence_id: int) -> bool:
        """Return whether the segment that holds `sequence_id` was cleaned."""
        return self._table.cleaned_at(sequence_id)

    async def read(self, sequence_id: int, bytes_max: int) -> list[StoredRecord]:
        """Read consecutive records, beginning with the one that holds `sequence_id`."""
        raise NotImplementedError

    async def find_timestamp(self, timestamp: int, first: int = 0) -> StoredRecord | None:
        """Find the first record whose greatest timestamp is at least `timestamp`.

        Only records that end past `first` and past the stream's start count. Returns None if no
        record matches.
        """
        return await self._reads.find_timestamp(timestamp, first, self.read)

    async def aborted_in(self, sequence_id: int) -> tuple[int, int, bytes] | None:
        """Return the aborted transactions of a segment. See `SegmentReads.aborted_in`."""
        return await self._reads.aborted_in(sequence_id)

    async def state_behind(self, sequence_id: int) -> tuple[int, int, bytes] | None:
        """Return the owner's state behind a segment. See `SegmentReads.state_behind`."""
        return await self._reads.state_behind(sequence_id)

    async def state_within(self, sequence_id: int) -> StateWithin | None:
        """Read the newest state up to the end of a segment. See `read_state_within`."""
        return await read_state_within(self.services.client, self._table, sequence_id)

    async def read_any(self, sequence_id: int, bytes_max: int) -> list[StoredRecord]:
        """Read from disk as `read` does, also below the start while the records still exist.

        Raises Truncated or NoSuchLedger if they were removed.
        """
        return await self._reads.read(sequence_id, bytes_max)
