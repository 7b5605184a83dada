"""LeaveGroup: by member id, by instance id, many at once, unknown members."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.consumers import consumer_group, join, join_classic
from tests.compat.differential.script import Script, case

KEY = 13
MANY_FROM = 3


def _leave(script: Script, group: str, *members: Any) -> None:
    """Let members leave, in the form of the version."""
    if script.version < MANY_FROM:
        for member in members:
            script.ask(group_id=group, member_id=member)
        return
    script.ask(group_id=group, members=[{"member_id": each} for each in members])


@case(KEY)
def a_member(script: Script) -> None:
    group = script.name("group")
    member = script.join(group).take("member_id")
    _leave(script, group, member)
    _leave(script, group, member)


@case(KEY)
def unknown_members(script: Script) -> None:
    group = script.name("group")
    script.join(group)
    _leave(script, group, "nobody")
    _leave(script, group, "")


@case(KEY)
def unknown_groups(script: Script) -> None:
    group = script.name("missing")
    script.coordinator(group)
    _leave(script, group, "nobody")
    _leave(script, "", "nobody")


@case(KEY, since=MANY_FROM)
def many_members(script: Script) -> None:
    group = script.name("group")
    member = script.join(group).take("member_id")
    _leave(script, group, "nobody", member, member)
    _leave(script, group)


@case(KEY, since=MANY_FROM)
def static_members(script: Script) -> None:
    group = script.name("group")
    member = script.join(group, group_instance_id="static").take("member_id")
    for row in (
        {"member_id": "", "group_instance_id": "other"},
        {"member_id": "nobody", "group_instance_id": "static"},
        {"member_id": member, "group_instance_id": "other"},
        {"member_id": "", "group_instance_id": "static", "reason": "r" * 300},
        {"member_id": "", "group_instance_id": "static"},
    ):
        script.ask(group_id=group, members=[row])


@case(KEY, since=3)
def members_of_the_consumer_protocol(script: Script) -> None:
    topic, group = script.topic("two", 2), consumer_group(script)
    join(script, group, "a", topic)
    join(script, group, "b", topic, instance_id="i")
    rows = [("nobody", None), ("a", "i"), ("a", None), ("", "j"), ("", "i")]
    script.ask(
        group_id=group,
        members=[{"member_id": each, "group_instance_id": instance} for each, instance in rows],
    )
    script.other(69, 1, group_ids=[group], include_authorized_operations=False)


@case(KEY, since=3)
def a_classic_member_of_a_consumer_group(script: Script) -> None:
    topic, group = script.topic("two", 2), consumer_group(script)
    join(script, group, "a", topic)
    member = join_classic(script, group, topic).take("member_id")
    rows = [{"member_id": each, "group_instance_id": None} for each in (member, member)]
    for row in rows:
        script.ask(group_id=group, members=[row])
    script.other(69, 1, group_ids=[group], include_authorized_operations=False)
