"""The note with the current assignment of a member, which each change of a group writes. Pure.

Protocol buffers are imported with this module: a start without such groups does without.
Format: docs/formats/positions.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from gateway.core.consumer_members import ConsumerMember, Epochs, MemberState
from gateway.groups.current_pb2 import CurrentAssignment, HeldPartitions


def encode_current(member: ConsumerMember) -> bytes:
    """Encode the epochs, the state and the partitions of a member."""
    return CurrentAssignment(
        epoch=member.epoch,
        previous_epoch=member.previous_epoch,
        state=member.state,
        assigned=_held(member.assigned),
        revoking=_held(member.revoking),
    ).SerializeToString()


def _held(epochs: Epochs) -> list[HeldPartitions]:
    """Return the partitions of each topic by their epoch, because most have the same."""
    found: list[HeldPartitions] = []
    for topic, some in epochs.items():
        by_epoch: dict[int, list[int]] = {}
        for partition, epoch in sorted(some.items()):
            by_epoch.setdefault(epoch, []).append(partition)
        found += [
            HeldPartitions(topic_id=topic.bytes, epoch=epoch, partitions=partitions)
            for epoch, partitions in by_epoch.items()
        ]
    return found


def decode_current(name: str, note: bytes) -> ConsumerMember:
    """Decode the current assignment of a member. Raises DecodeError and ValueError."""
    current = CurrentAssignment.FromString(note)
    if not current.HasField("epoch"):
        raise ValueError("no epoch")
    return ConsumerMember(
        member_id=name,
        epoch=current.epoch,
        previous_epoch=current.previous_epoch,
        state=MemberState(current.state),
        assigned=_epochs_of(current.assigned),
        revoking=_epochs_of(current.revoking),
    )


def _epochs_of(held: Iterable[HeldPartitions]) -> Epochs:
    found: dict[UUID, dict[int, int]] = {}
    for each in held:
        some = found.setdefault(UUID(bytes=each.topic_id), {})
        some.update(dict.fromkeys(each.partitions, each.epoch))
    return found
