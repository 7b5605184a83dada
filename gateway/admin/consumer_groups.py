"""Groups of the consumer protocol as the commands of `gateway group` see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.admin.client import AdminError, raise_for

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient, Place

_DESCRIBE: Final = 69
_MISSING: Final = frozenset({"group_id_not_found", "unsupported_version"})


@dataclass(frozen=True, slots=True)
class ConsumerGroupMember:
    """One member, with the fields of kio's description of a member of the classic protocol."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    epoch: int
    places: list[Place]  # its partitions, until it has revoked them
    target: list[Place]  # the partitions that it moves to


@dataclass(frozen=True, slots=True)
class ConsumerGroupFound:
    """One group, with the fields of kio's description of a group of the classic protocol."""

    group_id: str
    group_state: str
    protocol_data: str  # the assignor
    group_epoch: int
    assignment_epoch: int
    members: list[ConsumerGroupMember]
    protocol_type: str = "consumer"


async def find_consumer_group(client: AdminClient, name: str) -> ConsumerGroupFound | None:
    """Return the group, or None if no group of the consumer protocol has this name."""
    try:
        answer = await client.at_coordinator(
            name,
            _DESCRIBE,
            lambda _: {"group_ids": [name], "include_authorized_operations": False},
            lambda answer: [group.error_code for group in answer.groups],
        )
    except AdminError as error:
        if error.code == "UNSUPPORTED_VERSION":
            return None
        raise
    (group,) = answer.groups
    if group.error_code.name in _MISSING:
        return None
    raise_for(group.error_code, group.error_message, name)
    return ConsumerGroupFound(
        group.group_id,
        group.group_state,
        group.assignor_name,
        group.group_epoch,
        group.assignment_epoch,
        [_member(each) for each in group.members],
    )


def _member(each: Any) -> ConsumerGroupMember:
    return ConsumerGroupMember(
        each.member_id,
        each.instance_id,
        each.client_id,
        each.client_host,
        each.member_epoch,
        _places(each.assignment),
        _places(each.target_assignment),
    )


def _places(assignment: Any) -> list[Place]:
    return [
        (row.topic_name, index) for row in assignment.topic_partitions for index in row.partitions
    ]


def member_epochs(member: Any) -> dict[str, Any]:
    """Return what `group describe --members` shows besides of a member; null if it is classic."""
    known = isinstance(member, ConsumerGroupMember)
    return {
        "epoch": member.epoch if known else None,
        "target_partitions": len(member.target) if known else None,
    }


def group_epochs(group: Any) -> dict[str, Any]:
    """Return what `group describe --state` shows besides of a group; null if it is classic."""
    known = isinstance(group, ConsumerGroupFound)
    return {
        "group_epoch": group.group_epoch if known else None,
        "assignment_epoch": group.assignment_epoch if known else None,
    }
