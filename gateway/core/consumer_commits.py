"""Whether a member of a group of the consumer protocol may commit or read offsets. Pure.

The generation of a classic member is its epoch; where it is refused, the code is one that classic
consumers know. Source: Kafka, ConsumerGroup.validateOffsetCommit and validateOffsetFetch.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.core.consumer_members import ConsumerMember, ConsumerRefused

MayCommit = Callable[[UUID, int], bool]
"""Returns whether a member may commit an offset of a partition."""


def any_partition(topic: UUID, partition: int) -> bool:
    """Let a member commit offsets of all partitions."""
    return True


def mismatch_code(member: ConsumerMember) -> ErrorCode:
    """Return the code for an epoch that is not the member's."""
    classic = member.classic is not None
    return ErrorCode.illegal_generation if classic else ErrorCode.stale_member_epoch


def committable(
    member: ConsumerMember, epoch: int, *, transactional: bool, new_version: bool
) -> MayCommit:
    """Return the partitions of which a member may commit offsets. Raises ConsumerRefused.

    `new_version` is True from OffsetCommit v9. An epoch before the member's own may commit
    partitions that the member has had since then.
    """
    if not transactional and not new_version and member.classic is None:
        raise ConsumerRefused(
            ErrorCode.unsupported_version,
            "OffsetCommit version 9 or above must be used by members using the consumer group "
            "protocol",
        )
    if epoch == member.epoch:
        return any_partition
    if epoch > member.epoch:
        word = "member epoch" if member.classic is None else "generation id"
        raise ConsumerRefused(
            mismatch_code(member),
            f"Received {word} {epoch} is newer than current member epoch {member.epoch}.",
        )

    def had_since(topic: UUID, partition: int) -> bool:
        since = member.assigned.get(topic, {}).get(partition)
        if since is None:
            since = member.revoking.get(topic, {}).get(partition)
        return since is not None and epoch >= since

    return had_since


def check_fetch(member: ConsumerMember, epoch: int) -> None:
    """Raise ConsumerRefused unless the member may read the committed offsets."""
    if epoch != member.epoch:
        word = "member epoch" if member.classic is None else "generation id"
        raise ConsumerRefused(
            mismatch_code(member),
            f"The received {word} {epoch} does not match the expected member epoch {member.epoch}.",
        )
