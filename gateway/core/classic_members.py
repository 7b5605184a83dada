"""Classic members of a group of the consumer protocol: they join, sync and send Heartbeats. Pure.

    JoinGroup (what it owns) ─▶ the member moves one step ─▶ SyncGroup (what it may read)
    Heartbeat ─▶ REBALANCE_IN_PROGRESS if the next step needs another JoinGroup

Source: Kafka, GroupMetadataManager.classicGroupJoinToConsumerGroup and its siblings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from kio.schema.errors import ErrorCode

from gateway.core.consumer_members import (
    PROTOCOLS_BYTES_MAX,
    ClassicMetadata,
    ConsumerMember,
    ConsumerRefused,
    MemberState,
    Partitions,
    TopicView,
)
from gateway.core.consumer_protocol import (
    MalformedProtocol,
    Subscription,
    decode_subscription,
)
from gateway.core.consumer_roster import ConsumerRoster
from gateway.core.deadlines import Deadlines
from gateway.core.group_members import Joining, Syncing, protocols_bytes
from gateway.core.group_migration import partition_ids
from gateway.core.offset_expiry import CONSUMER

GIVEN_MAX: Final = 1_000
"""The number of ids of a group that are remembered until members join with them."""


class ClassicDeadlines:
    """The times until which classic members have to join again, and to sync after that.

    It also has the ids with which a member may join as a new one, whichever partitions it lists.
    """

    __slots__ = ("_given", "_joins", "_syncs")

    def __init__(self) -> None:
        # The last GIVEN_MAX ids that MEMBER_ID_REQUIRED gave to new members, and those of members
        # that learned that they were fenced, until they join: hashes, because clients choose ids.
        self._given: dict[int, None] = {}
        # Set when a member is asked to join again, until it does.
        self._joins: Deadlines[str] = Deadlines()
        # Set when a member has joined, until it syncs.
        self._syncs: Deadlines[str] = Deadlines()

    def next(self) -> int | None:
        """Return a time not later than the earliest deadline, or None."""
        times = (self._joins.next(), self._syncs.next())
        return min((each for each in times if each is not None), default=None)

    def due(self, now_ms: int) -> list[str]:
        """Return the members whose time has passed, and remove their deadlines."""
        return [*self._joins.due(now_ms), *self._syncs.due(now_ms)]

    def await_join(self, member_id: str, at_ms: int) -> None:
        """Let the member join until then. An earlier deadline stays."""
        if member_id not in self._joins:
            self._joins.set(member_id, at_ms)

    def on_joined(self, member_id: str, sync_at_ms: int) -> None:
        self._given.pop(hash(member_id), None)
        self._joins.clear(member_id)
        self._syncs.set(member_id, sync_at_ms)

    def on_synced(self, member_id: str) -> None:
        self._syncs.clear(member_id)

    def extend(self, member_id: str, at_ms: int) -> None:
        """Restart the deadlines of the member."""
        for deadlines in (self._joins, self._syncs):
            if member_id in deadlines:
                deadlines.set(member_id, at_ms)

    def on_given(self, member_id: str) -> None:
        """Let a member join with this id as a new one."""
        self._given[hash(member_id)] = None
        if len(self._given) > GIVEN_MAX:
            del self._given[next(iter(self._given))]

    def was_given(self, member_id: str) -> bool:
        """Return whether a member may join with this id as a new one, and has not done so yet."""
        return hash(member_id) in self._given

    def forget(self, member_id: str) -> None:
        self._joins.clear(member_id)
        self._syncs.clear(member_id)


def check_protocols(members: Iterable[ConsumerMember], member_id: str, joining: Joining) -> None:
    """Raise ConsumerRefused unless all classic members support a protocol of the JoinGroup."""
    if protocols_bytes(joining.protocols) > PROTOCOLS_BYTES_MAX:
        raise ConsumerRefused(
            ErrorCode.group_max_size_reached, f"Member {member_id}'s protocols are too large."
        )
    if joining.protocol_type == CONSUMER and joining.protocols:
        common = {name for name, _ in joining.protocols}
        for member in members:
            if member.classic is not None:
                common &= {name for name, _ in member.classic.protocols}
        if common:
            return
    raise ConsumerRefused(
        ErrorCode.inconsistent_group_protocol,
        f"Member {member_id}'s protocols are not supported.",
    )


def check_protocol(member: ConsumerMember, syncing: Syncing) -> None:
    """Raise ConsumerRefused if a SyncGroup names another protocol than the answer to JoinGroup."""
    assert member.classic is not None
    own = member.classic.protocols[0][0]
    if syncing.protocol_type not in (None, CONSUMER):
        raise ConsumerRefused(
            ErrorCode.inconsistent_group_protocol,
            f"The protocol type {syncing.protocol_type} from member {member.member_id} request is "
            f"not equal to the group protocol type {CONSUMER}.",
        )
    if syncing.protocol not in (None, own):
        raise ConsumerRefused(
            ErrorCode.inconsistent_group_protocol,
            f"The protocol name {syncing.protocol} from member {member.member_id} request is not "
            f"equal to the protocol name {own} returned in the join response.",
        )


def subscription_of(joining: Joining) -> Subscription:
    """Return the subscription of a JoinGroup. Raises ConsumerRefused."""
    try:
        return decode_subscription(joining.protocols[0][1])
    except MalformedProtocol as error:
        raise ConsumerRefused(
            ErrorCode.unknown_server_error, "The subscription is malformed."
        ) from error


def as_partitions(subscription: Subscription, topics: TopicView) -> Partitions:
    """Return the partitions of existing topics that a member owns."""
    found = partition_ids(subscription.owned, topics)
    return {topic: frozenset(some) for topic, some in found.items()}


def joined_as(
    member: ConsumerMember, joining: Joining, subscription: Subscription
) -> ConsumerMember:
    """Return the member with the subscription of its JoinGroup."""
    return replace(
        member,
        instance_id=joining.instance_id or member.instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        rebalance_timeout_ms=joining.rebalance_timeout_ms,
        client_id=joining.client_id,
        client_host=joining.client_host,
        topics=subscription.topics,
        regex="",
        classic=ClassicMetadata(joining.session_timeout_ms, joining.protocols),
    )


def must_rejoin(roster: ConsumerRoster, member: ConsumerMember) -> bool:
    """Return whether a classic member has to join again.

    It has to catch up with the group, to show that it has given up partitions, or it can get those
    that it waits for.
    """
    if member.epoch < roster.group.assignment_epoch:
        return True
    if member.state is not MemberState.UNRELEASED_PARTITIONS:
        return member.state is MemberState.UNREVOKED_PARTITIONS
    return all(
        partition in member.assigned.get(topic, {}) or roster.owner(topic, partition) is None
        for topic, some in roster.targets.get(member.member_id, {}).items()
        for partition in some
    )
