"""What `gateway group` asks of a server, as plain data; words are kafka-consumer-groups.sh's."""

from __future__ import annotations

from typing import Any

from gateway.admin.client import AdminClient, AdminError, raise_for
from gateway.admin.output import headings
from gateway.admin.topics import LATEST, Row, offsets

_OFFSET_FETCH, _FIND_COORDINATOR, _DESCRIBE_GROUPS, _LIST_GROUPS = 9, 10, 15, 16
_GROUPS_FROM = 8  # OffsetFetch asks for many groups from here on
_NAMES_UP_TO = 9  # and for topic ids beyond
_GONE = ("Dead", "")
_REBALANCING = ("PreparingRebalance", "CompletingRebalance")
_CONSUMER = "consumer"
_ASSIGNMENT_VERSION_MAX = 3

OFFSET_COLUMNS = headings(
    "group",
    "topic",
    "partition",
    "current_offset",
    "log_end_offset",
    "lag",
    "consumer_id",
    "host",
    "client_id",
)
MEMBER_COLUMNS = {
    **headings("group", "consumer_id", "group_instance_id", "host", "client_id"),
    "partitions": "#PARTITIONS",
}
STATE_COLUMNS = {
    "group": "GROUP",
    "coordinator": "COORDINATOR (ID)",
    "assignment_strategy": "ASSIGNMENT-STRATEGY",
    "state": "STATE",
    "members": "#MEMBERS",
}


async def list_groups(client: AdminClient) -> list[Row]:
    """Every group, by name."""
    answer = await client.send(_LIST_GROUPS, {"states_filter": [], "types_filter": []})
    raise_for(answer.error_code, None, "ListGroups")
    return [
        {
            "group": group.group_id,
            "state": getattr(group, "group_state", "") or None,
            "type": getattr(group, "group_type", "") or None,
            "protocol": group.protocol_type or None,
        }
        for group in sorted(answer.groups, key=lambda each: each.group_id)
    ]


async def find_group(client: AdminClient, name: str) -> Any:
    """kio's description of the group. Raises AdminError when there is none."""
    answer = await client.send(_DESCRIBE_GROUPS, {"groups": [name]})
    (group,) = answer.groups
    missing = group.error_code.name == "group_id_not_found"
    if missing or (not group.error_code.value and group.group_state in _GONE):
        raise AdminError(f"Consumer group '{name}' does not exist.", "GROUP_ID_NOT_FOUND")
    raise_for(group.error_code, getattr(group, "error_message", None), name)
    return group


def remark(group: Any) -> str | None:
    """What Kafka's tool says on stderr about a group in this state."""
    if group.group_state == "Empty":
        return f"Consumer group '{group.group_id}' has no active members."
    if group.group_state in _REBALANCING:
        return f"Warning: Consumer group '{group.group_id}' is rebalancing."
    return None


async def offset_rows(client: AdminClient, group: Any) -> list[Row]:
    """A row for each partition that the group has committed or that a member holds."""
    committed = await _committed(client, group.group_id)
    holders = {place: member for member in group.members for place in assigned(group, member)}
    places = sorted(committed.keys() | holders.keys())
    wanted: dict[str, list[int]] = {}
    for topic, index in places:
        wanted.setdefault(topic, []).append(index)
    ends = await offsets(client, wanted, LATEST)
    return [
        _offset_row(group.group_id, place, committed.get(place), ends.get(place), holders)
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


async def _committed(client: AdminClient, group: str) -> dict[tuple[str, int], int]:
    version = client.version(_OFFSET_FETCH, _NAMES_UP_TO)
    fields: dict[str, Any]
    if version < _GROUPS_FROM:
        fields = {"group_id": group, "topics": None}
    else:
        fields = {"groups": [{"group_id": group, "topics": None, "member_epoch": -1}]}
    answer = await client.send(_OFFSET_FETCH, fields, version_max=_NAMES_UP_TO)
    if version >= _GROUPS_FROM:
        (answer,) = answer.groups
    raise_for(answer.error_code, None, group)
    return {
        (topic.name, partition.partition_index): partition.committed_offset
        for topic in answer.topics
        for partition in topic.partitions
        if not partition.error_code.value and partition.committed_offset >= 0
    }


def assigned(group: Any, member: Any) -> list[tuple[str, int]]:
    """Topic and partition of all that a consumer holds; nothing for bytes of other protocols."""
    data: bytes = member.member_assignment
    if group.protocol_type != _CONSUMER or len(data) < 2:
        return []
    from kio._kio_native import entity_reader
    from kio.schema.consumer_protocol_assignment import v0

    # Later versions only add to the end of what v0 holds.
    if int.from_bytes(data[:2], "big") > _ASSIGNMENT_VERSION_MAX:
        return []
    try:
        assignment, _ = entity_reader(v0.ConsumerProtocolAssignment)(data, 2)
    except Exception:  # noqa: BLE001 - a member's own bytes; whatever the reader says
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
        }
        for member in sorted(group.members, key=lambda each: each.member_id)
    ]


async def state_row(client: AdminClient, group: Any) -> Row:
    return {
        "group": group.group_id,
        "coordinator": await _coordinator(client, group.group_id),
        "assignment_strategy": group.protocol_data or None,
        "state": group.group_state,
        "members": len(group.members),
    }


async def _coordinator(client: AdminClient, group: str) -> str:
    """`host:port (id)`."""
    answer = await client.send(
        _FIND_COORDINATOR, {"key": group, "key_type": 0, "coordinator_keys": [group]}
    )
    found = answer.coordinators[0] if hasattr(answer, "coordinators") else answer
    raise_for(found.error_code, found.error_message, group)
    return f"{found.host}:{found.port} ({found.node_id})"
