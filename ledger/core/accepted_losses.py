"""The losses of one stream that a person accepted, as values and as the bytes of a node.

Pure. A range is a run of entries of one segment whose records are given up. It stays lost for every
reader, even if a copy turns up again, and is removed only when truncation has passed it. The
entries behind the end of a ledger that was closed by force are a range up to `ENTRY_MAX`: its
offsets are reserved, because they may have been acknowledged.
Format: docs/formats/losses.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

from ledger.core.gaps import ENTRY_MAX, Acceptance, Evidence, OffsetRange, Position
from ledger.core.loss import AuthoritativeStatus, CopyAnswer, CopyState, Verdict
from ledger.core.text import printable
from ledger.errors import CorruptFormat, InvalidArgument
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.sealed import seal, unseal

RANGES_MAX = 1_000
"""Most ranges of one stream. With evidence of seven bookies each they fit into one node."""

OPERATOR_BYTES_MAX = 100

_REMEDY = (
    "which losses were accepted is unknown, so the partition is not served: if a newer release "
    "wrote the node, upgrade; otherwise restore the node from a backup of the metadata store"
)

_AT_MS_END = 253_402_300_800_000  # the year 10000, which a date cannot show

RESERVED_OFFSETS = 3 << 30
"""Offsets behind the end of a ledger that was closed by force. A segment never holds as many.

A writer stops at 2^30 records, and the last one that it takes may be a batch of 2^31 - 1. So this
bounds what was acknowledged or shown, whatever the bookies that are left know.
"""


class LostRange(NamedTuple):
    """Entries of one segment that were given up, both ends inclusive, and their offsets."""

    segment: int
    first: EntryId
    last: EntryId  # ENTRY_MAX: all entries behind the end of a ledger that was closed by force
    offsets: OffsetRange
    evidence: Evidence  # with its `acceptance`

    @property
    def forced(self) -> bool:
        """Return whether the range is the reserved rest of a ledger that was closed by force."""
        return self.last == ENTRY_MAX

    @property
    def first_position(self) -> Position:
        return Position(self.segment, self.first)

    @property
    def record_count(self) -> int:
        """The number of its offsets."""
        return self.offsets.last + 1 - self.offsets.first


class StreamLosses(NamedTuple):
    """All accepted ranges of a stream, in order of their positions, and so of their offsets."""

    ranges: tuple[LostRange, ...] = ()

    def of_segment(self, number: int) -> tuple[LostRange, ...]:
        """Return the ranges of one segment, in order."""
        return tuple(each for each in self.ranges if each.segment == number)

    def at_offset(self, offset: int) -> LostRange | None:
        """Return the range that holds `offset`, or None."""
        at = bisect_right(self.ranges, offset, key=lambda each: each.offsets.first) - 1
        found = self.ranges[at] if at >= 0 else None
        return found if found is not None and offset <= found.offsets.last else None

    def at_entry(self, number: int, entry: int) -> LostRange | None:
        """Return the range that holds this entry of segment `number`, or None."""
        if not self.ranges:
            return None
        at = self._index_behind(number, entry) - 1
        found = self.ranges[at] if at >= 0 else None
        holds = found is not None and found.segment == number and entry <= found.last
        return found if holds else None

    def first_behind(self, number: int, entry: int) -> LostRange | None:
        """Return the first range of segment `number` that begins behind this entry, or None."""
        if not self.ranges:
            return None
        at = self._index_behind(number, entry)
        found = self.ranges[at] if at < len(self.ranges) else None
        return found if found is not None and found.segment == number else None

    def _index_behind(self, number: int, entry: int) -> int:
        """Return the index of the first range that begins behind this entry."""
        at = Position(number, EntryId(entry))
        return bisect_right(self.ranges, at, key=lambda each: each.first_position)

    def end_after(self, number: int, end_offset: int) -> int:
        """Return the offset at which the segment behind segment `number` begins.

        `end_offset` follows the last record of segment `number`. Offsets that are reserved behind
        it are passed over.
        """
        forced = self.forced_in(number)
        return end_offset if forced is None else max(end_offset, forced.offsets.last + 1)

    def forced_in(self, number: int) -> LostRange | None:
        """Return the reserved rest of segment `number`, None if it was not closed by force."""
        return next((each for each in self.of_segment(number) if each.forced), None)

    def with_range(self, added: LostRange) -> StreamLosses:
        """Return the losses with one more range. A range that is known already changes nothing.

        Raises InvalidArgument if it overlaps another range, or if there is no room.
        """
        assert added.evidence.acceptance is not None
        for each in self.ranges:
            if _same_place(each, added):
                return self
            if each.segment == added.segment and not (
                each.last < added.first or added.last < each.first
            ):
                raise InvalidArgument(
                    f"entries {added.first} to {added.last} of segment {added.segment} overlap the "
                    f"accepted entries {each.first} to {each.last}"
                )
        if len(self.ranges) >= RANGES_MAX:
            raise InvalidArgument(
                f"{RANGES_MAX} accepted losses are the most of one partition: truncate it first"
            )
        ordered = sorted([*self.ranges, added], key=lambda each: each.first_position)
        return StreamLosses(_checked(ordered, "the accepted losses"))

    def without_below(self, start: Position) -> StreamLosses:
        """Return the losses without the ranges that end before `start`, which nobody reads."""
        kept = [each for each in self.ranges if Position(each.segment, each.last) >= start]
        return self if len(kept) == len(self.ranges) else StreamLosses(tuple(kept))


NO_LOSSES = StreamLosses()


def encode_losses(losses: StreamLosses) -> bytes:
    """Return the sealed document of `docs/formats/losses.md`."""
    return seal({"ranges": [_document_of(each) for each in losses.ranges]})


def decode_losses(data: bytes, path: str) -> StreamLosses:
    """Decode a node. An empty one has no losses. Raises CorruptFormat with `path`."""
    if not data:
        return NO_LOSSES
    try:
        return _decoded(data, path)
    except CorruptFormat as error:
        raise CorruptFormat(f"{error}; {_REMEDY}") from error


def _decoded(data: bytes, path: str) -> StreamLosses:
    document = unseal(data, path)
    rows = document.get("ranges")
    if not isinstance(rows, list):
        raise CorruptFormat(f"{path}: it has no list of ranges")
    if len(cast("list[object]", rows)) > RANGES_MAX:
        raise CorruptFormat(f"{path}: more than {RANGES_MAX} ranges")
    try:
        ranges = [_range_of(row) for row in cast("list[dict[str, Any]]", rows)]
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFormat(f"{path}: a range cannot be read: {error!r}") from error
    return StreamLosses(_checked(ranges, path))


def _same_place(one: LostRange, other: LostRange) -> bool:
    return one[:3] == other[:3] and one.evidence.ledger == other.evidence.ledger


def _checked(ranges: Iterable[LostRange], path: str) -> tuple[LostRange, ...]:
    """Check that the ranges are in order and apart. Raises CorruptFormat."""
    found = tuple(ranges)
    for each in found:
        if not 0 <= each.first <= each.last or each.segment < 1 or each.offsets.first < 0:
            raise CorruptFormat(f"{path}: entries {each.first} to {each.last} are no range")
        if each.offsets.last < each.offsets.first - 1:
            raise CorruptFormat(
                f"{path}: offsets {each.offsets.first} to {each.offsets.last} are no range"
            )
    for before, after in pairwise(found):
        entries_apart = Position(before.segment, before.last) < after.first_position
        if not entries_apart or before.offsets.last >= after.offsets.first:
            raise CorruptFormat(
                f"{path}: the ranges at offsets {before.offsets.first} and {after.offsets.first} "
                "overlap or are not in order"
            )
    return found


def _document_of(lost: LostRange) -> dict[str, Any]:
    evidence = lost.evidence
    assert evidence.acceptance is not None
    return {
        "segment": lost.segment,
        "entries": [lost.first, lost.last],
        "offsets": [lost.offsets.first, lost.offsets.last],
        "exact": lost.offsets.exact,
        "ledger": evidence.ledger,
        "verdict": evidence.verdict.value,
        "copies": [[copy.bookie, copy.answer.value, int(copy.status)] for copy in evidence.copies],
        "status_version": evidence.status_version,
        "at_ms": evidence.acceptance.at_ms,
        "by": evidence.acceptance.by,
    }


def _range_of(row: dict[str, Any]) -> LostRange:
    first, last = _numbers(row["entries"], 2)
    low, high = _numbers(row["offsets"], 2)
    segment, ledger, version, at_ms = _numbers(
        [row["segment"], row["ledger"], row["status_version"], row["at_ms"]], 4
    )
    exact, by = row["exact"], row["by"]
    if not isinstance(exact, bool) or not isinstance(by, str):
        raise TypeError("exact or by")
    if not 0 <= at_ms < _AT_MS_END:
        raise ValueError(f"at_ms {at_ms}")
    evidence = Evidence(
        LedgerId(ledger),
        Verdict(row["verdict"]),
        tuple(_copy_of(copy) for copy in row["copies"]),
        version,
        Acceptance(at_ms, printable(by)),
    )
    return LostRange(
        segment, EntryId(first), EntryId(last), OffsetRange(low, high, exact), evidence
    )


def _copy_of(row: Sequence[Any]) -> CopyState:
    bookie, answer, status = row
    if not isinstance(bookie, str):
        raise TypeError("the name of a bookie")
    return CopyState(BookieId(bookie), CopyAnswer(answer), AuthoritativeStatus(status))


def _numbers(values: Sequence[Any], count: int) -> list[int]:
    if len(values) != count or not all(type(value) is int for value in values):
        raise TypeError(f"expected {count} whole numbers")
    return list(values)
