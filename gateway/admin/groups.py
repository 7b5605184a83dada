"""Requests of `gateway group`, with their results as plain data.

The messages are the same as in kafka-consumer-groups.sh.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gateway.admin.blocked import blocked_from, blocked_places
from gateway.admin.client import AdminClient, AdminError, Place, raise_for
from gateway.admin.consumer_groups import (
    ConsumerGroupMember,
    find_consumer_group,
    group_epochs,
    member_epochs,
)
from gateway.admin.topics import LATEST, LOOK_RETRY_S_MAX, Row, offsets

_OFFSET_COMMIT, _OFFSET_FETCH, _DESCRIBE_GROUPS, _LIST_GROUPS = 8, 9, 15, 16
_DELETE_GROUPS, _OFFSET_DELETE, _CONSUMER_GROUP_DESCRIBE = 42, 47, 69
_GROUPS_FROM = 8  # first version of OffsetFetch that requests several groups
_NAMES_UP_TO = 9  # last version of OffsetFetch and OffsetCommit with topic names
_GONE = ("Dead", "")
_REBALANCING = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")
_CONSUMER = "consumer"
_READ_ONLY = "read-only"  # shown as the assignment strategy of a read-only group
_ASSIGNMENT_VERSION_MAX = 3


class Committed(NamedTuple):
    """The committed offset of a group for one partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


async def list_groups(client: AdminClient) -> list[Row]:
    """List the groups of all brokers by name."""
    answers = await client.at_every_broker(
        _LIST_GROUPS,
        lambda _: {"states_filter": [], "types_filter": []},
        lambda answer: [answer.error_code],
    )
    found: dict[str, Any] = {}
    for answer in answers:
        raise_for(answer.error_code, None, "ListGroups")
        for group in answer.groups:
            # Two brokers list a group that moved between the requests. Keep the entry with members.
            if getattr(found.get(group.group_id), "group_state", "Empty") == "Empty":
                found[group.group_id] = group
    return [
        {
            "group": name,
            "state": getattr(group, "group_state", "") or None,
            "type": getattr(group, "group_type", "") or None,
            "protocol": group.protocol_type or None,
        }
        for name, group in sorted(found.items())
    ]


async def find_group(client: AdminClient, name: str) -> Any:
    """Return kio's description of the group. Raises AdminError if it does not exist.

    That of a group of the consumer protocol is a `ConsumerGroupFound`, which has the same fields.
    """
    answer = await client.at_coordinator(
        name,
        _DESCRIBE_GROUPS,
        lambda _: {"groups": [name]},
        lambda answer: [group.error_code for group in answer.groups],
    )
    (group,) = answer.groups
    missing = group.error_code.name == "group_id_not_found"
    if missing or (not group.error_code.value and group.group_state in _GONE):
        found = await find_consumer_group(client, name)
        if found is None:
            raise no_such_group(name)
        return found
    raise_for(group.error_code, getattr(group, "error_message", None), name)
    return group


async def state_by_new_protocol(client: AdminClient, name: str) -> str | None:
    """Return the state of a group of the new consumer protocol (KIP-848), None if there is none.

    DescribeGroups does not find such a group. A gateway has none, so it is not asked.
    """
    fields = {"group_ids": [name], "include_authorized_operations": False}
    try:
        answer = await client.at_coordinator(
            name,
            _CONSUMER_GROUP_DESCRIBE,
            lambda _: fields,
            lambda answer: [group.error_code for group in answer.groups],
        )
    except AdminError as error:
        if error.code == "UNSUPPORTED_VERSION":
            return None
        raise
    (group,) = answer.groups
    if group.error_code.name == "group_id_not_found":
        return None
    raise_for(group.error_code, group.error_message, name)
    return str(group.group_state)


def no_such_group(name: str) -> AdminError:
    return AdminError(f"Consumer group '{name}' does not exist.", "GROUP_ID_NOT_FOUND")


def remark(group: Any) -> str | None:
    """Return the remark that Kafka's tool prints about a group in this state, or None."""
    if group.protocol_data == _READ_ONLY:
        return f"Group '{group.group_id}' commits nothing: this is what its clients fetch next."
    if group.group_state == "Empty":
        return f"Consumer group '{group.group_id}' has no active members."
    if group.group_state in _REBALANCING:
        return f"Warning: Consumer group '{group.group_id}' is rebalancing."
    return None


async def offset_rows(client: AdminClient, group: Any) -> list[Row]:
    """Return a row for each partition with a committed offset or an assigned member."""
    positions = await committed(client, group.group_id)
    current = {place: each.offset for place, each in positions.items()}
    holders = {place: member for member in group.members for place in assigned(group, member)}
    places = sorted(current.keys() | holders.keys())
    wanted: dict[str, list[int]] = {}
    for topic, index in places:
        wanted.setdefault(topic, []).append(index)
    ends = await offsets(client, wanted, LATEST, retry_s_max=LOOK_RETRY_S_MAX)
    blocked = await blocked_places(client)
    return [
        {
            **_offset_row(group.group_id, place, current.get(place), ends.get(place), holders),
            "blocked": blocked_from(blocked, place, current.get(place)),
        }
        for place in places
    ]


def _offset_row(
    group: str,
    place: tuple[str, int],
    current: int | None,
    end: int | None,
    holders: dict[tuple[str, int], Any],
) -> Row:
    holder = holders.get(place)
    return {
        "group": group,
        "topic": place[0],
        "partition": place[1],
        "current_offset": current,
        "log_end_offset": end,
        "lag": None if current is None or end is None else end - current,
        "consumer_id": holder and holder.member_id,
        "host": holder and holder.client_host,
        "client_id": holder and holder.client_id,
    }


async def committed(client: AdminClient, group: str) -> dict[Place, Committed]:
    """Return all committed offsets of the group. A group that does not exist has none."""
    found, _ = await _committed(client, group, stable=False)
    return found


async def stable_offsets(
    client: AdminClient, group: str
) -> tuple[dict[Place, Committed], set[Place]]:
    """Return the committed offsets, and the partitions whose offsets an open transaction changes.

    Those partitions are not among the first ones.
    """
    return await _committed(client, group, stable=True)


async def _committed(
    client: AdminClient, group: str, *, stable: bool
) -> tuple[dict[Place, Committed], set[Place]]:
    def fields(version: int) -> dict[str, Any]:
        more = {"require_stable": stable}
        if version < _GROUPS_FROM:
            return {"group_id": group, "topics": None, **more}
        return {"groups": [{"group_id": group, "topics": None, "member_epoch": -1}], **more}

    def result(answer: Any) -> Any:
        return answer.groups[0] if hasattr(answer, "groups") else answer

    answer = await client.at_coordinator(
        group,
        _OFFSET_FETCH,
        fields,
        lambda answer: [result(answer).error_code],
        version_max=_NAMES_UP_TO,
    )
    raise_for(result(answer).error_code, None, group)
    rows = [(topic.name, each) for topic in result(answer).topics for each in topic.partitions]
    found = {
        (topic, each.partition_index): Committed(
            each.committed_offset, getattr(each, "committed_leader_epoch", -1), each.metadata or ""
        )
        for topic, each in rows
        if not each.error_code.value and each.committed_offset >= 0
    }
    unstable = {
        (topic, each.partition_index)
        for topic, each in rows
        if each.error_code.name == "unstable_offset_commit"
    }
    return found, unstable


async def commit(client: AdminClient, group: str, positions: Mapping[Place, Committed]) -> None:
    """Commit these offsets for a group without members. Raises AdminError."""

    def fields(version: int) -> dict[str, Any]:
        return {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": _by_topic(
                (
                    place,
                    {
                        "partition_index": place[1],
                        "committed_offset": each.offset,
                        "committed_leader_epoch": each.leader_epoch,
                        "committed_metadata": each.metadata,
                    },
                )
                for place, each in positions.items()
            ),
        }

    if positions:
        answer = await client.at_coordinator(
            group, _OFFSET_COMMIT, fields, _topic_codes, version_max=_NAMES_UP_TO
        )
        _raise_for_topics(answer, group)


async def delete_offsets(client: AdminClient, group: str, places: Iterable[Place]) -> None:
    """Delete the committed offsets of these partitions. Raises AdminError."""
    asked = _by_topic((place, {"partition_index": place[1]}) for place in places)
    if not asked:
        return
    answer = await client.at_coordinator(
        group,
        _OFFSET_DELETE,
        lambda _: {"group_id": group, "topics": asked},
        lambda answer: [answer.error_code],
    )
    raise_for(answer.error_code, None, group)
    _raise_for_topics(answer, group)


async def delete_group(client: AdminClient, name: str) -> None:
    """Delete the group and all its offsets. Raises AdminError."""
    answer = await client.at_coordinator(
        name,
        _DELETE_GROUPS,
        lambda _: {"groups_names": [name]},
        lambda answer: [each.error_code for each in answer.results],
    )
    (deleted,) = answer.results
    if deleted.error_code.name == "group_id_not_found":
        raise no_such_group(name)
    if deleted.error_code.name == "non_empty_group":
        raise AdminError(
            f"Consumer group '{name}' has members; stop its consumers first.", "NON_EMPTY_GROUP"
        )
    raise_for(deleted.error_code, None, name)


def _by_topic(partitions: Iterable[tuple[Place, Row]]) -> list[Row]:
    topics: dict[str, list[Row]] = {}
    for (name, _), fields in partitions:
        topics.setdefault(name, []).append(fields)
    return [{"name": name, "partitions": fields} for name, fields in topics.items()]


def _topic_codes(answer: Any) -> list[Any]:
    return [each.error_code for topic in answer.topics for each in topic.partitions]


def _raise_for_topics(answer: Any, group: str) -> None:
    for topic in answer.topics:
        for each in topic.partitions:
            raise_for(each.error_code, None, f"{group}: {topic.name}-{each.partition_index}")


def assigned(group: Any, member: Any) -> list[tuple[str, int]]:
    """Return the partitions assigned to a consumer.

    The list is empty if the group's protocol type is not "consumer", or if the assignment cannot be
    decoded.
    """
    if isinstance(member, ConsumerGroupMember):
        return member.places
    data: bytes = member.member_assignment
    if group.protocol_type != _CONSUMER or len(data) < 2:
        return []
    from kio._kio_native import entity_reader
    from kio.schema.consumer_protocol_assignment import v0

    from gateway.wire.bounds_check import check_bounds, walker

    # Later versions of the assignment only append fields to version 0.
    if int.from_bytes(data[:2], "big") > _ASSIGNMENT_VERSION_MAX:
        return []
    entity = v0.ConsumerProtocolAssignment
    try:
        assignment, _ = entity_reader(entity)(*check_bounds(walker(entity), data, 2))
    except Exception:  # noqa: BLE001 - bytes of a client: the reader may raise anything
        return []
    return [
        (topic.topic, index)
        for topic in assignment.assigned_partitions
        for index in topic.partitions
    ]


def member_rows(group: Any) -> list[Row]:
    return [
        {
            "group": group.group_id,
            "consumer_id": member.member_id,
            "group_instance_id": getattr(member, "group_instance_id", None),
            "host": member.client_host,
            "client_id": member.client_id,
            "partitions": len(assigned(group, member)),
            **member_epochs(member),
        }
        for member in sorted(group.members, key=lambda each: each.member_id)
    ]


async def state_row(client: AdminClient, group: Any) -> Row:
    return {
        "group": group.group_id,
        "coordinator": str(await client.coordinator(group.group_id)),
        "assignment_strategy": group.protocol_data or None,
        "state": group.group_state,
        "members": len(group.members),
        **group_epochs(group),
    }
