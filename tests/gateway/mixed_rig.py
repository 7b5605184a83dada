"""Requests of classic members to a coordinator on virtual time, in the bytes of the protocol."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from gateway.core.consumer_protocol import decode_assignment
from tests.gateway.subscription_bytes import subscription

JOIN, HEARTBEAT, LEAVE, SYNC = 11, 12, 13, 14
STATIC_FROM = 5


class Member(NamedTuple):
    """A classic member as it knows itself after JoinGroup and SyncGroup."""

    member_id: str
    generation: int
    partitions: tuple[int, ...]


async def join(w, member="", owned=(), generation=-1, *, topics=("t",), names=("range",), **fields):
    """Send one JoinGroup."""
    metadata = fields.pop("metadata", subscription(list(topics), owned, generation))
    version = fields.pop("version", 9)
    body = {
        "group_id": "g",
        "session_timeout": timedelta(seconds=10),
        "rebalance_timeout": timedelta(seconds=20),
        "member_id": member,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": name, "metadata": metadata} for name in names],
        "reason": None,
    }
    if version < STATIC_FROM:
        del body["group_instance_id"], body["reason"]
    return await w.ask(JOIN, version, body | fields)


async def sync(w, member, generation, *, assignments=(), **fields):
    body = {
        "group_id": "g",
        "generation_id": generation,
        "member_id": member,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": name, "assignment": data} for name, data in assignments],
    }
    return await w.ask(SYNC, 5, body | fields)


async def heartbeat(w, member, generation, instance=None):
    """Send a Heartbeat, and return the name of its code."""
    body = {
        "group_id": "g",
        "generation_id": generation,
        "member_id": member,
        "group_instance_id": instance,
    }
    return (await w.ask(HEARTBEAT, 4, body)).error_code.name


async def leave(w, member, instance=None):
    row = {"member_id": member, "group_instance_id": instance, "reason": None}
    reply = await w.ask(LEAVE, 5, {"group_id": "g", "members": [row]})
    return reply.members[0].error_code.name


def assigned(synced):
    """Return the partitions of topic `t` in an answer to SyncGroup."""
    return tuple(sorted(decode_assignment(synced.assignment).partitions.get("t", ())))


async def classic_member(w, *, owned=(), **fields):
    """Let a new classic member join a group of the consumer protocol, and sync."""
    member = (await join(w, owned=owned, **fields)).member_id
    joined = await join(w, member, owned, **fields)
    assert joined.error_code.name == "none"
    synced = await sync(w, member, joined.generation_id)
    assert synced.error_code.name == "none"
    return Member(member, joined.generation_id, assigned(synced))


async def rejoin(w, member, owned=(), **fields):
    """Let a classic member join again, and sync."""
    joined = await join(w, member.member_id, owned, member.generation, **fields)
    assert joined.error_code.name == "none"
    synced = await sync(w, member.member_id, joined.generation_id)
    assert synced.error_code.name == "none"
    return Member(member.member_id, joined.generation_id, assigned(synced))
