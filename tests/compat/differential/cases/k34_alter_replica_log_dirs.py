"""AlterReplicaLogDirs: the directory that holds a partition, others, unknown partitions."""

from __future__ import annotations

from tests.compat.differential.script import Script, case
from tests.compat.differential.steps import Taken

KEY = 34
DESCRIBE = 35


def held(script: Script) -> Taken:
    """Return the only directory of the broker."""
    return script.prepare(DESCRIBE, 3, topics=[]).take("results[0].log_dir")


@case(KEY)
def the_directory_that_holds_it(script: Script) -> None:
    topic, place = script.topic("t", 2), held(script)
    wanted = [{"name": topic.name, "partitions": [0, 1]}]
    script.ask(dirs=[{"path": place, "topics": wanted}])
    script.ask(dirs=[{"path": place, "topics": []}])
    script.ask(dirs=[])


@case(KEY)
def other_directories(script: Script) -> None:
    topic, place = script.topic("t", 2), held(script)
    wanted = [{"name": topic.name, "partitions": [0]}]
    for path in ("/nowhere", "", "relative"):
        script.ask(dirs=[{"path": path, "topics": wanted}])
    absent = [{"name": script.name("absent"), "partitions": [0]}]
    script.ask(dirs=[{"path": "/nowhere", "topics": absent}])
    script.ask(dirs=[{"path": place, "topics": wanted}, {"path": "/nowhere", "topics": wanted}])
    script.ask(dirs=[{"path": "/nowhere", "topics": wanted}, {"path": place, "topics": wanted}])


@case(KEY)
def unknown_partitions(script: Script) -> None:
    topic, place = script.topic("t"), held(script)
    absent = {"name": script.name("absent"), "partitions": [0]}
    known = {"name": topic.name, "partitions": [0, 9]}
    script.ask(dirs=[{"path": place, "topics": [absent, known]}])
