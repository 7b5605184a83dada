"""Decides which committed offsets of a group have expired. Pure.

Source: Kafka, ClassicGroup.offsetExpirationCondition and OffsetMetadataManager (KIP-211).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from gateway.core.group_members import GroupMember, State
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition

CONSUMER = "consumer"
"""The protocol type of consumers, whose subscriptions can be decoded. Connect has another one."""


class GroupAge(NamedTuple):
    """The facts of a group that expiry depends on. Times are wall-clock milliseconds."""

    state: State
    protocol_type: str | None  # None if the group never had a member, only commits
    empty_since_ms: int
    subscribed: frozenset[str] | None  # topics of a Stable consumer group; None if unknown


def expired(
    offsets: Mapping[TopicIdPartition, CommittedOffset],
    age: GroupAge,
    topic_name: Callable[[UUID], str | None],
    now_ms: int,
    retention_ms: int,
) -> list[TopicIdPartition]:
    """Return the keys whose committed offset has expired.

    Offsets of a deleted topic expire at the same age. No client can fetch them before.
    """
    found: list[TopicIdPartition] = []
    for key, committed in offsets.items():
        name = topic_name(key.topic_id)
        since_ms = committed.commit_time_ms if name is None else _since_ms(committed, age, name)
        if since_ms is None:
            continue
        if committed.expire_time_ms >= 0:
            over = now_ms >= committed.expire_time_ms
        else:
            over = now_ms - since_ms >= retention_ms
        if over:
            found.append(key)
    return found


def expires_at_ms(
    offsets: Iterable[CommittedOffset], empty_since_ms: int, retention_ms: int
) -> int:
    """Return the time before which no offset of an empty group expires.

    Returns 0 if the group has no offsets.
    """
    return min(
        (
            committed.expire_time_ms
            if committed.expire_time_ms >= 0
            else max(empty_since_ms, committed.commit_time_ms) + retention_ms
            for committed in offsets
        ),
        default=0,
    )


def _since_ms(committed: CommittedOffset, age: GroupAge, topic: str) -> int | None:
    """Return the wall time from which this offset ages, or None while the group may use it."""
    if age.protocol_type is None:
        return committed.commit_time_ms
    if age.state is State.EMPTY:
        return max(age.empty_since_ms, committed.commit_time_ms)
    if age.state is State.STABLE and age.subscribed is not None and topic not in age.subscribed:
        return committed.commit_time_ms
    return None


def subscribed_topics(
    members: Mapping[str, GroupMember], protocol_type: str | None, protocol: str | None
) -> frozenset[str] | None:
    """Return all topics that members of a consumer group subscribe to, or None if unknown.

    Decodes version 0 of the consumer protocol, the prefix of all later versions.
    """
    if protocol_type != CONSUMER:
        return None
    topics: set[str] = set()
    for member in members.values():
        try:
            topics.update(_subscription(member.metadata(protocol)))
        except (struct.error, ValueError):
            return None
    return frozenset(topics)


def _subscription(metadata: bytes) -> list[str]:
    """Decode a subscription. Raises struct.error or ValueError for invalid bytes."""
    _, count = struct.unpack_from(">hi", metadata)
    at = 6
    topics: list[str] = []
    if not 0 <= count <= len(metadata):
        raise ValueError("more topics than bytes")
    for _ in range(count):
        (size,) = struct.unpack_from(">h", metadata, at)
        at += 2
        if size < 0 or at + size > len(metadata):
            raise ValueError("a topic beyond the end")
        topics.append(metadata[at : at + size].decode())
        at += size
    return topics
