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
