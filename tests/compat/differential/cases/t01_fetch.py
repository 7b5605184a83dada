"""Fetch in read_committed: the last stable offset, aborted transactions, waits."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.script import Answer, Script, Topic, case
from tests.compat.differential.transactional import initialise, writer

KEY = 1
SESSIONS_FROM = 7
MB = 1 << 20


def _fetch(
    script: Script, topic: Topic, offset: int = 0, *, limit: int = MB, **changed: Any
) -> Answer:
    return script.ask(**{**_fields(topic, offset, limit), **changed})


def _fields(topic: Topic, offset: int, limit: int = MB) -> dict[str, Any]:
    partition = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": limit,
    }
    return {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": MB,
        "isolation_level": 1,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{**topic.ref, "partitions": [partition]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


@case(KEY, transactions=True)
def an_open_transaction(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    script.fill(topic, 2)
    mine.add(topic)
    mine.write(topic, 1, 0)
    script.fill(topic, 1)
    for offset in (0, 2, 3, 4, 5):
        for isolation in (0, 1):
            _fetch(script, topic, offset, isolation_level=isolation)
    mine.end(commit=True)
    _fetch(script, topic)


@case(KEY, transactions=True)
def commits_and_aborts(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    for sequence, commit in enumerate((True, False, True, False)):
        mine.one(topic, 1, sequence, commit=commit)
    for offset in range(9):
        _fetch(script, topic, offset)
    _fetch(script, topic, isolation_level=0)


@case(KEY, transactions=True)
def overlapping_transactions(script: Script) -> None:
    topic = script.topic("one")
    first, second, third = (writer(script, word) for word in ("a", "b", "c"))
    for each in (first, second, third):
        each.add(topic)
    first.write(topic, 1, 0)
    second.write(topic, 1, 0)
    third.write(topic, 1, 0)
    second.end(commit=False)
    _fetch(script, topic)
    first.end(commit=True)
    for offset in (0, 1, 2):
        _fetch(script, topic, offset)
    third.end(commit=False)
    for offset in range(6):
        _fetch(script, topic, offset)


@case(KEY, transactions=True)
def small_limits(script: Script) -> None:
    topic = script.topic("one")
    first, second = writer(script, "a"), writer(script, "b")
    for each in (first, second):
        each.add(topic)
        each.write(topic, 2, 0)
        each.write(topic, 2, 2)
        each.end(commit=False)
    for offset in (0, 5):
        for limit in (0, 1, 200):
            _fetch(script, topic, offset, limit=limit)


@case(KEY, transactions=True)
def after_a_deletion(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    mine.one(topic, 3, 0, commit=False)
    mine.one(topic, 3, 3, commit=False)
    for start in (2, 4):
        row = {"name": topic.name, "partitions": [{"partition_index": 0, "offset": start}]}
        script.prepare(21, 2, topics=[row], timeout=10_000)
        for offset in (start, 4, 5):
            _fetch(script, topic, offset)


@case(KEY, transactions=True)
def a_deletion_inside_an_open_transaction(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    mine.add(topic)
    mine.write(topic, 3, 0)
    mine.write(topic, 1, 3)
    row = {"name": topic.name, "partitions": [{"partition_index": 0, "offset": 2}]}
    script.other(21, 2, topics=[row], timeout=10_000)
    _fetch(script, topic, 2)
    mine.end(commit=False)
    _fetch(script, topic, 2)


@case(KEY, transactions=True)
def a_fenced_producer(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    mine.add(topic)
    mine.write(topic, 1, 0)
    initialise(script, mine.name)
    mine.epoch = 1
    mine.one(topic, 1, 0, commit=True)
    _fetch(script, topic)


@case(KEY, transactions=True)
def a_wait_that_an_end_ends(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    mine.add(topic)
    mine.write(topic, 1, 0)
    fields = {**_fields(topic, 0), "max_wait": 15_000, "min_bytes": 1}
    sent = script.send(**fields)
    script.prepare(26, 3, on="b", **mine.ref, committed=True)
    script.receive(sent)


@case(KEY, transactions=True)
def a_wait_at_an_open_transaction(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    mine.add(topic)
    mine.write(topic, 1, 0)
    _fetch(script, topic, max_wait=20, min_bytes=1)


@case(KEY, since=SESSIONS_FROM, transactions=True)
def a_session(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    mine.add(topic)
    mine.write(topic, 1, 0)
    session = _fetch(script, topic, session_epoch=0).take("session_id")
    _fetch(script, topic, topics=[], session_id=session, session_epoch=1)
    mine.end(commit=False)
    _fetch(script, topic, topics=[], session_id=session, session_epoch=2)
    _fetch(script, topic, 2, session_id=session, session_epoch=3)
    mine.add(topic)
    mine.write(topic, 1, 1)
    _fetch(script, topic, topics=[], session_id=session, session_epoch=4)


@case(KEY, transactions=True)
def an_unknown_isolation_level(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    mine.add(topic)
    mine.write(topic, 1, 0)
    for isolation in (2, -1):
        _fetch(script, topic, isolation_level=isolation)
