"""Requests of `gateway topic`, with their results as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.admin.client import AdminClient, AdminError, Place, raise_for
from gateway.wire.list_offsets_request import list_offsets_fields

_LIST_OFFSETS, _METADATA, _CREATE, _DELETE, _DESCRIBE_CONFIGS = 2, 3, 19, 20, 32
_DELETE_RECORDS, _CREATE_PARTITIONS, _INCREMENTAL_ALTER_CONFIGS = 21, 37, 44
_CREATE_PARTITIONS_MS_MAX = 20_000
_DELETE_MS_MAX = 20_000
_SET, _REMOVE = 0, 1  # values of config_operation in IncrementalAlterConfigs
_TRUNCATE_MS_MAX = 10_000
LOOK_RETRY_S_MAX = 5.0
"""How long a command that only shows offsets tries again to find a leader.

After most deaths of a gateway another one leads sooner; after that of a machine, once its session
has ended."""
_SHOWN_MAX = 5  # partitions that an error names
_TOPIC_RESOURCE = 2
_SET_ON_TOPIC = 1  # value of config_source for a setting of the topic itself
_NAMES_BELOW = 6  # first version of DeleteTopics that accepts topic ids
LATEST, EARLIEST = -1, -2
_UNKNOWN = -1

Row = dict[str, Any]


async def create_topic(
    client: AdminClient,
    name: str,
    partitions: int,
    replication_factor: int,
    configs: Mapping[str, str],
) -> Row:
    """Create a topic. A count of -1 requests the server's default."""
    answers = await create_topics(client, [name], partitions, replication_factor, configs)
    made = answers[name]
    raise_for(made.error_code, made.error_message, name)
    return {**created_row(name, made), "remark": made.error_message}


async def create_topics(
    client: AdminClient,
    names: Sequence[str],
    partitions: int,
    replication_factor: int,
    configs: Mapping[str, str],
) -> dict[str, Any]:
    """Create these topics in one request, each independent of the others. Returns the answers."""
    topics = [
        {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": replication_factor,
            "assignments": [],
            "configs": [{"name": key, "value": value} for key, value in configs.items()],
        }
        for name in names
    ]
    answer = await client.send(_CREATE, {"topics": topics, "validate_only": False})
    return {made.name: made for made in answer.topics}


def created_row(name: str, made: Any) -> Row:
    """Return a topic as the answer to its creation describes it; -1 is a count without answer."""
    topic_id = getattr(made, "topic_id", None)
    return {
        "name": name,
        "topic_id": None if topic_id is None else str(topic_id),
        "partitions": getattr(made, "num_partitions", _UNKNOWN),
        "replication_factor": getattr(made, "replication_factor", _UNKNOWN),
    }


async def alter_topic(
    client: AdminClient, name: str, configs: Mapping[str, str], removed: Sequence[str]
) -> str | None:
    """Set these settings of the topic, and reset the settings in `removed` to defaults.

    Returns the server's remark on the new settings, or None.
    """
    changes = [
        {"name": key, "config_operation": _SET, "value": value} for key, value in configs.items()
    ]
    changes += [{"name": key, "config_operation": _REMOVE, "value": None} for key in removed]
    resource = {"resource_type": _TOPIC_RESOURCE, "resource_name": name, "configs": changes}
    answer = await client.send(
        _INCREMENTAL_ALTER_CONFIGS, {"resources": [resource], "validate_only": False}
    )
    (altered,) = answer.responses
    raise_for(altered.error_code, altered.error_message, name)
    return altered.error_message


async def add_partitions(client: AdminClient, name: str, total: int) -> None:
    """Add partitions to the topic, so that it has `total` partitions."""
    topic = {"name": name, "count": total, "assignments": None}
    answer = await client.send(
        _CREATE_PARTITIONS,
        {"topics": [topic], "timeout": _CREATE_PARTITIONS_MS_MAX, "validate_only": False},
    )
    (grown,) = answer.results
    if grown.error_code.name == "unknown_topic_or_partition":
        raise AdminError(f"Topic '{name}' does not exist.", "UNKNOWN_TOPIC_OR_PARTITION")
    raise_for(grown.error_code, grown.error_message, name)


async def truncate_topic(
    client: AdminClient, name: str, indexes: Sequence[int], offset: int
) -> list[Row]:
    """Delete the records below `offset` in these partitions, or in all partitions.

    LATEST deletes all records. Raises AdminError, without a change, if a partition ends below
    `offset` or its leader does not answer. Otherwise returns the start of each partition
    afterwards. A partition that failed has None as its start, and a Kafka code as its `error`.
    """
    topic = await describe_topic(client, name, retry_s_max=None)
    ends = {row["partition"]: row["log_end_offset"] for row in topic["partitions"]}
    for index in indexes:
        if index not in ends:
            raise AdminError(f"Topic '{name}' has no partition {index}.", "UNKNOWN_PARTITION")
    chosen = list(dict.fromkeys(indexes)) or list(ends)
    _check_ends({index: ends[index] for index in chosen}, offset)

    def fields(topics: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        asked = [
            {
                "name": each,
                "partitions": [{"partition_index": index, "offset": offset} for index in here],
            }
            for each, here in topics.items()
        ]
        return {"topics": asked, "timeout": _TRUNCATE_MS_MAX}

    places = [(name, index) for index in chosen]
    done = await client.at_leaders_or_errors(places, _DELETE_RECORDS, fields)
    return [_truncated(index, done.get((name, index))) for index in chosen]


def _check_ends(ends: Mapping[int, int | None], offset: int) -> None:
    """Raise AdminError unless each of these partitions can be truncated to `offset`."""
    silent = [index for index, end in ends.items() if end is None]
    if silent:
        raise AdminError(
            f"the leader of {_listed(silent)} did not answer; no partition was changed",
            "LEADER_NOT_AVAILABLE",
        )
    short = [f"{index} ends at {end}" for index, end in ends.items() if (end or 0) < offset]
    if short:
        more = f", and {len(short) - _SHOWN_MAX} more" if len(short) > _SHOWN_MAX else ""
        raise AdminError(
            f"offset {offset} is past the end: partition {', '.join(short[:_SHOWN_MAX])}{more}; "
            "no partition was changed. Pass a lower offset, end, or some partitions with "
            "--partition",
            "OFFSET_OUT_OF_RANGE",
        )


def _listed(indexes: Sequence[int]) -> str:
    more = f" and {len(indexes) - _SHOWN_MAX} more" if len(indexes) > _SHOWN_MAX else ""
    return f"partition {', '.join(str(index) for index in indexes[:_SHOWN_MAX])}{more}"


def _truncated(index: int, answer: Any) -> Row:
    if answer is None:
        return {"partition": index, "log_start_offset": None, "error": "LEADER_NOT_AVAILABLE"}
    failed = bool(answer.error_code.value)
    return {
        "partition": index,
        "log_start_offset": None if failed else answer.low_watermark,
        "error": answer.error_code.name.upper() if failed else None,
    }


async def delete_topic(client: AdminClient, name: str) -> None:
    fields: dict[str, Any]
    if client.version(_DELETE) < _NAMES_BELOW:
        fields = {"topic_names": [name]}
    else:
        fields = {"topics": [{"name": name, "topic_id": None}]}
    # Without a timeout Apache Kafka answers REQUEST_TIMED_OUT, though it deletes the topic.
    answer = await client.send(_DELETE, {**fields, "timeout": _DELETE_MS_MAX})
    (deleted,) = answer.responses
    if deleted.error_code.name == "unknown_topic_or_partition":
        raise AdminError(f"Topic '{name}' does not exist.", "UNKNOWN_TOPIC_OR_PARTITION")
    message = getattr(deleted, "error_message", None)
    raise_for(deleted.error_code, message and f"{name}: {message}", name)


async def describe_topic(
    client: AdminClient, name: str, retry_s_max: float | None = LOOK_RETRY_S_MAX
) -> Row:
    """Return the topic with its partitions, their offsets, and the settings that it overrides.

    Offsets are None if the leader of a partition is not found in `retry_s_max` seconds.
    """
    answer = await client.send(
        _METADATA, {"topics": [{"name": name}], "allow_auto_topic_creation": False}
    )
    (topic,) = answer.topics
    if topic.error_code.name == "unknown_topic_or_partition":
        raise AdminError(f"Topic '{name}' does not exist.", "UNKNOWN_TOPIC_OR_PARTITION")
    raise_for(topic.error_code, None, name)
    indexes = sorted(partition.partition_index for partition in topic.partitions)
    first = await offsets(client, {name: indexes}, EARLIEST, retry_s_max=retry_s_max)
    answered = [index for index in indexes if (name, index) in first]
    last = await offsets(client, {name: answered}, LATEST, retry_s_max=retry_s_max)
    topic_id = getattr(topic, "topic_id", None)
    return {
        "name": name,
        "topic_id": None if topic_id is None else str(topic_id),
        "internal": topic.is_internal,
        "configs": await _overrides(client, name),
        "partitions": [
            {
                "partition": partition.partition_index,
                "leader": partition.leader_id,
                "leader_epoch": getattr(partition, "leader_epoch", None),
                "log_start_offset": first.get((name, partition.partition_index)),
                "log_end_offset": last.get((name, partition.partition_index)),
            }
            for partition in sorted(topic.partitions, key=lambda each: each.partition_index)
        ],
    }


async def settings(client: AdminClient, name: str) -> dict[str, str | None]:
    """Return the value of every setting of the topic, including defaults."""
    return {config.name: config.value for config in await _configs(client, name)}


async def _overrides(client: AdminClient, name: str) -> dict[str, str]:
    return {
        config.name: config.value
        for config in await _configs(client, name)
        if config.config_source == _SET_ON_TOPIC
    }


async def _configs(client: AdminClient, name: str) -> Sequence[Any]:
    resource = {
        "resource_type": _TOPIC_RESOURCE,
        "resource_name": name,
        "configuration_keys": None,
    }
    answer = await client.send(_DESCRIBE_CONFIGS, {"resources": [resource]})
    (result,) = answer.results
    raise_for(result.error_code, result.error_message, name)
    return result.configs


async def offsets(
    client: AdminClient,
    partitions: Mapping[str, Sequence[int]],
    timestamp: int,
    *,
    committed: bool = False,
    retry_s_max: float | None = None,
) -> dict[Place, int]:
    """Return the LATEST or EARLIEST offset, or the first offset since `timestamp` (ms).

    The offset is -1 if no record is as new as `timestamp`. A partition whose leader does not answer
    within `retry_s_max`, by default the client's, is left out. With `committed`, LATEST is the last
    stable offset, where read_committed consumers stop.
    """

    def fields(topics: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        return list_offsets_fields(topics, timestamp, committed=committed)

    places = [(name, index) for name, indexes in partitions.items() for index in indexes]
    found = await client.at_leaders(places, _LIST_OFFSETS, fields, retry_s_max)
    return {place: each.offset for place, each in found.items()}
