"""OffsetFetch: one group, many groups, all topics, unknown ones."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tests.compat.differential.consumers import consumer_group, join
from tests.compat.differential.script import Script, Topic, case

KEY = 9
MANY_FROM = 8
NOBODY = UUID("00000000-0000-4000-8000-000000000007")


def _fetch(script: Script, group: str, topics: list[dict[str, Any]] | None, **fields: Any) -> None:
    """Ask for one group, in the form of the version."""
    if script.version < MANY_FROM:
        script.ask(group_id=group, topics=topics, **fields)
        return
    row = {"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}
    script.ask(groups=[row], require_stable=False, **fields)


def _of(topic: Topic, *indexes: int) -> list[dict[str, Any]]:
    return [{**topic.ref, "partition_indexes": list(indexes)}]


def _committed(script: Script, word: str = "group") -> tuple[Topic, str]:
    group = script.name(word)
    script.coordinator(group)
    topic = script.topic(f"of-{word}", partitions=2)
    script.commit(group, topic, 5, "note")
    return topic, group


@case(KEY)
def a_commit_and_none(script: Script) -> None:
    topic, group = _committed(script)
    _fetch(script, group, _of(topic, 0, 1, 7, -1))


@case(KEY, since=2)
def all_topics(script: Script) -> None:
    _, group = _committed(script)
    _fetch(script, group, None)


@case(KEY)
def no_topics(script: Script) -> None:
    _, group = _committed(script)
    _fetch(script, group, [])


@case(KEY)
def unknown_groups(script: Script) -> None:
    topic = script.topic("one")
    group = script.name("missing")
    script.coordinator(group)
    _fetch(script, group, _of(topic, 0))
    if script.version >= 2:
        _fetch(script, group, None)


@case(KEY)
def an_empty_group(script: Script) -> None:
    topic = script.topic("one")
    _fetch(script, "", _of(topic, 0))


@case(KEY)
def unknown_topics(script: Script) -> None:
    _, group = _committed(script)
    row = {"name": script.name("missing"), "topic_id": NOBODY, "partition_indexes": [0, 1]}
    _fetch(script, group, [row])


@case(KEY, since=7)
def stable_offsets(script: Script) -> None:
    topic, group = _committed(script)
    if script.version < MANY_FROM:
        script.ask(group_id=group, topics=_of(topic, 0), require_stable=True)
        return
    row = {"group_id": group, "member_id": None, "member_epoch": -1, "topics": _of(topic, 0)}
    script.ask(groups=[row], require_stable=True)


@case(KEY, since=MANY_FROM)
def many_groups(script: Script) -> None:
    (one, first), (two, second) = _committed(script, "first"), _committed(script, "second")
    rows = [
        {"group_id": first, "member_epoch": -1, "topics": _of(one, 0)},
        {"group_id": second, "member_epoch": -1, "topics": None},
        {"group_id": script.name("missing"), "member_epoch": -1, "topics": _of(two, 1)},
    ]
    script.ask(groups=rows, require_stable=False)
    script.ask(groups=[], require_stable=False)
    script.ask(groups=[rows[0], rows[0]], require_stable=False)


@case(KEY, since=9)
def members_of_the_new_protocol(script: Script) -> None:
    topic, group = _committed(script)
    for member, epoch in (("nobody", 1), ("nobody", -1), (None, 1), ("", 0)):
        row = {
            "group_id": group,
            "member_id": member,
            "member_epoch": epoch,
            "topics": _of(topic, 0),
        }
        script.ask(groups=[row], require_stable=False)


@case(KEY, since=9)
def members_of_the_consumer_protocol(script: Script) -> None:
    topic, group = script.topic("two", 2), consumer_group(script)
    join(script, group, "a", topic)
    for member, epoch in (("a", 2), ("a", 1), ("a", 3), ("a", -1), ("b", 2), (None, -1)):
        row = {
            "group_id": group,
            "member_id": member,
            "member_epoch": epoch,
            "topics": _of(topic, 0),
        }
        script.ask(groups=[row], require_stable=False)
