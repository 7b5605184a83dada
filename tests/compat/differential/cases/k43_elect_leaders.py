"""ElectLeaders: leaders that are the preferred ones, unknown partitions, unknown elections."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.script import Script, case

KEY = 43


def kind(script: Script, election_type: int) -> dict[str, Any]:
    return {"election_type": election_type} if script.version >= 1 else {}


@case(KEY)
def some_partitions(script: Script) -> None:
    topic = script.topic("t", 2)
    asked = [
        {"topic": topic.name, "partitions": [1, 0, 9, 0, -1]},
        {"topic": script.name("absent"), "partitions": [0, 1]},
        {"topic": "", "partitions": [0]},
        {"topic": topic.name, "partitions": []},
    ]
    for election_type in (0, 1) if script.version else (0,):
        script.ask(topic_partitions=asked, timeout=5_000, **kind(script, election_type))


@case(KEY)
def all_partitions(script: Script) -> None:
    script.topic("t", 2)
    script.ask_all(topic_partitions=None, timeout=5_000, **kind(script, 0))
    script.ask(topic_partitions=[], timeout=5_000, **kind(script, 0))


@case(KEY, since=1)
def unknown_elections(script: Script) -> None:
    topic = script.topic("t", 1)
    for election_type in (2, -1, 127):
        asked = [{"topic": topic.name, "partitions": [0, 5]}, {"topic": "", "partitions": []}]
        script.ask(topic_partitions=asked, timeout=5_000, election_type=election_type)
        script.ask(topic_partitions=[], timeout=5_000, election_type=election_type)
        script.ask(topic_partitions=None, timeout=5_000, election_type=election_type)
