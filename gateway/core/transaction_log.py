"""The records of the transaction log: Kafka's TransactionLogKey and TransactionLogValue. Pure.

The value has two versions. Version 0 is fixed. Version 1 is flexible: its tagged fields store the
producer ids before and after this one, and the client's transaction version. Unknown tagged fields
are kept and written again, as Kafka does.

Source: Apache Kafka 4.3, TransactionLog.java, TransactionLogKey.json, TransactionLogValue.json.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Sequence
from itertools import islice
from operator import itemgetter
from struct import Struct, pack
from struct import error as StructError
from typing import TypeVar

from gateway.core.transaction_states import (
    NO_PRODUCER_ID,
    TopicPartition,
    TransactionMetadata,
    TransactionState,
)
from gateway.wire.steps import result_of
from ledger.errors import CorruptFormat

ID_BYTES_MAX = 2**15 - 1
"""The longest transactional id in UTF-8, because its length has 16 bits and a sign."""

FIXED_VERSION = 0
FLEXIBLE_VERSION = 1
_KEY_VERSION = 0
_HEAD = Struct(">hqhib")  # version, producer id, epoch, timeout in ms, state
_TIMES = Struct(">qq")  # last update and start, in ms
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_INT8 = Struct(">b")
_STATES = frozenset(TransactionState)
_PREVIOUS_ID, _NEXT_ID, _CLIENT_VERSION = range(3)  # tags of version 1; Kafka never sets tag 3
_VARINT_BYTES_MAX = 5
_PARTITION_BYTES = 4
_TOPIC_BYTES = 11  # beside the name of a topic: two lengths and no tagged fields
_TAG_BYTES = 10  # beside the bytes of a tagged field: tag and length
_FIXED_BYTES = 80  # all other fields
_T = TypeVar("_T", str, int)
_topic_of = itemgetter(0)
STEP_PARTITIONS = 2_000
"""Partitions, or topics of one each, that one step of the encoding of a value handles."""


def encode_key(transactional_id: str) -> bytes:
    """Return the key of the records of this id."""
    encoded = transactional_id.encode()
    assert len(encoded) <= ID_BYTES_MAX
    return _INT16.pack(_KEY_VERSION) + _INT16.pack(len(encoded)) + encoded


def decode_key(data: bytes) -> str:
    """Return the transactional id of a key. Raises CorruptFormat."""
    reader = _Reader(data, "key")
    version = reader.number(_INT16)
    if version != _KEY_VERSION:
        raise reader.error(f"has version {version}; this release reads {_KEY_VERSION}")
    transactional_id = reader.text(reader.number(_INT16))
    reader.end()
    return transactional_id


def encode_value(metadata: TransactionMetadata, version: int) -> bytes:
    """Return the value that stores this state, in version 0 or 1."""
    return result_of(encode_in_steps(metadata, version))


def encode_in_steps(metadata: TransactionMetadata, version: int) -> Generator[None, None, bytes]:
    """Return the value as `encode_value`. Yields after each `STEP_PARTITIONS`."""
    assert metadata.state is not TransactionState.EMPTY or not metadata.partitions
    flexible = version >= FLEXIBLE_VERSION
    out = bytearray(
        _HEAD.pack(
            version,
            metadata.producer_id,
            metadata.epoch,
            metadata.timeout_ms,
            metadata.state,
        )
    )
    if metadata.state is TransactionState.EMPTY:
        out += b"\0" if flexible else _INT32.pack(-1)
    else:
        yield from _put_partitions(out, metadata.partitions, flexible=flexible)
    out += _TIMES.pack(metadata.updated_ms, metadata.started_ms)
    if flexible:
        _put_tagged(out, metadata)
    return bytes(out)


def value_bytes(metadata: TransactionMetadata) -> int:
    """Return the size of the stored state, or a little more."""
    topics = set(map(_topic_of, metadata.partitions))
    names = sum(len(topic.encode()) + _TOPIC_BYTES for topic in topics)
    tags = sum(len(data) + _TAG_BYTES for _, data in metadata.tagged)
    return _FIXED_BYTES + names + tags + _PARTITION_BYTES * len(metadata.partitions)


def _put_partitions(
    out: bytearray, partitions: Iterable[TopicPartition], *, flexible: bool
) -> Generator[None, None, None]:
    # By topic, because 100,000 pairs of topic and partition take ten times as long.
    topics: defaultdict[str, list[int]] = defaultdict(list)
    left = iter(partitions)
    while some := tuple(islice(left, STEP_PARTITIONS)):
        for topic, partition in some:
            topics[topic].append(partition)
        if len(some) == STEP_PARTITIONS:
            yield
    _put_count(out, len(topics), _INT32, flexible=flexible)
    put = 0
    for topic in _in_order(topics):
        numbers = _in_order(topics[topic])
        name = topic.encode()
        _put_count(out, len(name), _INT16, flexible=flexible)
        out += name
        _put_count(out, len(numbers), _INT32, flexible=flexible)
        for at in range(0, len(numbers), STEP_PARTITIONS):
            some = numbers[at : at + STEP_PARTITIONS]
            out += pack(f">{len(some)}i", *some)
            put += 1 + len(some)
            if put >= STEP_PARTITIONS:
                put = 0
                yield
        if flexible:
            out.append(0)  # no tagged fields


def _in_order(items: Collection[_T]) -> Sequence[_T]:
    """Return the items sorted, for people who read the log, unless that takes long."""
    return sorted(items) if len(items) <= STEP_PARTITIONS else tuple(items)


def _put_count(out: bytearray, count: int, fixed: Struct, *, flexible: bool) -> None:
    if flexible:
        _put_varint(out, count + 1)
    else:
        out += fixed.pack(count)


def _put_tagged(out: bytearray, metadata: TransactionMetadata) -> None:
    tagged = dict(metadata.tagged)
    if metadata.previous_producer_id != NO_PRODUCER_ID:
        tagged[_PREVIOUS_ID] = _INT64.pack(metadata.previous_producer_id)
    if metadata.next_producer_id != NO_PRODUCER_ID:
        tagged[_NEXT_ID] = _INT64.pack(metadata.next_producer_id)
    if metadata.version:
        tagged[_CLIENT_VERSION] = _INT16.pack(metadata.version)
    _put_varint(out, len(tagged))
    for tag, data in sorted(tagged.items()):
        _put_varint(out, tag)
        _put_varint(out, len(data))
        out += data


def _put_varint(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def decode_value(transactional_id: str, data: bytes) -> TransactionMetadata:
    """Return the state that a value stores. Raises CorruptFormat, which names the id."""
    reader = _Reader(data, f"value of transactional id {transactional_id!r}")
    version = reader.number(_INT16)
    if version not in (FIXED_VERSION, FLEXIBLE_VERSION):
        raise reader.error(f"has version {version}; this release reads 0 and 1")
    flexible = version == FLEXIBLE_VERSION
    producer_id = reader.number(_INT64)
    epoch = reader.number(_INT16)
    timeout_ms = reader.number(_INT32)
    number = reader.number(_INT8)
    if number not in _STATES:
        raise reader.error(f"has the unknown state {number}")
    state = TransactionState(number)
    partitions = _read_partitions(reader, flexible=flexible)
    if state is TransactionState.EMPTY:
        partitions = frozenset[TopicPartition]()
    elif partitions is None:
        raise reader.error(f"has the state {state.kafka_name} without partitions")
    updated_ms = reader.number(_INT64)
    started_ms = reader.number(_INT64)
    tagged = _read_tagged(reader) if flexible else {}
    reader.end()
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=producer_id,
        epoch=epoch,
        previous_producer_id=_tag(reader, tagged, _PREVIOUS_ID, _INT64, NO_PRODUCER_ID),
        next_producer_id=_tag(reader, tagged, _NEXT_ID, _INT64, NO_PRODUCER_ID),
        timeout_ms=timeout_ms,
        state=state,
        partitions=partitions,
        started_ms=started_ms,
        updated_ms=updated_ms,
        version=_tag(reader, tagged, _CLIENT_VERSION, _INT16, 0),
        tagged=tuple(sorted(tagged.items())),
    )


def _read_partitions(reader: _Reader, *, flexible: bool) -> frozenset[TopicPartition] | None:
    topics = reader.count(_INT32, flexible=flexible)
    if topics < 0:
        return None
    found: set[TopicPartition] = set()
    for _ in range(topics):
        topic = reader.text(reader.count(_INT16, flexible=flexible))
        count = reader.count(_INT32, flexible=flexible)
        # The count is compared with the bytes that are left, before anything is allocated.
        for at in reader.take(count * _PARTITION_BYTES):
            found.add(TopicPartition(topic, at))
        if flexible:
            _read_tagged(reader)  # none is defined; Kafka skips them too
    return frozenset(found)


def _read_tagged(reader: _Reader) -> dict[int, bytes]:
    tagged: dict[int, bytes] = {}
    before = -1
    for _ in range(reader.varint()):
        tag = reader.varint()
        if tag <= before:
            raise reader.error(f"has tag {tag} after tag {before}")
        tagged[tag] = reader.bytes(reader.varint())
        before = tag
    return tagged


def _tag(reader: _Reader, tagged: dict[int, bytes], tag: int, kind: Struct, default: int) -> int:
    """Take a known tag out of `tagged`."""
    data = tagged.pop(tag, None)
    if data is None:
        return default
    if len(data) != kind.size:
        raise reader.error(f"has tag {tag} of {len(data)} bytes")
    number: int = kind.unpack(data)[0]
    return number


class _Reader:
    """Reads one key or value, and names it in every error."""

    __slots__ = ("_at", "_data", "_what")

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._what = what
        self._at = 0

    def error(self, problem: str) -> CorruptFormat:
        return CorruptFormat(f"transaction log: {self._what} {problem}")

    def number(self, kind: Struct) -> int:
        try:
            number: int = kind.unpack_from(self._data, self._at)[0]
        except StructError:
            raise self._truncated() from None
        self._at += kind.size
        return number

    def varint(self) -> int:
        number = 0
        for place in range(_VARINT_BYTES_MAX):
            if self._at >= len(self._data):
                raise self._truncated()
            byte = self._data[self._at]
            self._at += 1
            number |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return number
        raise self.error("has a number of more than five bytes")

    def count(self, fixed: Struct, *, flexible: bool) -> int:
        """Return a length or a count, which is -1 for null."""
        return self.varint() - 1 if flexible else self.number(fixed)

    def bytes(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self._at:
            raise self._truncated()
        self._at += size
        return self._data[self._at - size : self._at]

    def text(self, size: int) -> str:
        try:
            return self.bytes(size).decode()
        except UnicodeDecodeError:
            raise self.error("has a name that is not UTF-8") from None

    def take(self, size: int) -> Iterable[int]:
        """Return the 32-bit numbers of the next `size` bytes."""
        return [number for (number,) in _INT32.iter_unpack(self.bytes(size))]

    def end(self) -> None:
        left = len(self._data) - self._at
        if left:
            raise self.error(f"has {left} extra bytes")

    def _truncated(self) -> CorruptFormat:
        return self.error(f"of {len(self._data)} bytes is truncated")
