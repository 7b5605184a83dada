"""Positions as nodes of the metadata store: a Kafka group's one node each. Pure."""

from __future__ import annotations

from base64 import b64decode, b64encode
from struct import Struct
from urllib.parse import quote, unquote

from crc32c import crc32c
from google.protobuf.message import DecodeError

from ledger.errors import CorruptFormat
from ledger.ids import Dlsn
from ledger.ports.metadata import Check, Create, Delete, Node, Op, Set
from subscriptions.committed_offset import (
    CommittedOffset,
    TopicIdPartition,
    decode_advance,
    decode_dlsn,
    encode_advance,
    encode_dlsn,
)
from subscriptions.records_pb2 import Subscription as SubscriptionRecord

OPS_MAX = 500  # ZooKeeper takes 1 MiB in one multi
FORMAT_VERSION = 1
_SEAL = Struct(">BI")
_DLSN_TEXT_SIZE = 36
_NO_NAME = "%"  # no quoted name is a lone percent sign


def decode_child(path: str, node: Node) -> tuple[TopicIdPartition, CommittedOffset]:
    """One position of a group. Raises CorruptFormat."""
    key, committed = decode_advance(unseal(node.data, path), path)
    if not path.endswith("/" + key_name(key)):
        raise CorruptFormat(f"{path}: holds a position of {key_name(key)}")
    return key, committed


def node_op(path: str, version: int | None, note: bytes | None) -> Op:
    """The group's own node is there and this owner's; a note of None stays as it is."""
    if version is None:
        return Create(path, seal(note or b""))
    return Check(path, version) if note is None else Set(path, seal(note), version)


def offset_ops(
    path: str, key: TopicIdPartition, committed: CommittedOffset | None, version: int | None
) -> list[Op]:
    """The node of one position is as wanted; None: it is gone."""
    if committed is None:
        return [] if version is None else [Delete(path, version)]
    return [body_op(path, encode_advance(key, committed), version)]


def body_op(path: str, body: bytes, version: int | None) -> Op:
    """As `offset_ops`, of a position that is encoded already."""
    data = seal(body)
    return Create(path, data) if version is None else Set(path, data, version)


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


def key_name(key: TopicIdPartition) -> str:
    return f"{key.topic_id.hex}-{key.partition}"
