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
def several_invalid_changes(script: Script) -> None:
    topic = script.topic("one")
    many = ("retention.ms", SET, "many")
    for change in (
        ("unknown.key", SET, "1"),
        ("segment.bytes", SET, "1"),
        ("cleanup.policy", SET, "shred"),
        ("flush.ms", APPEND, "1"),
        ("unknown.key", APPEND, "1"),
    ):
        _alter(script, _row(topic.name, many, change))
        _alter(script, _row(topic.name, change, many))


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
def invalid_changes_of_an_unknown_topic(script: Script) -> None:
    for change in (
        ("retention.ms", SET, "many"),
        ("unknown.key", SET, "1"),
        ("flush.ms", APPEND, "1"),
        ("unknown.key", DELETE, None),
    ):
        for check in (False, True):
            _alter(script, _row(script.name("missing"), change), check=check)


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


BROKER, LOGGER = 4, 8
_LIST = 74


def _brokers(script: Script) -> tuple[Any, str]:
    """Return the resource names of this broker and of the cluster-wide default."""
    script.node()
    listed = script.prepare(_LIST, 1, resource_types=[BROKER])
    return listed.take("config_resources[0].resource_name"), ""


def _altered(script: Script, *changes: tuple[Any, Change], each_applied: bool = False) -> None:
    """Alter one config after another, compare what is described then, and undo all.

    With `each_applied`, a change is applied before the next one is sent.
    """
    for name, change in changes:
        _alter(script, _row(name, change, kind=BROKER), check=True)
        _alter(script, _row(name, change, kind=BROKER))
        if each_applied:
            script.published()
    script.published()
    keys = list(dict.fromkeys(change[0] for _, change in changes if change[0] != "broker.id"))
    for name in _brokers(script):
        row = {"resource_type": BROKER, "resource_name": name, "configuration_keys": keys}
        script.other(_DESCRIBE, 4, resources=[row], include_synonyms=True)
    for name in _brokers(script):
        _alter(script, _row(name, *((key, DELETE, None) for key in keys), kind=BROKER))
    script.published()


@case(KEY)
def configs_of_brokers(script: Script) -> None:
    own, default = _brokers(script)
    _altered(
        script,
        (default, ("log.cleaner.backoff.ms", SET, "14000")),
        (own, ("log.cleaner.backoff.ms", SET, "13000")),
        (own, ("log.cleaner.io.max.bytes.per.second", SET, " 5e6 ")),
        (default, ("log.cleaner.delete.retention.ms", SET, "x")),
        (default, ("log.cleaner.delete.retention.ms", SET, "-1")),
        (default, ("log.cleaner.delete.retention.ms", SET, "86400001")),
        (own, ("log.roll.ms", SET, "600000")),
        (own, ("log.retention.ms", SET, "604800001")),
        (own, ("a.key.of.a.plugin", SET, "1")),
        (default, ("another.key", SET, "1")),
    )


@case(KEY)
def lists_of_brokers(script: Script) -> None:
    own, default = _brokers(script)
    for name in (own, default):
        _altered(
            script,
            (name, ("log.cleanup.policy", APPEND, "compact")),
            (name, ("log.cleanup.policy", APPEND, "compact")),
            (name, ("log.cleanup.policy", SUBTRACT, "compact")),
            (name, ("log.cleaner.backoff.ms", APPEND, "1")),
            (name, ("log.cleaner.backoff.ms", SUBTRACT, "1")),
            (name, ("a.key.of.a.plugin", APPEND, "1")),
            (name, ("broker.id", APPEND, "1")),
        )


@case(KEY)
def threads_of_brokers(script: Script) -> None:
    own, default = _brokers(script)
    for name in (own, default):
        for key, values in (
            ("num.io.threads", ("3", "4", "17", "16", "0")),
            ("background.threads", ("4", "21", "20")),
            ("num.replica.fetchers", ("2", "3")),
        ):
            changes = ((name, (key, SET, value)) for value in values)
            _altered(script, *changes, each_applied=True)


@case(KEY)
def what_brokers_refuse(script: Script) -> None:
    own, default = _brokers(script)
    for name in (own, default):
        for change in (
            ("broker.id", SET, "5"),
            ("log.retention.hours", SET, "5"),
            ("ssl.keystore.location", SET, "x"),
            ("num.io.threads", SET, "many"),
            ("compression.type", SET, "zip"),
            ("log.cleanup.policy", SET, "shred"),
            ("log.cleaner.backoff.ms", SET, None),
            ("log.cleaner.backoff.ms", 7, "1"),
            ("log.segment.bytes", SET, "1"),
        ):
            _alter(script, _row(name, change, kind=BROKER), check=True)
    key = ("log.cleaner.backoff.ms", SET, "1")
    for name in ("4711", "x", "-1"):
        _alter(script, _row(name, key, kind=BROKER))
    for change in (("ssl.cipher.suites", SET, ""), ("sasl.jaas.config", SET, "x")):
        _alter(script, _row(default, change, kind=BROKER), check=True)
    _alter(script, _row(own, kind=BROKER), _row(default, kind=BROKER))
    _alter(script, _row(own, key, key, kind=BROKER))


@case(KEY)
def defaults_of_topics(script: Script) -> None:
    own, default = _brokers(script)
    topic = script.topic("one", configs={"flush.messages": "5"})
    keys = {"index.interval.bytes": "log.index.interval.bytes", "flush.ms": "log.flush.interval.ms"}
    keys["flush.messages"] = "log.flush.interval.messages"
    for name, value in ((default, "5000"), (own, "6000")):
        _alter(script, _row(name, *((key, SET, value) for key in keys.values()), kind=BROKER))
        script.published()
        row = {"resource_type": TOPIC, "resource_name": topic.name, "configuration_keys": [*keys]}
        script.other(_DESCRIBE, 4, resources=[row], include_synonyms=True)
    for name in (default, own):
        changes = ((key, DELETE, None) for key in keys.values())
        _alter(script, _row(name, *changes, kind=BROKER))


@case(KEY)
def loggers(script: Script) -> None:
    own, _ = _brokers(script)
    for change in (
        ("root", SET, "LOUD"),
        ("root", SET, "info"),
        ("root", DELETE, None),
        ("root", APPEND, "INFO"),
        ("root", SUBTRACT, "INFO"),
        ("no.such.logger", SET, "INFO"),
        ("root", SET, None),
        ("root", 7, "INFO"),
    ):
        _alter(script, _row(own, change, kind=LOGGER))
    for name in ("", "x", "4711"):
        _alter(script, _row(name, ("root", SET, "INFO"), kind=LOGGER))
    _alter(script, _row(own, ("root", SET, "INFO"), kind=LOGGER), check=True)
