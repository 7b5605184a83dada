"""DescribeLogDirs: empty partitions, unknown ones, none."""

from __future__ import annotations

from tests.compat.differential.script import Script, case

KEY = 35


@case(KEY)
def some_partitions(script: Script) -> None:
    topic = script.topic("t", 2)
    absent = {"topic": script.name("absent"), "partitions": [0]}
    script.ask(topics=[{"topic": topic.name, "partitions": [0, 1]}])
    script.ask(topics=[{"topic": topic.name, "partitions": [1, 7, -1, 1]}, absent])
    script.ask(topics=[absent])
    script.ask(topics=[])


@case(KEY)
def all_partitions(script: Script) -> None:
    topic = script.topic("t", 2)
    script.prepare(KEY, 3, topics=[{"topic": topic.name, "partitions": [0, 1]}])
    script.ask_all(topics=None)
