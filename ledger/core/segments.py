"""One log segment: its metadata as bytes, and its place in the stream.

    in progress ──▶ completed ──▶ partially truncated ──▶ truncated ──▶ (deleted)
                        └──▶ cleaned ──▶ merged with its neighbours

Pure. Source: DistributedLog, LogSegmentMetadata version 5 and "Log Segments" (seed 000).
The sequence id of a record is the start of its segment plus its index in it. Sequence ids are dense
over the stream; the gateway uses them as Kafka offsets. They jump only behind a segment that was
closed by force: the ids in between may have been acknowledged, and are never assigned again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
MERGED_LAYOUT_VERSION = 9
"""Version 7 of several cleaned segments that were merged, with the number of the first of them.

A release that cannot merge would miss the other numbers, so it must refuse such a stream.
"""
_LAYOUT_VERSIONS = range(LAYOUT_VERSION, MERGED_LAYOUT_VERSION + 1)
EMPTY_TXID = -99  # Source: DistributedLogConstants.EMPTY_LOGSEGMENT_TX_ID
_IN_PROGRESS_FIELDS = 7
_COMPLETED_FIELDS = 11
_MERGED_FIELDS = 12


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
    # The lowest of the numbers that were merged into it; 0 if it was not merged.
    merged_from: int = 0

    @property
    def merged(self) -> bool:
        """True if it holds the records of several segments, the last of which had its number."""
        return self.merged_from > 0

    @property
    def first_number(self) -> int:
        """The lowest number whose records it holds: its own, unless it was merged."""
        return self.merged_from or self.number

    @property
    def end_sequence_id(self) -> int:
        """One past the last record, or the start of a segment in progress."""
        return self.start_sequence_id + self.record_count

    @property
    def with_jump(self) -> Segment:
        """This segment, marked: the ids in front of it or behind it jump."""
        assert not self.merged
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
        jumps = MERGED_LAYOUT_VERSION if self.merged else jumps
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
        """The name of its node. A cleaned one has the ledger too: readers notice each rewrite.

        A merged one also has the lowest number.
        """
        if self.merged:
            return f"merged-{self.ledger}-{self.merged_from:018d}_{self.number:018d}"
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
        numbers += [self.merged_from] if self.merged else []
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
            f"{MERGED_LAYOUT_VERSION}"
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
    merged = version == MERGED_LAYOUT_VERSION
    expected = _MERGED_FIELDS if merged else _COMPLETED_FIELDS
    if len(numbers) != expected:
        raise CorruptFormat(
            f"{where}: log segment with {len(numbers)} fields, expected 7 in progress or {expected}"
        )
    _, ledger, first_txid, last_txid, completed_ms, number = numbers[:6]
    merged_from = numbers[11] if merged else 0
    if merged and not 1 <= merged_from < number:
        raise CorruptFormat(f"{where}: segment {number} was merged from {merged_from} on")
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
        merged_from=merged_from,
    )


def names_segment(node_name: str, number: int) -> bool:
    """Return whether a node of this name holds the records of segment `number`."""
    head, _, last = node_name.rpartition("_")
    first = head.rpartition("-")[2] if head.startswith("merged-") else last
    return first.isdecimal() and last.isdecimal() and int(first) <= number <= int(last)


def can_merge(segments: Sequence[Segment]) -> bool:
    """Return whether these segments of one list may become one.

    They must be cleaned, wholly readable, without reserved ids at their sides, and follow each
    other both by their numbers and by their sequence ids.
    """
    return len(segments) > 1 and (
        all(
            each.cleaned and not each.jumps and each.truncation is Truncation.ACTIVE
            for each in segments
        )
        and all(
            before.number + 1 == after.first_number
            and before.end_sequence_id == after.start_sequence_id
            for before, after in pairwise(segments)
        )
    )


def merged_segment(
    segments: Sequence[Segment], ledger: LedgerId, last_entry: EntryId, last_slot: int
) -> Segment:
    """Return the segment with the records of all of `segments`, which are in another ledger.

    It has the number of the last one, so that the next segment follows it as before.
    """
    assert can_merge(segments)
    first, last = segments[0], segments[-1]
    return replace(
        last,
        merged_from=first.first_number,
        first_txid=first.first_txid,
        last_txid=max(each.last_txid for each in segments),
        start_sequence_id=first.start_sequence_id,
        record_count=last.end_sequence_id - first.start_sequence_id,
        layout_version=MERGED_LAYOUT_VERSION,
    ).with_ledger(ledger, last_entry, last_slot)


def order(segments: Iterable[Segment], *, where: str) -> list[Segment]:
    """Sort segments by number. A completed node replaces an in-progress one of the same number.

    A cleaned one replaces both, and of two cleaned ones the later ledger. A merged one replaces all
    whose numbers it has. Raises CorruptFormat if a number in between is missing, or if the sequence
    ids beside a merged segment are not dense: a reader must not skip a record.
    """
    by_number: dict[int, Segment] = {}
    for segment in segments:
        known = by_number.get(segment.number)
        if known is None or _age(segment) > _age(known):
            by_number[segment.number] = segment
    newest_first: list[Segment] = []
    for segment in sorted(by_number.values(), key=lambda each: each.number, reverse=True):
        after = newest_first[-1] if newest_first else None
        if after is None or segment.first_number < after.first_number:
            newest_first.append(segment)
    ordered = newest_first[::-1]
    for before, after in pairwise(ordered):
        if after.first_number > before.number + 1:
            raise CorruptFormat(f"{where}: segment {before.number + 1} is missing")
        if after.first_number <= before.number:
            raise CorruptFormat(f"{where}: segments {before.number} and {after.number} overlap")
        if (before.merged or after.merged) and not _follows(before, after):
            raise CorruptFormat(
                f"{where}: segment {before.number} ends at {before.end_sequence_id}, and segment "
                f"{after.number} begins at {after.start_sequence_id}"
            )
    return ordered


def _follows(before: Segment, after: Segment) -> bool:
    """Return whether `after` begins where `before` ends. A start may be unknown in progress."""
    unknown = not after.completed and after.start_sequence_id < 0
    return unknown or after.start_sequence_id == before.end_sequence_id


def _age(segment: Segment) -> tuple[bool, bool, int, int]:
    return segment.completed, segment.cleaned, -segment.first_number, segment.ledger


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
