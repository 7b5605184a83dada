"""The log segments of one stream: their metadata as bytes, and how a position finds its segment.

    in progress ──▶ completed ──▶ partially truncated ──▶ truncated ──▶ (deleted)

Pure. Source: DistributedLog, LogSegmentMetadata version 5 and "Log Segments" (seed 000).
Sequence id = start of segment + position in it: dense over the stream, and Kafka's offset.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import pairwise

from ledger.errors import CorruptFormat
from ledger.ids import Dlsn, EntryId, LedgerId

LAYOUT_VERSION = 5
EMPTY_TXID = -99  # Source: DistributedLogConstants.EMPTY_LOGSEGMENT_TX_ID
_IN_PROGRESS_FIELDS = 7
_COMPLETED_FIELDS = 11


class Truncation(IntEnum):
    ACTIVE = 0
    PARTIALLY_TRUNCATED = 1
    TRUNCATED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One log segment. Fields after `completed` mean something only once it is completed."""

    number: int  # log segment sequence number, from 1; also the epoch of whoever made it
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

    @property
    def end_sequence_id(self) -> int:
        """One past the last record's; for a segment in progress its start."""
        return self.start_sequence_id + self.record_count

    @property
    def last_dlsn(self) -> Dlsn:
        return Dlsn(self.number, self.last_entry, self.last_slot)

    @property
    def node_name(self) -> str:
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
        """This segment, closed for ever. Only from in progress."""
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
        """The znode's data: decimal numbers joined by `;`."""
        first = LAYOUT_VERSION | self.truncation << 8 | self.record_count << 32
        if self.completed:
            numbers = [first, self.ledger, self.first_txid, self.last_txid, self.completion_ms]
            numbers += [self.number, self.last_entry, self.last_slot]
        else:
            numbers = [first, self.ledger, self.first_txid, self.number]
        numbers += [self.min_active_entry, self.min_active_slot, self.start_sequence_id]
        return ";".join(map(str, numbers)).encode()


def decode_segment(data: bytes, *, where: str) -> Segment:
    """What `encode` wrote, or DistributedLog itself (version 5). Raises CorruptFormat."""
    try:
        numbers = [int(part) for part in data.decode("ascii").split(";")]
    except ValueError as error:
        raise CorruptFormat(f"{where}: not a log segment: {data[:80]!r}") from error
    version = numbers[0] & 0xFF
    if version != LAYOUT_VERSION:
        raise CorruptFormat(f"{where}: log segment version {version}, we read {LAYOUT_VERSION}")
    truncation = Truncation(min(numbers[0] >> 8 & 3, 2))
    if len(numbers) == _IN_PROGRESS_FIELDS:
        _, ledger, first_txid, number, entry, slot, start = numbers
        return Segment(
            number=number,
            ledger=LedgerId(ledger),
            first_txid=first_txid,
            start_sequence_id=start,
            truncation=truncation,
            min_active_entry=EntryId(entry),
            min_active_slot=slot,
        )
    if len(numbers) != _COMPLETED_FIELDS:
        raise CorruptFormat(f"{where}: log segment of {len(numbers)} fields")
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
    )


def order(segments: Iterable[Segment], *, where: str) -> list[Segment]:
    """By number. Of an in-progress and a completed node of one number the completed one counts.

    Raises CorruptFormat when a number is missing in between: a reader must not skip a segment.
    """
    by_number: dict[int, Segment] = {}
    for segment in segments:
        known = by_number.get(segment.number)
        if known is None or segment.completed:
            by_number[segment.number] = segment
    ordered = [by_number[number] for number in sorted(by_number)]
    for before, after in pairwise(ordered):
        if after.number != before.number + 1:
            raise CorruptFormat(f"{where}: segment {before.number + 1} is missing")
    return ordered


def find(segments: Sequence[Segment], sequence_id: int) -> int:
    """Index of the last segment that starts at or before `sequence_id`; -1: below them all.

    Empty segments share their start with the next one, which is the one found.
    """
    return bisect_right(segments, sequence_id, key=lambda segment: segment.start_sequence_id) - 1


def unmarked(segments: Sequence[Segment], start_sequence_id: int) -> list[Segment]:
    """Completed segments that begin below where readers start and are not truncated as a whole.

    All of them but perhaps the last end there or before: those are to be TRUNCATED, the last is
    PARTIALLY_TRUNCATED. Source: seed 000, "Truncation"; one in progress is never touched.
    """
    found: list[Segment] = []
    for segment in segments:
        if not segment.completed or segment.start_sequence_id >= start_sequence_id:
            break
        if segment.truncation is not Truncation.TRUNCATED:
            found.append(segment)
    return found


def expired(
    segments: Sequence[Segment],
    *,
    now_ms: int,
    ttl_ms: int,
    bytes_max: int,
    sizes: Sequence[int],
    kept_long_enough: Collection[int] = (),
) -> int:
    """How many of the oldest segments TTL, size and truncation allow to remove.

    Only completed ones, in order, never the newest completed one that holds an entry: its end
    carries the sequence on, and its state snapshot may be the only one. `ttl_ms` counts from
    completion; -1 in either bound means none. A truncated segment counts no bytes; its number is
    in `kept_long_enough` once its grace period is over. Source: seed 000, "TTL".
    """
    truncated = [segment.truncation is Truncation.TRUNCATED for segment in segments]
    total = sum(size for size, gone in zip(sizes, truncated, strict=True) if not gone)
    removable = 0
    newest = max(
        (i for i, s in enumerate(segments) if s.completed and s.last_entry >= 0), default=0
    )
    for index, segment in enumerate(segments[:newest]):
        if not segment.completed:
            break
        old = 0 <= ttl_ms <= now_ms - segment.completion_ms
        if truncated[index]:
            due = segment.number in kept_long_enough
        else:
            due = 0 <= bytes_max <= total - sizes[index]
            total -= sizes[index]
        if not old and not due:
            break
        removable += 1
    return removable
