"""DescribeConfigs: topics and brokers, all keys and some, unknown resources."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.script import Script, case

KEY = 32
TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32


def _row(kind: int, name: str, *keys: str) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": name, "configuration_keys": list(keys) or None}


@case(KEY)
def a_topic(script: Script) -> None:
    topic = script.topic("one")
    script.ask(resources=[_row(TOPIC, topic.name)])


@case(KEY)
def a_topic_with_everything(script: Script) -> None:
    topic = script.topic("one", configs={"retention.ms": "1000"})
    script.ask(
        resources=[_row(TOPIC, topic.name)], include_synonyms=True, include_documentation=True
    )


@case(KEY)
def some_keys(script: Script) -> None:
    topic = script.topic("one", configs={"cleanup.policy": "compact"})
    keys = ("cleanup.policy", "retention.ms", "unknown.key", "retention.ms")
    script.ask(resources=[_row(TOPIC, topic.name, *keys)], include_synonyms=True)


@case(KEY)
def an_empty_list_of_keys(script: Script) -> None:
    topic = script.topic("one")
    row = {"resource_type": TOPIC, "resource_name": topic.name, "configuration_keys": []}
    script.ask(resources=[row])


@case(KEY)
def unknown_topics(script: Script) -> None:
    for name in (script.name("missing"), "", "..", "a/b"):
        script.ask(resources=[_row(TOPIC, name)])


@case(KEY)
def unknown_brokers(script: Script) -> None:
    for name in ("4711", "x", "-1"):
        script.ask(resources=[_row(BROKER, name, "log.retention.ms")])


@case(KEY)
def the_default_of_brokers(script: Script) -> None:
    script.ask(resources=[_row(BROKER, "")])


@case(KEY)
def unknown_types(script: Script) -> None:
    for kind in (0, 1, 3, 5, 77, -1):
        script.ask(resources=[_row(kind, "x")])


@case(KEY)
def nothing(script: Script) -> None:
    script.ask(resources=[])


@case(KEY)
def duplicates(script: Script) -> None:
    topic = script.topic("one")
    row = _row(TOPIC, topic.name, "retention.ms")
    script.ask(resources=[row, row])


@case(KEY)
def an_internal_topic(script: Script) -> None:
    topic = script.internal_topic()
    keys = ("cleanup.policy", "compression.type", "segment.bytes", "retention.ms")
    script.ask(resources=[_row(TOPIC, topic.name, *keys)], include_synonyms=True)


@case(KEY)
def loggers(script: Script) -> None:
    for name in ("", "x", "4711"):
        script.ask(resources=[_row(LOGGER, name)])


@case(KEY)
def configs_that_brokers_alter(script: Script) -> None:
    script.node()
    own = script.prepare(74, 1, resource_types=[BROKER]).take("config_resources[0].resource_name")
    keys = ("log.cleaner.threads", "ssl.keystore.password", "log.retention.ms", "log.roll.ms")
    row = _row(BROKER, "", *keys, "log.flush.interval.ms", "background.threads", "no.such.key")
    script.ask(resources=[{**row, "resource_name": own}], include_synonyms=True)
    script.ask(resources=[row], include_synonyms=True)
