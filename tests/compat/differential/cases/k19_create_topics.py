"""CreateTopics: sizes, assignments, configurations and names, valid and invalid ones."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.script import Script, case

KEY = 19
UNKNOWN_NODE = 4_711


def _wanted(name: str, partitions: int = 1, copies: int = 1, **fields: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": copies, **fields}


def _configs(*pairs: tuple[str, str | None]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in pairs]


def _create(script: Script, *topics: dict[str, Any], check: bool = False) -> None:
    script.ask(topics=list(topics), timeout=10_000, validate_only=check)


@case(KEY)
def a_topic(script: Script) -> None:
    _create(script, _wanted(script.name("one"), 3))


@case(KEY)
def only_a_check(script: Script) -> None:
    _create(script, _wanted(script.name("one"), 3), check=True)
    _create(script, _wanted(script.name("one"), 0), check=True)


@case(KEY)
def no_topics(script: Script) -> None:
    _create(script)


@case(KEY)
def defaults(script: Script) -> None:
    _create(script, _wanted(script.name("one"), -1, -1))
    _create(script, _wanted(script.name("two"), -1, 1))
    _create(script, _wanted(script.name("three"), 1, -1))


@case(KEY)
def invalid_sizes(script: Script) -> None:
    for number, (partitions, copies) in enumerate(((0, 1), (-2, 1), (1, 0), (1, -2), (0, 0))):
        _create(script, _wanted(script.name(f"{number}"), partitions, copies))


@case(KEY)
def more_copies_than_brokers(script: Script) -> None:
    _create(script, _wanted(script.name("copies"), 1, 300))


@case(KEY)
def an_existing_topic(script: Script) -> None:
    topic = script.topic("one")
    _create(script, _wanted(topic.name))
    _create(script, _wanted(topic.name), check=True)
    _create(script, _wanted(topic.name, 0, 0))


@case(KEY)
def duplicates(script: Script) -> None:
    one, two = script.name("one"), script.name("two")
    _create(script, _wanted(one), _wanted(one, 2), _wanted(two))


@case(KEY)
def invalid_names(script: Script) -> None:
    for name in ("", ".", "..", "a/b", "a" * 250, "a b", "ä"):
        _create(script, _wanted(name))


@case(KEY)
def a_name_that_differs_in_its_punctuation(script: Script) -> None:
    _create(script, _wanted(script.name("a.b")))
    script.wait_led(script.name("a.b"))
    _create(script, _wanted(script.name("a_b")))


@case(KEY)
def configurations(script: Script) -> None:
    pairs = ("retention.ms", "1000"), ("cleanup.policy", "compact")
    _create(script, _wanted(script.name("one"), configs=_configs(*pairs)))


@case(KEY)
def invalid_configurations(script: Script) -> None:
    invalid = (
        ("unknown.key", "1"),
        ("retention.ms", "soon"),
        ("retention.ms", ""),
        ("retention.ms", None),
        ("cleanup.policy", "shred"),
        ("segment.bytes", "-1"),
        ("compression.type", "rar"),
        ("min.insync.replicas", "0"),
        ("message.timestamp.type", "Never"),
        ("", "1"),
    )
    for number, pair in enumerate(invalid):
        _create(script, _wanted(script.name(f"{number}"), configs=_configs(pair)))


@case(KEY)
def several_invalid_configurations(script: Script) -> None:
    for number, pairs in enumerate(
        (
            (("retention.ms", "many"), ("unknown.key", "1")),
            (("retention.ms", "many"), ("segment.bytes", "1")),
            (("cleanup.policy", "shred"), ("max.message.bytes", "-1")),
            (("compression.type", "rar"), ("cleanup.policy", "shred")),
            (("message.timestamp.type", "Never"), ("min.insync.replicas", "0")),
            (("min.compaction.lag.ms", "9"), ("max.compaction.lag.ms", "5"), ("preallocate", "x")),
            (("retention.ms", "many"), ("retention.bytes", "many"), ("flush.ms", "many")),
        )
    ):
        _create(script, _wanted(script.name(f"{number}"), configs=_configs(*pairs)))


@case(KEY)
def one_configuration_twice(script: Script) -> None:
    pairs = ("retention.ms", "1000"), ("retention.ms", "2000")
    _create(script, _wanted(script.name("one"), configs=_configs(*pairs)))


@case(KEY)
def several_faults_of_one_topic(script: Script) -> None:
    bad = _configs(("unknown.key", "1"))
    _create(script, _wanted("a/b", 0, 0))
    _create(script, _wanted("a/b", configs=bad))
    _create(script, _wanted(script.name("one"), 0, configs=bad))
    _create(script, _wanted(script.name("two"), 1, 0, configs=bad))
    _create(script, _wanted(script.topic("old").name, configs=bad))


@case(KEY)
def assignments(script: Script) -> None:
    node = script.node()
    for word, rows in (
        ("one", [(0, [node])]),
        ("two", [(0, [node]), (1, [node])]),
        ("reversed", [(1, [node]), (0, [node])]),
        ("gap", [(0, [node]), (2, [node])]),
        ("late", [(1, [node])]),
        ("negative", [(-1, [node])]),
        ("twice", [(0, [node, node])]),
        ("repeated", [(0, [node]), (0, [node])]),
        ("uneven", [(0, [node]), (1, [])]),
        ("half", [(0, [node, UNKNOWN_NODE])]),
    ):
        assignments = [{"partition_index": index, "broker_ids": ids} for index, ids in rows]
        _create(script, _wanted(script.name(word), -1, -1, assignments=assignments))


@case(KEY)
def invalid_assignments(script: Script) -> None:
    def assigned(word: str, *rows: tuple[int, list[int]], size: int = -1) -> None:
        assignments = [{"partition_index": index, "broker_ids": ids} for index, ids in rows]
        _create(script, _wanted(script.name(word), size, size, assignments=assignments))

    assigned("unknown", (0, [UNKNOWN_NODE]))
    assigned("empty", (0, []))
    assigned("gap", (1, [UNKNOWN_NODE]))
    assigned("negative", (-1, [UNKNOWN_NODE]))
    assigned("twice", (0, [UNKNOWN_NODE, UNKNOWN_NODE]))
    assigned("repeated", (0, [UNKNOWN_NODE]), (0, [UNKNOWN_NODE]))
    assigned("sized", (0, [UNKNOWN_NODE]), size=1)
    row = [{"partition_index": 0, "broker_ids": [UNKNOWN_NODE]}]
    _create(script, _wanted(script.name("partitions"), 1, -1, assignments=row))


@case(KEY)
def valid_and_invalid_topics_in_one_request(script: Script) -> None:
    _create(
        script,
        _wanted(script.name("good")),
        _wanted("a/b"),
        _wanted(script.name("none"), 0),
        _wanted(script.name("bad"), configs=_configs(("unknown.key", "1"))),
    )


@case(KEY)
def a_timeout_of_zero(script: Script) -> None:
    name = script.name("one")
    script.ask(topics=[_wanted(name, 0)], timeout=0, validate_only=False)
    script.ask(topics=[_wanted(name, 0)], timeout=-1, validate_only=False)


@case(KEY)
def an_internal_topic_that_exists(script: Script) -> None:
    name = script.internal_topic().name
    for partitions in (1, 50, -1):
        _create(script, _wanted(name, partitions))
    _create(script, _wanted(name), check=True)
    _create(script, _wanted("__consumer.offsets"))
