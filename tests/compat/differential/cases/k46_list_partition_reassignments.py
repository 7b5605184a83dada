"""ListPartitionReassignments: none is in progress."""

from __future__ import annotations

from tests.compat.differential.script import Script, case

KEY = 46


@case(KEY)
def none_in_progress(script: Script) -> None:
    topic = script.topic("t", 2)
    absent = {"name": script.name("absent"), "partition_indexes": [0]}
    known = {"name": topic.name, "partition_indexes": [0, 1, 9, -1]}
    for topics in (None, [], [known], [absent, known]):
        script.ask(topics=topics, timeout=1_000)
