"""The aborted transactions of completed segments, as head snapshots store them. Pure.

Readers need those that overlap the records they read. The list of a segment lies in the head
snapshot of the next one, beside the sparse index, so a lookup reads one head per segment. The last
stable offset at the end of a segment bounds the lookup: transactions that end later have no record
below it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from operator import attrgetter
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from gateway.core.partition_transactions import AbortedTransaction

_HEAD = Struct(">qqqI")  # first offset, end, last stable offset, number of aborted transactions
_ABORTED = Struct(">qqqq")
_LISTS_MAX = 16
_last_offset = attrgetter("last_offset")


class SegmentAborted(NamedTuple):
    """The aborted transactions whose markers lie from `first_offset` up to `end_offset`."""

    first_offset: int
    end_offset: int
    # The last stable offset at `end_offset`.
    stable_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()

    def covers(self, offset: int) -> bool:
        """Return whether the record at `offset` lies in these segments."""
        return self.first_offset <= offset < self.end_offset

    def encode(self) -> bytes:
        head = _HEAD.pack(*self[:3], len(self.aborted))
        return b"".join((head, *(_ABORTED.pack(*one) for one in self.aborted)))


def decode_aborted(data: bytes) -> SegmentAborted:
    """Decode what `SegmentAborted.encode` returned. Raises ValueError."""
    try:
        first, end, stable, count = _HEAD.unpack_from(data)
    except StructError as error:
        raise ValueError(f"aborted transactions of {len(data)} bytes are truncated") from error
    size = _HEAD.size + count * _ABORTED.size
    if len(data) != size:
        raise ValueError(f"aborted transactions have {len(data)} bytes instead of {size}")
    aborted = _ABORTED.iter_unpack(data[_HEAD.size :])
    return SegmentAborted(first, end, stable, tuple(AbortedTransaction(*one) for one in aborted))


def overlapping(
    aborted: Iterable[AbortedTransaction], start_offset: int, end_offset: int
) -> list[AbortedTransaction]:
    """Return the aborted transactions with offsets from `start_offset` up to `end_offset`."""
    return [
        one for one in aborted if one.last_offset >= start_offset and one.first_offset < end_offset
    ]


def overlapping_in_order(
    aborted: Sequence[AbortedTransaction], start_offset: int, end_offset: int
) -> list[AbortedTransaction]:
    """Return the same as `overlapping` from a list in the order of the markers.

    It is read only between the two offsets: transactions that end later than the last one that is
    read begin at or above `end_offset`.
    """
    found: list[AbortedTransaction] = []
    first = bisect_left(aborted, start_offset, key=_last_offset)
    for at in range(first, len(aborted)):
        one = aborted[at]
        if one.first_offset < end_offset:
            found.append(one)
        if one.stable_offset >= end_offset:
            break
    return found


class AbortedLists:
    """The newest lists that were read, by the end of their segments. At most `_LISTS_MAX`."""

    __slots__ = ("_lists",)

    def __init__(self) -> None:
        # By end offset, the least recently used first. The ranges do not overlap.
        self._lists: OrderedDict[int, SegmentAborted] = OrderedDict()

    def add(self, one: SegmentAborted) -> None:
        self._lists[one.end_offset] = one
        self._lists.move_to_end(one.end_offset)
        if len(self._lists) > _LISTS_MAX:
            self._lists.popitem(last=False)

    def covering(self, offset: int) -> SegmentAborted | None:
        """Return the list of the segment that holds `offset`, or None if it is not here."""
        for end, one in reversed(self._lists.items()):
            if one.covers(offset):
                self._lists.move_to_end(end)
                return one
        return None
