"""A group's membership as bytes: the note that is stored beside the committed offsets.

It is a sealed document, compressed when it is large, because members repeat each other's
subscriptions. It is stored whole or not at all: one that does not fit into a node is refused.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

from gateway.core.group_members import GroupMembership, MemberRecord
from gateway.wire.steps import result_of, result_with_pauses
from ledger.errors import CorruptFormat
from ledger.ports.metadata import NODE_BYTES_MAX
from ledger.sealed import seal_body, unseal

NOTE_BYTES_MAX = NODE_BYTES_MAX - 1024  # the rest of the node is for the bytes that the store adds
_COMPRESS_FROM_BYTES = 128 * 1024
_COMPRESSED = b"z"
_INFLATED_BYTES_MAX = 256 * 1024 * 1024
_STEP_BYTES = 48 * 1024  # bytes encoded between two pauses; a multiple of 3, for base64
_INFLATE_STEP_BYTES = 256 * 1024
_STEP_MEMBERS = 256  # members decoded between two pauses


class MembershipTooLarge(Exception):
    """A membership that does not fit into NOTE_BYTES_MAX bytes."""


class StoredMembership(NamedTuple):
    """A membership and `empty_since_ms`, in wall time.

    `empty_since_ms` is 0 while the group has members or never had any.
    """

    membership: GroupMembership
    empty_since_ms: int = 0


def encode_membership(stored: StoredMembership) -> bytes:
    """Encode the membership in at most NOTE_BYTES_MAX bytes. Raises MembershipTooLarge."""
    return result_of(_encode(stored))


async def encode_with_pauses(stored: StoredMembership) -> bytes:
    """Encode like `encode_membership`, and let other tasks run between two steps."""
    return await result_with_pauses(_encode(stored))


def _encode(stored: StoredMembership) -> Generator[None, None, bytes]:
    """Encode the membership. Yields between steps of limited length."""
    body = bytearray()
    stepped = 0
    for piece in _pieces(stored):
        body += piece
        if len(body) - stepped >= _STEP_BYTES:
            stepped = len(body)
            yield
    data = seal_body(bytes(body))
    if len(data) >= _COMPRESS_FROM_BYTES:
        data = yield from _compress(data)
    if len(data) > NOTE_BYTES_MAX:
        raise MembershipTooLarge(f"{len(data)} bytes")
    return data


def _compress(data: bytes) -> Generator[None, None, bytes]:
    deflater = zlib.compressobj(1)
    parts = [_COMPRESSED]
    size = len(_COMPRESSED)
    for at in range(0, len(data), _STEP_BYTES):
        parts.append(deflater.compress(data[at : at + _STEP_BYTES]))
        size += len(parts[-1])
        if size > NOTE_BYTES_MAX:
            raise MembershipTooLarge(f"{len(data)} bytes do not compress to {NOTE_BYTES_MAX}")
        yield
    parts.append(deflater.flush())
    return b"".join(parts)


def _pieces(stored: StoredMembership) -> Iterator[bytes]:
    """Yield the document's JSON, with sorted keys and without spaces, in small pieces."""
    membership = stored.membership
    yield b'{"empty_since_ms":%d,' % stored.empty_since_ms
    yield b'"generation":%d,"leader":%s,' % (membership.generation, _json(membership.leader))
    yield b'"members":['
    for number, member in enumerate(membership.members):
        yield b"," if number else b""
        yield from _member_pieces(member)
    yield b'],"protocol":%s,' % _json(membership.protocol)
    yield b'"protocol_type":%s}' % _json(membership.protocol_type)


def _member_pieces(member: MemberRecord) -> Iterator[bytes]:
    texts = (member.member_id, member.instance_id, member.client_id, member.client_host)
    yield b"[%s,%s,%s,%s," % tuple(map(_json, texts))
    yield b"%d,%d,[" % (member.session_timeout_ms, member.rebalance_timeout_ms)
    for number, (name, metadata) in enumerate(member.protocols):
        yield b"%s[%s," % (b"," if number else b"", _json(name))
        yield from _base64_pieces(metadata)
        yield b"]"
    yield b"],"
    yield from _base64_pieces(member.assignment)
    yield b"]"


def _base64_pieces(data: bytes) -> Iterator[bytes]:
    yield b'"'
    for at in range(0, len(data), _STEP_BYTES):
        yield b64encode(data[at : at + _STEP_BYTES])
    yield b'"'


def _json(value: str | None) -> bytes:
    return json.dumps(value).encode()


def decode_membership(data: bytes, path: str) -> StoredMembership:
    """Decode the result of `encode_membership`. Empty bytes mean that the group never had members.

    Raises CorruptFormat with the path.
    """
    return result_of(_decode(data, path))


async def decode_with_pauses(data: bytes, path: str) -> StoredMembership:
    """Decode like `decode_membership`, and let other tasks run between two steps."""
    return await result_with_pauses(_decode(data, path))


def _decode(data: bytes, path: str) -> Generator[None, None, StoredMembership]:
    if not data:
        return StoredMembership(GroupMembership())
    if data.startswith(_COMPRESSED):
        data = yield from _inflate(data, path)
    document = unseal(data, path)
    members: list[MemberRecord] = []
    try:
        for fields in document["members"]:
            members.append(_decode_member(fields))
            if len(members) % _STEP_MEMBERS == 0:
                yield
        return StoredMembership(
            GroupMembership(
                document["generation"],
                document["protocol_type"],
                document["protocol"],
                document["leader"],
                tuple(members),
            ),
            document["empty_since_ms"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFormat(f"{path}: not a membership: {error!r}") from error


def _inflate(data: bytes, path: str) -> Generator[None, None, bytes]:
    inflater = zlib.decompressobj()
    parts: list[bytes] = []
    room = _INFLATED_BYTES_MAX
    waiting = data[1:]
    try:
        while waiting and room and not inflater.eof:
            parts.append(inflater.decompress(waiting, min(_INFLATE_STEP_BYTES, room)))
            room -= len(parts[-1])
            waiting = inflater.unconsumed_tail
            yield
    except zlib.error as error:
        raise CorruptFormat(f"{path}: {error}") from error
    if not inflater.eof:
        raise CorruptFormat(f"{path}: cut short, or larger than any membership")
    return b"".join(parts)


def _decode_member(fields: list[Any]) -> MemberRecord:
    *plain, protocols, assignment = fields
    return MemberRecord(
        *plain,
        protocols=tuple((name, b64decode(metadata)) for name, metadata in protocols),
        assignment=b64decode(assignment),
    )
