"""DeleteRecords: inside and outside of the log, repeated, with a timeout of 0."""

from __future__ import annotations

from tests.compat.differential.script import Script, Topic, case

KEY = 21


def _delete(script: Script, name: str, *rows: tuple[int, int], timeout: int = 10_000) -> None:
    partitions = [{"partition_index": index, "offset": offset} for index, offset in rows]
    script.ask(topics=[{"name": name, "partitions": partitions}], timeout=timeout)


def _filled(script: Script, **configs: str) -> Topic:
    topic = script.topic("one", configs={key.replace("_", "."): configs[key] for key in configs})
    for _ in range(3):
        script.fill(topic, 4)
    return topic


@case(KEY)
def inside_of_the_log(script: Script) -> None:
    topic = _filled(script)
    for offset in (0, 5, 3, 8, 12):
        _delete(script, topic.name, (0, offset))


@case(KEY)
def up_to_the_end(script: Script) -> None:
    topic = _filled(script)
    _delete(script, topic.name, (0, -1))
    _delete(script, topic.name, (0, -1))


@case(KEY)
def outside_of_the_log(script: Script) -> None:
    topic = _filled(script)
    for offset in (13, 1 << 40, -2):
        _delete(script, topic.name, (0, offset))


@case(KEY)
def an_empty_partition(script: Script) -> None:
    topic = script.topic("one")
    for offset in (-1, 0, 1):
        _delete(script, topic.name, (0, offset))


@case(KEY)
def unknown_topics_and_partitions(script: Script) -> None:
    topic = script.topic("one")
    _delete(script, topic.name, (1, 0), (-1, 0))
    _delete(script, script.name("missing"), (0, 0))
    for name in ("", "..", "a/b"):
        _delete(script, name, (0, 0))


@case(KEY)
def a_timeout_of_zero(script: Script) -> None:
    topic = _filled(script)
    _delete(script, topic.name, (0, 5), timeout=0)
    _delete(script, topic.name, (0, 6), timeout=-1)


@case(KEY)
def cleanup_policies(script: Script) -> None:
    for word, policy in (("compact", "compact"), ("both", "compact,delete")):
        topic = script.topic(word, configs={"cleanup.policy": policy})
        script.fill(topic, 2)
        _delete(script, topic.name, (0, 1))


@case(KEY)
def nothing(script: Script) -> None:
    script.ask(topics=[], timeout=10_000)


@case(KEY)
def an_internal_topic(script: Script) -> None:
    topic = script.internal_topic()
    _delete(script, topic.name, (0, 0), (49, -1), (50, 0))
