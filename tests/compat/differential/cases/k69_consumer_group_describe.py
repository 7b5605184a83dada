"""ConsumerGroupDescribe: groups in each state, and groups that are none of this protocol."""

from __future__ import annotations

from tests.compat.differential.consumers import beat, consumer_group, join, owned
from tests.compat.differential.script import Script, case

KEY = 69


def _describe(script: Script, *groups: str, operations: bool = False) -> None:
    script.ask(group_ids=list(groups), include_authorized_operations=operations)


@case(KEY)
def members_that_move(script: Script) -> None:
    topic, group = script.topic("four", 4), consumer_group(script)
    join(script, group, "a", topic, rack_id="r")
    _describe(script, group)
    join(script, group, "b", topic, instance_id="i")
    _describe(script, group)
    beat(script, group, "a", 2, topic_partitions=owned(topic, 0, 1, 2, 3))
    _describe(script, group)
    beat(script, group, "a", 2, topic_partitions=owned(topic, 0, 1))
    _describe(script, group)
    beat(script, group, "b", 3)
    _describe(script, group, operations=True)
    beat(script, group, "b", -2, instance_id="i")
    _describe(script, group)
    beat(script, group, "a", -1)
    _describe(script, group)
    beat(script, group, "b", -1, instance_id="i")
    _describe(script, group, operations=True)


@case(KEY)
def other_groups(script: Script) -> None:
    script.coordinator(script.name("missing"))
    script.join(script.name("classic"))
    _describe(script, script.name("missing"), script.name("classic"), operations=True)
    _describe(script, "")
    _describe(script)


@case(KEY)
def the_same_group_twice(script: Script) -> None:
    topic, group = script.topic("one"), consumer_group(script)
    join(script, group, "a", topic, server_assignor="range")
    _describe(script, group, group)
