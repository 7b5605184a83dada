"""DeleteGroups: empty groups, groups with members, unknown ones."""

from __future__ import annotations

from tests.compat.differential.consumers import beat, consumer_group, join
from tests.compat.differential.script import Script, case

KEY = 42


@case(KEY)
def an_empty_group(script: Script) -> None:
    group = script.name("group")
    member = script.join(group).take("member_id")
    script.prepare(13, 2, group_id=group, member_id=member)
    script.ask(groups_names=[group])
    script.ask(groups_names=[group])


@case(KEY)
def a_group_with_a_member(script: Script) -> None:
    group = script.name("group")
    script.join(group)
    script.ask(groups_names=[group])


@case(KEY)
def unknown_groups(script: Script) -> None:
    group = script.name("missing")
    script.coordinator(group)
    script.ask(groups_names=[group])
    script.ask(groups_names=[])


@case(KEY)
def duplicates(script: Script) -> None:
    group = script.name("group")
    member = script.join(group).take("member_id")
    script.prepare(13, 2, group_id=group, member_id=member)
    script.ask(groups_names=[group, group])


@case(KEY)
def groups_of_the_consumer_protocol(script: Script) -> None:
    topic, group = script.topic("two", 2), consumer_group(script)
    join(script, group, "a", topic)
    script.ask(groups_names=[group])
    beat(script, group, "a", -1)
    script.ask(groups_names=[group])
    script.other(69, 1, group_ids=[group], include_authorized_operations=False)
