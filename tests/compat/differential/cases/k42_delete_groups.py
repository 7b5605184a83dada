"""DeleteGroups: empty groups, groups with members, unknown ones."""

from __future__ import annotations

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
