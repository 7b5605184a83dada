"""The segments of one stream with their summaries and indexes, and every lookup on them. Pure.

An owner, a follower and a scan each have one table. The reads and the retention of a stream share
its table.

    owner               reset ─▶ begin ─▶ complete ─▶ … mark, remove_oldest
    follower, scan      learn ─▶ relist, each time the stored list is read

Only the methods below change a table. Each change replaces the tuple `segments`, so a loop that
awaits between two segments iterates over one list to its end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Protocol

from ledger.core.accepted_losses import NO_LOSSES, StreamLosses
from ledger.core.epoch_table import EpochEnd, EpochStart, EpochTable
from ledger.core.segment_footer import SegmentFooter
from ledger.core.segment_summaries import SegmentSummaries
from ledger.core.segments import Segment, Truncation
from ledger.core.snapshot_format import SegmentSummary, StateSnapshot
from ledger.core.sparse_index import ANY_TIMESTAMP, NO_TIMESTAMP, SparseIndex
from ledger.errors import Truncated
from ledger.ids import EntryId

NO_EPOCH = -1
_INDEXES_MAX = 16


class LiveSegment(Protocol):
    """The segment that an owner writes or a reader follows, and its readable end."""

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
    """The segments of one stream as one process knows them, with dense numbers."""

    __slots__ = (
        "_index_before",
        "_index_before_number",
        "_indexes",
        "_maxima",
        "_numbers",
        "_starts",
        "_summaries",
        "end_sequence_id",
        "epoch",
        "epoch_base",
        "live",
        "losses",
        "rewrites",
        "segments",
        "start_sequence_id",
        "summary_changes",
    )

    def __init__(self) -> None:
        # Oldest first. Only the last one may be in progress.
        self.segments: tuple[Segment, ...] = ()
        # The first sequence id that readers may read. Never decreases.
        self.start_sequence_id = 0
        # One past the last readable record. Only `reset` may decrease it. While an owner writes,
        # the end of its live segment is ahead of this value; `complete` catches up.
        self.end_sequence_id = 0
        # The epoch of the owner, set by `reset`. For a reader, the newest known epoch, which never
        # decreases. NO_EPOCH before.
        self.epoch = NO_EPOCH
        # The number of the first segment of an ownership, less its epoch. Set by a reader of the
        # stored list, and the same at each reading.
        self.epoch_base = 0
        # The losses that an operator accepted, as the stored node has them. Never older than
        # `segments`.
        self.losses: StreamLosses = NO_LOSSES
        # Counts the listed segments whose records were replaced by cleaned ones. What was read
        # under another count must not be mixed with what is read now.
        self.rewrites = 0
        # Counts the corrections of what is known of segments. Their sizes may have changed, while
        # `segments` is the same.
        self.summary_changes = 0
        # Set while a segment is written or followed. The segment may already be listed as
        # completed. The listed end then counts, but the index of `live` is still used.
        self.live: LiveSegment | None = None
        # The `start_sequence_id` of each of `segments`, for bisection. Changes with `segments`.
        self._starts: list[int] = []
        # The `number` of each, in the same way.
        self._numbers: list[int] = []
        # The running maximum of the timestamps of the completed segments from the one at this place
        # on, for bisection. Built by a lookup; None after a change of segments or summaries.
        self._maxima: tuple[int, list[int]] | None = None
        # Only the own metadata are known of a segment without a summary.
        self._summaries = SegmentSummaries()
        # An owner's index of the newest completed segment with records, and the number of that
        # segment or 0. The head snapshot of the next segment stores it, so it is never evicted.
        self._index_before = SparseIndex()
        self._index_before_number = 0
        # Other indexes by segment number, least recently used first, at most `_INDEXES_MAX`.
        self._indexes: OrderedDict[int, SparseIndex] = OrderedDict()

    def _set_segments(self, segments: Iterable[Segment]) -> None:
        before, self.segments = self.segments, tuple(segments)
        self._starts = [segment.start_sequence_id for segment in self.segments]
        self._numbers = [segment.number for segment in self.segments]
        self._maxima = None
        self._note_rewrites(before)
        self._summaries.relist(self.segments)
        oldest = self.segments[0].first_number if self.segments else 0
        for number in [number for number in self._indexes if number < oldest]:
            del self._indexes[number]

    def _note_rewrites(self, before: tuple[Segment, ...]) -> None:
        """Drop what is known of the old records of segments that were cleaned or merged."""
        ledgers = {each.number: each.ledger for each in before}
        for each in self.segments:
            if each.cleaned and ledgers.get(each.number) != each.ledger:
                numbers = range(each.first_number, each.number + 1)
                self.rewrites += any(number in ledgers for number in numbers)
                for number in numbers:
                    self._indexes.pop(number, None)

    # -- changes by an owner ------------------------------------------------------------------

    def reset(
        self,
        segments: Iterable[Segment],
        summaries: dict[int, SegmentSummary],
        index: SparseIndex,
        index_number: int,
        *,
        start_sequence_id: int,
        epoch: int,
        losses: StreamLosses = NO_LOSSES,
        epochs: Iterable[EpochStart] = (),
    ) -> None:
        """Load the table. `index` covers the segment `index_number`; 0 if there is none.

        `epochs` are those that no summary shows.
        """
        self.live = None
        self.losses = losses
        self.epoch = epoch
        self._summaries.reset(summaries, epochs)
        self._indexes.clear()
        self._index_before, self._index_before_number = index, index_number
        self._set_segments(segments)
        self.move_start(start_sequence_id)
        self.end_sequence_id = max(self.listed_end_sequence_id, self.start_sequence_id)

    def begin(self, segment: Segment) -> None:
        """Append `segment`, which is in progress and belongs to the current epoch."""
        assert not segment.completed
        self._set_segments((*self.segments, segment))
        summary = SegmentSummary(
            segment.number, NO_TIMESTAMP, 0, self.epoch, segment.start_sequence_id
        )
        self._summaries.put(summary)

    def complete(
        self, completed: Segment, *, timestamp_max: int, size_bytes: int, index: SparseIndex
    ) -> None:
        """Replace the last segment, which was in progress, by `completed`."""
        number = completed.number
        assert completed.completed
        assert self.segments[-1].number == number
        self._set_segments((*self.segments[:-1], completed))
        summary = SegmentSummary(
            number, timestamp_max, size_bytes, self.epoch, completed.start_sequence_id
        )
        self._summaries.put(summary)
        self._maxima = None
        self.end_sequence_id = completed.end_sequence_id
        if completed.record_count:
            if self._index_before_number:
                self.remember_index(self._index_before_number, self._index_before)
            self._index_before, self._index_before_number = index, number

    def mark(self, marked: Sequence[Segment]) -> None:
        """Replace segments by copies with changed truncation fields."""
        by_number = {segment.number: segment for segment in marked}
        self._set_segments(by_number.get(segment.number, segment) for segment in self.segments)

    def replace(self, cleaned: Segment, footer: SegmentFooter, size_bytes: int) -> None:
        """Replace the completed segments whose numbers `cleaned` has by it.

        That is one, unless it was merged from several.
        """
        first, number = cleaned.first_number, cleaned.number
        others = (each for each in self.segments if not first <= each.number <= number)
        self._set_segments(sorted([*others, cleaned], key=lambda each: each.number))
        if first <= self._index_before_number <= number:
            self._index_before, self._index_before_number = footer.index, number
        else:
            self.remember_index(number, footer.index)
        known = self._summaries.get(number)
        if known is not None:
            self._put(replace(known, timestamp_max=footer.timestamp_max, size_bytes=size_bytes))

    def measure(self, number: int, size_bytes: int) -> None:
        """Correct the size of a segment."""
        known = self._summaries.get(number)
        if known is not None:
            self._put(replace(known, size_bytes=size_bytes))

    def _put(self, summary: SegmentSummary) -> None:
        self._summaries.put(summary)
        self.summary_changes += 1
        self._maxima = None

    def remove_oldest(self, count: int) -> None:
        self._set_segments(self.segments[count:])

    # -- changes by a reader of the stored list -----------------------------------------------

    def relist(self, segments: Iterable[Segment], losses: StreamLosses | None = None) -> None:
        """Replace the list by the stored one. Summaries and indexes of kept segments stay.

        So do the losses if they are not given.
        """
        if losses is not None:
            self.losses = losses
        self._set_segments(segments)

    def learn(self, number: int, snapshot: StateSnapshot) -> None:
        """Add the summaries and the index of a state snapshot that is stored in segment `number`.

        It was written before that segment was completed, so only the epoch of the segment's own
        summary is used.
        """
        for summary in snapshot.summaries:
            if summary.number >= number:
                known = self._summaries.get(summary.number)
                summary = replace(
                    summary,
                    timestamp_max=known.timestamp_max if known else ANY_TIMESTAMP,
                    size_bytes=known.size_bytes if known else 0,
                )
            self.learn_summary(summary)
        self._summaries.relist(self.segments)  # it may have those of parts of a merged segment
        self._summaries.add_epochs(snapshot.epochs)
        if snapshot.index_before_number and not self._is_cleaned(snapshot.index_before_number):
            self.remember_index(snapshot.index_before_number, snapshot.index_before)

    def learn_own_epoch(self, number: int, start_sequence_id: int) -> None:
        """Treat a segment without a summary as an epoch of its own.

        DistributedLog itself writes no snapshots, so the segments of one owner cannot be found.
        """
        if self._summaries.get(number) is None:
            epoch = number - self.epoch_base
            self.learn_summary(SegmentSummary(number, ANY_TIMESTAMP, 0, epoch, start_sequence_id))

    def learn_summary(self, summary: SegmentSummary) -> None:
        """Add the summary of a segment, which counts more than one in a snapshot before it."""
        self._put(summary)
        self.epoch = max(self.epoch, summary.epoch)

    def learn_footer(self, summary: SegmentSummary, footer: SegmentFooter) -> None:
        """Add the summary of a cleaned segment, and the epochs that its footer has besides."""
        self.learn_summary(summary)
        self._summaries.add_epochs(footer.epochs)
        self.epoch = max([self.epoch, *(each.epoch for each in footer.epochs)])

    # -- changes by owners and readers --------------------------------------------------------

    def move_start(self, sequence_id: int) -> None:
        """Move the start forward. A lower sequence id changes nothing."""
        if sequence_id > self.start_sequence_id:
            self.start_sequence_id = sequence_id
            self._summaries.move_start(sequence_id)

    def move_end(self, sequence_id: int) -> bool:
        """Move the end forward. Returns False if it is not below `sequence_id`."""
        if sequence_id <= self.end_sequence_id:
            return False
        self.end_sequence_id = sequence_id
        return True

    def follow(self, live: LiveSegment | None) -> None:
        """Set the live segment, or clear it."""
        self.live = live

    def remember_index(self, number: int, index: SparseIndex) -> None:
        self._indexes[number] = index
        self._indexes.move_to_end(number)
        while len(self._indexes) > _INDEXES_MAX:
            self._indexes.popitem(last=False)

    def forget_indexes(self) -> None:
        """Drop all indexes except the one that the next head snapshot stores."""
        self._indexes.clear()

    # -- finding segments ---------------------------------------------------------------------

    @property
    def listed_end_sequence_id(self) -> int:
        """One past the last record of the completed segments; 0 without segments.

        Offsets that are reserved behind a segment that was closed by force lie below the end.
        """
        if not self.segments:
            return 0
        last = self.segments[-1]
        end = last.end_sequence_id if last.completed else last.start_sequence_id
        return self.losses.end_after(last.number, end)

    def jumps_to(self, start: int) -> bool:
        """Return whether a next segment that begins at `start` leaves reserved ids before it."""
        last = self.segments[-1] if self.segments else None
        return last is not None and last.completed and start > last.end_sequence_id

    @property
    def in_progress(self) -> Segment | None:
        last = self.segments[-1] if self.segments else None
        return None if last is None or last.completed else last

    def segment(self, number: int) -> Segment | None:
        """Return the listed segment with this number, or None. A merged one has several."""
        at = bisect_left(self._numbers, number)
        found = self.segments[at] if at < len(self.segments) else None
        return found if found is not None and found.first_number <= number else None

    def find(self, sequence_id: int) -> Segment | None:
        """Return the last segment that starts at or before `sequence_id`, or None.

        An empty segment has the same start as the next segment. The next segment is then returned.
        """
        at = bisect_right(self._starts, sequence_id) - 1
        return self.segments[at] if at >= 0 else None

    def overlapping(self, first: int, end: int) -> Iterator[tuple[Segment, int, int]]:
        """Yield each segment with readable records from `first` up to and excluding `end`.

        Each segment comes with the first sequence id of the range in it, and one past the last.
        """
        at = max(bisect_right(self._starts, first) - 1, 0)
        for segment in self.segments[at:]:
            low = max(first, segment.start_sequence_id)
            high = min(end, self.readable_end(segment))
            if low < high:
                yield segment, low, high

    def next_with_entries(self, number: int) -> Segment | None:
        """Return the first segment after `number` that has a readable entry, or None."""
        for segment in self.segments:
            if segment.number > number and self.last_readable_entry(segment) >= 0:
                return segment
        return None

    def with_timestamp(self, timestamp: int, first: int) -> Iterator[Segment]:
        """Yield the segments that may have a record with at least this timestamp.

        Only records that end past `first` and past the start of the stream count. The first one is
        found by bisection.
        """
        lowest = max(first, self.start_sequence_id)
        at = max(bisect_right(self._starts, lowest) - 1, 0)
        at += bisect_left(self._maxima_from(at), timestamp)
        for segment in self.segments[at:]:
            if self.timestamp_max_of(segment) < timestamp:
                continue
            above = max(lowest, segment.start_sequence_id)
            if not segment.completed or segment.end_sequence_id > above:
                yield segment

    def _maxima_from(self, at: int) -> list[int]:
        if self._maxima is None or self._maxima[0] != at:
            completed = (segment for segment in self.segments[at:] if segment.completed)
            self._maxima = at, list(accumulate(map(self.timestamp_max_of, completed), max))
        return self._maxima[1]

    # -- readable ends ------------------------------------------------------------------------

    def last_readable_entry(self, segment: Segment) -> EntryId:
        """Return the last entry of the segment that may be read, or -1."""
        if segment.completed:
            return segment.last_entry
        live = self.live
        if live is not None and live.number == segment.number:
            return live.last_entry
        return EntryId(-1)

    def readable_end(self, segment: Segment) -> int:
        """Return one past the last record of the segment that may be read."""
        live = self.live
        if not segment.completed and live is not None and live.number == segment.number:
            return live.end_sequence_id
        return segment.end_sequence_id

    def check_start(self, sequence_id: int) -> None:
        """Raise Truncated if `sequence_id` is below the start."""
        if sequence_id < self.start_sequence_id:
            raise Truncated(f"{sequence_id} is below the start {self.start_sequence_id}")

    # -- facts about segments -----------------------------------------------------------------

    def index(self, number: int) -> SparseIndex | None:
        """Return the segment's sparse index, or None if it must be read.

        That of a cleaned segment is in its footer, others are in the next segment's head.
        """
        live = self.live
        if live is not None and live.number == number and not self._is_cleaned(number):
            return live.index
        if number == self._index_before_number:
            return self._index_before
        index = self._indexes.get(number)
        if index is not None:
            self._indexes.move_to_end(number)
        return index

    @property
    def index_before_number(self) -> int:
        """The newest completed segment with records, or that of the loaded snapshot; or 0."""
        return self._index_before_number

    def cleaned_at(self, sequence_id: int) -> bool:
        """Return whether the segment that holds `sequence_id` was cleaned."""
        segment = self.find(sequence_id)
        return segment is not None and segment.cleaned

    def _is_cleaned(self, number: int) -> bool:
        segment = self.segment(number)
        return segment is not None and segment.cleaned

    def knows(self, segment: Segment) -> bool:
        """True if the segment has a summary, and so an epoch."""
        return self._summaries.knows(segment)

    def epoch_at(self, sequence_id: int) -> int:
        """Return the epoch of the ownership that wrote this sequence id, or will write it."""
        segment = self.find(sequence_id)
        if segment is None or self._is_behind(segment, sequence_id):
            return self.epoch
        if self._summaries.get(segment.number) is None:
            return self.epoch
        found = self._summaries.epochs.epoch_at(sequence_id)
        return self.epoch if found is None else found

    def epochs_between(self, first: int, end: int) -> tuple[EpochStart, ...]:
        """Return the epochs that begin above `first` and below `end`."""
        starts = self._summaries.epochs.entries_from(first)[1:]
        return tuple(each for each in starts if each.start_sequence_id < end)

    def epoch_end(self, epoch: int, end: int) -> EpochEnd | None:
        """Return where `epoch` ends in this log, whose readable end is `end`.

        Returns None if the epoch is newer than the newest one. See `EpochTable.end_of`.
        """
        table = self._summaries.epochs
        if self.epoch > table.newest:  # this ownership has no segment yet
            table = EpochTable([*table.entries_from(0), (self.epoch, end)])
        return table.end_of(epoch, self.start_sequence_id, end)

    @property
    def knows_epochs(self) -> bool:
        """True if the epoch of each listed segment with records is known."""
        return all(
            self._summaries.get(each.number) is not None
            for each in self.segments
            if self.readable_end(each) > each.start_sequence_id
        )

    def _is_behind(self, segment: Segment, sequence_id: int) -> bool:
        """Return whether `sequence_id` follows the last record, so that it is not written yet."""
        newest = segment is self.segments[-1] and segment.completed
        return newest and sequence_id >= segment.end_sequence_id

    def timestamp_max_of(self, segment: Segment) -> int:
        """Return an upper bound of the timestamps of the segment's readable records.

        Returns ANY_TIMESTAMP if it is unknown, NO_TIMESTAMP if no record has a timestamp.
        """
        live = self.live
        if not segment.completed and live is not None and live.number == segment.number:
            return live.timestamp_max
        summary = self._summaries.get(segment.number)
        return summary.timestamp_max if summary is not None else ANY_TIMESTAMP

    @property
    def timestamp_max(self) -> int:
        """The greatest known bound of all segments, NO_TIMESTAMP if no segment has one."""
        bounds = map(self.timestamp_max_of, self.segments)
        return max((bound for bound in bounds if bound < ANY_TIMESTAMP), default=NO_TIMESTAMP)

    def size_of(self, segment: Segment) -> int:
        """Return the bytes in the segment's ledger, or 0 if they are unknown."""
        live = self.live
        if not segment.completed and live is not None and live.number == segment.number:
            return live.size_bytes
        summary = self._summaries.get(segment.number)
        return summary.size_bytes if summary is not None else 0

    @property
    def size_bytes(self) -> int:
        return sum(map(self.size_of, self.segments))

    def snapshot(self, index: SparseIndex, owner_state: bytes) -> StateSnapshot:
        """Build the snapshot for a segment whose index is `index`."""
        self._summaries.drop_shown()
        # The footer of a cleaned segment has its index, for readers that know of the cleaning.
        covered = not self._is_cleaned(self._index_before_number)
        return StateSnapshot(
            summaries=self._summaries.listed(),
            index_before=self._index_before if covered else SparseIndex(),
            index_before_number=self._index_before_number if covered else 0,
            index=index,
            owner_state=owner_state,
            epochs=self._summaries.further,
        )

    # -- truncation and retention -------------------------------------------------------------

    def unmarked(self) -> list[Segment]:
        """Return completed segments that begin below the start and are not marked TRUNCATED.

        The last one may end above the start, and is then to be marked PARTIALLY_TRUNCATED; the
        others are to be marked TRUNCATED. A segment in progress is never marked. Source: seed 000,
        "Truncation".
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
        """Return how many of the oldest segments TTL, size and truncation allow to remove.

        Only completed segments count, in order. The newest completed segment with an entry stays:
        the next segment starts at its end, and its state snapshot may be the only one. `ttl_ms`
        counts from completion; -1 disables either bound. Truncated segments do not count towards
        `bytes_max`; `kept_long_enough` holds the numbers of those whose grace period has ended.
        Source: seed 000, "TTL".
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
