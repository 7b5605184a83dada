"""The positions of records in batches, for very many records at once.

A record begins where the previous one ends, so finding it means following all lengths before it.
Three shortcuts avoid most of that work. Batches of equal size often have the same layout, which one
comparison of all their lengths shows. Many other batches advance in step, one record of each at a
time. In a few large batches, runs of equally sized records are found by comparing whole columns.
Only the remaining records are found one by one.

The module is pure. Damaged data raises ValueError or IndexError: every position is checked against
its batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ledger.ids import Buffer

Bytes = NDArray[np.uint8]
Positions = NDArray[np.int64]

ALIKE_FROM = 8  # compare the layouts of equally sized batches if there are at least 8 such batches
LOCKSTEP_FROM = 80  # advance batches in step if an average step covers at least 80 records
_RUN_MIN = 8  # the shortest run of equally sized records
_SINGLES = 64  # number of records to find one by one before the next search for a run


class RecordBounds(NamedTuple):
    """The start of each record (after its length) and its end, in order."""

    starts: Positions
    ends: Positions


class _Batches(NamedTuple):
    """Each batch's body start, body end, record count and index of its first record."""

    begins: Positions
    ends: Positions
    counts: Positions
    indexes: Positions

    def those(self, wanted: NDArray[np.bool_]) -> _Batches:
        return _Batches(*(each[wanted] for each in self))


def varints(data: Bytes, at: Positions) -> tuple[Positions, Positions]:
    """Decode the zigzag numbers at these positions.

    Returns the numbers and the positions after them. Raises IndexError beyond the end of `data`,
    ValueError for a number of more than ten bytes.
    """
    first = data[at]
    behind = at + 1
    values = (first & 0x7F).astype(np.int64)
    if not (first & 0x80).any():
        return (values >> 1) ^ -(values & 1), behind
    second = data[behind]
    long = first >= 0x80
    values |= np.where(long, second & 0x7F, 0).astype(np.int64) << 7
    behind += long
    more = np.flatnonzero(long & (second >= 0x80))
    shift = 14
    while more.size:
        if shift > 63:
            raise ValueError("a number of more than ten bytes")
        byte = data[behind[more]]
        values[more] |= (byte & 0x7F).astype(np.int64) << shift
        behind[more] += 1
        more = more[byte >= 0x80]
        shift += 7
    return ((values >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(values & 1), behind


def find_records(
    data: bytes, array: Bytes, begins: list[int], ends: list[int], counts: list[int]
) -> RecordBounds:
    """Find all records of batches whose bodies are at `begins` to `ends` of `data`.

    `array` is `data` as a numpy array. Raises ValueError or IndexError if a body does not hold
    exactly the number of records in `counts`.
    """
    records = sum(counts)
    found = RecordBounds(np.empty(records, np.int64), np.empty(records, np.int64))
    sizes = np.array(counts, np.int64)
    indexes = np.cumsum(sizes) - sizes
    left = _Batches(np.array(begins, np.int64), np.array(ends, np.int64), sizes, indexes)
    if len(counts) >= ALIKE_FROM:
        left = _alike(data, array, left, found)
    if not len(left.counts):
        return found
    if int(left.counts.sum()) >= LOCKSTEP_FROM * int(left.counts.max()):
        _in_step(array, left, found)
        return found
    for begin, end, count, index in zip(*(each.tolist() for each in left), strict=True):
        span = slice(index, index + count)
        _one_batch(data, array, begin, end, RecordBounds(found.starts[span], found.ends[span]))
    return found


def _alike(data: bytes, array: Bytes, batches: _Batches, found: RecordBounds) -> _Batches:
    """Find the records of batches whose layout equals that of the first batch of their shape.

    A shape is a body size with a record count; only the most common shape is tried. Returns the
    batches that remain.
    """
    shapes = (batches.ends - batches.begins) << 32 | batches.counts
    kinds, often = np.unique(shapes, return_counts=True)
    if often.max() < ALIKE_FROM:
        return batches
    members = shapes == kinds[often.argmax()]
    group = batches.those(members)
    begin, end, count = int(group.begins[0]), int(group.ends[0]), int(group.counts[0])
    first = RecordBounds(np.empty(count, np.int64), np.empty(count, np.int64))
    _one_batch(data, array, begin, end, first)
    moved = (group.begins - begin)[:, None]
    lengths_at = np.concatenate(([begin], first.ends[:-1]))
    lengths, starts = varints(array, (lengths_at + moved).ravel())
    same = (starts == (first.starts + moved).ravel()) & (lengths > 0)
    same &= starts + lengths == (first.ends + moved).ravel()
    good = same.reshape(-1, count).all(axis=1)
    indexes = (group.indexes[good][:, None] + np.arange(count)).ravel()
    found.starts[indexes] = (first.starts + moved[good]).ravel()
    found.ends[indexes] = (first.ends + moved[good]).ravel()
    members[members] = good
    return batches.those(~members)


def _in_step(array: Bytes, batches: _Batches, found: RecordBounds) -> None:
    """Find the records of all batches in steps: step k finds the k-th record of every batch."""
    # Sort by record count, so that batches with a k-th record come first.
    order = np.argsort(-batches.counts, kind="stable")
    at, limits, counts, indexes = (each[order] for each in batches)
    having = np.searchsorted(-counts, -np.arange(int(counts[0])), side="left")
    for active in having.tolist():
        if active < len(at):
            _all_used(at[active:], limits[active : len(at)])
            at, indexes = at[:active], indexes[:active]
        lengths, starts = varints(array, at)
        if lengths.min() <= 0:
            raise ValueError("a record of no bytes")
        at = starts + lengths
        found.starts[indexes] = starts
        found.ends[indexes] = at
        indexes += 1
    _all_used(at, limits[: len(at)])


def _all_used(at: Positions, limits: Positions) -> None:
    if not np.array_equal(at, limits):
        raise ValueError("the records do not fill their batch")


def _one_batch(data: Buffer, array: Bytes, at: int, end: int, found: RecordBounds) -> None:
    if _following(data, array, at, end, found) != end:
        raise ValueError("the records do not fill their batch")


def find_records_in_parts(
    data: Buffer, array: Bytes, count: int, records_max: int
) -> Iterator[RecordBounds]:
    """Find the records of one batch, whose body is `data`, in parts of at most `records_max`.

    Raises ValueError or IndexError when it reaches damaged data.
    """
    at, end = 0, len(data)
    while count:
        some = min(count, records_max)
        found = RecordBounds(np.empty(some, np.int64), np.empty(some, np.int64))
        at = _following(data, array, at, end, found)
        count -= some
        if at > end or (at == end) == bool(count):
            raise ValueError("the records do not fill their batch")
        yield found


def _following(data: Buffer, array: Bytes, at: int, end: int, found: RecordBounds) -> int:
    """Fill `found` with the records from `at` on, by runs where possible.

    Returns the position after the last record. If it is beyond `end`, `found` may not be full.
    """
    count, done, singles = len(found.starts), 0, _SINGLES
    while done < count:
        left = RecordBounds(found.starts[done:], found.ends[done:])
        taken = _run(data, array, at, end, left)
        if taken < _RUN_MIN:
            taken = _singly(data, at, left, singles)
            singles *= 2
        else:
            singles = _SINGLES
        done += taken
        at = int(found.ends[done - 1])
        if at > end:
            break
    return at


def _run(data: Buffer, array: Bytes, at: int, end: int, left: RecordBounds) -> int:
    """Find a run of records of equal length from `at` on.

    Returns the number of records in the run, or 0 if the run is too short.
    """
    length, start = one_varint(data, at)
    size = start + length - at
    count = min(len(left.starts), (end - at) // size) if length > 0 else 0
    if count < _RUN_MIN:
        return 0
    count = min(_same(array, at, start, size, _RUN_MIN), count)
    if count == _RUN_MIN:
        count = _same(array, at, start, size, min(len(left.starts), (end - at) // size))
    left.starts[:count] = np.arange(start, start + count * size, size)
    left.ends[:count] = left.starts[:count] + length
    return count


def _same(array: Bytes, at: int, start: int, size: int, count: int) -> int:
    """Count how many of `count` records of equal size have the length of the first one."""
    for index in range(at, start):
        other = array[index : index + count * size : size][:count] != array[index]
        first = int(other.argmax())
        if other[first]:
            count = first
    return count


def _singly(data: Buffer, at: int, left: RecordBounds, count: int) -> int:
    starts: list[int] = []
    ends: list[int] = []
    for _ in range(min(count, len(left.starts))):
        low = data[at]
        if low < 0x80:
            length, at = low, at + 1
        else:
            high = data[at + 1]
            if high < 0x80:
                length, at = low & 0x7F | high << 7, at + 2
            else:
                length, at = one_varint(data, at)
                length <<= 1
        if length & 1 or length <= 0:
            raise ValueError("a record of no bytes")
        starts.append(at)
        at += length >> 1
        if at > len(data):
            raise ValueError("a record is longer than its batch")
        ends.append(at)
    left.starts[: len(starts)] = starts
    left.ends[: len(ends)] = ends
    return len(starts)


def one_varint(data: Buffer, at: int) -> tuple[int, int]:
    """Decode the zigzag number at `at`. Returns the number and the position after it.

    Raises IndexError or ValueError.
    """
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than ten bytes")
