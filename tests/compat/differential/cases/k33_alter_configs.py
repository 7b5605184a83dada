"""AlterConfigs: replaces all overrides of a topic; refuses invalid ones.

Kafka 4.3 never answers a request that names a resource twice, so no case sends one.
"""

from __future__ import annotations

from typing import Any

from tests.compat.differential.script import Script, case

KEY = 33
TOPIC = 2


def _row(name: str, *pairs: tuple[str, str | None], kind: int = TOPIC) -> dict[str, Any]:
    configs = [{"name": key, "value": value} for key, value in pairs]
    return {"resource_type": kind, "resource_name": name, "configs": configs}


def _describe(script: Script, name: str) -> None:
    keys = ["retention.ms", "cleanup.policy", "segment.bytes"]
    row = {"resource_type": TOPIC, "resource_name": name, "configuration_keys": keys}
    script.other(32, 1, resources=[row])


@case(KEY)
def a_topic(script: Script) -> None:
    topic = script.topic("one", configs={"cleanup.policy": "compact"})
    script.ask(resources=[_row(topic.name, ("retention.ms", "1000"))], validate_only=False)
    script.ask(resources=[_row(topic.name)], validate_only=False)


@case(KEY)
def only_a_check(script: Script) -> None:
    topic = script.topic("one")
    script.ask(resources=[_row(topic.name, ("retention.ms", "1000"))], validate_only=True)
    script.ask(resources=[_row(topic.name, ("retention.ms", "x"))], validate_only=True)
    _describe(script, topic.name)


@case(KEY)
def invalid_values(script: Script) -> None:
    topic = script.topic("one")
    for pair in (
        ("unknown.key", "1"),
        ("retention.ms", "soon"),
        ("retention.ms", None),
        ("cleanup.policy", "shred"),
        ("cleanup.policy", ""),
        ("segment.bytes", "1"),
        ("", "1"),
    ):
        script.ask(resources=[_row(topic.name, pair)], validate_only=False)


@case(KEY)
def a_key_twice(script: Script) -> None:
    topic = script.topic("one")
    pairs = ("retention.ms", "1000"), ("retention.ms", "2000")
    script.ask(resources=[_row(topic.name, *pairs)], validate_only=False)


@case(KEY)
def unknown_topics(script: Script) -> None:
    for name in (script.name("missing"), "", "..", "a/b"):
        script.ask(resources=[_row(name, ("retention.ms", "1000"))], validate_only=False)


@case(KEY)
def invalid_values_for_an_unknown_topic(script: Script) -> None:
    for pair in (("unknown.key", "1"), ("retention.ms", "soon")):
        for check in (False, True):
            row = _row(script.name("missing"), pair)
            script.ask(resources=[row], validate_only=check)


@case(KEY)
def unknown_types(script: Script) -> None:
    for kind in (0, 1, 3, 77, -1):
        script.ask(resources=[_row("x", kind=kind)], validate_only=False)


@case(KEY)
def nothing(script: Script) -> None:
    script.ask(resources=[], validate_only=False)


BROKER, LOGGER = 4, 8


@case(KEY)
def brokers(script: Script) -> None:
    script.node()
    own = script.prepare(74, 1, resource_types=[BROKER]).take("config_resources[0].resource_name")
    keys = ["log.cleaner.backoff.ms", "log.cleaner.io.buffer.size"]
    # A broker of Kafka keeps this cluster-wide default for its eligible leader replicas.
    kept = ("min.insync.replicas", "1")
    for name, always in ((own, []), ("", [kept])):
        for pairs in (
            [(keys[0], "14000"), (keys[1], "524289")],
            [(keys[0], "13000")],
            [("broker.id", "5")],
            [(keys[0], "x")],
            [(keys[0], None)],
        ):
            row = _row(name, *always, *pairs, kind=BROKER)
            script.ask(resources=[row], validate_only=False)
        script.published()
        row = {"resource_type": BROKER, "resource_name": name, "configuration_keys": keys}
        script.other(32, 4, resources=[row], include_synonyms=True)
        script.ask(resources=[_row(name, *always, kind=BROKER)], validate_only=False)
    undone = {"name": kept[0], "config_operation": 1, "value": None}
    row = {"resource_type": BROKER, "resource_name": "", "configs": [undone]}
    script.prepare(44, 1, resources=[row], validate_only=False)


@case(KEY)
def loggers_and_other_brokers(script: Script) -> None:
    for kind, name in ((LOGGER, "1"), (BROKER, "4711"), (BROKER, "x")):
        script.ask(resources=[_row(name, ("root", "INFO"), kind=kind)], validate_only=False)
