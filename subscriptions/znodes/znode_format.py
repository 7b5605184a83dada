"""Subscriptions as nodes of the metadata store. Pure.

The node of a group holds its note; each child holds one committed offset. Both are sealed: version
byte 1, CRC-32C, body. The node of a native subscriber holds DistributedLog's text of a DLSN.
Source: DistributedLog, ZKSubscriptionStateStore.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from struct import Struct
from urllib.parse import quote, unquote

from google.protobuf.message import DecodeError

from ledger.crc32c import crc32c
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

OPS_MAX = 500  # keeps one multi below ZooKeeper's limit of 1 MiB
FORMAT_VERSION = 1
_SEAL = Struct(">BI")
_DLSN_TEXT_SIZE = 36
_NO_NAME = "%"  # stands for the empty name: quoting never returns a lone percent sign


def decode_child(path: str, node: Node) -> tuple[TopicIdPartition, CommittedOffset]:
    """Decode the node of one committed offset. Raises CorruptFormat."""
    key, committed = decode_advance(unseal(node.data, path), path)
    if not path.endswith("/" + key_name(key)):
        raise CorruptFormat(f"{path}: holds the offset of {key_name(key)}")
    return key, committed


def node_op(path: str, version: int | None, note: bytes | None) -> Op:
    """Return the operation that checks or writes the group's node. None leaves the note as it is.

    `version` is the one that this owner knows; None creates the node.
    """
    if version is None:
        return Create(path, seal(note or b""))
    return Check(path, version) if note is None else Set(path, seal(note), version)


def offset_ops(
    path: str, key: TopicIdPartition, committed: CommittedOffset | None, version: int | None
) -> list[Op]:
    """Return the operations that write the node of one committed offset; None deletes it."""
    if committed is None:
        return [] if version is None else [Delete(path, version)]
    return [body_op(path, encode_advance(key, committed), version)]


def body_op(path: str, body: bytes, version: int | None) -> Op:
    """Return the operation that writes an encoded offset to its node."""
    data = seal(body)
    return Create(path, data) if version is None else Set(path, data, version)


def seal(body: bytes) -> bytes:
    """Put the format version and the checksum before `body`."""
    return _SEAL.pack(FORMAT_VERSION, crc32c(body)) + body


def unseal(data: bytes, path: str) -> bytes:
    """Return the body of sealed bytes. Raises CorruptFormat with the path."""
    if len(data) < _SEAL.size:
        raise CorruptFormat(f"{path}: {len(data)} bytes, expected at least {_SEAL.size}")
    version, checksum = _SEAL.unpack_from(data)
    if version != FORMAT_VERSION:
        raise CorruptFormat(f"{path}: format version {version}, expected version {FORMAT_VERSION}")
    body = data[_SEAL.size :]
    if crc32c(body) != checksum:
        raise CorruptFormat(f"{path}: the checksum does not match")
    return body


def encode_subscriber(dlsn: Dlsn) -> bytes:
    """Encode the data of a native subscriber's znode: 36 characters of base64."""
    return b64encode(encode_dlsn(dlsn))


def decode_subscriber(data: bytes, path: str) -> Dlsn:
    """Decode a native subscriber's znode, in DistributedLog's form or in the proposal's.

    Raises CorruptFormat, also if the position is in a log segment, which this function cannot read.
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
    """Quote the subscriber's name so that it is valid as one part of a path."""
    if not subscriber:
        return _NO_NAME
    if subscriber in (".", ".."):
        return subscriber.replace(".", "%2E")
    return quote(subscriber, safe="", errors="surrogatepass")


def subscriber_of(name: str) -> str:
    """Return the subscriber of a node name: the inverse of `node_name`."""
    return "" if name == _NO_NAME else unquote(name, errors="surrogatepass")


def key_name(key: TopicIdPartition) -> str:
    return f"{key.topic_id.hex}-{key.partition}"
