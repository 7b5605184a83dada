"""One log segment: its metadata as bytes, and its place in the stream.

    in progress ──▶ completed ──▶ partially truncated ──▶ truncated ──▶ (deleted)

Pure. Source: DistributedLog, LogSegmentMetadata version 5 and "Log Segments" (seed 000).
The sequence id of a record is the start of its segment plus its index in it. Sequence ids are dense
over the stream; the gateway uses them as Kafka offsets. They jump only behind a segment that was
closed by force: the ids in between may have been acknowledged, and are never assigned again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import pairwise

from ledger.errors import CorruptFormat
from ledger.ids import Dlsn, EntryId, LedgerId

LAYOUT_VERSION = 5
JUMP_LAYOUT_VERSION = 6
"""Version 5 with a jump of the ids in front of the segment or behind it.

A release without jumps would assign the ids in it again, so it must refuse such a stream.
"""
CLEANED_LAYOUT_VERSION = 7
"""Version 5 of a segment that was rewritten without superseded records.

Its ledger begins without a state snapshot and ends with a footer. A stored record covers the gap in
front of its data. A release that cannot clean would take offsets from the wrong place.
"""
CLEANED_JUMP_LAYOUT_VERSION = 8
"""Version 7 with a jump of the ids, as version 6 is."""
_LAYOUT_VERSIONS = range(LAYOUT_VERSION, CLEANED_JUMP_LAYOUT_VERSION + 1)
EMPTY_TXID = -99  # Source: DistributedLogConstants.EMPTY_LOGSEGMENT_TX_ID
_IN_PROGRESS_FIELDS = 7
_COMPLETED_FIELDS = 11


class Truncation(IntEnum):
    ACTIVE = 0
    PARTIALLY_TRUNCATED = 1
    TRUNCATED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One log segment. The fields from `last_txid` to `last_slot` are set on completion."""

    number: int  # log segment sequence number, counted from 1
    ledger: LedgerId
    first_txid: int
    start_sequence_id: int
    completed: bool = False
    last_txid: int = EMPTY_TXID
    completion_ms: int = 0
    record_count: int = 0
    last_entry: EntryId = EntryId(-1)
    last_slot: int = -1
    truncation: Truncation = Truncation.ACTIVE
    min_active_entry: EntryId = EntryId(0)
    min_active_slot: int = 0
    layout_version: int = LAYOUT_VERSION

    @property
    def end_sequence_id(self) -> int:
        """One past the last record, or the start of a segment in progress."""
        return self.start_sequence_id + self.record_count

    @property
    def with_jump(self) -> Segment:
        """This segment, marked: the ids in front of it or behind it jump."""
        version = CLEANED_JUMP_LAYOUT_VERSION if self.cleaned else JUMP_LAYOUT_VERSION
        return replace(self, layout_version=version)

    @property
    def jumps(self) -> bool:
        """True if the ids in front of it or behind it jump."""
        return self.layout_version in (JUMP_LAYOUT_VERSION, CLEANED_JUMP_LAYOUT_VERSION)

    @property
    def cleaned(self) -> bool:
        """True if the cleaner rewrote it."""
        return self.layout_version >= CLEANED_LAYOUT_VERSION

    def with_ledger(self, ledger: LedgerId, last_entry: EntryId, last_slot: int) -> Segment:
        """Return this completed segment with its cleaned records, which are in another ledger.

        Its number and its sequence ids stay. The first active record may be found again; a mark
        may lie before the start, so it is set to the first entry.
        """
        assert self.completed
        jumps = CLEANED_JUMP_LAYOUT_VERSION if self.jumps else CLEANED_LAYOUT_VERSION
        return replace(
            self,
            ledger=ledger,
            last_entry=last_entry,
            last_slot=last_slot,
            min_active_entry=EntryId(0),
            min_active_slot=0,
            layout_version=jumps,
        )

    @property
    def last_dlsn(self) -> Dlsn:
        return Dlsn(self.number, self.last_entry, self.last_slot)

    @property
    def node_name(self) -> str:
        """The name of its node. A cleaned one has the ledger too: readers notice each rewrite."""
        if self.cleaned:
            return f"cleaned-{self.ledger}_{self.number:018d}"
        return f"{'logrecs' if self.completed else 'inprogress'}_{self.number:018d}"

    def complete(
        self,
        *,
        record_count: int,
        last_txid: int,
        last_entry: EntryId,
        last_slot: int,
        completion_ms: int,
    ) -> Segment:
        """Return this segment as completed. Only for a segment in progress. Keeps the layout."""
        assert not self.completed
        return replace(
            self,
            completed=True,
            record_count=record_count,
            last_txid=last_txid if record_count else EMPTY_TXID,
            last_entry=last_entry,
            last_slot=last_slot,
            completion_ms=completion_ms,
        )

    def encode(self) -> bytes:
        """Return the znode's data: decimal numbers joined by `;`."""
        first = self.layout_version | self.truncation << 8 | self.record_count << 32
        if self.completed:
            numbers = [first, self.ledger, self.first_txid, self.last_txid, self.completion_ms]
            numbers += [self.number, self.last_entry, self.last_slot]
        else:
            numbers = [first, self.ledger, self.first_txid, self.number]
        numbers += [self.min_active_entry, self.min_active_slot, self.start_sequence_id]
        return ";".join(map(str, numbers)).encode()


def decode_segment(data: bytes, *, where: str) -> Segment:
    """Decode what `encode` or DistributedLog itself (version 5) wrote. Raises CorruptFormat."""
    try:
        numbers = [int(part) for part in data.decode("ascii").split(";")]
    except ValueError as error:
        raise CorruptFormat(f"{where}: not the metadata of a log segment: {data[:80]!r}") from error
    version = numbers[0] & 0xFF
    if version not in _LAYOUT_VERSIONS:
        raise CorruptFormat(
            f"{where}: log segment version {version}, expected version {LAYOUT_VERSION} to "
            f"{CLEANED_JUMP_LAYOUT_VERSION}"
        )
    truncation = Truncation(min(numbers[0] >> 8 & 3, 2))
    if len(numbers) == _IN_PROGRESS_FIELDS and version < CLEANED_LAYOUT_VERSION:
        _, ledger, first_txid, number, entry, slot, start = numbers
        return Segment(
            number=number,
            ledger=LedgerId(ledger),
            first_txid=first_txid,
            start_sequence_id=start,
            truncation=truncation,
            min_active_entry=EntryId(entry),
            min_active_slot=slot,
            layout_version=version,
        )
    if len(numbers) != _COMPLETED_FIELDS:
        raise CorruptFormat(f"{where}: log segment with {len(numbers)} fields, expected 7 or 11")
    _, ledger, first_txid, last_txid, completed_ms, number = numbers[:6]
    return Segment(
        number=number,
        ledger=LedgerId(ledger),
        first_txid=first_txid,
        start_sequence_id=numbers[10],
        completed=True,
        last_txid=last_txid,
        completion_ms=completed_ms,
        record_count=numbers[0] >> 32,
        last_entry=EntryId(numbers[6]),
        last_slot=numbers[7],
        truncation=truncation,
        min_active_entry=EntryId(numbers[8]),
        min_active_slot=numbers[9],
        layout_version=version,
    )


def order(segments: Iterable[Segment], *, where: str) -> list[Segment]:
    """Sort segments by number. A completed node replaces an in-progress one of the same number.

    A cleaned one replaces both, and of two cleaned ones the later ledger.
    Raises CorruptFormat if a number in between is missing: a reader must not skip a segment.
    """
    by_number: dict[int, Segment] = {}
    for segment in segments:
        known = by_number.get(segment.number)
        if known is None or _age(segment) > _age(known):
            by_number[segment.number] = segment
    ordered = [by_number[number] for number in sorted(by_number)]
    for before, after in pairwise(ordered):
        if after.number != before.number + 1:
            raise CorruptFormat(f"{where}: segment {before.number + 1} is missing")
    return ordered


def _age(segment: Segment) -> tuple[bool, bool, int]:
    return segment.completed, segment.cleaned, segment.ledger


def visible(segments: Iterable[Segment]) -> list[Segment]:
    """Return the segments up to and with the first one in progress.

    The start of a later segment is unknown until that one is completed. At most two are in
    progress.
    """
    found: list[Segment] = []
    for segment in segments:
        if segment.completed:
            found.append(segment)
            continue
        found.append(started_after(found[-1] if found else None, segment))
        break
    return found


def started_after(before: Segment | None, segment: Segment) -> Segment:
    """Return a segment in progress with its start.

    The stored start counts. It lies above the end of the completed segment `before` if the ids in
    between are reserved. DistributedLog stores -1 until the segment is completed; the start then
    follows from the segment before.
    """
    assert not segment.completed
    following = before.end_sequence_id if before else 0
    return replace(segment, start_sequence_id=max(following, segment.start_sequence_id))
