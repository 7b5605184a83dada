"""One cleaning of a log: a map of its newest offsets, then each segment rewritten. Pure.

    begin_map ─▶ begin_segment ─▶ map_batches …        the dirty part: up to where the map is full
    begin_filter ─▶ begin_segment ─▶ filter_batches … ─▶ end_segment      the whole log, in order

A record stays unless the map has a newer offset of its key. So a part of the log that is not in the
map removes nothing. If one segment alone has more keys than the map holds, the map takes it in
several rounds. `mark_batches` then notes the records that each round found outdated, because the
segment itself is rewritten only once, behind the last round.

Control batches and aborted records are not in the map. Batches are read one by one, their records
in blocks of thousands. Source: Kafka, Cleaner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from gateway.core import cleaned_batches
from gateway.core.cleaned_batches import horizon_of, with_horizon, with_kept
from gateway.core.cleaning_keys import KeyMap
from gateway.core.cleaning_results import (
    COUNT_MAX,
    NOT_FULL,
    CleanedBatch,
    PoisonedBatch,
    Poisoning,
    SegmentEnd,
    unexpected,
)
from gateway.core.cleaning_transactions import CleanedTransactions
from gateway.core.columns import Bytes, Flags
from gateway.core.partition_transactions import AbortedTransaction
from gateway.core.record_blocks import Block, LiveBatch, blocks, keep
from gateway.wire import batches
from gateway.wire.batches import BatchHeader, BatchRefused
from gateway.wire.record_parts import record_parts
from gateway.wire.record_walk import BadRecord
from ledger.ids import Buffer


class _Segment:
    """The segment that is read, with the findings in it."""

    __slots__ = (
        "aborted",
        "changed",
        "end",
        "kept",
        "leader_epoch",
        "next_offset",
        "read",
        "start",
    )

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end
        # The aborted transactions of which a batch was read in the segment, by first offset.
        self.aborted: dict[int, AbortedTransaction] = {}
        self.next_offset = start  # the first one that no returned batch covers
        self.leader_epoch = -1  # of the batch that was read last
        self.changed = False
        self.read = self.kept = 0


class _Read:
    """A batch that was read, and what stays of it, until its turn comes."""

    __slots__ = ("batch", "header", "kept", "live")

    def __init__(self, batch: memoryview, header: BatchHeader) -> None:
        self.batch, self.header = batch, header
        # Its records, if they are not aborted. None for a marker.
        self.live: LiveBatch | None = None
        # What stays of a batch without `live`.
        self.kept: Buffer | None = None

    @property
    def decided(self) -> bool:
        return self.live is None or self.live.read == self.header.records


class Cleaning:
    """The state of the cleaner process: one log at a time."""

    def __init__(self, seed: int = 0) -> None:
        # A number of the map that no client knows.
        self._seed = seed
        self._keys = KeyMap(0)
        self._from_offset = 0  # records below it are not put into the map
        self._transactions = CleanedTransactions()
        self._segment = _Segment(0, 0)
        self._now_ms = self._retention_ms = 0
        self._found: list[CleanedBatch] = []  # the result of the running `filter_batches`
        # The batches that it has read and not returned.
        self._queue: deque[_Read] = deque()
        # A bit for each offset of one segment: a later record of it has the same key. Only while
        # a segment with more keys than the map holds is cleaned.
        self._outdated: tuple[int, Bytes] | None = None

    # -- pass 1 -------------------------------------------------------------------------------

    def begin_map(self, bytes_max: int, from_offset: int, end: int | None = None) -> None:
        """Begin an empty map, of the records from `from_offset` on, and below `end` if given."""
        records_max = None if end is None else end - from_offset
        self._keys = KeyMap(0)  # the memory of the old map is free before that of the new one
        self._keys = KeyMap(bytes_max, records_max, self._seed)
        self._from_offset = from_offset
        self._transactions = CleanedTransactions()

    def begin_segment(self, start: int, end: int, aborted: Iterable[AbortedTransaction]) -> None:
        """Begin to read a segment, of which `aborted` are the transactions that overlap it."""
        self._segment = _Segment(start, end)
        self._transactions.add(aborted)

    def map_batches(self, data: Buffer) -> int:
        """Put the keys of batches into the map.

        Returns the offset of the first record for which there was no room, or NOT_FULL. Raises
        PoisonedBatch.
        """
        for block in blocks(self._each(data, self._live)):
            with Poisoning(block.first_offset):
                full_at = self._map(block)
            if full_at != NOT_FULL:
                return full_at
        return NOT_FULL

    def _map(self, block: Block) -> int:
        chosen = block.columns.keyed & (block.offsets >= self._from_offset)
        offsets = block.offsets[chosen]
        noted = self._keys.put(block.columns.words[chosen], offsets)
        return int(offsets[noted]) if noted < len(offsets) else NOT_FULL

    def _live(self, batch: memoryview, header: BatchHeader) -> LiveBatch | None:
        """Return a batch with records of clients that were not aborted, or None."""
        if header.attributes & batches.CONTROL:
            self._has_no_records(batch, header)
            return None
        if not header.records:  # an earlier cleaning left it
            return None
        if header.attributes & batches.TRANSACTIONAL:
            last = header.base_offset + header.last_offset_delta
            aborted = self._transactions.aborted_with(header.producer_id, last)
            if aborted is not None:
                self._segment.aborted[aborted.first_offset] = aborted
                return None
        return LiveBatch(header, cleaned_batches.plain_records(batch, header))

    def _has_no_records(self, batch: memoryview, header: BatchHeader) -> bool:
        """Read a marker. Return True if no record of its transaction was read before it."""
        if not header.records:
            return True
        data = bytes(cleaned_batches.plain_records(batch, header))
        marker, *_ = record_parts(data, 0, header.records)
        commit = cleaned_batches.is_commit(marker)
        return self._transactions.end(header.producer_id, header.base_offset, commit=commit)

    # -- a segment with more keys than the map holds ---------------------------------------------

    def begin_marks(self, start: int, end: int) -> None:
        """Begin to mark outdated records of a segment. Earlier marks of the same segment stay."""
        if self._outdated is None or self._outdated[0] != start:
            self._outdated = start, np.zeros((end - start + 7) // 8, np.uint8)

    def mark_batches(self, data: Buffer) -> None:
        """Mark the records that the map shows to be outdated. Raises PoisonedBatch."""
        for block in blocks(self._each(data, _with_records)):
            with Poisoning(block.first_offset):
                self._mark(block)

    def _mark(self, block: Block) -> None:
        assert self._outdated is not None
        start, bits = self._outdated
        outdated = block.columns.keyed & (self._keys.newest(block.columns.words) > block.offsets)
        at = block.offsets[outdated] - start
        outside = (at < 0) | (at >= 8 * len(bits))
        if outside.any():
            owner = int(block.owners[outdated][outside][0])
            offset = block.batches[owner].header.base_offset
            raise PoisonedBatch(offset, "a record of it is outside of its segment")
        np.bitwise_or.at(bits, at >> 3, (1 << (at & 7)).astype(np.uint8))

    def drop_marks(self) -> None:
        """Forget the marks: the segment was rewritten, or is read by another owner."""
        self._outdated = None

    # -- pass 2 -------------------------------------------------------------------------------

    def begin_filter(self, now_ms: int, delete_retention_ms: int) -> None:
        """Begin to rewrite the log, from its beginning."""
        self._now_ms, self._retention_ms = now_ms, delete_retention_ms
        self._transactions = CleanedTransactions()

    def filter_batches(self, data: Buffer) -> list[CleanedBatch]:
        """Return the next batches of the segment that stay. Raises PoisonedBatch."""
        self._found = []
        self._queue.clear()
        try:
            for block in blocks(self._each(data, self._queued)):
                with Poisoning(block.first_offset):
                    keep(block, self._stays(block))
                self._finish()
        except PoisonedBatch:
            self._finish()  # an earlier batch may have another error
            if self._queue:
                self._check_place(self._queue[0].header)
            raise
        self._finish()
        return self._found

    def _queued(self, batch: memoryview, header: BatchHeader) -> LiveBatch | None:
        """Queue a batch. Return its records if they must be decided about."""
        read = _Read(batch, header)
        self._queue.append(read)
        if header.attributes & batches.CONTROL:
            read.kept = self._filter_marker(batch, header)
        else:
            read.live = self._live(batch, header)
        return read.live

    def _stays(self, block: Block) -> Flags:
        """Return which records stay: the newest of each key, without tombstones whose time is over.

        A record without a key never stays, as in Kafka: nothing could ever replace it.
        """
        columns, offsets = block.columns, block.offsets
        stays = columns.keyed & (offsets >= self._keys.newest(columns.words))
        if self._outdated is not None:
            start, bits = self._outdated
            at = offsets - start
            inside = np.flatnonzero((at >= 0) & (at < 8 * len(bits)))
            at = at[inside]
            stays[inside] &= bits[at >> 3] >> (at & 7) & 1 == 0
        if columns.tombstones.any():
            horizons = [horizon_of(batch.header) for batch in block.batches]
            over = [horizon is not None and horizon <= self._now_ms for horizon in horizons]
            stays &= ~(columns.tombstones & np.array(over, np.bool_)[block.owners])
        return stays

    def _finish(self) -> None:
        """Return queued batches of which everything is decided, in order."""
        queue = self._queue
        while queue and queue[0].decided:
            read = queue[0]
            self._check_place(read.header)
            try:
                self._return(read)
            except (BatchRefused, BadRecord) as refused:
                raise PoisonedBatch(read.header.base_offset, str(refused)) from None
            except Exception as error:  # a later attempt would fail too, as in Kafka
                raise unexpected(read.header.base_offset, error) from error
            queue.popleft()

    def _check_place(self, header: BatchHeader) -> None:
        segment = self._segment
        end = header.base_offset + header.last_offset_delta + 1
        if not segment.next_offset <= header.base_offset < end <= segment.end:
            due = f"offsets from {segment.next_offset} to {segment.end} are due"
            raise PoisonedBatch(header.base_offset, f"it ends at {end}, where {due}")

    def _return(self, read: _Read) -> None:
        segment, header, found = self._segment, read.header, self._found
        segment.leader_epoch = header.leader_epoch
        segment.read += header.records
        kept = read.kept if read.live is None else self._rewritten(read.batch, read.live)
        if kept is not read.batch and header.records:
            segment.changed = True
        if kept is None:
            return
        after = batches.read_header(kept)
        segment.kept += after.records
        end = header.base_offset + header.last_offset_delta + 1
        self._cover(header.base_offset, end, found)
        count = end - segment.next_offset
        found.append(CleanedBatch(count, after.max_timestamp, bytes(kept)))
        segment.next_offset = end

    def _rewritten(self, batch: memoryview, live: LiveBatch) -> Buffer | None:
        if not live.count:
            return None
        header = live.header
        if live.tombstones and horizon_of(header) is None:
            return with_horizon(header, live.records(), live.count, self._horizon())
        if live.count == header.records:
            return batch
        return with_kept(header, live.records(), live.count, live.greatest)

    def _filter_marker(self, batch: memoryview, header: BatchHeader) -> Buffer | None:
        if not self._has_no_records(batch, header):
            return batch
        if not header.records:
            return None
        horizon = horizon_of(header)
        if horizon is None:
            data = bytes(cleaned_batches.plain_records(batch, header))
            return with_horizon(header, data, header.records, self._horizon())
        return None if horizon <= self._now_ms else batch

    def _horizon(self) -> int:
        """Return the time from which a tombstone or marker that is met now may go."""
        return min(self._now_ms + self._retention_ms, 2**63 - 1)

    def _cover(self, base_offset: int, end: int, found: list[CleanedBatch]) -> None:
        """Cover missing offsets before a batch, as far as its own record cannot cover them."""
        segment = self._segment
        while end - segment.next_offset > COUNT_MAX:
            self._cover_some(min(base_offset - segment.next_offset, COUNT_MAX), found)

    def _cover_some(self, count: int, found: list[CleanedBatch]) -> None:
        segment = self._segment
        data = cleaned_batches.empty_batch(segment.next_offset, count, segment.leader_epoch)
        found.append(CleanedBatch(count, -1, data))
        segment.next_offset += count

    def end_segment(self) -> SegmentEnd:
        """Return the batches that cover the missing offsets at the end of the segment.

        A gap lies before a batch, never behind one: a reader that asks for the offset behind a
        batch would get that batch again and again. The aborted transactions are for readers that
        still have records of the old ledger.
        """
        segment = self._segment
        found: list[CleanedBatch] = []
        while segment.next_offset < segment.end:
            self._cover_some(min(segment.end - segment.next_offset, COUNT_MAX), found)
        aborted = list(segment.aborted.values())
        return SegmentEnd(found, aborted, segment.changed, segment.read, segment.kept)

    def _each(
        self, data: Buffer, read: Callable[[memoryview, BatchHeader], LiveBatch | None]
    ) -> Iterator[LiveBatch]:
        """Yield what `read` returns of each batch.

        Raises PoisonedBatch, with the offset of the batch that cannot be read.
        """
        at = self._segment.next_offset
        try:
            for batch in cleaned_batches.split(data):
                at = batches.PREFIX.unpack_from(batch)[0]
                live = read(batch, cleaned_batches.checked_header(batch))
                if live is not None:
                    yield live
        except (BatchRefused, BadRecord) as refused:
            raise PoisonedBatch(at, str(refused)) from None
        except Exception as error:  # a later attempt would fail too, as in Kafka
            raise unexpected(at, error) from error


def _with_records(batch: memoryview, header: BatchHeader) -> LiveBatch | None:
    if header.attributes & batches.CONTROL or not header.records:
        return None
    return LiveBatch(header, cleaned_batches.plain_records(batch, header))
