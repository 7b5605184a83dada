"""Fetch: offsets, limits, sessions, unknown topics and partitions."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tests.compat.differential.script import Answer, Script, Topic, batch, case

KEY = 1
NOBODY = UUID("00000000-0000-4000-8000-000000000007")
SESSIONS_FROM = 7
MB = 1 << 20


def _partition(index: int, offset: int, **fields: Any) -> dict[str, Any]:
    return {
        "partition": index,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": MB,
        **fields,
    }


def _fetch(script: Script, topics: list[dict[str, Any]], **fields: Any) -> Answer:
    wanted = {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 50 * MB,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": topics,
        "forgotten_topics_data": [],
        "rack_id": "",
        **fields,
    }
    return script.ask(**wanted)


def _of(topic: Topic, *partitions: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**topic.ref, "partitions": list(partitions)}]


@case(KEY)
def an_empty_partition(script: Script) -> None:
    topic = script.topic("one")
    _fetch(script, _of(topic, _partition(0, 0)))


@case(KEY)
def records(script: Script) -> None:
    topic = script.topic("one")
    for count in (2, 1, 3):
        script.fill(topic, count)
    for offset in (0, 1, 2, 5, 6):
        _fetch(script, _of(topic, _partition(0, offset)))


@case(KEY)
def read_committed(script: Script) -> None:
    topic = script.topic("one")
    script.fill(topic, 2)
    _fetch(script, _of(topic, _partition(0, 0)), isolation_level=1)


@case(KEY)
def offsets_outside_of_the_log(script: Script) -> None:
    topic = script.topic("one")
    script.fill(topic, 2)
    for offset in (3, 100, -1, -2):
        _fetch(script, _of(topic, _partition(0, offset)))


@case(KEY)
def small_limits(script: Script) -> None:
    topic = script.topic("one")
    for _ in range(3):
        script.fill(topic, 2)
    for limit in (0, 1, 150):
        _fetch(script, _of(topic, _partition(0, 0, partition_max_bytes=limit)))
    for limit in (0, 1, 150):
        _fetch(script, _of(topic, _partition(0, 0)), max_bytes=limit)


@case(KEY)
def small_limits_of_two_partitions(script: Script) -> None:
    topic = script.topic("one", partitions=2)
    for index in (0, 1):
        script.fill(topic, 2, index)
    rows = _of(topic, _partition(1, 0), _partition(0, 0))
    _fetch(script, rows, max_bytes=1)


@case(KEY)
def unknown_topics_and_partitions(script: Script) -> None:
    topic = script.topic("one")
    _fetch(script, _of(topic, _partition(1, 0), _partition(-1, 0)))
    unknown = {"topic": script.name("missing"), "topic_id": NOBODY}
    _fetch(script, [{**unknown, "partitions": [_partition(0, 0)]}])


@case(KEY)
def invalid_names(script: Script) -> None:
    for name in ("", "..", "a/b"):
        row = {"topic": name, "topic_id": UUID(int=0), "partitions": [_partition(0, 0)]}
        _fetch(script, [row])


@case(KEY)
def nothing(script: Script) -> None:
    _fetch(script, [])


@case(KEY)
def a_partition_twice(script: Script) -> None:
    topic = script.topic("one")
    script.fill(topic, 1)
    _fetch(script, _of(topic, _partition(0, 0), _partition(0, 1)))


@case(KEY, since=9)
def wrong_leader_epochs(script: Script) -> None:
    topic = script.topic("one")
    script.fill(topic, 1)
    _fetch(script, _of(topic, _partition(0, 0, current_leader_epoch=1_000)))


@case(KEY)
def the_start_after_a_deletion(script: Script) -> None:
    topic = script.topic("one")
    script.fill(topic, 4)
    row = {"name": topic.name, "partitions": [{"partition_index": 0, "offset": 2}]}
    script.prepare(21, 2, topics=[row], timeout=10_000)
    for offset in (1, 2):
        _fetch(script, _of(topic, _partition(0, offset)))


@case(KEY)
def a_producer(script: Script) -> None:
    topic, producer = script.topic("one"), script.producer().take("producer_id")
    script.fill(topic, 2, producer=producer, epoch=0, sequence=0)
    _fetch(script, _of(topic, _partition(0, 0)))


@case(KEY)
def append_times(script: Script) -> None:
    topic = script.topic("times", configs={"message.timestamp.type": "LogAppendTime"})
    script.fill(topic, 2)
    _fetch(script, _of(topic, _partition(0, 0)))


@case(KEY)
def a_wait_that_a_record_ends(script: Script) -> None:
    topic = script.topic("one")
    sent = script.send(
        replica_id=-1,
        max_wait=15_000,
        min_bytes=1,
        max_bytes=MB,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=_of(topic, _partition(0, 0)),
        forgotten_topics_data=[],
        rack_id="",
    )
    script.prepare(
        0,
        13,
        on="b",
        acks=-1,
        timeout=10_000,
        topic_data=[
            {
                "topic_id": topic.topic_id,
                "partition_data": [{"index": 0, "records": batch(1)}],
            }
        ],
    )
    script.receive(sent)


@case(KEY)
def a_wait_that_ends(script: Script) -> None:
    topic = script.topic("one")
    _fetch(script, _of(topic, _partition(0, 0)), max_wait=20, min_bytes=1)


@case(KEY, since=SESSIONS_FROM)
def a_session(script: Script) -> None:
    topic = script.topic("one", partitions=2)
    script.fill(topic, 1)
    rows = _of(topic, _partition(0, 0), _partition(1, 0))
    session = _fetch(script, rows, session_epoch=0).take("session_id")
    _fetch(script, [], session_id=session, session_epoch=1)
    rows = _of(topic, _partition(0, 1))
    _fetch(script, rows, session_id=session, session_epoch=2)
    script.fill(topic, 1, 1)
    _fetch(script, [], session_id=session, session_epoch=3)
    forgotten = [{**topic.ref, "partitions": [1]}]
    _fetch(script, [], session_id=session, session_epoch=4, forgotten_topics_data=forgotten)
    _fetch(script, [], session_id=session, session_epoch=-1)
    _fetch(script, [], session_id=session, session_epoch=5)


@case(KEY, since=SESSIONS_FROM)
def wrong_sessions(script: Script) -> None:
    topic = script.topic("one")
    rows = _of(topic, _partition(0, 0))
    _fetch(script, rows, session_id=123_456, session_epoch=1)
    _fetch(script, rows, session_id=123_456, session_epoch=-1)
    session = _fetch(script, rows, session_epoch=0).take("session_id")
    _fetch(script, [], session_id=session, session_epoch=7)
    _fetch(script, rows, session_id=session, session_epoch=0)


@case(KEY, since=SESSIONS_FROM)
def a_session_with_an_unknown_partition(script: Script) -> None:
    topic = script.topic("one")
    rows = _of(topic, _partition(0, 0), _partition(9, 0))
    session = _fetch(script, rows, session_epoch=0).take("session_id")
    _fetch(script, [], session_id=session, session_epoch=1)


@case(KEY, since=12)
def epochs_of_the_last_record(script: Script) -> None:
    topic = script.topic("one")
    script.fill(topic, 3)
    script.fill(topic, 2)
    for epoch in (-2, -1, 0, 1, 1_000):
        for offset in (0, 3, 5, 6):
            _fetch(script, _of(topic, _partition(0, offset, last_fetched_epoch=epoch)))
    row = {"name": topic.name, "partitions": [{"partition_index": 0, "offset": 3}]}
    script.prepare(21, 2, topics=[row], timeout=10_000)
    for offset in (2, 3):
        _fetch(script, _of(topic, _partition(0, offset, last_fetched_epoch=0)))
    wrong = {"last_fetched_epoch": 9, "current_leader_epoch": 1_000}
    _fetch(script, _of(topic, _partition(0, 3, **wrong)))


@case(KEY, since=12)
def an_epoch_in_a_session(script: Script) -> None:
    topic = script.topic("one")
    script.fill(topic, 3)
    rows = _of(topic, _partition(0, 3, last_fetched_epoch=0))
    session = _fetch(script, rows, session_epoch=0).take("session_id")
    rows = _of(topic, _partition(0, 6, last_fetched_epoch=0))
    _fetch(script, rows, session_id=session, session_epoch=1)
    _fetch(script, [], session_id=session, session_epoch=2)
