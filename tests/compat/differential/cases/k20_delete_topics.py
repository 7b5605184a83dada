"""DeleteTopics: by name and by id, unknown topics, duplicates."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tests.compat.differential.script import Script, case

KEY = 20
IDS_FROM = 6
NOBODY = UUID("00000000-0000-4000-8000-000000000007")
ZERO = UUID(int=0)


def _delete(script: Script, *names: str, timeout: int = 10_000) -> None:
    rows = [{"name": name, "topic_id": ZERO} for name in names]
    script.ask(topic_names=list(names), topics=rows, timeout=timeout)


def _delete_rows(script: Script, *rows: dict[str, Any]) -> None:
    script.ask(topics=list(rows), timeout=10_000)


@case(KEY)
def a_topic(script: Script) -> None:
    topic = script.topic("one")
    _delete(script, topic.name)
    _delete(script, topic.name)


@case(KEY)
def unknown_topics(script: Script) -> None:
    topic = script.topic("one")
    _delete(script, script.name("missing"), topic.name)


@case(KEY)
def invalid_names(script: Script) -> None:
    for name in ("", "..", "a/b", "a" * 300):
        _delete(script, name)


@case(KEY)
def nothing(script: Script) -> None:
    _delete(script)


@case(KEY)
def duplicates(script: Script) -> None:
    topic, missing = script.topic("one"), script.name("missing")
    _delete(script, topic.name, topic.name)
    _delete(script, missing, missing)


@case(KEY)
def a_timeout_of_zero_for_an_unknown_topic(script: Script) -> None:
    for timeout in (0, -1):
        _delete(script, script.name("missing"), timeout=timeout)


@case(KEY, since=IDS_FROM)
def by_id(script: Script) -> None:
    topic = script.topic("one")
    _delete_rows(script, {"name": None, "topic_id": topic.topic_id})
    _delete_rows(script, {"name": None, "topic_id": topic.topic_id})


@case(KEY, since=IDS_FROM)
def by_unknown_ids(script: Script) -> None:
    _delete_rows(script, {"name": None, "topic_id": NOBODY})
    _delete_rows(script, {"name": None, "topic_id": ZERO})
    _delete_rows(script, *[{"name": None, "topic_id": NOBODY}] * 2)


@case(KEY, since=IDS_FROM)
def by_name_and_id(script: Script) -> None:
    topic = script.topic("one")
    _delete_rows(script, {"name": topic.name, "topic_id": topic.topic_id})
    _delete_rows(script, {"name": topic.name, "topic_id": NOBODY})
    both = {"name": topic.name, "topic_id": ZERO}, {"name": None, "topic_id": topic.topic_id}
    _delete_rows(script, *both)
