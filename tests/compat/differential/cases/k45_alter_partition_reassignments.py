"""AlterPartitionReassignments: present replicas, impossible ones, nothing to cancel."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.script import Script, case

KEY = 45


def row(replicas: Any, index: int = 0) -> dict[str, Any]:
    return {"partition_index": index, "replicas": replicas}


@case(KEY)
def nothing(script: Script) -> None:
    script.ask(topics=[], timeout=1_000)
    script.ask(topics=[{"name": script.name("absent"), "partitions": []}], timeout=1_000)


@case(KEY)
def the_present_replicas(script: Script) -> None:
    topic, node = script.topic("t", 2), script.node()
    script.ask(
        topics=[{"name": topic.name, "partitions": [row([node]), row([node], 1)]}], timeout=1_000
    )


@case(KEY)
def a_cancellation_of_nothing(script: Script) -> None:
    topic = script.topic("t")
    script.ask(topics=[{"name": topic.name, "partitions": [row(None)]}], timeout=1_000)


@case(KEY)
def impossible_replicas(script: Script) -> None:
    topic, node = script.topic("t"), script.node()
    for replicas in ([], [node, node], [-5], [4711, 4711], [node, 4711], [4711, -5]):
        script.ask(topics=[{"name": topic.name, "partitions": [row(replicas)]}], timeout=1_000)


@case(KEY, since=1)
def a_fixed_number_of_replicas(script: Script) -> None:
    topic, node = script.topic("t"), script.node()
    for replicas in ([node], [], None, [node, 4711]):
        script.ask(
            topics=[{"name": topic.name, "partitions": [row(replicas)]}],
            allow_replication_factor_change=False,
            timeout=1_000,
        )


@case(KEY)
def unknown_partitions(script: Script) -> None:
    topic, node = script.topic("t"), script.node()
    for replicas in ([node], None, [], [4711]):
        absent = {"name": script.name("absent"), "partitions": [row(replicas), row(replicas, 1)]}
        known = {"name": topic.name, "partitions": [row(replicas, 9), row(replicas, -1)]}
        script.ask(topics=[absent, known], timeout=1_000)
