"""What is known of the segments of a stream beside their nodes: summaries, and from them epochs.

A summary counts for its segment until the segment is removed or merged. Its epoch then stays known,
as a further epoch, while the stream has records of it. The summary of a merged segment begins where
the first of its parts began; those of its parts are joined to one. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ledger.core.epoch_table import EpochStart, EpochTable
from ledger.core.segments import Segment
from ledger.core.snapshot_format import SegmentSummary


class SegmentSummaries:
    """The summaries of one table. `relist` follows each change of its segments."""

    __slots__ = ("_by_number", "_further", "_segments", "_start", "_table")

    def __init__(self) -> None:
        # By segment number, also of segments that the list does not have yet.
        self._by_number: dict[int, SegmentSummary] = {}
        # Epochs that no summary of a listed segment shows: of merged segments, and until the start
        # moves also of removed ones. Those below the start are dropped.
        self._further: list[EpochStart] = []
        # The listed segments, and the start of the stream.
        self._segments: Sequence[Segment] = ()
        self._start = 0
        # The epochs of all records. Built by a lookup; None after a change.
        self._table: EpochTable | None = None

    # -- changes ------------------------------------------------------------------------------

    def reset(self, summaries: Mapping[int, SegmentSummary], epochs: Iterable[EpochStart]) -> None:
        """Load them. `epochs` are those that no summary shows."""
        self._by_number, self._further = dict(summaries), list(epochs)
        self._segments, self._table = (), None

    def put(self, summary: SegmentSummary) -> None:
        """Add a summary. It replaces that of the same number."""
        self._by_number[summary.number] = summary
        self._table = None

    def add_epochs(self, epochs: Iterable[EpochStart]) -> None:
        """Add epochs that no summary shows."""
        self._further += epochs
        self.drop_shown()

    def relist(self, segments: Sequence[Segment]) -> None:
        """Follow the list: drop the summaries of removed segments, join those of merged ones."""
        self._segments, self._table = segments, None
        oldest = segments[0].first_number if segments else 0
        listed = {each.number for each in segments}
        newest = max(listed, default=0)
        strays = [n for n in self._by_number if n not in listed and n < newest]
        for number in strays:
            if number < oldest:
                self._take_epoch(number)
        for segment in segments:
            if segment.merged:
                self._join(segment, [n for n in strays if n >= segment.first_number])
        self.drop_shown()

    def _join(self, segment: Segment, strays: Iterable[int]) -> None:
        """Join the summaries of the parts of a merged segment, if none is missing.

        The owner lists all segments in a snapshot, so with the first and the last part all are
        known. Otherwise the merged segment has no summary.
        """
        numbers = [*sorted(n for n in strays if n < segment.number), segment.number]
        parts = [self._by_number[n] for n in numbers if n in self._by_number]
        last, start = self._by_number.get(segment.number), segment.start_sequence_id
        begun = [each for each in parts if each.start_sequence_id == start]
        for number in numbers[:-1]:
            self._take_epoch(number)
        if last is None or last.start_sequence_id == start:
            return
        self._take_epoch(segment.number)
        if begun:
            self._by_number[segment.number] = SegmentSummary(
                number=segment.number,
                timestamp_max=max(each.timestamp_max for each in parts),
                size_bytes=sum(each.size_bytes for each in parts),
                epoch=begun[-1].epoch,
                start_sequence_id=start,
            )

    def _take_epoch(self, number: int) -> None:
        """Drop a summary and keep its epoch."""
        known = self._by_number.pop(number)
        self._further.append(EpochStart(known.epoch, known.start_sequence_id))

    def move_start(self, sequence_id: int) -> None:
        self._start = sequence_id
        self.drop_shown()

    def drop_shown(self) -> None:
        """Drop further epochs that lie below the start or that a summary shows."""
        if self._further:
            self._table = None
            shown = EpochTable(self._shown())
            self._further = self.epochs.without(shown, self._start)
            self._table = None

    # -- lookups ------------------------------------------------------------------------------

    def get(self, number: int) -> SegmentSummary | None:
        return self._by_number.get(number)

    def knows(self, segment: Segment) -> bool:
        """Return whether there is a summary of the whole segment."""
        known = self._by_number.get(segment.number)
        if known is None or not segment.merged:
            return known is not None
        return known.start_sequence_id == segment.start_sequence_id

    @property
    def epochs(self) -> EpochTable:
        if self._table is None:
            self._table = EpochTable([*self._shown(), *self._further])
        return self._table

    @property
    def further(self) -> list[EpochStart]:
        """The epochs that no summary of a listed segment shows."""
        return self._further

    def listed(self) -> list[SegmentSummary]:
        """Return the summaries of the listed segments, in order."""
        known = self._by_number
        return [known[each.number] for each in self._segments if each.number in known]

    def _shown(self) -> list[EpochStart]:
        return [EpochStart(each.epoch, each.start_sequence_id) for each in self.listed()]
