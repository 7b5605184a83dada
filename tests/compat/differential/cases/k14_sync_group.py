"""SyncGroup: the leader's assignment, repeats, wrong members and protocols."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.consumers import consumer_group, join_classic
from tests.compat.differential.consumers import join as join_consumer
from tests.compat.differential.script import Script, case

KEY = 14
PROTOCOL_FROM = 5


def _sync(script: Script, group: str, member: Any, generation: Any, **fields: Any) -> None:
    wanted = {
        "group_id": group,
        "generation_id": generation,
        "member_id": member,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": member, "assignment": b"other share"}],
    }
    script.ask(**{**wanted, **fields})


@case(KEY)
def a_member_with_an_assignment(script: Script) -> None:
    group, member, generation = script.member()
    _sync(script, group, member, generation)
    _sync(script, group, member, generation, assignments=[])


@case(KEY)
def wrong_members_and_generations(script: Script) -> None:
    group, member, generation = script.member()
    for wrong in (0, 99, -1):
        _sync(script, group, member, wrong)
    _sync(script, group, "nobody", generation)
    _sync(script, group, "", generation)


@case(KEY)
def unknown_groups(script: Script) -> None:
    group = script.name("missing")
    script.coordinator(group)
    _sync(script, group, "nobody", 1)
    _sync(script, "", "nobody", 1)


@case(KEY)
def an_assignment_after_a_rebalance(script: Script) -> None:
    group = script.name("group")
    joined = script.join(group)
    member = joined.take("member_id")
    again = script.other(
        11,
        9,
        group_id=group,
        session_timeout=30_000,
        rebalance_timeout=30_000,
        member_id=member,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b"next"}],
    )
    generation = again.take("generation_id")
    strange = [{"member_id": "nobody", "assignment": b"x"}]
    _sync(script, group, member, generation, assignments=strange)
    _sync(script, group, member, generation)


@case(KEY, since=PROTOCOL_FROM)
def wrong_protocols(script: Script) -> None:
    group, member, generation = script.member()
    for kind, name in (("connect", "range"), ("consumer", "sticky"), (None, None), ("", "")):
        _sync(script, group, member, generation, protocol_type=kind, protocol_name=name)


@case(KEY, since=3)
def a_static_member(script: Script) -> None:
    group, member, generation = script.member(group_instance_id="static")
    for instance in ("static", "other", None):
        _sync(script, group, member, generation, group_instance_id=instance)
    _sync(script, group, "nobody", generation, group_instance_id="static")


@case(KEY)
def a_member_of_the_consumer_protocol(script: Script) -> None:
    topic, group = script.topic("two", 2), consumer_group(script)
    join_consumer(script, group, "a", topic)
    for member in ("a", "nobody"):
        script.ask(
            group_id=group,
            generation_id=2,
            member_id=member,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[],
        )


@case(KEY)
def a_classic_member_of_a_consumer_group(script: Script) -> None:
    topic, group = script.topic("two", 2), consumer_group(script)
    join_consumer(script, group, "a", topic)
    joined = join_classic(script, group, topic)
    member, generation = joined.take("member_id"), joined.take("generation_id")
    _sync(script, group, member, generation)
    _sync(script, group, member, 99)
    _sync(script, group, "nobody", generation)
    if script.version >= PROTOCOL_FROM:
        for kind, name in (("connect", "range"), ("consumer", "sticky")):
            _sync(script, group, member, generation, protocol_type=kind, protocol_name=name)
    join_consumer(script, group, "b", topic)
    _sync(script, group, member, generation)
