"""The segments of one stream, what is known of each, and every lookup on them. Pure.

An owner, a follower and a scan have one table each; its reads and its retention share it.

    owner               reset ─▶ begin ─▶ complete ─▶ … mark, remove_oldest
    follower, scan      learn ─▶ relist, whenever the stored list is read again

Only the methods below change it. `segments` is a tuple that each change replaces, so an iteration
that waits in between sees one list to its end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from ledger.core.segments import Segment, Truncation
from ledger.core.snapshot_format import Snapshot, Summary
from ledger.core.sparse_index import ANY_TIMESTAMP, NO_TIMESTAMP, SparseIndex
from ledger.errors import Truncated
from ledger.ids import EntryId

_INDEXES_MAX = 16


class LiveSegment(Protocol):
    """The segment that is being written or followed, and how far readers may go in it."""

    @property
    def number(self) -> int: ...

    @property
    def last_entry(self) -> EntryId:
        """The last durable entry, -1 before the first one."""
        ...

    @property
    def end_sequence_id(self) -> int:
        """One past the last durable record."""
        ...

    @property
    def index(self) -> SparseIndex: ...

    @property
    def timestamp_max(self) -> int:
        """An upper bound of the timestamps of its durable records."""
        ...

    @property
    def size_bytes(self) -> int: ...


class SegmentTable:
    """What one process knows of one stream. Segment numbers in it are dense."""

    __slots__ = (
        "_index_before",
        "_index_before_number",
        "_indexes",
        "_starts",
        "_summaries",
        "end_sequence_id",
        "epoch",
        "live",
        "segments",
        "start_sequence_id",
    )

    def __init__(self) -> None:
        # Oldest first. At most the last one is in progress, and readers see nothing after it.
        self.segments: tuple[Segment, ...] = ()
        # The first sequence id that readers may ask for. Never falls.
        self.start_sequence_id = 0
        # One past the last readable record. Never falls but by `reset`. While an owner writes, its
        # live segment is ahead of it, and `complete` catches up.
        self.end_sequence_id = 0
        # Of the ownership that writes now (owner), or the newest one that was seen (others).
        self.epoch = 0
        # From the first record written or followed until the segment is left. Its number may be one
        # that is not listed yet, or is listed as completed already.
        self.live: LiveSegment | None = None
        # `start_sequence_id` of each of `segments`, for bisection.
        self._starts: list[int] = []
        # By segment number. Absent: nothing is known but the segment's own metadata. Those of
        # segments that were removed are dropped with the next change of `segments`.
        self._summaries: dict[int, Summary] = {}
        # Owner: the index of the newest completed segment with records, which the head snapshot of
        # the next segment stores. Number 0: there is none.
        self._index_before = SparseIndex()
        self._index_before_number = 0
        # Other indexes by segment number, least recently used first, `_INDEXES_MAX` at most.
        self._indexes: OrderedDict[int, SparseIndex] = OrderedDict()

    def _set_segments(self, segments: Iterable[Segment]) -> None:
        self.segments = tuple(segments)
        self._starts = [segment.start_sequence_id for segment in self.segments]
        oldest = self.segments[0].number if self.segments else 0
        for known in (self._summaries, self._indexes):
            for number in [number for number in known if number < oldest]:
                del known[number]

    # -- changes by an owner ------------------------------------------------------------------

    def reset(
        self,
        segments: Iterable[Segment],
        summaries: dict[int, Summary],
        index: SparseIndex,
        index_number: int,
        *,
        start_sequence_id: int,
        epoch: int,
    ) -> None:
        """Take the stream as it was loaded. `index` is of segment `index_number`, 0 for none."""
        self.live = None
        self.epoch = epoch
        self._summaries = dict(summaries)
        self._indexes.clear()
        self._index_before, self._index_before_number = index, index_number
        self._set_segments(segments)
        self.move_start(start_sequence_id)
        self.end_sequence_id = max(self.listed_end_sequence_id, self.start_sequence_id)

    def begin(self, segment: Segment) -> None:
        """Append `segment`, in progress and written by the present epoch."""
        assert not segment.completed
        self._set_segments((*self.segments, segment))
        self._summaries[segment.number] = Summary(
            segment.number, NO_TIMESTAMP, 0, self.epoch, segment.start_sequence_id
        )

    def complete(
        self, completed: Segment, *, timestamp_max: int, size_bytes: int, index: SparseIndex
    ) -> None:
        """Put `completed` in place of the last segment, which was in progress."""
        number = completed.number
        assert completed.completed
        assert self.segments[-1].number == number
        self._set_segments((*self.segments[:-1], completed))
        self._summaries[number] = Summary(
            number, timestamp_max, size_bytes, self.epoch, completed.start_sequence_id
        )
        self.end_sequence_id = completed.end_sequence_id
        if completed.record_count:
            self._index_before, self._index_before_number = index, number

    def mark(self, marked: Sequence[Segment]) -> None:
        """Put segments with changed truncation fields in place of those of the same numbers."""
        by_number = {segment.number: segment for segment in marked}
        self._set_segments(by_number.get(segment.number, segment) for segment in self.segments)

    def remove_oldest(self, count: int) -> None:
        self._set_segments(self.segments[count:])

    # -- changes by those that read the stored list -------------------------------------------

    def relist(self, segments: Iterable[Segment]) -> None:
        """Take the list as it is stored now. What is known of segments in both lists stays."""
        self._set_segments(segments)

    def learn(self, number: int, snapshot: Snapshot) -> None:
        """Take in a state snapshot that was found in segment `number`.

        It was written before that segment was complete: of its own summary only the epoch holds.
        """
        for summary in snapshot.summaries:
            if summary.number >= number:
                known = self._summaries.get(summary.number)
                summary = replace(
                    summary,
                    timestamp_max=known.timestamp_max if known else ANY_TIMESTAMP,
                    size_bytes=known.size_bytes if known else 0,
                )
            self._learn(summary)
        if snapshot.index_before_number:
            self.remember_index(snapshot.index_before_number, snapshot.index_before)

    def learn_own_epoch(self, number: int, start_sequence_id: int) -> None:
        """Take a segment without summary as an epoch of its own.

        DistributedLog itself writes no snapshots, so nothing tells which segments had one owner.
        """
        if number not in self._summaries:
            self._learn(Summary(number, ANY_TIMESTAMP, 0, number, start_sequence_id))

    def _learn(self, summary: Summary) -> None:
        self._summaries[summary.number] = summary
        self.epoch = max(self.epoch, summary.epoch)

    # -- changes by all of them ---------------------------------------------------------------

    def move_start(self, sequence_id: int) -> None:
        """Move the start forward. An older one changes nothing."""
        self.start_sequence_id = max(self.start_sequence_id, sequence_id)

    def move_end(self, sequence_id: int) -> bool:
        """Move the end forward. Returns False if it is there or past it already."""
        if sequence_id <= self.end_sequence_id:
            return False
        self.end_sequence_id = sequence_id
        return True

    def follow(self, live: LiveSegment | None) -> None:
        """Take `live` for what readers may see of its segment, until it is another or None."""
        self.live = live

    def remember_index(self, number: int, index: SparseIndex) -> None:
        self._indexes[number] = index
        self._indexes.move_to_end(number)
        while len(self._indexes) > _INDEXES_MAX:
            self._indexes.popitem(last=False)

    def forget_indexes(self) -> None:
        """Free the indexes, but for the one that the next head snapshot needs."""
        self._indexes.clear()

    # -- which segment ------------------------------------------------------------------------

    @property
    def listed_end_sequence_id(self) -> int:
        """One past the last record of the completed segments; 0 without segments."""
        return self.segments[-1].end_sequence_id if self.segments else 0

    @property
    def in_progress(self) -> Segment | None:
        last = self.segments[-1] if self.segments else None
        return None if last is None or last.completed else last

    def segment(self, number: int) -> Segment | None:
        """The segment of this number as it is listed now."""
        segments = self.segments
        at = number - segments[0].number if segments else -1
        return segments[at] if 0 <= at < len(segments) else None

    def find(self, sequence_id: int) -> Segment | None:
        """The last segment that starts at or before `sequence_id`; None if it is below them all.

        An empty segment shares its start with the next one, which is the one found.
        """
        at = bisect_right(self._starts, sequence_id) - 1
        return self.segments[at] if at >= 0 else None

    def overlapping(self, first: int, end: int) -> Iterator[tuple[Segment, int, int]]:
        """Segments with readable records from `first` up to `end`, each with its part of them."""
        at = max(bisect_right(self._starts, first) - 1, 0)
        for segment in self.segments[at:]:
            low = max(first, segment.start_sequence_id)
            high = min(end, self.readable_end(segment))
            if low < high:
                yield segment, low, high

    def next_with_entries(self, number: int) -> Segment | None:
        """The first segment after `number` that has a readable entry."""
        for segment in self.segments:
            if segment.number > number and self.last_readable_entry(segment) >= 0:
                return segment
        return None

    def with_timestamp(self, timestamp: int, first: int) -> Iterator[Segment]:
        """Segments in which a record that ends past `first`, and past the start, may have at least
        this timestamp."""
        for segment in self.segments:
            if self.timestamp_max_of(segment) < timestamp:
                continue
            above = max(first, self.start_sequence_id, segment.start_sequence_id)
            if not segment.completed or segment.end_sequence_id > above:
                yield segment

    # -- how far a segment may be read --------------------------------------------------------

    def last_readable_entry(self, segment: Segment) -> EntryId:
        """The last entry that may be read, -1 if there is none."""
        if segment.completed:
            return segment.last_entry
        live = self.live
        if live is not None and live.number == segment.number:
            return live.last_entry
        return EntryId(-1)

    def readable_end(self, segment: Segment) -> int:
        """One past the last record that may be read."""
        live = self.live
        if not segment.completed and live is not None and live.number == segment.number:
            return live.end_sequence_id
        return segment.end_sequence_id

    def check_start(self, sequence_id: int) -> None:
        """Raises Truncated below the start."""
        if sequence_id < self.start_sequence_id:
            raise Truncated(f"{sequence_id} is below the start {self.start_sequence_id}")

    # -- what is known of a segment -----------------------------------------------------------

    def index(self, number: int) -> SparseIndex | None:
        """The segment's sparse index, None if it must be read from the segment after it."""
        live = self.live
        if live is not None and live.number == number:
            return live.index
        if number == self._index_before_number:
            return self._index_before
        index = self._indexes.get(number)
        if index is not None:
            self._indexes.move_to_end(number)
        return index

    def knows(self, number: int) -> bool:
        """True if the segment has a summary, so that its epoch is known."""
        return number in self._summaries

    def epoch_at(self, sequence_id: int) -> int:
        """The epoch of the ownership that wrote (or will write) this sequence id."""
        segment = self.find(sequence_id)
        summary = self._summaries.get(segment.number) if segment is not None else None
        return summary.epoch if summary is not None else self.epoch

    def timestamp_max_of(self, segment: Segment) -> int:
        """An upper bound of the timestamps of its readable records.

        ANY_TIMESTAMP: not known. NO_TIMESTAMP: none of them has one.
        """
        live = self.live
        if not segment.completed and live is not None and live.number == segment.number:
            return live.timestamp_max
        summary = self._summaries.get(segment.number)
        return summary.timestamp_max if summary is not None else ANY_TIMESTAMP

    @property
    def timestamp_max(self) -> int:
        """The greatest bound that is known of any segment, NO_TIMESTAMP if there is none."""
        bounds = map(self.timestamp_max_of, self.segments)
        return max((bound for bound in bounds if bound < ANY_TIMESTAMP), default=NO_TIMESTAMP)

    def size_of(self, segment: Segment) -> int:
        """Bytes in the segment's ledger, 0 if not known."""
        live = self.live
        if not segment.completed and live is not None and live.number == segment.number:
            return live.size_bytes
        summary = self._summaries.get(segment.number)
        return summary.size_bytes if summary is not None else 0

    @property
    def size_bytes(self) -> int:
        return sum(map(self.size_of, self.segments))

    def snapshot(self, index: SparseIndex, owner_state: bytes) -> Snapshot:
        """What a new owner must know. `index` is of the segment that the snapshot goes into."""
        summaries = self._summaries
        return Snapshot(
            summaries=[summaries[s.number] for s in self.segments if s.number in summaries],
            index_before=self._index_before,
            index_before_number=self._index_before_number,
            index=index,
            owner_state=owner_state,
        )

    # -- what is due to leave -----------------------------------------------------------------

    def unmarked(self) -> list[Segment]:
        """Completed segments that begin below the start and are not truncated as a whole.

        All of them but perhaps the last end there or before: those are to be TRUNCATED, the last
        one PARTIALLY_TRUNCATED. Source: seed 000, "Truncation"; one in progress is never touched.
        """
        found: list[Segment] = []
        for segment in self.segments:
            if not segment.completed or segment.start_sequence_id >= self.start_sequence_id:
                break
            if segment.truncation is not Truncation.TRUNCATED:
                found.append(segment)
        return found

    def expired(
        self,
        *,
        now_ms: int,
        ttl_ms: int,
        bytes_max: int,
        kept_long_enough: Collection[int] = (),
    ) -> int:
        """How many of the oldest segments TTL, size and truncation allow to remove.

        Only completed ones, in order, never the newest completed one that holds an entry: its end
        carries the sequence on, and its state snapshot may be the only one. `ttl_ms` counts from
        completion; -1 in either bound means none. A truncated segment counts no bytes; its number
        is in `kept_long_enough` once its grace period is over. Source: seed 000, "TTL".
        """
        gone = Truncation.TRUNCATED
        segments = self.segments
        total = sum(self.size_of(segment) for segment in segments if segment.truncation is not gone)
        removable = 0
        newest = max(
            (i for i, s in enumerate(segments) if s.completed and s.last_entry >= 0), default=0
        )
        for segment in segments[:newest]:
            if not segment.completed:
                break
            old = 0 <= ttl_ms <= now_ms - segment.completion_ms
            if segment.truncation is gone:
                due = segment.number in kept_long_enough
            else:
                total -= self.size_of(segment)
                due = 0 <= bytes_max <= total
            if not old and not due:
                break
            removable += 1
        return removable
