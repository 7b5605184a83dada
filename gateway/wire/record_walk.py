"""Walks the records of a batch (magic 2) and checks their structure, without Python per record.

Records of equal size and shape form a run: one strided slice for each structural byte compares all
records of the run. Other records are decoded by aiokafka's native reader, whose leniency a sum of
sizes excludes. `read_record` is the strict rule that both must follow, and decides the rest.
One step is bounded by bytes, records and headers, because the native reader cannot be interrupted.
The costs are in docs/decisions/0008-how-records-are-checked.md. Source: Kafka,
DefaultRecord.readFrom and DefaultRecordBatch.RecordIterator.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import cache
from itertools import chain, islice
from operator import attrgetter
from typing import Any, NamedTuple

from gateway.wire.batches import HEADER, LENGTH_OVERHEAD

RUN_MIN = 8
"""Shorter runs are left to the native reader, unless they end the batch: slices cost more."""

STRICT_MAX = 100_000
"""More records are refused if the native reader cannot check them; no known client sends such."""

HEADERS_MAX = 10_000
"""A record with more headers is refused: one record is decoded without a pause."""

_PART_BYTES = 2 * HEADERS_MAX
"""Records that are decoded together have at most this many bytes, except for a single record.

A header has at least two bytes. So only a single record can exceed `HEADERS_MAX`.
"""

_READ_AT_ONCE = 400  # records that the native reader decodes at a time
_WORK_PER_STEP = 400  # records, headers and blocks of 4 KiB after which a step ends
_STRICT_WORK = 400  # headers after which the strict reader pauses; a record counts as four
_TWO_BYTES = 1 << 14  # the first unsigned value that needs three bytes as a varint
_INT_BYTES_MAX, _LONG_BYTES_MAX = 5, 10
_BLOCK = 8192  # offset deltas of a block differ in their first two varint bytes only
_ONE_BYTE = bytes(2 * at for at in range(64))
_LOW = bytes(128 | 2 * at & 127 for at in range(_BLOCK))  # the first byte of two or more
_SECOND = bytes(at >> 6 for at in range(_BLOCK))  # the last byte of two
_ASCII = bytes(range(128))
_DELTAS_UP_TO = tuple(bytes(range(0, 2 * at + 1, 2)) for at in range(64))  # 0 to `at`
_HIGH = bytes(range(128, 256))
_BASE = 1 << 62  # a base timestamp with which no record has -1, which aiokafka shows as None
_OFFSET, _TIME = attrgetter("offset"), attrgetter("timestamp")
_KEY, _VALUE, _HEADERS = attrgetter("key"), attrgetter("value"), attrgetter("headers")


class BadRecord(Exception):
    """The error that a record is malformed. `index` is its position in the batch."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"Record {index} of the batch: {reason}")
        self.index = index


class RecordHead(NamedTuple):
    """What a check needs of one record."""

    delta: int  # of the timestamp
    keyed: bool
    end: int  # where the next record begins
    headers: int


class _Reader:
    """Reads varints and skips bytes of one record. Raises BadRecord."""

    __slots__ = ("at", "data", "index")

    def __init__(self, data: bytes, at: int, index: int) -> None:
        self.data, self.at, self.index = data, at, index

    def number(self, bytes_max: int = _INT_BYTES_MAX) -> int:
        value = shift = 0
        for _ in range(bytes_max):
            if self.at >= len(self.data):
                raise BadRecord(self.index, "the batch ends inside it.")
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        else:
            raise BadRecord(self.index, f"a varint has more than {bytes_max} bytes.")
        if value >> (32 if bytes_max == _INT_BYTES_MAX else 64):
            raise BadRecord(self.index, "a varint exceeds its type.")
        return value >> 1 ^ -(value & 1)

    def skip(self, size: int) -> None:
        self.at += max(size, 0)
        if self.at > len(self.data):
            raise BadRecord(self.index, f"{size} bytes exceed the batch.")


class _Prefix(NamedTuple):
    """What precedes the headers of one record."""

    end: int  # where the record ends by its size
    delta: int  # of the timestamp
    offset: int  # delta
    keyed: bool
    headers: int


def _read_prefix(reader: _Reader) -> _Prefix:
    data, index = reader.data, reader.index
    size = reader.number()
    end = reader.at + size
    if size < 0 or end > len(data):
        raise BadRecord(index, f"its {size} bytes do not fit into the batch.")
    reader.skip(1)  # attributes, unused
    delta = reader.number(_LONG_BYTES_MAX)
    offset = reader.number()
    key_bytes = reader.number()
    reader.skip(key_bytes)
    reader.skip(reader.number())
    headers = reader.number()
    if not 0 <= headers <= len(data) - reader.at:
        raise BadRecord(index, f"it cannot have {headers} headers.")
    if headers > HEADERS_MAX:
        raise BadRecord(index, f"it has {headers} headers, more than the limit of {HEADERS_MAX}.")
    return _Prefix(end, delta, offset, key_bytes >= 0, headers)


def read_record(data: bytes, at: int, index: int) -> Generator[None, None, RecordHead]:
    """Return the record at `at`, read by Kafka's rules. Pauses at many headers. Raises BadRecord.

    Kafka also takes other offset deltas than `index`; consumers then see other offsets.
    """
    reader = _Reader(data, at, index)
    end, delta, offset, keyed, headers = _read_prefix(reader)
    if offset != index:
        raise BadRecord(index, f"its offset delta is {offset}.")
    for number in range(1, headers + 1):
        name_bytes = reader.number()
        if name_bytes < 0:
            raise BadRecord(index, "a header has no key.")
        reader.skip(name_bytes)
        reader.skip(reader.number())
        if number % _STRICT_WORK == 0:
            yield
    if reader.at != end:
        raise BadRecord(index, f"it ends {reader.at - end} bytes after its size.")
    return RecordHead(delta, keyed, reader.at, headers)


def part(data: bytes, at: int, index: int, count: int) -> tuple[int, int]:
    """Return how many of `count` records from `at` on may be decoded at once, and where they end.

    The decoder must see no bytes behind that end, because sizes may be wrong. At least one record
    is returned. `index` is the position of the first in the batch. Raises BadRecord.
    """
    start, bound = at, min(at + _PART_BYTES, len(data))
    if bound == len(data) and count <= _READ_AT_ONCE:
        return count, bound
    found, most = 0, min(count, _READ_AT_ONCE)
    while found < most and at < bound:
        end = _end_of(data, at)
        if not at < end <= bound:
            break
        at = end
        found += 1
    return (found, at) if found else (1, _read_prefix(_Reader(data, start, index)).end)


def _end_of(data: bytes, at: int) -> int:
    """Return where the record at `at` ends by its size, or 0 if its size is long or is cut off."""
    size = data[at]
    if size < 128:
        return at + 1 + (size >> 1)
    if at + 1 < len(data) and data[at + 1] < 128:
        return at + 2 + ((size & 127 | data[at + 1] << 7) >> 1)
    if at + 2 < len(data) and data[at + 2] < 128:
        return at + 3 + ((size & 127 | (data[at + 1] & 127) << 7 | data[at + 2] << 14) >> 1)
    return 0


def work_of(records: list[Any], size: int) -> int:
    """Return the work of decoding these records of `size` bytes, as steps count it."""
    return len(records) + sum(map(len, map(_HEADERS, records))) + size // 4096


class RecordWalk:
    """A walk over the records of one batch; `steps` checks them and yields now and then.

    Accepts offset deltas 0 to `count - 1` in order and nothing behind the last record.
    """

    __slots__ = ("_at", "_count", "_data", "_index", "_irregular", "high", "keyless", "low")

    def __init__(self, data: bytes, at: int, count: int) -> None:
        self._data = data
        self._count = count
        # The number of checked records. `_at` is where the next record begins.
        self._index = 0
        self._at = at
        # The greatest timestamp delta, and a lower bound of the smallest one (0 or negative).
        # `high` is below every delta before the first record.
        self.high, self.low = -(1 << 64), 0
        # True once `regular` found records that form no run. They are then checked natively.
        self._irregular = False
        # True once a record without a key was seen.
        self.keyless = False

    def regular(self) -> bool:
        """Check as many runs as a first step may. Return True if they are the whole batch."""
        while self._index <= _BLOCK and self._run():
            pass
        self._irregular = self._index <= _BLOCK
        return self._index == self._count and self._at == len(self._data)

    def steps(self) -> Iterator[None]:
        """Check all records in steps of about a millisecond. Raises BadRecord.

        The most that a step decodes natively is one record of `HEADERS_MAX` headers.
        """
        while not self._irregular and self._run():
            if self._index > _BLOCK:
                yield
        if self._index < self._count:
            yield from self._rest()
        elif self._at != len(self._data):
            self._refuse_surplus()

    def _see(self, low: int, high: int) -> None:
        if high > self.high:
            self.high = high
        if low < self.low:
            self.low = low

    def _refuse_surplus(self) -> None:
        surplus = len(self._data) - self._at
        raise BadRecord(self._count - 1, f"{surplus} bytes follow it, the last one.")

    # -- runs -------------------------------------------------------------------------------------

    def _run(self) -> int:
        """Check as many records of equal shape as there are. Return their number, 0 if few."""
        data, at, index = self._data, self._at, self._index
        room = self._count - index
        if not room or index >= 128 * _BLOCK:
            return 0
        shape = _shape(data, at, 1 if index < 64 else 2 if index < _BLOCK else 3)
        if shape is None:
            return 0
        size, delta_at, offset_at, places, keyless = shape
        edge = 64 if index < 64 else (index // _BLOCK + 1) * _BLOCK
        run = min(room, (len(data) - at) // size, edge - index)
        least = min(room, RUN_MIN)
        if run < least or (run > 1 and data[at + size] != data[at]):
            return 0
        if run > 1:
            stop = at + run * size
            columns = [data[place:stop:size] for place in places]
            if columns != [column[:1] * run for column in columns]:
                run = min(run - len(column.lstrip(column[:1])) for column in columns)
                if run < least:
                    return 0
        run = self._deltas(delta_at, offset_at, run, size)
        if run < least or not self._offsets_follow(offset_at, index, run, size):
            return 0
        self._at += run * size
        self._index += run
        self.keyless = self.keyless or keyless
        return run

    def _deltas(self, at: int, end: int, run: int, size: int) -> int:
        """Note the timestamp deltas of a run. Return how many have varints of equal width.

        Those of records that turn out not to belong to the run are noted too. They are seen again
        when their records are checked.
        """
        data = self._data
        span = (run - 1) * size + 1
        last = data[end - 1 : end - 1 + span : size]
        if end == at + 1:
            newest = last[-1]
            if newest < 128 and not last.translate(None, _DELTAS_UP_TO[newest >> 1]):
                if newest >> 1 > self.high:
                    self.high = newest >> 1
                return run
        columns = [data[each : each + span : size] for each in range(at, end)]
        for column in columns[:-1]:
            run = min(run, len(column) - len(column.lstrip(_HIGH)))
        run = min(run, len(last) - len(last.lstrip(_ASCII)))
        if not run:
            return 0
        values = [0] * run
        for place, column in enumerate(columns):
            shift = 7 * place
            values = [v | (b & 127) << shift for v, b in zip(values, column, strict=False)]
        signed = [value >> 1 ^ -(value & 1) for value in values]
        self._see(min(signed), max(signed))
        return run

    def _offsets_follow(self, at: int, index: int, run: int, size: int) -> bool:
        """Return whether the offset deltas of a run count on from `index`."""
        data, span, start = self._data, (run - 1) * size + 1, index % _BLOCK
        first = data[at : at + span : size]
        if index < 64:
            return first == _ONE_BYTE[index : index + run]
        second = data[at + 1 : at + 1 + span : size]
        due = _SECOND[start : start + run]
        if index < _BLOCK:
            return first == _LOW[start : start + run] and second == due
        third = data[at + 2 : at + 2 + span : size]
        due = due.translate(_HIGH + _HIGH)
        last = bytes((index // _BLOCK,)) * run
        return first == _LOW[start : start + run] and second == due and third == last

    # -- other records ----------------------------------------------------------------------------

    def _rest(self) -> Iterator[None]:
        """Check the records after the runs natively, and strictly what that cannot decode."""
        work = 0
        while self._index < self._count:
            found, end = part(self._data, self._at, self._index, self._count - self._index)
            cost = self._natively(found, end)
            if cost is None:
                yield from self._strictly()
                return
            work += cost
            if work >= _WORK_PER_STEP and self._index < self._count:
                work = 0
                yield
        if self._at != len(self._data):
            self._refuse_surplus()

    def _natively(self, count: int, end: int) -> int | None:
        """Check the next `count` records. Return the work, or None if they must be read strictly.

        The native reader also takes varints that are longer than necessary, and attributes of
        several bytes. Both make a record larger than `size_in_bytes` says. So the records are sound
        if the sizes add up to their bytes.
        """
        index, size = self._index, end - self._at
        offsets = range(index, index + count)
        try:
            size_of, reader = _native(self._data[self._at : end], count)
            batch = list(islice(reader, count))
            times = list(map(_TIME, batch))
            keys = list(map(_KEY, batch))
            if list(map(_OFFSET, batch)) != list(offsets):
                return None
            sizes = map(size_of, offsets, times, keys, map(_VALUE, batch), map(_HEADERS, batch))
            if sum(sizes) != size:
                return None
        except _unreadable():
            return None
        self._see(min(times) - _BASE, max(times) - _BASE)
        self.keyless = self.keyless or None in keys
        self._at = end
        self._index += count
        return work_of(batch, size)

    def _strictly(self) -> Iterator[None]:
        if self._count - self._index > STRICT_MAX:
            raise BadRecord(self._index, "it or a later record is malformed.")
        headers = 0
        for head in heads(self._data, self._at, self._index, self._count):
            if head is None:
                yield
                continue
            headers += head.headers
            if headers > STRICT_MAX:
                raise BadRecord(self._index, f"over {STRICT_MAX} headers must be checked singly.")
            self._see(head.delta, head.delta)
            self.keyless = self.keyless or not head.keyed
            self._at = head.end
            self._index += 1
        if self._at != len(self._data):
            self._refuse_surplus()


class _Shape(NamedTuple):
    """The shape of a record, in places counted from where the record begins."""

    size: int
    delta_at: int  # where the timestamp delta begins
    offset_at: int  # where the offset delta begins
    columns: tuple[tuple[int, bytes], ...]  # the other structural bytes, each repeated for a run
    keyless: bool


_shapes: dict[bool, _Shape | None] = {False: None, True: None}
"""The shape of the last batch, for short and for wide offset deltas.

All bytes by which `_shape` finds a shape are compared with it, so a wrong guess is never taken for
the shape of a batch. Producers send batch after batch of one shape.
"""


def same_shape(data: bytes, at: int, count: int) -> tuple[int, bool] | None:
    """Check a whole batch whose records have one shape, which `RecordWalk` does in more calls.

    Returns the greatest timestamp delta and whether keys lack, or None if a walk must decide.
    The smallest delta is 0 or more.
    """
    high, keyless, index = 0, False, 0
    while index < count:
        wide = index > 0
        run = min(count, _BLOCK if wide else 64) - index
        if run <= 0:
            return None
        guess = _shapes[wide]
        if guess is None or not _has_shape(data, at, run, guess):
            guess = _shapes[wide] = _shape_at(data, at, wide)
            if guess is None or not _has_shape(data, at, run, guess):
                return None
        size = guess.size
        stop = at + run * size
        deltas = data[at + guess.delta_at : stop : size]
        newest = deltas[-1]
        if newest > 127 or deltas.translate(None, _DELTAS_UP_TO[newest >> 1]):
            return None
        offset_at = at + guess.offset_at
        if not wide:
            if data[offset_at:stop:size] != _ONE_BYTE[:run]:
                return None
        elif (
            data[offset_at + 1 : stop : size] != _SECOND[64 : 64 + run]
            or data[offset_at:stop:size] != _LOW[64 : 64 + run]
        ):
            return None
        if newest >> 1 > high:
            high = newest >> 1
        keyless = keyless or guess.keyless
        index += run
        at = stop
    return (high, keyless) if index and at == len(data) else None


def _has_shape(data: bytes, at: int, run: int, shape: _Shape) -> bool:
    """Return whether the structural bytes of the next `run` records, but deltas, are as `shape`."""
    size = shape.size
    stop = at + run * size
    if stop > len(data):
        return False
    for place, repeated in shape.columns:  # noqa: SIM110 - a generator costs twice as much
        if data[at + place : stop : size] != repeated[:run]:
            return False
    return True


def _shape_at(data: bytes, at: int, wide: bool) -> _Shape | None:
    """Return the shape of the record at `at` if its timestamp delta has one byte."""
    shape = _shape(data, at, 2 if wide else 1)
    if shape is None:
        return None
    size, delta_at, offset_at, places, keyless = shape
    if offset_at != delta_at + 1:
        return None
    repeat = _BLOCK if wide else 64
    columns = tuple((place - at, data[place : place + 1] * repeat) for place in places)
    return _Shape(size, delta_at - at, offset_at - at, columns, keyless)


def heads(data: bytes, at: int, index: int, count: int) -> Iterator[RecordHead | None]:
    """Return the records from `index` on, one after another; None is a pause. Raises BadRecord."""
    work = 0
    for each in range(index, count):
        head = yield from read_record(data, at, each)
        at = head.end
        yield head
        work += 4 + head.headers
        if work >= _STRICT_WORK:
            work = 0
            yield None


def _shape(
    data: bytes, at: int, offset_bytes: int
) -> tuple[int, int, int, tuple[int, ...], bool] | None:
    """Return the shape of a record without headers and with small lengths, otherwise None.

    The shape is: its size, where the deltas of timestamp and offset begin, where its other
    structural bytes are, whether the key is null.
    """
    try:
        size, body = data[at], at + 1
        if size > 127:
            size += (data[body] << 7) - 128
            body += 1
        end = body + (size >> 1)
        offset_at = body + 2
        while data[offset_at - 1] > 127:
            offset_at += 1
        key = offset_at + offset_bytes
        key_size = data[key]
        value = key_end = key + 1 + (key_size >> 1)
        value_size = data[value]
        if value_size > 127:
            value += 1
            value_size += (data[value] << 7) - 128
        if (
            (size | value_size) >= _TWO_BYTES  # a length of three bytes or more
            or size & 1
            or (key_size != 1 and key_size & 129)
            or (value_size != 1 and value_size & 1)
            or value + 2 + (value_size >> 1) != end
            or offset_at - body > _LONG_BYTES_MAX
            or data[end - 1]
        ):
            return None
    except IndexError:
        return None
    columns = (*range(at, body), key, *range(key_end, value + 1), end - 1)
    return end - at, body + 1, offset_at, columns, key_size == 1


def load_record_reader() -> None:
    """Load the native reader of records, which otherwise loads at its first use in 100 ms."""
    _size_of()


def _native(records: bytes, count: int) -> tuple[Any, Iterator[Any]]:
    """Return aiokafka's function for the size of a record, and its reader of these records."""
    from aiokafka.record.default_records import (  # pyright: ignore[reportMissingTypeStubs]
        DefaultRecordBatch,
    )

    length = HEADER.size + len(records) - LENGTH_OVERHEAD
    header = HEADER.pack(0, length, -1, 2, 0, 0, 0, _BASE, _BASE, -1, -1, -1, count)
    reader: Any = DefaultRecordBatch(header + records)
    return _size_of(), chain(reader)  # `islice` calls iter() again, which the reader refuses


@cache
def _size_of() -> Any:
    from aiokafka.record.default_records import (  # pyright: ignore[reportMissingTypeStubs]
        DefaultRecordBatchBuilder,
    )

    builder: Any = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    builder.append(0, _BASE, None, None, [])  # sets the base timestamp of all later sizes
    return builder.size_in_bytes


@cache
def _unreadable() -> tuple[type[Exception], ...]:
    """Return the errors with which the native reader gives up."""
    from aiokafka.errors import CorruptRecordException

    return (
        CorruptRecordException,
        ValueError,
        IndexError,
        OverflowError,
        MemoryError,
        TypeError,
    )
