"""Steps of members of the consumer protocol (KIP-848), for the cases of several APIs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.core.consumer_protocol import encode_assignment
from tests.compat.differential.script import Answer, Script, Topic
from tests.gateway.subscription_bytes import subscription as encode_subscription

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


def subscription(*topics: Topic, owned: tuple[int, ...] = ()) -> bytes:
    """Return the metadata of a classic member, in version 1. It owns partitions of the first."""
    return encode_subscription([each.name for each in topics], owned, version=1)


def classic(group: str, topic: Topic, member: Any = "", **more: Any) -> dict[str, Any]:
    """Return the fields of a JoinGroup of a classic member."""
    kept = more.pop("owned", ())
    return {
        "group_id": group,
        "session_timeout": 30_000,
        "rebalance_timeout": 30_000,
        "member_id": member,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription(topic, owned=kept)}],
        "reason": None,
        **more,
    }


def syncing(group: str, member: Any, generation: Any, **more: Any) -> dict[str, Any]:
    """Return the fields of a SyncGroup of a classic member."""
    return {
        "group_id": group,
        "generation_id": generation,
        "member_id": member,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [],
        **more,
    }


def beating(
    group: str, member: Any, generation: Any, instance: str | None = None
) -> dict[str, Any]:
    """Return the fields of a Heartbeat of a classic member."""
    return {
        "group_id": group,
        "generation_id": generation,
        "member_id": member,
        "group_instance_id": instance,
    }


def join_classic(script: Script, group: str, topic: Topic, **more: Any) -> Answer:
    """Join as a new classic member. The answers are not compared."""
    first = script.prepare(11, 9, **classic(group, topic, **more))
    return script.prepare(11, 9, **classic(group, topic, first.take("member_id"), **more))


def classic_group(script: Script, group: str, topic: Topic, *partitions: int) -> Answer:
    """Make a classic group of one member that has these partitions. Returns its JoinGroup."""
    joined = join_classic(script, group, topic)
    member, generation = joined.take("member_id"), joined.take("generation_id")
    rows = [{"member_id": member, "assignment": encode_assignment([(topic.name, partitions)], 1)}]
    script.prepare(14, 5, **syncing(group, member, generation, assignments=rows))
    return joined
