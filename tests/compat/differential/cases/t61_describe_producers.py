"""DescribeProducers: idempotent and transactional producers, open and ended transactions."""

from __future__ import annotations

from tests.compat.differential.script import Script, case
from tests.compat.differential.transactional import initialise, writer

KEY = 61


def _describe(script: Script, *rows: tuple[str, list[int]]) -> None:
    script.ask(topics=[{"name": name, "partition_indexes": indexes} for name, indexes in rows])


@case(KEY, transactions=True)
def an_empty_partition(script: Script) -> None:
    _describe(script, (script.topic("one").name, [0]))


@case(KEY, transactions=True)
def an_idempotent_producer(script: Script) -> None:
    topic, producer = script.topic("one"), script.producer().take("producer_id")
    script.fill(topic, 2)
    script.fill(topic, 2, producer=producer, epoch=0, sequence=0)
    _describe(script, (topic.name, [0]))


@case(KEY, transactions=True)
def transactions(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    script.fill(topic, 3)
    mine.add(topic)
    _describe(script, (topic.name, [0]))
    mine.write(topic, 2, 0)
    mine.write(topic, 1, 2)
    _describe(script, (topic.name, [0]))
    mine.end(commit=True)
    _describe(script, (topic.name, [0]))
    mine.one(topic, 1, 3, commit=False)
    _describe(script, (topic.name, [0]))


@case(KEY, transactions=True)
def a_fenced_producer(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    mine.add(topic)
    mine.write(topic, 2, 0)
    initialise(script, mine.name)
    _describe(script, (topic.name, [0]))


@case(KEY, transactions=True)
def unknown_topics_and_partitions(script: Script) -> None:
    topic = script.topic("one", partitions=2)
    _describe(script, (topic.name, [1, 7, -1]), (script.name("missing"), [0]))
    for name in ("", "a/b"):
        _describe(script, (name, [0]))


@case(KEY, transactions=True)
def nothing(script: Script) -> None:
    _describe(script)
    _describe(script, (script.topic("one").name, []))


@case(KEY, transactions=True)
def a_partition_twice(script: Script) -> None:
    topic = script.topic("one")
    _describe(script, (topic.name, [0, 0]), (topic.name, [0]))
