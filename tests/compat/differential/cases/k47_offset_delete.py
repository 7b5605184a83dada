"""OffsetDelete: of empty groups, of subscribed topics, of unknown groups and partitions."""

from __future__ import annotations

from tests.compat.differential.consumers import consumer_group, join
from tests.compat.differential.script import Script, Topic, case

KEY = 47


def _delete(script: Script, group: str, name: str, *indexes: int) -> None:
    rows = [{"partition_index": index} for index in indexes]
    script.ask(group_id=group, topics=[{"name": name, "partitions": rows}])


def _committed(script: Script) -> tuple[Topic, str]:
    group = script.name("group")
    script.coordinator(group)
    topic = script.topic("one", partitions=2)
    script.commit(group, topic, 5)
    return topic, group


@case(KEY)
def an_empty_group(script: Script) -> None:
    topic, group = _committed(script)
    _delete(script, group, topic.name, 0, 1, 7)
    script.other(9, 5, group_id=group, topics=None)


@case(KEY)
def unknown_topics(script: Script) -> None:
    _, group = _committed(script)
    _delete(script, group, script.name("missing"), 0)


@case(KEY)
def unknown_groups(script: Script) -> None:
    topic = script.topic("one")
    group = script.name("missing")
    script.coordinator(group)
    _delete(script, group, topic.name, 0)
    _delete(script, "", topic.name, 0)


@case(KEY)
def a_group_with_a_member(script: Script) -> None:
    topic = script.topic("one")
    group = script.name("group")
    script.join(group, protocol_type="consumer")
    _delete(script, group, topic.name, 0)


@case(KEY)
def nothing(script: Script) -> None:
    _, group = _committed(script)
    script.ask(group_id=group, topics=[])


@case(KEY)
def a_group_of_the_consumer_protocol(script: Script) -> None:
    one, two, group = script.topic("one"), script.topic("two"), consumer_group(script)
    script.commit(group, one, 5)
    script.commit(group, two, 5)
    join(script, group, "a", one)
    script.ask(
        group_id=group,
        topics=[{"name": each.name, "partitions": [{"partition_index": 0}]} for each in (one, two)],
    )
