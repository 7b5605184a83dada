"""Who has read how far, as values and as bytes. Pure.

A position in the metadata store is `version byte 1, CRC-32C, AdvanceLastCommitDLSN`; the message
alone is what a log segment will hold. Native subscribers keep DistributedLog's own form: the text
of a DLSN. Source: DistributedLog, DLSN v1 and ZKSubscriptionStateStore; proposal (seed 004).
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple
from urllib.parse import quote, unquote
from uuid import UUID

from crc32c import crc32c
from google.protobuf.message import DecodeError

from ledger.errors import CorruptFormat
from ledger.ids import INVALID_DLSN, Dlsn, EntryId
from subscriptions.records_pb2 import AdvanceLastCommitDLSN
from subscriptions.records_pb2 import Subscription as SubscriptionRecord

FORMAT_VERSION = 1
_SEAL = Struct(">BI")
_DLSN = Struct(">Bqqq")
_DLSN_VERSION = 1
_DLSN_TEXT_SIZE = 36
_VARINTS = [bytes((number,)) for number in range(0x80)]
_NO_NAME = "%"  # no quoted name is a lone percent sign


class PositionKey(NamedTuple):
    """One partition of one topic. A recreated topic has a new id: it starts with no positions."""

    topic_id: UUID
    partition: int


WHOLE_STREAM = PositionKey(UUID(int=0), 0)
"""The one key of a native subscriber: its stream."""


class Position(NamedTuple):
    """How far a subscriber has read. For Kafka the offset is the truth, natively the DLSN."""

    dlsn: Dlsn = INVALID_DLSN
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    commit_time_ms: int = 0
    expire_time_ms: int = -1  # -1: by the store's general rule


def seal(body: bytes) -> bytes:
    """The body behind its format version and checksum."""
    return _SEAL.pack(FORMAT_VERSION, crc32c(body)) + body


def unseal(data: bytes, path: str) -> bytes:
    """The body of sealed bytes. Raises CorruptFormat, naming the path."""
    if len(data) < _SEAL.size:
        raise CorruptFormat(f"{path}: {len(data)} bytes, expected {_SEAL.size} at least")
    version, checksum = _SEAL.unpack_from(data)
    if version != FORMAT_VERSION:
        raise CorruptFormat(f"{path}: format version {version}, this program reads version 1")
    body = data[_SEAL.size :]
    if crc32c(body) != checksum:
        raise CorruptFormat(f"{path}: the checksum does not match")
    return body


def encode_advance(key: PositionKey, position: Position) -> bytes:
    """AdvanceLastCommitDLSN: the position with its key."""
    record = AdvanceLastCommitDLSN(
        commit_dlsn=encode_dlsn(position.dlsn),
        topic_id=key.topic_id.bytes,
        partition=key.partition,
        offset=position.offset,
        metadata=position.metadata,
        commit_time_ms=position.commit_time_ms,
    )
    if position.leader_epoch >= 0:
        record.leader_epoch = position.leader_epoch
    if position.expire_time_ms >= 0:
        record.expire_time_ms = position.expire_time_ms
    return record.SerializeToString()


def encode_advances(positions: Iterable[tuple[PositionKey, Position]]) -> list[bytes]:
    """As `encode_advance`, byte for byte, at a sixth of its time: commits are the hot path.

    Positions that are written together mostly share their topic, time, epoch and metadata.
    """
    bodies: list[bytes] = []
    topic, dlsn, head = None, None, b""
    told, tail = None, b""
    for (topic_id, partition), position in positions:
        at, offset = position.dlsn, position.offset
        if topic_id is not topic or at is not dlsn:
            topic, dlsn = topic_id, at
            head = b"\x0a\x19" + encode_dlsn(at) + b"\x22\x10" + topic_id.bytes
        if told is None or (position is not told and position[2:] != told[2:]):
            told, tail = position, _encode_tail(*position[2:])
        body = head
        if partition:
            body += b"\x28" + varint(partition)
        if offset:
            body += b"\x30" + varint(offset)
        bodies.append(body + tail)
    return bodies


def _encode_tail(
    leader_epoch: int, metadata: str, commit_time_ms: int, expire_time_ms: int
) -> bytes:
    """Fields 7 to 11."""
    tail = b""
    if leader_epoch >= 0:
        tail += b"\x38" + varint(leader_epoch)
    if metadata:
        text = metadata.encode()
        tail += b"\x42" + varint(len(text)) + text
    if commit_time_ms:
        tail += b"\x48" + varint(commit_time_ms)
    if expire_time_ms >= 0:
        tail += b"\x58" + varint(expire_time_ms)
    return tail


def varint(number: int) -> bytes:
    """As protobuf writes an int32 or int64."""
    if 0 <= number < 0x80:
        return _VARINTS[number]
    if 0x4000 <= number < 0x10000000:
        spread = number & 0x7F | number << 1 & 0x7F00 | number << 2 & 0x7F0000
        if number < 0x200000:
            return (spread | 0x8080).to_bytes(3, "little")
        return (spread | number << 3 & 0x7F000000 | 0x808080).to_bytes(4, "little")
    number &= 0xFFFFFFFFFFFFFFFF
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def decode_advance(body: bytes, path: str) -> tuple[PositionKey, Position]:
    """What `encode_advance` wrote; unknown fields are passed over. Raises CorruptFormat."""
    record = AdvanceLastCommitDLSN()
    try:
        record.ParseFromString(body)
        key = PositionKey(UUID(bytes=record.topic_id), record.partition)
    except (DecodeError, ValueError) as error:
        raise CorruptFormat(f"{path}: {error}") from error
    return key, Position(
        decode_dlsn(record.commit_dlsn, path),
        record.offset,
        record.leader_epoch if record.HasField("leader_epoch") else -1,
        record.metadata,
        record.commit_time_ms,
        record.expire_time_ms if record.HasField("expire_time_ms") else -1,
    )


def encode_dlsn(dlsn: Dlsn) -> bytes:
    """25 bytes: DLSN version 1."""
    return _DLSN.pack(_DLSN_VERSION, *dlsn)


def decode_dlsn(data: bytes, path: str) -> Dlsn:
    """Raises CorruptFormat for any other version or length."""
    if len(data) != _DLSN.size or data[0] != _DLSN_VERSION:
        raise CorruptFormat(f"{path}: not a DLSN of version 1")
    _, segment, entry, slot = _DLSN.unpack(data)
    return Dlsn(segment, EntryId(entry), slot)


def encode_subscriber(dlsn: Dlsn) -> bytes:
    """The data of a native subscriber's znode: 36 characters of base64."""
    return b64encode(encode_dlsn(dlsn))


def decode_subscriber(data: bytes, path: str) -> Dlsn:
    """The DLSN of a native subscriber's znode, in the old form or in the proposal's.

    Raises CorruptFormat; also for a position that lies in a log segment, which is not read here.
    """
    if data[:1] == b"A" and len(data) == _DLSN_TEXT_SIZE:
        try:
            return decode_dlsn(b64decode(data, validate=True), path)
        except ValueError as error:
            raise CorruptFormat(f"{path}: {error}") from error
    record = SubscriptionRecord()
    try:
        record.ParseFromString(data)
    except DecodeError as error:
        raise CorruptFormat(f"{path}: neither a DLSN nor a Subscription") from error
    if record.HasField("segment_id"):
        raise CorruptFormat(f"{path}: its position is in log segment {record.segment_id}")
    return decode_dlsn(record.last_commit_dlsn, path)


def node_name(subscriber: str) -> str:
    """A name that is safe as one part of a path, whatever the subscriber is called."""
    if not subscriber:
        return _NO_NAME
    if subscriber in (".", ".."):
        return subscriber.replace(".", "%2E")
    return quote(subscriber, safe="", errors="surrogatepass")


def subscriber_of(name: str) -> str:
    """The inverse of `node_name`."""
    return "" if name == _NO_NAME else unquote(name, errors="surrogatepass")


def key_name(key: PositionKey) -> str:
    return f"{key.topic_id.hex}-{key.partition}"
