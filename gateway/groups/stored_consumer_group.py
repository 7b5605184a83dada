"""The records of a group of the consumer protocol as notes with keys, beside its offsets.

Each record is a sealed document under a key of its own, so that a change of one member writes what
this member has. Every member writes its current assignment after each change of the group, so this
one is a short protobuf message instead. The time of the last assignment is not stored: after a
takeover the next target is made at once. A classic member has a field that earlier releases refuse.
See docs/formats/positions.md.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from google.protobuf.message import DecodeError

from gateway.core.consumer_members import (
    Changes,
    ClassicMetadata,
    ConsumerMember,
    Epochs,
    GroupRecord,
    MemberState,
    Partitions,
    Record,
    RecordKey,
    RecordKind,
    ResolvedRegex,
)
from ledger.errors import CorruptFormat
from ledger.sealed import seal, unseal

_STEP_RECORDS: Final = 256  # records decoded between two pauses
_SEALED: Final = b"1"  # the first byte of a sealed document


def encode_changes(changes: Changes) -> dict[str, bytes | None]:
    """Encode the records of one change. None removes a record."""
    return {
        encode_key(key): None if record is None else _encode(key.kind, record)
        for key, record in changes.items()
    }


def _encode(kind: RecordKind, record: Record) -> bytes:
    if kind is RecordKind.CURRENT and isinstance(record, ConsumerMember):
        from gateway.groups.current_note import encode_current  # not for a start

        return encode_current(record)
    return seal(_fields(record))


def encode_key(key: RecordKey) -> str:
    return key.kind.value if not key.name else f"{key.kind.value}/{key.name}"


def has_members(keyed: Mapping[str, bytes]) -> bool:
    """Return whether a group with these notes has members."""
    begin = encode_key(RecordKey(RecordKind.MEMBER, " "))[:-1]
    return any(text.startswith(begin) for text in keyed)


async def decode_notes(keyed: Mapping[str, bytes], where: str) -> dict[RecordKey, Record]:
    """Decode all records of a group, and let other tasks run meanwhile. Raises CorruptFormat."""
    found: dict[RecordKey, Record] = {}
    for number, (text, note) in enumerate(list(keyed.items()), 1):
        key, record = decode_note(text, note, where)
        found[key] = record
        if number % _STEP_RECORDS == 0:
            await asyncio.sleep(0)
    return found


def decode_note(text: str, note: bytes, where: str) -> tuple[RecordKey, Record]:
    """Decode the key and the record of one note. Raises CorruptFormat."""
    kind, _, name = text.partition("/")
    path = f"{where}: {kind}"
    try:
        key = RecordKey(RecordKind(kind), name)
        if key.kind is RecordKind.CURRENT and not note.startswith(_SEALED):
            from gateway.groups.current_note import decode_current

            return key, decode_current(name, note)
        return key, _record(key, unseal(note, path))
    except (DecodeError, KeyError, TypeError, ValueError) as error:
        raise CorruptFormat(f"{path}: not a record of a group: {error!r}") from error


def _fields(record: Record) -> dict[str, Any]:
    match record:
        case GroupRecord():
            return record._asdict()
        case ResolvedRegex():
            return {"topics": sorted(record.topics)}
        case ConsumerMember():
            return _subscription(record)
        case _:
            return {"partitions": {topic.hex: sorted(some) for topic, some in record.items()}}


def _subscription(member: ConsumerMember) -> dict[str, Any]:
    fields = _of_both_kinds(member)
    if member.classic is not None:
        timeout_ms, protocols = member.classic
        fields["classic"] = {
            "session_timeout_ms": timeout_ms,
            "protocols": [[name, b64encode(data).decode()] for name, data in protocols],
        }
    return fields


def _of_both_kinds(member: ConsumerMember) -> dict[str, Any]:
    return {
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "topics": sorted(member.topics),
        "regex": member.regex,
        "assignor": member.assignor,
    }


def _record(key: RecordKey, fields: dict[str, Any]) -> Record:
    match key.kind:
        case RecordKind.GROUP:
            return GroupRecord(fields["epoch"], fields["assignment_epoch"], fields["topics_hash"])
        case RecordKind.REGEX:
            return ResolvedRegex(frozenset(fields["topics"]))
        case RecordKind.TARGET:
            return _decode_partitions(fields["partitions"])
        case RecordKind.MEMBER:
            fields["topics"] = frozenset(fields["topics"])
            fields["classic"] = _classic(fields.get("classic"))
            return ConsumerMember(member_id=key.name, **fields)
        case RecordKind.CURRENT:  # as builds before the first release of these groups wrote it
            return ConsumerMember(
                member_id=key.name,
                epoch=fields["epoch"],
                previous_epoch=fields["previous_epoch"],
                state=MemberState(fields["state"]),
                assigned=_decode_epochs(fields["assigned"]),
                revoking=_decode_epochs(fields["revoking"]),
            )


def _classic(fields: dict[str, Any] | None) -> ClassicMetadata | None:
    """Return what a classic member has besides, or None for a member of the consumer protocol."""
    if fields is None:
        return None
    protocols = tuple((name, b64decode(data)) for name, data in fields["protocols"])
    return ClassicMetadata(fields["session_timeout_ms"], protocols)


def _decode_partitions(fields: dict[str, list[int]]) -> Partitions:
    return {UUID(hex=topic): frozenset(some) for topic, some in fields.items()}


def _decode_epochs(fields: dict[str, dict[str, list[int]]]) -> Epochs:
    return {
        UUID(hex=topic): {
            partition: int(epoch) for epoch, some in by_epoch.items() for partition in some
        }
        for topic, by_epoch in fields.items()
    }
