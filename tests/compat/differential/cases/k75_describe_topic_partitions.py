"""DescribeTopicPartitions: topics by name, pages with a cursor, unknown topics."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.script import Script, case

KEY = 75


def _describe(
    script: Script, *names: str, limit: int = 2_000, cursor: tuple[str, int] | None = None
) -> None:
    at: dict[str, Any] | None = None
    if cursor is not None:
        at = {"topic_name": cursor[0], "partition_index": cursor[1]}
    rows = [{"name": name} for name in names]
    script.ask(topics=rows, response_partition_limit=limit, cursor=at)


@case(KEY)
def topics(script: Script) -> None:
    one, two = script.topic("b", partitions=3), script.topic("a")
    _describe(script, one.name, two.name)
    _describe(script, one.name, one.name)


@case(KEY)
def pages(script: Script) -> None:
    one, two = script.topic("a", partitions=3), script.topic("b", partitions=2)
    for limit in (1, 2, 3, 4, 5, 0, -1):
        _describe(script, one.name, two.name, limit=limit)
    for cursor in ((one.name, 1), (one.name, 3), (two.name, 0), (script.name("aa"), 0)):
        _describe(script, one.name, two.name, limit=2, cursor=cursor)
    for index in (-1, 9):
        _describe(script, one.name, two.name, limit=2, cursor=(one.name, index))


@case(KEY)
def unknown_topics(script: Script) -> None:
    topic = script.topic("one")
    for name in (script.name("missing"), "", "..", "a/b"):
        _describe(script, topic.name, name)


@case(KEY)
def a_cursor_at_an_unknown_topic(script: Script) -> None:
    topic = script.topic("one")
    _describe(script, topic.name, cursor=(script.name("missing"), 0))
    _describe(script, topic.name, cursor=("", 0))


@case(KEY)
def an_internal_topic(script: Script) -> None:
    topic = script.internal_topic()
    _describe(script, topic.name, limit=7)
    _describe(script, topic.name, limit=7, cursor=(topic.name, 45))
