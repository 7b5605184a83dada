"""Extents: consecutive entries of a ledger at rising positions of a log file. Pure.

The index has one row for an extent, under the id of its first entry, instead of one per entry.
Entries of other ledgers may lie between those of an extent, so it can take several reads. An extent
of one entry has the form that rows had before extents existed:

    one entry       file id u64 · position u32 · length u32
    more            file id u64 · position of the first u32 · form u8 · lengths, u32 each
                    form 1: each entry begins `RECORD_HEADER_BYTES` behind the end of the one before
                    form 2: then the distances of all entries from the first one follow, u32 each

The extents of a ledger never overlap. So the only row that can hold an entry is the last one at or
before it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator
from itertools import accumulate
from operator import add, sub
from struct import Struct, pack, unpack_from
from struct import error as StructError
from typing import Final, NamedTuple

from ledger.core.journal_format import RECORD_HEADER_BYTES
from ledger.errors import CorruptFormat

EXTENT_ENTRIES_MAX: Final = 1024

_ONE = Struct(">QII")
_HEAD = Struct(">QIB")
_ADJACENT: Final = 1
_DISTANCES: Final = 2


class EntryLocation(NamedTuple):
    """The location of an entry: `length` bytes at `position` in a log file."""

    file_id: int
    position: int
    length: int


class Extent(NamedTuple):
    """Consecutive entries from `first` on, at rising positions of one log file."""

    first: int
    file_id: int
    anchor: int  # a position to which the offsets of all entries are relative
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def last(self) -> int:
        """The id of the last entry."""
        return self.first + len(self.lengths) - 1

    @property
    def length(self) -> int:
        """The bytes of all entries."""
        return sum(self.lengths)

    @property
    def position(self) -> int:
        """The position of the first entry."""
        return self.anchor + self.offsets[0]

    @property
    def end(self) -> int:
        """The position behind the last entry."""
        return self.anchor + self.offsets[-1] + self.lengths[-1]

    def locate(self, entry: int) -> EntryLocation | None:
        """Return the location of an entry, or None if the extent does not hold it."""
        at = entry - self.first
        if not 0 <= at < len(self.lengths):
            return None
        return EntryLocation(self.file_id, self.anchor + self.offsets[at], self.lengths[at])

    def part(self, first: int, last: int) -> Extent:
        """Return the entries from `first` to `last`, which it holds."""
        begin, end = first - self.first, last - self.first + 1
        assert 0 <= begin < end <= len(self.lengths)
        if begin == 0 and end == len(self.lengths):
            return self
        places = self.offsets[begin:end], self.lengths[begin:end]
        return Extent(first, self.file_id, self.anchor, *places)

    def within(self, bytes_max: int, last: int) -> int:
        """Return how many of its entries up to `last` have up to `bytes_max` bytes together."""
        count = last - self.first + 1
        if sum(self.lengths) <= bytes_max:  # much cheaper than the sums up to each entry
            return count
        return min(count, bisect_left(list(accumulate(self.lengths)), bytes_max + 1))

    def reads(self, gap_max: int, bytes_max: int) -> Iterator[Extent]:
        """Yield the parts of the extent, one for each read.

        Between two entries of a part are up to `gap_max` other bytes. A part covers up to
        `bytes_max` bytes, unless it has one entry.
        """
        offsets, lengths = self.offsets, self.lengths
        ends = tuple(map(add, offsets, lengths))
        gaps = list(map(sub, offsets[1:], ends))
        if ends[-1] - offsets[0] <= bytes_max and max(gaps, default=0) <= gap_max:
            yield self
            return
        begin = 0
        for at, gap in enumerate(gaps, 1):
            if gap > gap_max or ends[at] - offsets[begin] > bytes_max:
                yield self.part(self.first + begin, self.first + at - 1)
                begin = at
        yield self.part(self.first + begin, self.last)

    def locations(self) -> Iterator[tuple[int, EntryLocation]]:
        """Yield each entry with its location."""
        places = zip(self.offsets, self.lengths, strict=True)
        for entry, (offset, length) in enumerate(places, self.first):
            yield entry, EntryLocation(self.file_id, self.anchor + offset, length)

    def without(self, entries: Container[int]) -> list[Extent]:
        """Return what is left of it without these entries."""
        return extents_of(each for each in self.locations() if each[0] not in entries)


def extents_of(located: Iterable[tuple[int, EntryLocation]]) -> list[Extent]:
    """Join entries, by rising ids, to as few extents as possible."""
    found: list[Extent] = []
    first = file_id = anchor = end = -1
    offsets: list[int] = []
    lengths: list[int] = []
    for entry, (file, position, length) in located:
        joined = (
            entry == first + len(lengths)
            and file == file_id
            and position >= end
            and len(lengths) < EXTENT_ENTRIES_MAX
        )
        if not joined:
            if lengths:
                found.append(Extent(first, file_id, anchor, tuple(offsets), tuple(lengths)))
            first, file_id, anchor, offsets, lengths = entry, file, position, [], []
        offsets.append(position - anchor)
        lengths.append(length)
        end = position + length
    if lengths:
        found.append(Extent(first, file_id, anchor, tuple(offsets), tuple(lengths)))
    return found


def encode_extent(extent: Extent) -> bytes:
    """Return the value of its row."""
    file_id, position, lengths = extent.file_id, extent.position, extent.lengths
    count = len(lengths)
    if count == 1:
        return _ONE.pack(file_id, position, lengths[0])
    skipped = extent.offsets[0]
    if extent.offsets == _adjacent(skipped, lengths):
        return _HEAD.pack(file_id, position, _ADJACENT) + pack(f">{count}I", *lengths)
    distances = [offset - skipped for offset in extent.offsets]
    head = _HEAD.pack(file_id, position, _DISTANCES)
    return head + pack(f">{2 * count}I", *lengths, *distances)


def decode_extent(first: int, value: bytes) -> Extent:
    """Parse the value of the row of `first`. Raises CorruptFormat."""
    if len(value) == _ONE.size:
        file_id, position, length = _ONE.unpack(value)
        return Extent(first, file_id, position, (0,), (length,))
    count, rest = divmod(len(value) - _HEAD.size, 4)
    if rest:
        raise CorruptFormat(f"index: the row of entry {first} is cut or too long")
    try:
        file_id, position, form = _HEAD.unpack_from(value)
        numbers: tuple[int, ...] = unpack_from(f">{count}I", value, _HEAD.size)
    except StructError as error:
        raise CorruptFormat(f"index: the row of entry {first} is cut") from error
    if form == _ADJACENT and numbers:
        return Extent(first, file_id, position, _adjacent(0, numbers), numbers)
    count, odd = divmod(count, 2)
    if form != _DISTANCES or odd or not count:
        raise CorruptFormat(f"index: the row of entry {first} has the unknown form {form}")
    return Extent(first, file_id, position, numbers[count:], numbers[:count])


def count_entries(first: int, value: bytes) -> int:
    """Return how many entries the row of `first` has, whatever their number, in a few steps.

    Raises CorruptFormat.
    """
    if len(value) == _ONE.size:
        return 1
    count, rest = divmod(len(value) - _HEAD.size, 4)
    if rest or count <= 0:
        raise CorruptFormat(f"index: the row of entry {first} is cut or too long")
    form = value[_HEAD.size - 1]
    if form == _ADJACENT:
        return count
    if form == _DISTANCES and count % 2 == 0:
        return count // 2
    raise CorruptFormat(f"index: the row of entry {first} has the unknown form {form}")


def _adjacent(offset: int, lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Return the offsets of entries between which only record headers lie."""
    steps = map(RECORD_HEADER_BYTES.__add__, lengths[:-1])  # twice as fast as a generator
    return tuple(accumulate(steps, initial=offset))
