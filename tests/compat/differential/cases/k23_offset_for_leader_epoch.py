"""OffsetForLeaderEpoch: empty, filled and truncated partitions, and epochs on both sides."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.script import Script, case

KEY = 23


def _row(epoch: int, current: int = -1, index: int = 0) -> dict[str, Any]:
    return {"partition": index, "current_leader_epoch": current, "leader_epoch": epoch}


def _ask(script: Script, name: str, *rows: dict[str, Any], replica: int = -1) -> None:
    script.ask(replica_id=replica, topics=[{"topic": name, "partitions": list(rows)}])


@case(KEY)
def an_empty_partition(script: Script) -> None:
    topic = script.topic("one")
    for epoch in (-3, -1, 0, 1, 1_000):
        _ask(script, topic.name, _row(epoch))


@case(KEY)
def a_filled_partition(script: Script) -> None:
    topic = script.topic("one")
    script.fill(topic, 3)
    script.fill(topic, 2)
    for epoch in (-3, -1, 0, 1, 1_000):
        _ask(script, topic.name, _row(epoch))


@case(KEY)
def after_a_deletion(script: Script) -> None:
    topic = script.topic("one")
    script.fill(topic, 3)
    script.fill(topic, 2)
    for offset in (4, -1):
        row = {"name": topic.name, "partitions": [{"partition_index": 0, "offset": offset}]}
        script.prepare(21, 2, topics=[row], timeout=10_000)
        for epoch in (-3, -2, -1, 0, 1):
            _ask(script, topic.name, _row(epoch))


@case(KEY)
def epochs_of_the_leader(script: Script) -> None:
    topic = script.topic("one")
    script.fill(topic, 3)
    for current in (-3, -2, 0, 1, 1_000):
        _ask(script, topic.name, _row(0, current))


@case(KEY)
def unknown_topics_and_partitions(script: Script) -> None:
    topic = script.topic("one")
    _ask(script, topic.name, _row(0, index=1), _row(0, index=-1), _row(0))
    _ask(script, topic.name, _row(0, 5, index=1))
    _ask(script, script.name("missing"), _row(0))


@case(KEY)
def invalid_names(script: Script) -> None:
    for name in ("", "..", "a/b"):
        _ask(script, name, _row(0))


@case(KEY)
def what_is_named_twice(script: Script) -> None:
    topic = script.topic("one", 2)
    script.fill(topic, 3)
    _ask(script, topic.name, _row(0), _row(0), _row(0, 9), _row(0, index=1))
    rows = [_row(0)]
    script.ask(
        replica_id=-1,
        topics=[
            {"topic": topic.name, "partitions": rows},
            {"topic": topic.name, "partitions": rows},
        ],
    )


@case(KEY)
def replicas(script: Script) -> None:
    topic = script.topic("one")
    script.fill(topic, 3)
    for replica in (-2, -3, 0, 4_711):
        _ask(script, topic.name, _row(0), replica=replica)


@case(KEY)
def nothing(script: Script) -> None:
    script.ask(replica_id=-1, topics=[])
    _ask(script, script.topic("one").name)


@case(KEY)
def an_internal_topic(script: Script) -> None:
    topic = script.internal_topic()
    for epoch in (-2, -1, 0, 1):
        _ask(script, topic.name, _row(epoch, index=49))
    _ask(script, topic.name, _row(0, 7), _row(0, 0))
