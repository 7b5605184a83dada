"""What a reader of a stream delivers: records and gaps, each position once and in order.

    entry, lost entry, accepted loss, end of a segment, trim, wait ─▶ records │ gaps

Pure. The caller passes what it found at `next`, and delivers what each call returns. Neighbouring
lost entries of a segment join into one DATALOSS, which is issued with the next thing found, or as
soon as the reader would wait. Its Kafka offsets follow from the positions of the readable records
on both sides. A loss that an operator accepted is a DATALOSS of its own, with the stored offsets.
Source: seed 002, "Gaps" (L6, L7, L16, L26); LogDevice, `ClientReadStream::handleGap`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ledger.core.accepted_losses import LostRange
from ledger.core.gaps import (
    ENTRY_MAX,
    FIRST_POSITION,
    LAST_POSITION,
    OFFSET_MAX,
    Evidence,
    Gap,
    GapKind,
    OffsetRange,
    Position,
    joined,
)
from ledger.core.records import POSITION_MAX, LogRecord
from ledger.core.segments import EMPTY_TXID, Segment
from ledger.errors import CorruptFormat, InvalidArgument
from ledger.ids import Dlsn, EntryId

SLOT_MAX = 2**31 - 1


class StreamRecord(NamedTuple):
    """One stored record, as an application receives it.

    A record of a topic's stream holds a whole batch: `records` Kafka records, whose slots begin at
    `dlsn` and whose offsets begin at `offset`.
    """

    dlsn: Dlsn
    txid: int
    offset: int
    records: int
    data: memoryview


Delivery = list[StreamRecord] | Gap


class ReadRange(NamedTuple):
    """The part of a stream to deliver. Both ends are inclusive."""

    first: Position
    # Of the first entry, records that end below this slot are left out.
    slot: int = 0
    # True if `slot` follows a record that was delivered before: it need not exist.
    after: bool = False
    # Records that end at or below this offset, or have a lower transaction id, are left out.
    offset: int = 0
    txid: int = EMPTY_TXID
    until: Position = LAST_POSITION
    until_slot: int = SLOT_MAX
    until_offset: int = OFFSET_MAX


class Deliveries:
    """The deliveries of one reader. `next` never goes back."""

    __slots__ = (
        "_end_offset",
        "_evidence",
        "_follows",
        "_lost_from",
        "_range",
        "_segment_start",
        "_start_offset",
        "done",
        "next",
    )

    def __init__(self, wanted: ReadRange) -> None:
        # The first position of which nothing is known yet. Only that one may be passed in.
        self.next: Position = wanted.first
        # True once `until` was passed, or the reader was ended.
        self.done = wanted.first > wanted.until
        self._range = wanted
        # The offset of the first record of the segment of `next`, from `begin` on.
        self._segment_start = 0
        # The offset at or past which all records from `next` on lie, with those that are lost and
        # not issued. None if unknown.
        self._end_offset: int | None = None
        # True if the next entry begins exactly at `_end_offset`.
        self._follows = False
        # The first of the lost entries before `next` that are not issued, and their evidence, which
        # is that of all of them: a run of lost entries may be as long as its segment.
        self._lost_from: Position | None = None
        self._evidence: Evidence | None = None
        # The first readable offset of the stream. Never decreases.
        self._start_offset = 0

    @property
    def end_offset(self) -> int | None:
        """The offset that follows the positions before `next`, None if it is unknown."""
        return None if self._lost_from is not None else self._end_offset

    def begin(self, segment: Segment) -> None:
        """Set the segment of `next`. Its start offset must be known. May be called again.

        Raises CorruptFormat if it does not begin where the segment before it ends. Offsets that an
        accepted loss reserves behind that segment belong to it.
        """
        assert segment.number == self.next.segment
        start = self._segment_start = segment.start_sequence_id
        if self.next.entry > 0:
            return
        if self._follows and self._end_offset != start:
            raise CorruptFormat(
                f"segment {segment.number} begins at offset {start}, and the one before it ends at "
                f"offset {self._end_offset}"
            )
        left = self._end_offset
        if left is not None and left > start:
            return  # a TRIM ended within this segment: what is lost before its end was truncated
        self._end_offset, self._follows = start, True

    def move_to(self, position: Position) -> None:
        """Move to the same offset in a segment that was merged. It is known, and is not passed."""
        assert self._lost_from is None
        self.next = position

    @property
    def until(self) -> Position:
        """The last wanted position."""
        return self._range.until

    @property
    def last_wanted(self) -> EntryId:
        """The last wanted entry of the segment of `next`."""
        until = self._range.until
        return until.entry if until.segment == self.next.segment else ENTRY_MAX

    @property
    def needs_left(self) -> bool:
        """True if a loss at `next` would have no known left end."""
        return self._lost_from is None and self._end_offset is None

    def know_end(self, records: Sequence[LogRecord]) -> None:
        """Pass the records of the entry before `next`, which give the offset that follows it."""
        if self.needs_left and records:
            self._end_offset, self._follows = self._end_of(records), True

    def know_start(self, offset: int) -> None:
        """Set the first readable offset of the stream. A lower one changes nothing."""
        self._start_offset = max(self._start_offset, offset)

    def is_below(self, records: Sequence[LogRecord], offset: int) -> bool:
        """True if an entry with these records, of the segment of `next`, ends before `offset`."""
        if not records or offset <= self._segment_start:
            return False
        return self._end_of(records) + records[-1].control <= offset

    def _end_of(self, records: Sequence[LogRecord]) -> int:
        return self._segment_start + records[-1].position + max(records[-1].records - 1, 0)

    # -- what was found at `next` -------------------------------------------------------------

    def on_entry(self, entry: EntryId, records: Sequence[LogRecord]) -> list[Delivery]:
        """Pass the entry at `next`, which must be at or below the LAC.

        An entry without any record is a plug that recovery wrote. Raises CorruptFormat if a record
        before it is missing, and InvalidArgument if the entry lacks the first wanted slot.
        """
        assert entry == self.next.entry
        if not records:
            return self._on_hole()
        base, first, last = self._segment_start, records[0], records[-1]
        begin = base + first.position - (0 if first.control else 1)
        if self._lost_from is None and self._follows and begin != self._end_offset:
            raise CorruptFormat(
                f"segment {self.next.segment} entry {entry}: offset {begin} follows "
                f"offset {self._end_offset}"
            )
        issued = self._issue_lost(begin)
        self._check_slot(entry, last)
        taken = [self._record(each) for each in records if self._is_wanted(each)]
        self._end_offset, self._follows = self._end_of(records), True
        self._pass(Position(self.next.segment, EntryId(entry + 1)))
        self.done = self.done or self._end_offset > self._range.until_offset
        return [*issued, taken] if taken else issued

    def on_lost(self, last: EntryId, evidence: Evidence) -> list[Delivery]:
        """Pass the entries from `next` to `last`, all of its segment, whose loss is proved."""
        assert last >= self.next.entry
        number = self.next.segment
        if self._lost_from is None:
            self._lost_from = self.next
        known = self._evidence
        self._evidence = evidence if known is None else joined((known, evidence))
        self._follows = False
        self._pass(Position(number, EntryId(last + 1)))
        if not self.done:
            return []
        until = self._range.until
        if number == until.segment:
            self.next = min(self.next, Position(number, EntryId(until.entry + 1)))
        return self._issue_lost(None)

    def on_accepted(self, lost: LostRange) -> list[Delivery]:
        """Pass the rest of an accepted loss, which holds `next`."""
        number, entry = self.next
        assert lost.segment == number
        assert lost.first <= entry <= lost.last
        first, last, exact = lost.offsets
        # The application may have received a part of the entry before the acceptance.
        partly = self._is_partly_read(self.next)
        whole = entry == lost.first and not partly
        issued = self._issue_lost(first if whole and (exact or lost.forced) else None)
        left = self._end_offset
        if left is not None:  # a part was delivered before the acceptance, or trimmed
            first = max(first, left)
        first = max(first, min(self._start_offset, last + 1))  # truncated offsets are not in it
        offsets = OffsetRange(
            first, max(last, first - 1), exact and (whole or left is not None) and not partly
        )
        end = min(Position(number, lost.last), self._range.until)
        issued.append(Gap(GapKind.DATALOSS, self.next, end, offsets, lost.evidence))
        # Behind a loss of which a side is unknown, records may lie at its offsets.
        self._follows = exact or lost.forced
        self._end_offset = last + 1 if self._follows else first
        following = Position(number, EntryId(lost.last + 1))
        self._pass(Position(number + 1, EntryId(0)) if lost.forced else following)
        self.done = self.done or self._end_offset > self._range.until_offset
        return issued

    def on_segment_end(self, segment: Segment) -> list[Delivery]:
        """Pass the rest of a completed segment, whose last entry is before `next`."""
        assert segment.completed
        assert segment.number == self.next.segment
        assert self.next.entry > segment.last_entry
        end = segment.end_sequence_id
        issued = self._issue_lost(end)
        last = min(Position(segment.number, ENTRY_MAX), self._range.until)
        issued.append(Gap(GapKind.BRIDGE, self.next, last, OffsetRange(end, end - 1)))
        self._end_offset, self._follows = end, True
        self._pass(Position(segment.number + 1, EntryId(0)))
        return issued

    def on_trim(self, start: Position, offset: int) -> list[Delivery]:
        """Move to the start of the stream, the entry of its first readable `offset`.

        A reader at or past it goes on where it is. Lost entries that are not issued are split
        there.
        """
        self.know_start(offset)
        first = self._lost_from or self.next
        if start <= first:
            return []
        left = 0 if first == FIRST_POSITION else self._end_offset
        if self._range.offset and first == self._range.first:
            left = self._range.offset
        last = min(start.before, self._range.until)
        exact = left is not None and last < self._range.until and not self._is_partly_read(first)
        offsets = OffsetRange(min(left or 0, offset), offset - 1, exact)
        self._end_offset, self._follows = offset, False
        if self.next > start:  # the lost entries from `start` on stay to be issued
            self._lost_from = start
        else:
            self._lost_from = None
            self._evidence = None
            self._pass(start)
        return [Gap(GapKind.TRIM, first, last, offsets)]

    def on_wait(self) -> list[Delivery]:
        """Issue what is proved, because nothing is known of `next` for now."""
        return self._issue_lost(None)

    def on_end(self, kind: GapKind) -> list[Delivery]:
        """End with a gap up to `until`: the key was refused, or the stream is gone."""
        assert kind in (GapKind.ACCESS, GapKind.NOTINCONFIG)
        issued = self._issue_lost(None)
        left = self._end_offset if self._end_offset is not None else self._segment_start
        offsets = OffsetRange(left, max(left - 1, self._range.until_offset), exact=False)
        if not self.done:
            issued.append(Gap(kind, self.next, self._range.until, offsets))
        self.done = True
        return issued

    # -- steps --------------------------------------------------------------------------------

    def _pass(self, following: Position) -> None:
        self.next = following
        self.done = self.done or following > self._range.until

    def _on_hole(self) -> list[Delivery]:
        issued = self._issue_lost(None)
        at = self._segment_start if self._end_offset is None else self._end_offset
        issued.append(Gap(GapKind.HOLE, self.next, self.next, OffsetRange(at, at - 1)))
        self._pass(Position(self.next.segment, EntryId(self.next.entry + 1)))
        return issued

    def _issue_lost(self, end: int | None) -> list[Delivery]:
        """Issue the lost entries before `next`; the first readable offset behind them is `end`."""
        first = self._lost_from
        if first is None:
            return []
        left, base = self._end_offset, self._segment_start
        partly = self._is_partly_read(first)
        lowest = base if left is None else left
        # The last offset that a segment can have: positions have 32 bits.
        highest = base + POSITION_MAX - 1 if end is None else end - 1
        offsets = OffsetRange(
            lowest, max(highest, lowest - 1), left is not None and end is not None and not partly
        )
        gap = Gap(GapKind.DATALOSS, first, self.next.before, offsets, self._evidence)
        self._lost_from = None
        self._evidence = None
        self._end_offset, self._follows = end, False
        return [gap]

    def _is_partly_read(self, at: Position) -> bool:
        """Return whether the application may have received a part of this entry before."""
        return self._range.slot > 0 and at == self._range.first

    def _check_slot(self, entry: EntryId, last: LogRecord) -> None:
        wanted = self._range
        if wanted.first != Position(self.next.segment, entry):
            return
        last_slot = last.slot + max(last.records, 1) - 1
        if wanted.slot - wanted.after > last_slot:
            raise InvalidArgument(
                f"DLSN ({wanted.first.segment}, {entry}, {wanted.slot - wanted.after}): the last "
                f"slot of this entry is {last_slot}"
            )

    def _is_wanted(self, record: LogRecord) -> bool:
        if record.control:
            return False
        wanted, slot = self._range, record.slot
        offset = self._segment_start + record.position - 1
        lowest = max(wanted.offset, self._start_offset)
        if offset + record.records <= lowest or record.txid < wanted.txid:
            return False
        if self.next == wanted.first and slot + record.records <= wanted.slot:
            return False
        if self.next == wanted.until and slot > wanted.until_slot:
            return False
        return offset <= wanted.until_offset

    def _record(self, record: LogRecord) -> StreamRecord:
        return StreamRecord(
            Dlsn(self.next.segment, self.next.entry, record.slot),
            record.txid,
            self._segment_start + record.position - 1,
            record.records,
            record.data,
        )
