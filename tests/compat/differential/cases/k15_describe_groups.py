"""DescribeGroups: a stable group, an empty one, unknown ones."""

from __future__ import annotations

from tests.compat.differential.consumers import beat, consumer_group, join
from tests.compat.differential.script import Script, case

KEY = 15


@case(KEY)
def a_stable_group(script: Script) -> None:
    group = script.name("group")
    script.join(group)
    script.ask(groups=[group])


@case(KEY)
def an_empty_group(script: Script) -> None:
    group = script.name("group")
    member = script.join(group).take("member_id")
    script.prepare(13, 2, group_id=group, member_id=member)
    script.ask(groups=[group])


@case(KEY)
def a_group_of_commits(script: Script) -> None:
    group = script.name("group")
    topic = script.topic("one")
    script.coordinator(group)
    script.commit(group, topic, 5)
    script.ask(groups=[group])


@case(KEY)
def unknown_groups(script: Script) -> None:
    group = script.name("missing")
    script.coordinator(group)
    script.ask(groups=[group])
    script.ask(groups=[])
    script.ask(groups=[group, group])


@case(KEY, since=4)
def a_static_member(script: Script) -> None:
    group = script.name("group")
    script.join(group, group_instance_id="static")
    script.ask(groups=[group])


@case(KEY, since=3)
def authorized_operations(script: Script) -> None:
    group = script.name("group")
    script.join(group)
    script.ask(groups=[group, script.name("missing")], include_authorized_operations=True)


@case(KEY)
def groups_of_the_consumer_protocol(script: Script) -> None:
    topic, group = script.topic("two", 2), consumer_group(script)
    join(script, group, "a", topic)
    script.ask(groups=[group])
    beat(script, group, "a", -1)
    script.ask(groups=[group])
