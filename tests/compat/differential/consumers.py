"""Steps of members of the consumer protocol (KIP-848), for the cases of several APIs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.compat.differential.script import Answer, Script, Topic

HEARTBEAT = 68
_GROUP_CONFIGS = 32


def consumer_group(script: Script, word: str = "group", **configs: str) -> str:
    """Return the name of a group whose targets are made at once. Its coordinator answers."""
    group = script.name(word)
    script.coordinator(group)
    wanted = {"consumer.assignment.interval.ms": "0", **configs}
    rows = [{"name": name, "config_operation": 0, "value": value} for name, value in wanted.items()]
    resource = {"resource_type": _GROUP_CONFIGS, "resource_name": group, "configs": rows}
    script.prepare(44, 1, resources=[resource], validate_only=False)
    script.published()
    return group


def fields(group: str, member: str, epoch: Any, topic: Topic | None = None) -> dict[str, Any]:
    """Return the fields of a heartbeat. With a topic it is one that joins."""
    joins = topic is not None
    return {
        "group_id": group,
        "member_id": member,
        "member_epoch": epoch,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": 60_000 if joins else -1,
        "subscribed_topic_names": [topic.name] if topic is not None else None,
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": [] if joins else None,
    }


def owned(topic: Topic, *partitions: int) -> list[Mapping[str, Any]]:
    return [{"topic_id": topic.topic_id, "partitions": list(partitions)}]


def join(script: Script, group: str, member: str, topic: Topic, **more: Any) -> Answer:
    """Join a group. The answer is not compared."""
    return script.prepare(HEARTBEAT, 1, **(fields(group, member, 0, topic) | more))


def beat(script: Script, group: str, member: str, epoch: Any, **more: Any) -> Answer:
    """Send a heartbeat. The answer is not compared."""
    return script.prepare(HEARTBEAT, 1, again=(), **(fields(group, member, epoch) | more))
