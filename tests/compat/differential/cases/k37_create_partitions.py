"""CreatePartitions: more, fewer and as many partitions, assignments, unknown topics."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.script import Script, case

KEY = 37
UNKNOWN_NODE = 4_711


def _row(name: str, count: int, assigned: list[list[int]] | None = None) -> dict[str, Any]:
    rows = None if assigned is None else [{"broker_ids": ids} for ids in assigned]
    return {"name": name, "count": count, "assignments": rows}


def _add(script: Script, *rows: dict[str, Any], check: bool = False, timeout: int = 10_000) -> None:
    script.ask(topics=list(rows), timeout=timeout, validate_only=check)


@case(KEY)
def more_partitions(script: Script) -> None:
    topic = script.topic("one")
    _add(script, _row(topic.name, 3))


@case(KEY)
def only_a_check(script: Script) -> None:
    topic = script.topic("one")
    _add(script, _row(topic.name, 3), check=True)
    _add(script, _row(topic.name, 2), check=True)
    _add(script, _row(topic.name, 1), check=True)


@case(KEY)
def wrong_counts(script: Script) -> None:
    topic = script.topic("one", partitions=3)
    for count in (3, 2, 0, -1):
        _add(script, _row(topic.name, count))


@case(KEY)
def unknown_topics(script: Script) -> None:
    for name in (script.name("missing"), "", "..", "a/b"):
        _add(script, _row(name, 3))


@case(KEY)
def duplicates(script: Script) -> None:
    topic = script.topic("one")
    _add(script, _row(topic.name, 2), _row(topic.name, 3))


@case(KEY)
def wrong_assignments(script: Script) -> None:
    topic = script.topic("one")
    for assigned in ([], [[UNKNOWN_NODE]], [[]], [[UNKNOWN_NODE], [UNKNOWN_NODE]], [[-1]]):
        _add(script, _row(topic.name, 2, assigned))


@case(KEY)
def nothing(script: Script) -> None:
    _add(script)


@case(KEY)
def a_timeout_of_zero_for_an_unknown_topic(script: Script) -> None:
    for timeout in (0, -1):
        _add(script, _row(script.name("missing"), 3), timeout=timeout)


@case(KEY)
def an_internal_topic(script: Script) -> None:
    topic = script.internal_topic()
    _add(script, _row(topic.name, 51), check=True)
