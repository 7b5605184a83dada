"""One step of a member from its current assignment towards its target. Pure.

    STABLE ─▶ UNREVOKED_PARTITIONS ─▶ (member no longer owns them) ─▶ STABLE
                                                         └─▶ UNRELEASED_PARTITIONS ─▶ STABLE

A member keeps its epoch until it has given up what it must not keep. It gets a partition only once
no other member has it.
Source: Kafka, CurrentAssignmentBuilder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from gateway.core.consumer_members import ConsumerMember, Epochs, MemberState, Partitions

_NO_PARTITIONS: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """All that one step depends on besides the member."""

    target_epoch: int
    target: Partitions
    subscribed: Collection[UUID]  # the ids of the existing topics that the member subscribes to
    subscription_changed: bool
    owned: Partitions | None  # as the member reports them; None if it does not
    owner: Callable[[UUID, int], str | None]  # the member that has a partition now


def reconciled(member: ConsumerMember, step: Reconciliation) -> ConsumerMember:
    """Return the member after the step, or the member itself if it cannot move."""
    if member.state is MemberState.STABLE:
        if member.epoch != step.target_epoch:
            return _next(member, step)
        return _without_unsubscribed(member, step) if step.subscription_changed else member
    if member.state is MemberState.UNREVOKED_PARTITIONS and _owns(step.owned, member.revoking):
        return _without_unsubscribed(member, step) if step.subscription_changed else member
    return _next(member, step)


def _owns(owned: Partitions | None, revoked: Epochs) -> bool:
    """Return whether the member may still use one of these partitions."""
    if owned is None:
        return True
    return any(
        partition in revoked.get(topic, {}) for topic, some in owned.items() for partition in some
    )


def _without_unsubscribed(member: ConsumerMember, step: Reconciliation) -> ConsumerMember:
    """Take away the partitions of topics to which the member no longer subscribes."""
    kept = {topic: some for topic, some in member.assigned.items() if topic in step.subscribed}
    if len(kept) == len(member.assigned):
        return member
    revoking: dict[UUID, Mapping[int, int]] = dict(member.revoking)
    for topic, some in member.assigned.items():
        if topic not in step.subscribed:
            revoking[topic] = {**revoking.get(topic, {}), **some}
    if not _owns(step.owned, revoking):
        return replace(member.with_epoch(member.epoch), assigned=kept)
    return replace(
        member.with_epoch(member.epoch),
        state=MemberState.UNREVOKED_PARTITIONS,
        assigned=kept,
        revoking=revoking,
    )


def _next(member: ConsumerMember, step: Reconciliation) -> ConsumerMember:
    """Move the member towards the latest target."""
    kept: dict[UUID, dict[int, int]] = {}
    revoking: dict[UUID, dict[int, int]] = {}
    fresh: dict[UUID, list[int]] = {}
    unreleased = False
    for topic in {*step.target, *member.assigned}:
        target = step.target.get(topic, _NO_PARTITIONS) if topic in step.subscribed else ()
        current = member.assigned.get(topic, {})
        stays = {partition: epoch for partition, epoch in current.items() if partition in target}
        goes = {partition: epoch for partition, epoch in current.items() if partition not in target}
        missing = [partition for partition in target if partition not in current]
        free = [each for each in missing if step.owner(topic, each) in (None, member.member_id)]
        unreleased = unreleased or len(free) < len(missing)
        if stays:
            kept[topic] = stays
        if goes:
            revoking[topic] = goes
        if free:
            fresh[topic] = free
    if revoking and _owns(step.owned, revoking):
        return replace(
            member.with_epoch(member.epoch),
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=kept,
            revoking=revoking,
        )
    for topic, some in fresh.items():
        kept.setdefault(topic, {}).update(dict.fromkeys(some, step.target_epoch))
    state = MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE
    return replace(member.with_epoch(step.target_epoch), state=state, assigned=kept, revoking={})
