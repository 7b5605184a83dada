"""Heartbeat: of members, of unknown ones, and with a wrong generation."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.consumers import consumer_group, join, join_classic
from tests.compat.differential.script import Script, case

KEY = 12


def _beat(script: Script, group: str, member: Any, generation: Any, **fields: Any) -> None:
    script.ask(group_id=group, member_id=member, generation_id=generation, **fields)


@case(KEY)
def a_member(script: Script) -> None:
    group, member, generation = script.member()
    _beat(script, group, member, generation)
    for wrong in (0, 2, 99, -1):
        _beat(script, group, member, wrong)
    _beat(script, group, "nobody", generation)
    _beat(script, group, "", generation)


@case(KEY)
def unknown_groups(script: Script) -> None:
    group = script.name("missing")
    script.coordinator(group)
    _beat(script, group, "nobody", 1)
    _beat(script, "", "nobody", 1)


@case(KEY)
def after_leaving(script: Script) -> None:
    group, member, generation = script.member()
    script.prepare(13, 2, group_id=group, member_id=member)
    _beat(script, group, member, generation)


@case(KEY, since=3)
def a_static_member(script: Script) -> None:
    group, member, generation = script.member(group_instance_id="static")
    for instance in ("static", "other", None):
        _beat(script, group, member, generation, group_instance_id=instance)
    _beat(script, group, "nobody", generation, group_instance_id="static")
    _beat(script, group, "nobody", 99, group_instance_id="static")


@case(KEY)
def a_member_of_the_consumer_protocol(script: Script) -> None:
    topic, group = script.topic("two", 2), consumer_group(script)
    join(script, group, "a", topic)
    for member in ("a", "nobody"):
        _beat(script, group, member, 2)


@case(KEY)
def a_classic_member_of_a_consumer_group(script: Script) -> None:
    topic, group = script.topic("two", 2), consumer_group(script)
    join(script, group, "a", topic)
    joined = join_classic(script, group, topic)
    member, generation = joined.take("member_id"), joined.take("generation_id")
    _beat(script, group, member, generation)
    _beat(script, group, member, 99)
    join(script, group, "b", topic)
    _beat(script, group, member, generation)
