"""IncrementalAlterConfigs: sets, deletes, appends and subtracts overrides of topics."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.script import Script, case

KEY = 44
TOPIC = 2
SET, DELETE, APPEND, SUBTRACT = range(4)
Change = tuple[str, int, str | None]


def _row(name: str, *changes: Change, kind: int = TOPIC) -> dict[str, Any]:
    configs = [
        {"name": key, "config_operation": operation, "value": value}
        for key, operation, value in changes
    ]
    return {"resource_type": kind, "resource_name": name, "configs": configs}


def _alter(script: Script, *rows: dict[str, Any], check: bool = False) -> None:
    script.ask(resources=list(rows), validate_only=check)


@case(KEY)
def all_operations(script: Script) -> None:
    topic = script.topic("one")
    for change in (
        ("retention.ms", SET, "1000"),
        ("retention.ms", SET, "1000"),
        ("retention.ms", DELETE, None),
        ("retention.ms", DELETE, "5"),
        ("cleanup.policy", APPEND, "compact"),
        ("cleanup.policy", APPEND, "compact"),
        ("cleanup.policy", SUBTRACT, "delete"),
        ("cleanup.policy", SUBTRACT, "delete"),
    ):
        _alter(script, _row(topic.name, change))


@case(KEY)
def only_a_check(script: Script) -> None:
    topic = script.topic("one")
    _alter(script, _row(topic.name, ("retention.ms", SET, "1000")), check=True)
    _alter(script, _row(topic.name, ("retention.ms", SET, "x")), check=True)


@case(KEY)
def invalid_changes(script: Script) -> None:
    topic = script.topic("one")
    for change in (
        ("unknown.key", SET, "1"),
        ("unknown.key", DELETE, None),
        ("retention.ms", SET, "soon"),
        ("retention.ms", SET, None),
        ("retention.ms", APPEND, "1"),
        ("retention.ms", SUBTRACT, "1"),
        ("retention.ms", 7, "1"),
        ("cleanup.policy", APPEND, "shred"),
        ("cleanup.policy", APPEND, None),
        ("segment.bytes", SET, "1"),
        ("", SET, "1"),
    ):
        _alter(script, _row(topic.name, change))


@case(KEY)
def a_key_twice(script: Script) -> None:
    topic = script.topic("one")
    changes = ("retention.ms", SET, "1000"), ("retention.ms", SET, "2000")
    _alter(script, _row(topic.name, *changes))


@case(KEY)
def unknown_topics(script: Script) -> None:
    for name in (script.name("missing"), "", "..", "a/b"):
        _alter(script, _row(name, ("retention.ms", SET, "1000")))


@case(KEY)
def duplicates(script: Script) -> None:
    topic = script.topic("one")
    row = _row(topic.name, ("retention.ms", SET, "1000"))
    _alter(script, row, row)


@case(KEY)
def unknown_types(script: Script) -> None:
    for kind in (0, 1, 3, 77, -1):
        _alter(script, _row("x", ("retention.ms", SET, "1000"), kind=kind))


@case(KEY)
def nothing(script: Script) -> None:
    _alter(script)
    topic = script.topic("one")
    _alter(script, _row(topic.name))


GROUP, CLIENT_METRICS = 32, 16
_DESCRIBE = 32


def _stored(script: Script, kind: int, word: str, *values: tuple[str, str]) -> None:
    """Alter configs of a resource one after another, and compare what is described then."""
    name = script.name(word)
    for key, value in values:
        _alter(script, _row(name, (key, SET, value), kind=kind), check=True)
        _alter(script, _row(name, (key, SET, value), kind=kind))
    script.published()
    row = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    script.other(_DESCRIBE, 4, resources=[row], include_synonyms=True, include_documentation=False)


@case(KEY)
def configs_of_groups(script: Script) -> None:
    _stored(script, GROUP, "timing", ("consumer.session.timeout.ms", "50000"), ("nope", "1"))
    for kind in ("consumer", "share", "streams"):
        for name, values in (
            ("session.timeout.ms", ("0", "44999", "45000", "60001", "x")),
            ("heartbeat.interval.ms", ("0", "4999", "15000", "15001")),
            ("assignment.interval.ms", ("-1", "0", "15001")),
        ):
            _stored(script, GROUP, kind, *((f"{kind}.{name}", value) for value in values))


@case(KEY)
def configs_of_share_and_streams_groups(script: Script) -> None:
    for key, values in (
        ("share.auto.offset.reset", ("earliest", "by_duration:P1DT2H", "by_duration:x", "")),
        ("share.isolation.level", ("read_committed", "READ_COMMITTED")),
        ("share.renew.acknowledge.enable", ("FALSE", "maybe")),
        ("share.record.lock.duration.ms", ("999", "14999", "15000", "60001")),
        ("share.delivery.count.limit", ("1", "2", "10", "11")),
        ("share.partition.max.record.locks", ("99", "100", "4000", "4001")),
        ("streams.num.standby.replicas", ("-1", "2", "3")),
        ("streams.initial.rebalance.delay.ms", ("-1", "0")),
    ):
        _stored(script, GROUP, "group", *((key, value) for value in values))


@case(KEY)
def configs_of_client_metrics(script: Script) -> None:
    for key, values in (
        ("interval.ms", ("100", "99", "3600001", "3600000", "x", "-1")),
        ("metrics", ("a.b", "*", "a,,b", "a,b", "")),
        ("match", ("client_id=a.*", "zap=a", "client_id", "client_id=", "client_id=(", "a=b=c")),
        ("match", ("client_id=a,client_software_version=1", "client_id=a,")),
        ("nope", ("1",)),
    ):
        _stored(script, CLIENT_METRICS, "metrics", *((key, value) for value in values))


@case(KEY)
def operations_on_stored_configs(script: Script) -> None:
    for kind, key in ((GROUP, "share.heartbeat.interval.ms"), (CLIENT_METRICS, "interval.ms")):
        name = script.name(f"resource-{kind}")
        for change in (
            (key, SET, "6000"),
            (key, APPEND, "6000"),
            ("metrics", SUBTRACT, "a"),
            ("nope", DELETE, None),
            (key, SET, None),
            (key, DELETE, None),
        ):
            _alter(script, _row(name, change, kind=kind))
        _alter(script, _row(name, (key, SET, "6000"), (key, SET, "7000"), kind=kind))
        _alter(script, _row(name, kind=kind), _row("", (key, SET, "6000"), kind=kind))
    rows = [
        {"resource_type": kind, "resource_name": "", "configuration_keys": None}
        for kind in (GROUP, CLIENT_METRICS)
    ]
    script.other(_DESCRIBE, 4, resources=rows, include_synonyms=True, include_documentation=False)
