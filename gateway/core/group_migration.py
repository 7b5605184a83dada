"""The change of a group with members from one protocol to the other, and back. Pure.

    classic group ─▶ upgraded() ─▶ records of a group of the consumer protocol, of classic members
    all members are classic ones ─▶ downgraded() ─▶ membership of a classic group in a rebalance

A partition stays with the member that may read it, until that member joins again and no longer
reports it. Here Kafka takes the last assignment, or the target, in place of what members hold.
Source: Kafka, ConsumerGroup.fromClassicGroup, ClassicGroup.fromConsumerGroup, KIP-848.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.core.consumer_members import (
    INITIAL_EPOCH,
    PROTOCOLS_BYTES_MAX,
    Changes,
    ClassicMetadata,
    ConsumerMember,
    ConsumerRefused,
    ConsumerSettings,
    Partitions,
    RecordKey,
    RecordKind,
    TopicView,
)
from gateway.core.consumer_protocol import (
    MalformedProtocol,
    NamedPartitions,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from gateway.core.consumer_roster import ConsumerRoster
from gateway.core.group import Group
from gateway.core.group_members import (
    GroupMember,
    GroupMembership,
    MemberRecord,
    protocols_bytes,
)
from gateway.core.java_map import in_id_order
from gateway.core.offset_expiry import CONSUMER

_REFUSED: Final = "Cannot upgrade classic group {} to consumer group because "
_CUSTOM: Final = (
    "an unsupported custom assignor is in use. Please refer to the documentation or switch to a "
    "default assignor before re-attempting the upgrade."
)
_MALFORMED: Final = "the embedded consumer protocol is malformed."

CONVERTED_MAX: Final = 1_000
CONVERTED_BYTES_MAX: Final = 2 * 1024 * 1024
"""The most members of a group that changes its protocol, and the most bytes of subscriptions and
assignments that are decoded for it. The change is made in one step, which takes less than 0.5 s."""

_RECORD_BYTES: Final = 64  # two timeouts and the punctuation of a member

_Held = dict[UUID, set[int]]


def upgraded(group_id: str, group: Group, settings: ConsumerSettings, topics: TopicView) -> Changes:
    """Return the records of the members of a classic group, all of them classic members.

    Each has the generation as its epoch. It keeps its last assignment, and what it reported to own
    when it joined, unless another member was assigned that. Raises ConsumerRefused.
    """
    _check(group_id, group, settings)
    begin = _REFUSED.format(group_id)
    try:
        subscriptions = {
            name: decode_subscription(_metadata(member, group.protocol))
            for name, member in group.members.items()
        }
        assignments = {
            name: decode_assignment(member.assignment) for name, member in group.members.items()
        }
    except MalformedProtocol as error:
        raise ConsumerRefused(ErrorCode.group_id_not_found, begin + _MALFORMED) from error
    if any(each.has_user_data for each in assignments.values()):
        raise ConsumerRefused(ErrorCode.group_id_not_found, begin + _CUSTOM)
    held = {name: partition_ids(each.partitions, topics) for name, each in assignments.items()}
    if not _disjoint(held.values()):
        text = begin + "a partition is assigned to two members."
        raise ConsumerRefused(ErrorCode.group_id_not_found, text)
    _keep_owned(held, subscriptions, topics)
    epoch = max(group.generation, INITIAL_EPOCH)
    changes: Changes = {}
    for name, member in group.members.items():
        assigned = {topic: frozenset(some) for topic, some in held[name].items()}
        changes[RecordKey(RecordKind.MEMBER, name)] = _member(member, subscriptions[name])
        changes[RecordKey(RecordKind.TARGET, name)] = assigned
        changes[RecordKey(RecordKind.CURRENT, name)] = ConsumerMember(
            member_id=name,
            epoch=epoch,
            previous_epoch=epoch,
            assigned={topic: dict.fromkeys(some, epoch) for topic, some in assigned.items()},
        )
    return changes


def _check(group_id: str, group: Group, settings: ConsumerSettings) -> None:
    begin, members = _REFUSED.format(group_id), group.members
    fault = ""
    if not settings.upgrades:
        fault = "online upgrade is disabled."
    elif group.protocol_type != CONSUMER:
        fault = "the group does not use the consumer embedded protocol."
    elif len(members) > settings.members_max:
        fault = "the group size exceeds the consumer group maximum size."
    elif any(protocols_bytes(each.protocols) > PROTOCOLS_BYTES_MAX for each in members.values()):
        fault = "the protocols of a member are too large."
    if fault:
        raise ConsumerRefused(ErrorCode.group_id_not_found, begin + fault)
    if len(members) > CONVERTED_MAX or _decoded_bytes(group) > CONVERTED_BYTES_MAX:
        text = f"it has more than {CONVERTED_MAX} members, or more than {CONVERTED_BYTES_MAX} "
        text += "bytes of subscriptions and assignments. Stop some members, or all, and try again."
        raise ConsumerRefused(ErrorCode.group_max_size_reached, begin + text)


def _decoded_bytes(group: Group) -> int:
    members = group.members.values()
    return sum(len(_metadata(each, group.protocol)) + len(each.assignment) for each in members)


def _metadata(member: GroupMember, protocol: str | None) -> bytes:
    """Return the subscription of a member. All its protocols have the same, but for user data."""
    return member.metadata(protocol) or member.protocols[0][1]


def partition_ids(named: NamedPartitions, topics: TopicView) -> _Held:
    """Return partitions by the ids of their topics, without those that do not exist."""
    found: _Held = {}
    for name, some in named.items():
        topic = topics.by_name(name)
        if topic is None:
            continue
        known = {each for each in some if 0 <= each < topic.partitions}
        if known:
            found[topic.topic_id] = known
    return found


def _disjoint(several: Iterable[_Held]) -> bool:
    seen: set[tuple[UUID, int]] = set()
    count = 0
    for held in several:
        for topic, some in held.items():
            seen.update((topic, each) for each in some)
            count += len(some)
    return len(seen) == count


def _keep_owned(
    held: dict[str, _Held], subscriptions: dict[str, Subscription], topics: TopicView
) -> None:
    """Add what members reported to own, of the latest generation first, if it is still free.

    A rebalance that did not end has taken their assignments away, but they may still read.
    """
    taken = {(topic, each) for own in held.values() for topic, some in own.items() for each in some}
    for name in sorted(held, key=lambda each: -subscriptions[each].generation):
        for topic, some in partition_ids(subscriptions[name].owned, topics).items():
            free = {each for each in some if (topic, each) not in taken}
            taken.update((topic, each) for each in free)
            if free:
                held[name].setdefault(topic, set()).update(free)


def _member(member: GroupMember, subscription: Subscription) -> ConsumerMember:
    return ConsumerMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=subscription.topics,
        classic=ClassicMetadata(member.session_timeout_ms, member.protocols),
    )


def downgraded(
    roster: ConsumerRoster, gone: Collection[str], settings: ConsumerSettings, topics: TopicView
) -> GroupMembership | None:
    """Return the classic group of the members without those that go, or None if there is none.

    Its generation is the group epoch. It has no protocol yet, because its members have to join
    again: see `Group.restore`. There is no such group while a member of the consumer protocol
    remains, or if it would be too large. `gone` has each member once.
    """
    members = roster.members
    consumers = roster.consumers - sum(members[name].classic is None for name in gone)
    too_many = len(members) - len(gone) > min(settings.classic_members_max, CONVERTED_MAX)
    if not settings.downgrades or consumers or too_many:
        return None
    names = frozenset(gone)
    left = [member for name, member in members.items() if name not in names]
    records: list[MemberRecord] = []
    left_bytes = settings.classic_bytes_max
    for member in left:
        records.append(_record(member, topics))
        left_bytes -= _stored_bytes(records[-1])
        if left_bytes < 0:
            return None
    leader = records[0].member_id if records else None
    return GroupMembership(roster.group.epoch, CONSUMER, None, leader, tuple(records))


def _record(member: ConsumerMember, topics: TopicView) -> MemberRecord:
    assert member.classic is not None
    return MemberRecord(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.classic.session_timeout_ms,
        member.rebalance_timeout_ms,
        member.classic.protocols,
        assignment_of(member, _held_by(member), topics),
    )


def _held_by(member: ConsumerMember) -> Partitions:
    """Return all partitions that the member may read."""
    found: _Held = {}
    for epochs in (member.assigned, member.revoking):
        for topic, some in epochs.items():
            found.setdefault(topic, set()).update(some)
    return {topic: frozenset(some) for topic, some in found.items()}


def assignment_of(member: ConsumerMember, partitions: Partitions, topics: TopicView) -> bytes:
    """Return partitions as the assignment of a classic member, in the version that it sent."""
    assert member.classic is not None
    version = decode_subscription(member.classic.protocols[0][1]).version
    named = [
        (known.name, partitions[topic])
        for topic in in_id_order(list(partitions))
        if (known := topics.by_id(topic)) is not None
    ]
    return encode_assignment(named, version)


def _stored_bytes(record: MemberRecord) -> int:
    """Return the size of a member in a stored membership, at most: JSON, and base64 for bytes."""
    data = [record.assignment, *(metadata for _, metadata in record.protocols)]
    texts: list[str | None] = [*record[:4], *(name for name, _ in record.protocols)]
    return (
        _RECORD_BYTES
        + sum(len(json.dumps(each)) + 4 for each in texts)
        + sum(4 * len(each) // 3 + 8 for each in data)
    )
