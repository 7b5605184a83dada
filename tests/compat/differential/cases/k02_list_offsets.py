"""ListOffsets: starts, ends and times, of empty, filled and truncated partitions."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.script import Script, Topic, case

KEY = 2
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3


def _row(index: int, timestamp: int, epoch: int = -1) -> dict[str, Any]:
    return {"partition_index": index, "current_leader_epoch": epoch, "timestamp": timestamp}


def _ask(script: Script, name: str, *rows: dict[str, Any], **fields: Any) -> None:
    topics = [{"name": name, "partitions": list(rows)}]
    wanted = {"replica_id": -1, "isolation_level": 0, "topics": topics, "timeout": 10_000}
    script.ask(**{**wanted, **fields})


def _filled(script: Script) -> Topic:
    topic = script.topic("one")
    for base in (1_000, 5_000, 3_000):
        script.fill(topic, 3, gap_ms=10, base_timestamp=base)
    return topic


@case(KEY)
def an_empty_partition(script: Script) -> None:
    topic = script.topic("one")
    for timestamp in (LATEST, EARLIEST, 0, 1_000):
        _ask(script, topic.name, _row(0, timestamp))


@case(KEY)
def starts_and_ends(script: Script) -> None:
    topic = _filled(script)
    for timestamp in (LATEST, EARLIEST):
        _ask(script, topic.name, _row(0, timestamp))


@case(KEY)
def times(script: Script) -> None:
    topic = _filled(script)
    for timestamp in (0, 1_000, 1_001, 1_020, 1_021, 3_000, 4_000, 5_000, 5_020, 5_021, 1 << 60):
        _ask(script, topic.name, _row(0, timestamp))


@case(KEY)
def special_times(script: Script) -> None:
    topic = _filled(script)
    for timestamp in (-3, -4, -5, -6, -7, -100):
        _ask(script, topic.name, _row(0, timestamp))


@case(KEY)
def special_times_of_unknown_partitions(script: Script) -> None:
    topic = script.topic("one")
    for timestamp in (-3, -4, -5, -6, -7, -100):
        _ask(script, topic.name, _row(1, timestamp))
        _ask(script, script.name("missing"), _row(0, timestamp))
    _ask(script, topic.name, _row(1, -7), _row(1, -7))


@case(KEY, since=7)
def special_times_of_an_empty_partition(script: Script) -> None:
    topic = script.topic("one")
    for timestamp in (-3, -4, -5, -6):
        _ask(script, topic.name, _row(0, timestamp))


@case(KEY)
def after_a_deletion(script: Script) -> None:
    topic = _filled(script)
    row = {"name": topic.name, "partitions": [{"partition_index": 0, "offset": 4}]}
    script.prepare(21, 2, topics=[row], timeout=10_000)
    for timestamp in (LATEST, EARLIEST, 0, 1_000, 5_000, 5_010):
        _ask(script, topic.name, _row(0, timestamp))


@case(KEY, since=2)
def read_committed(script: Script) -> None:
    topic = _filled(script)
    for timestamp in (LATEST, EARLIEST, 3_000):
        _ask(script, topic.name, _row(0, timestamp), isolation_level=1)


@case(KEY, since=2)
def an_unknown_isolation_level(script: Script) -> None:
    topic = _filled(script)
    _ask(script, topic.name, _row(0, LATEST), isolation_level=7)


@case(KEY)
def unknown_topics_and_partitions(script: Script) -> None:
    topic = script.topic("one")
    _ask(script, topic.name, _row(1, LATEST), _row(-1, EARLIEST), _row(0, LATEST))
    _ask(script, script.name("missing"), _row(0, LATEST))


@case(KEY)
def invalid_names(script: Script) -> None:
    for name in ("", "..", "a/b"):
        _ask(script, name, _row(0, LATEST))


@case(KEY)
def a_partition_twice(script: Script) -> None:
    topic = _filled(script)
    _ask(script, topic.name, _row(0, LATEST), _row(0, EARLIEST))


@case(KEY, since=4)
def a_leader_epoch_of_the_future(script: Script) -> None:
    topic = _filled(script)
    _ask(script, topic.name, _row(0, LATEST, epoch=1_000))


@case(KEY, since=4)
def a_negative_leader_epoch(script: Script) -> None:
    topic = _filled(script)
    for epoch in (-1, -2, -100):
        _ask(script, topic.name, _row(0, LATEST, epoch), _row(1, LATEST, epoch))


@case(KEY)
def replicas(script: Script) -> None:
    topic = _filled(script)
    for replica in (-2, -3, 4_711):
        _ask(script, topic.name, _row(0, LATEST), replica_id=replica)


@case(KEY)
def nothing(script: Script) -> None:
    script.ask(replica_id=-1, isolation_level=0, topics=[], timeout=10_000)
