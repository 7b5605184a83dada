"""Finds the records of many batches at once: where each lies, its key, and whether it has a value.

A loop visits each record once, for its size. All else is read as columns, for all records of a
block together. `gateway.wire.record_parts` is the rule that the columns follow. Whatever they
cannot read, damage included, is read again by it, record by record. Source: Kafka, DefaultRecord.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from gateway.core.cleaning_keys import SHORT_BYTES_MAX, key_words
from gateway.core.columns import Bytes, Flags, Numbers, Words
from gateway.wire.record_parts import RecordPart, record_parts, size_at, wrapped
from gateway.wire.record_walk import BadRecord
from ledger.ids import Buffer

_PAD_BYTES = 16  # behind the records, so that all keys can be read as two words
_INT_BYTES_MAX, _LONG_BYTES_MAX = 5, 10
_RUN_MIN, _RUN_FIRST = 8, 32  # records of equal size, and how many are looked for first
_SINGLE = 64  # records that are visited one by one before others of equal size are looked for
_OFFSETS_END = 1 << 34  # of deltas: five bytes hold no larger one
_MASKS = np.frombuffer(
    b"".join(b"\xff" * size + bytes(16 - size) for size in range(SHORT_BYTES_MAX + 1)), np.uint64
).reshape(-1, 2)


class Portion(NamedTuple):
    """Some records of one batch that follow each other."""

    data: Buffer  # all records of the batch
    start: int
    end: int  # where they end in `data`
    first: int  # the index of the first of them in the batch
    records: int

    @property
    def whole(self) -> bool:
        """True if the last record of the batch is one of them."""
        return self.end == len(self.data)


class Columns(NamedTuple):
    """Records in order, those of all portions. Places are counted in the bytes of all portions."""

    starts: Numbers
    ends: Numbers
    timestamps: Numbers  # deltas to the base timestamps
    offsets: Numbers  # deltas to the base offsets
    words: Words  # of the keys; those of records without a key mean nothing
    keyed: Flags
    tombstones: Flags


def columns_of(portions: Sequence[Portion]) -> Columns | None:
    """Return the columns of portions, or None if `columns_by_record` must read them."""
    parts = [memoryview(one.data)[one.start : one.end] for one in portions]
    data = b"".join((*parts, bytes(_PAD_BYTES)))
    starts: list[int] = []
    at = 0
    try:
        for portion, part in zip(portions, parts, strict=True):
            end = at + len(part)
            at = _walk(data, at, end, portion.records, starts)
            if at != end:
                return None
    except IndexError:
        return None
    return _fields(data, np.array(starts, np.int64), at)


def _walk(data: bytes, at: int, end: int, count: int, starts: list[int]) -> int:
    """Append where `count` records begin, from `at` on. Return where the last one ends.

    Records of equal size are found together. Raises IndexError.
    """
    left, ahead = count, _RUN_FIRST
    while left > 0:
        size, run = _run(data, at, end, min(left, ahead))
        if run:
            starts.extend(range(at, at + run * size, size))
            at += run * size
            left -= run
            ahead = 4 * run
            continue
        ahead = _RUN_FIRST
        single = min(left, _SINGLE)
        for _ in range(single):
            starts.append(at)
            size = data[at]
            if size < 128:
                at += 1 + (size >> 1)
                continue
            second = data[at + 1]
            if second < 128:
                at += 2 + ((size & 127 | second << 7) >> 1)
            else:
                at = size_at(data, at)
        left -= single
    return at


def _run(data: bytes, at: int, end: int, most: int) -> tuple[int, int]:
    """Return the size of the record at `at`, and how many of this size follow each other.

    Returns none if they are few, or if their size has more than two bytes.
    """
    first, second = data[at], data[at + 1]
    size = 1 + (first >> 1) if first < 128 else 2 + ((first & 127 | second << 7) >> 1)
    most = min(most, (end - at) // size)
    if most < _RUN_MIN or (first > 127 and second > 127) or data[at + size] != first:
        return size, 0
    column = data[at : at + most * size : size]
    run = most - len(column.lstrip(column[:1]))
    if first > 127:
        column = data[at + 1 : at + run * size : size]
        run -= len(column.lstrip(column[:1]))
    return size, run if run >= _RUN_MIN else 0


def _fields(data: bytes, starts: Numbers, end: int) -> Columns | None:
    source = np.frombuffer(data, np.uint8)
    ends = np.append(starts[1:], end)
    reader = _Reader(source, starts, end)
    sizes = reader.varints(_INT_BYTES_MAX)
    reader.at += 1  # the attributes, which are unused
    timestamps = reader.varints(_LONG_BYTES_MAX)
    offsets = reader.varints(_INT_BYTES_MAX)
    key_sizes = reader.varints(_INT_BYTES_MAX)
    keyed = key_sizes & np.uint64(1) == 0
    lengths = np.where(keyed, key_sizes >> np.uint64(1), 0).astype(np.int64)
    keys_at = reader.at.copy()
    reader.skip(lengths)
    values = reader.varints(_INT_BYTES_MAX)
    tombstones = values & np.uint64(1) == 1
    reader.skip(np.where(tombstones, 0, values >> np.uint64(1)).astype(np.int64))
    if reader.failed or (sizes & np.uint64(1)).any() or (reader.at >= ends).any():
        return None
    signs = np.uint64(0) - (timestamps & np.uint64(1))
    return Columns(
        starts,
        ends,
        (timestamps >> np.uint64(1) ^ signs).view(np.int64),
        (offsets >> np.uint64(1)).astype(np.int64),
        _words(data, source, keys_at, lengths),
        keyed,
        tombstones,
    )


class _Reader:
    """Reads the same field of all records. It never passes the end of the last one."""

    def __init__(self, source: Bytes, starts: Numbers, end: int) -> None:
        self._source, self._end = source, end
        self.at = starts.copy()
        # True once a varint was longer than its type.
        self.failed = False

    def varints(self, bytes_max: int) -> Words:
        """Read unsigned numbers."""
        first = self._source[self.at]
        found = (first & 127).astype(np.uint64)
        self.at += 1
        more = np.flatnonzero(first > 127)
        for number in range(1, bytes_max):
            if not more.size:
                return found
            following = self._source[self.at[more]]
            found[more] |= (following & 127).astype(np.uint64) << np.uint64(7 * number)
            self.at[more] += 1
            if number == _LONG_BYTES_MAX - 1 and (following > 1).any():
                self.failed = True  # more than 64 bits
            more = more[following > 127]
        self.failed |= bool(more.size)
        return found

    def skip(self, sizes: Numbers) -> None:
        self.at = np.minimum(self.at + sizes, self._end)


def _words(data: bytes, source: Bytes, at: Numbers, lengths: Numbers) -> Words:
    windows = np.lib.stride_tricks.sliding_window_view(source, 16)
    short = np.minimum(lengths, SHORT_BYTES_MAX)
    words = windows[at].view(np.uint64) & _MASKS[short]
    words.view(np.uint8)[:, SHORT_BYTES_MAX] = short
    if (longer := np.flatnonzero(lengths > SHORT_BYTES_MAX)).size:
        spans = zip(at[longer].tolist(), lengths[longer].tolist(), strict=True)
        words[longer] = key_words([data[start : start + size] for start, size in spans])
    return words


def portions_of(data: Buffer, count: int, count_max: int) -> Iterator[Portion]:
    """Yield all records of a batch, in portions of at most `count_max`.

    Of a damaged batch, the last portion has the rest.
    """
    start = first = 0
    plain = bytes(data) if count > count_max else b""
    while count - first > count_max:
        at = start
        try:
            for _ in range(count_max):
                at = size_at(plain, at)
        except IndexError:
            break
        if at >= len(data):
            break
        yield Portion(plain, start, at, first, count_max)
        start, first = at, first + count_max
    yield Portion(plain or data, start, len(data), first, count - first)


def columns_by_record(
    portions: Sequence[Portion],
) -> tuple[Columns, tuple[int, BadRecord] | None]:
    """Return the columns of all portions before the first one that is damaged.

    Also returns its place, and its damage.
    """
    rows: list[RecordPart] = []
    base = 0
    for at, portion in enumerate(portions):
        try:
            rows += _rows(portion, base - portion.start)
        except BadRecord as refused:
            return _columns_of_rows(rows), (at, refused)
        base += portion.end - portion.start
    return _columns_of_rows(rows), None


def _rows(portion: Portion, shift: int) -> list[RecordPart]:
    """Return the records of a portion, whose places are moved by `shift`. Raises BadRecord."""
    found: list[RecordPart] = []
    for index, one in enumerate(_parts(portion), portion.first):
        if one.offset >= _OFFSETS_END:
            raise BadRecord(index, f"its offset delta is {one.offset}.")
        found.append(one._replace(start=one.start + shift, end=one.end + shift))
    return found


def _parts(portion: Portion) -> Iterable[RecordPart]:
    data, first = bytes(portion.data), portion.first
    count = portion.records
    if portion.whole:
        return record_parts(data, portion.start, count, first)
    return islice(record_parts(data, portion.start, count + 1, first), count)


def _columns_of_rows(rows: Sequence[RecordPart]) -> Columns:
    def numbers(values: Iterable[int]) -> Numbers:
        return np.fromiter(values, np.int64, len(rows))

    return Columns(
        numbers(row.start for row in rows),
        numbers(row.end for row in rows),
        numbers(wrapped(row.timestamp) for row in rows),
        numbers(row.offset for row in rows),
        key_words([row.key or b"" for row in rows]),
        np.fromiter((row.key is not None for row in rows), np.bool_, len(rows)),
        np.fromiter((row.tombstone for row in rows), np.bool_, len(rows)),
    )
