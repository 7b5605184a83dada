"""Metadata: topics by name and by id, all of them, unknown ones, and their creation."""

from __future__ import annotations

from uuid import UUID

from tests.compat.differential.script import NOT_YET, Script, case

KEY = 3
NOBODY = UUID("00000000-0000-4000-8000-000000000007")
ZERO = UUID(int=0)


def _named(*names: str) -> list[dict[str, object]]:
    return [{"name": name} for name in names]


@case(KEY)
def a_topic(script: Script) -> None:
    topic = script.topic("one")
    script.ask(topics=_named(topic.name), allow_auto_topic_creation=False)


@case(KEY)
def many_partitions(script: Script) -> None:
    topic = script.topic("wide", partitions=5)
    script.ask(topics=_named(topic.name), allow_auto_topic_creation=False)


@case(KEY)
def all_topics(script: Script) -> None:
    script.topic("a")
    script.topic("b", partitions=2)
    script.ask_all(topics=None if script.version else [], allow_auto_topic_creation=False)


@case(KEY, since=1)
def no_topics(script: Script) -> None:
    script.ask(topics=[], allow_auto_topic_creation=False)


@case(KEY)
def the_same_topic_twice(script: Script) -> None:
    topic = script.topic("twice")
    script.ask(topics=_named(topic.name, topic.name), allow_auto_topic_creation=False)


@case(KEY, since=4)
def an_unknown_topic(script: Script) -> None:
    script.ask(topics=_named(script.name("missing")), allow_auto_topic_creation=False)


@case(KEY)
def invalid_names(script: Script) -> None:
    names = ("", ".", "..", "a/b", "a" * 250, "a b", "ä")
    for creation in (False, True):
        for name in names:
            script.ask(topics=_named(name), allow_auto_topic_creation=creation)


@case(KEY)
def known_and_unknown_names(script: Script) -> None:
    topic = script.topic("known")
    names = (topic.name, "a/b", "..")
    script.ask(topics=_named(*names), allow_auto_topic_creation=False)


@case(KEY)
def creation_by_name(script: Script) -> None:
    name = script.name("created")
    script.ask(topics=_named(name), allow_auto_topic_creation=True)
    script.settled(script.ask(topics=_named(name), allow_auto_topic_creation=True))


@case(KEY)
def creation_of_two_topics_beside_one(script: Script) -> None:
    old = script.topic("old")
    names = (script.name("new-1"), old.name, script.name("new-2"))
    script.ask(topics=_named(*names), allow_auto_topic_creation=True)
    script.settled(script.ask(topics=_named(*names), allow_auto_topic_creation=True), NOT_YET)


@case(KEY, since=8)
def authorized_operations(script: Script) -> None:
    topic = script.topic("one")
    for cluster, about_topics in ((False, True), (True, False), (True, True)):
        script.ask(
            topics=_named(topic.name, "a/b", script.name("missing")),
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=cluster,
            include_topic_authorized_operations=about_topics,
        )


@case(KEY, since=12)
def authorized_operations_of_ids(script: Script) -> None:
    topic = script.topic("one")
    rows = [{"name": None, "topic_id": each} for each in (topic.topic_id, NOBODY)]
    script.ask(topics=rows, include_topic_authorized_operations=True)


@case(KEY, since=10)
def a_name_and_its_id(script: Script) -> None:
    topic = script.topic("one")
    row = {"name": topic.name, "topic_id": topic.topic_id}
    script.ask(topics=[row], allow_auto_topic_creation=False)


@case(KEY, since=10)
def an_id_without_a_name(script: Script) -> None:
    topic = script.topic("one")
    row = {"name": None, "topic_id": topic.topic_id}
    script.ask(topics=[row], allow_auto_topic_creation=False)


@case(KEY, since=10)
def an_id_with_an_empty_name(script: Script) -> None:
    topic = script.topic("one")
    row = {"name": "", "topic_id": topic.topic_id}
    script.ask(topics=[row], allow_auto_topic_creation=False)


@case(KEY, since=10)
def an_id_with_the_name_of_another_topic(script: Script) -> None:
    topic, other = script.topic("one"), script.topic("other")
    row = {"name": other.name, "topic_id": topic.topic_id}
    script.ask(topics=[row], allow_auto_topic_creation=False)


@case(KEY, since=10)
def unknown_ids(script: Script) -> None:
    for name in (None, "", script.name("x")):
        script.ask(topics=[{"name": name, "topic_id": NOBODY}], allow_auto_topic_creation=False)


@case(KEY, since=10)
def the_zero_id_without_a_name(script: Script) -> None:
    script.ask(topics=[{"name": None, "topic_id": ZERO}], allow_auto_topic_creation=False)


@case(KEY, since=10)
def ids_and_names_in_one_request(script: Script) -> None:
    topic, other = script.topic("one"), script.topic("other")
    rows = [{"name": None, "topic_id": topic.topic_id}, {"name": other.name, "topic_id": ZERO}]
    script.ask(topics=rows, allow_auto_topic_creation=False)


@case(KEY)
def bytes_that_end_too_early(script: Script) -> None:
    script.raw(b"\0\0", flexible=script.version >= 9)


@case(KEY)
def an_internal_topic(script: Script) -> None:
    topic = script.internal_topic()
    script.ask(topics=_named(topic.name), allow_auto_topic_creation=False)
    if script.version >= 12:
        by_id = [{"name": None, "topic_id": topic.topic_id}]
        script.ask(topics=by_id, allow_auto_topic_creation=False)
