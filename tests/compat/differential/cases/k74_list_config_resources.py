"""ListConfigResources: every type, unknown types, resources of the case."""

from __future__ import annotations

from tests.compat.differential.script import Script, case

KEY = 74
ALTER = 44
TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32


def with_configs(script: Script) -> None:
    """Create a topic, and configs of a group and of client metrics."""
    for kind, name, key in (
        (GROUP, "group", "share.heartbeat.interval.ms"),
        (CLIENT_METRICS, "metrics", "interval.ms"),
    ):
        change = {"name": key, "config_operation": 0, "value": "6000"}
        row = {"resource_type": kind, "resource_name": script.name(name), "configs": [change]}
        script.prepare(ALTER, 1, resources=[row], validate_only=False)
    script.published()


@case(KEY, until=0)
def client_metrics(script: Script) -> None:
    with_configs(script)
    script.ask_all()


@case(KEY, since=1)
def each_type(script: Script) -> None:
    with_configs(script)
    for types in ([], [TOPIC], [CLIENT_METRICS], [GROUP], [GROUP, TOPIC, GROUP]):
        script.ask_all(resource_types=types)


@case(KEY, since=1)
def brokers(script: Script) -> None:
    script.node()
    for types in ([BROKER], [LOGGER]):
        answer = script.ask_all(resource_types=types)
        assert answer.step > 0


@case(KEY, since=1)
def unknown_types(script: Script) -> None:
    for types in ([0], [1], [64], [99], [-1], [TOPIC, 99]):
        script.ask(resource_types=types)
