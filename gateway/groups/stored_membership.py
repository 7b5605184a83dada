"""A group's membership as bytes: the note that is stored beside the committed offsets.

It is a sealed document, compressed when it is large, because members repeat each other's
subscriptions. A membership that does not fit into one node is stored without its members. The group
works in this case, but a restart of the broker rebalances it.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from typing import Any, NamedTuple

from gateway.core.group_members import GroupMembership, MemberRecord
from gateway.core.sealed import seal, unseal
from ledger.errors import CorruptFormat
from ledger.ports.metadata import NODE_BYTES_MAX

NOTE_BYTES_MAX = NODE_BYTES_MAX - 1024  # the rest of the node is for the bytes that the store adds
_COMPRESS_FROM_BYTES = 128 * 1024
_COMPRESSED = b"z"
_INFLATED_BYTES_MAX = 256 * 1024 * 1024


class StoredMembership(NamedTuple):
    """A membership and `empty_since_ms`, in wall time.

    `empty_since_ms` is 0 while the group has members or never had any.
    """

    membership: GroupMembership
    empty_since_ms: int = 0


def encode_membership(stored: StoredMembership) -> bytes:
    """Encode the membership in at most NOTE_BYTES_MAX bytes."""
    data = _encode(stored)
    if len(data) > NOTE_BYTES_MAX:
        bare = stored.membership._replace(members=(), leader=None, protocol=None)
        data = _encode(StoredMembership(bare, stored.empty_since_ms))
    return data


def _encode(stored: StoredMembership) -> bytes:
    membership = stored.membership
    data = seal(
        {
            "generation": membership.generation,
            "protocol_type": membership.protocol_type,
            "protocol": membership.protocol,
            "leader": membership.leader,
            "empty_since_ms": stored.empty_since_ms,
            "members": [_encode_member(member) for member in membership.members],
        }
    )
    if len(data) < _COMPRESS_FROM_BYTES:
        return data
    return _COMPRESSED + zlib.compress(data, 1)


def decode_membership(data: bytes, path: str) -> StoredMembership:
    """Decode the result of `encode_membership`. Empty bytes mean that the group never had members.

    Raises CorruptFormat with the path.
    """
    if not data:
        return StoredMembership(GroupMembership())
    if data.startswith(_COMPRESSED):
        data = _inflate(data, path)
    document = unseal(data, path)
    try:
        return StoredMembership(
            GroupMembership(
                document["generation"],
                document["protocol_type"],
                document["protocol"],
                document["leader"],
                tuple(_decode_member(each) for each in document["members"]),
            ),
            document["empty_since_ms"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFormat(f"{path}: not a membership: {error!r}") from error


def _inflate(data: bytes, path: str) -> bytes:
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(data[1:], _INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise CorruptFormat(f"{path}: {error}") from error
    if not inflater.eof:
        raise CorruptFormat(f"{path}: cut short, or larger than any membership")
    return inflated


def _encode_member(member: MemberRecord) -> list[Any]:
    return [
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.session_timeout_ms,
        member.rebalance_timeout_ms,
        [[name, b64encode(metadata).decode()] for name, metadata in member.protocols],
        b64encode(member.assignment).decode(),
    ]


def _decode_member(fields: list[Any]) -> MemberRecord:
    *plain, protocols, assignment = fields
    return MemberRecord(
        *plain,
        protocols=tuple((name, b64decode(metadata)) for name, metadata in protocols),
        assignment=b64decode(assignment),
    )
