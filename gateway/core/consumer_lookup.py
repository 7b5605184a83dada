"""The member of a request to a group of the consumer protocol, or why there is none. Pure.

Source: Kafka, GroupMetadataManager: getOrMaybeSubscribeDynamicConsumerGroupMember, and its twin for
static members.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from gateway.core.consumer_members import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerHeartbeat,
    ConsumerMember,
    ConsumerRefused,
)
from gateway.core.consumer_roster import ConsumerRoster


class Found(NamedTuple):
    """The member of a request, and the id of the static member whose place it takes, or None."""

    member: ConsumerMember
    replaced: str | None = None


def member_of(roster: ConsumerRoster, group_id: str, member_id: str) -> ConsumerMember:
    """Return a member by its id. Raises ConsumerRefused."""
    member = roster.members.get(member_id)
    if member is None:
        raise ConsumerRefused(
            ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {group_id}."
        )
    return member


def static_member(
    roster: ConsumerRoster, member_id: str, instance_id: str | None
) -> ConsumerMember:
    """Return the static member of a request that is no join. Raises ConsumerRefused."""
    known = roster.instances.get(instance_id or "")
    if known is None:
        raise ConsumerRefused(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
    if known != member_id:
        raise ConsumerRefused(
            ErrorCode.fenced_instance_id,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{known}.",
        )
    return roster.members[known]


def find_for_heartbeat(roster: ConsumerRoster, group_id: str, request: ConsumerHeartbeat) -> Found:
    """Return the member of a heartbeat, which joins with epoch 0. Raises ConsumerRefused."""
    joins = request.epoch == JOIN_EPOCH
    if request.instance_id is not None:
        if joins:
            return _joining_static(roster, request.member_id, request.instance_id, classic=False)
        member = static_member(roster, request.member_id, request.instance_id)
    elif joins and request.member_id not in roster.members:
        return Found(ConsumerMember(member_id=request.member_id))
    else:
        member = member_of(roster, group_id, request.member_id)
    _check_epoch(member, request)
    return Found(member)


def find_for_join(
    roster: ConsumerRoster, member_id: str, instance_id: str | None, *, new: bool
) -> Found:
    """Return the member of a JoinGroup. Raises ConsumerRefused.

    `new` means that the request named no member, and `member_id` was made for it. A dynamic member
    may come with an id that is unknown: it got it from MEMBER_ID_REQUIRED.
    """
    if instance_id is None:
        return Found(roster.members.get(member_id) or ConsumerMember(member_id=member_id))
    if new:
        return _joining_static(roster, member_id, instance_id, classic=True)
    return Found(static_member(roster, member_id, instance_id))


def find_classic(
    roster: ConsumerRoster, group_id: str, member_id: str, generation: int, instance_id: str | None
) -> ConsumerMember:
    """Return the classic member of a SyncGroup or a Heartbeat. Raises ConsumerRefused.

    The generation of a classic member is its epoch.
    """
    if instance_id is None:
        member = member_of(roster, group_id, member_id)
    else:
        member = static_member(roster, member_id, instance_id)
    if member.classic is None:
        raise ConsumerRefused(
            ErrorCode.unknown_member_id, f"Member {member_id} does not use the classic protocol."
        )
    if generation != member.epoch:
        raise ConsumerRefused(
            ErrorCode.illegal_generation,
            f"The request generation id {generation} is not equal to the member epoch "
            f"{member.epoch} of member {member_id}.",
        )
    return member


def _joining_static(
    roster: ConsumerRoster, member_id: str, instance_id: str, *, classic: bool
) -> Found:
    """Return the member that an instance is from now on.

    Between two members of the consumer protocol the place must be released before. A member that
    changes its protocol takes it at once, as a classic member takes the place of another one.
    """
    known = roster.instances.get(instance_id)
    if known is None:
        return Found(roster.members.get(member_id) or ConsumerMember(member_id=member_id))
    before = roster.members[known]
    keeps = not classic and before.classic is None
    if keeps and before.epoch != STATIC_LEAVE_EPOCH:
        raise ConsumerRefused(
            ErrorCode.unreleased_instance_id,
            f"Static member {member_id} with instance id {instance_id} cannot join the group "
            f"because the instance id is owned by {known} member.",
        )
    return Found(replace(before, member_id=member_id, epoch=0, previous_epoch=0), known)


def _check_epoch(member: ConsumerMember, request: ConsumerHeartbeat) -> None:
    """Raise ConsumerRefused unless the epoch is the member's, or the one whose answer was lost."""
    received, known = request.epoch, member.epoch
    if received in (JOIN_EPOCH, known):
        return
    if known > received == member.previous_epoch and _owns_only_assigned(member, request):
        return
    than = "greater" if received > known else "smaller"
    raise ConsumerRefused(
        ErrorCode.fenced_member_epoch,
        f"The consumer group member has a {than} member epoch ({received}) than the one known by "
        f"the group coordinator ({known}). The member must abandon all its partitions and rejoin.",
    )


def _owns_only_assigned(member: ConsumerMember, request: ConsumerHeartbeat) -> bool:
    """Return whether the member reports its partitions, and all of them are assigned to it."""
    if request.owned is None:
        return False
    return all(
        partition in member.assigned.get(topic, {})
        for topic, partitions in request.owned.items()
        for partition in partitions
    )
