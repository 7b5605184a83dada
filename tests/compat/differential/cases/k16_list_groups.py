"""ListGroups: all groups, by state and by type."""

from __future__ import annotations

from tests.compat.differential.consumers import beat, consumer_group, join
from tests.compat.differential.script import Script, case

KEY = 16


def _groups(script: Script) -> None:
    script.join(script.name("stable"))
    empty = script.name("empty")
    member = script.join(empty, on="b").take("member_id")
    script.prepare(13, 2, group_id=empty, member_id=member)


@case(KEY)
def all_groups(script: Script) -> None:
    _groups(script)
    script.ask_all()


@case(KEY, since=4)
def by_state(script: Script) -> None:
    _groups(script)
    for states in (["Stable"], ["Empty"], ["stable"], ["Stable", "Empty"], ["Strange"], [""]):
        script.ask_all(states_filter=states, types_filter=[])


@case(KEY, since=5)
def by_type(script: Script) -> None:
    _groups(script)
    for types in (["classic"], ["Classic"], ["consumer"], ["strange"], ["classic", "share"], [""]):
        script.ask_all(states_filter=[], types_filter=types)


@case(KEY)
def groups_of_the_consumer_protocol(script: Script) -> None:
    topic, group = script.topic("four", 4), consumer_group(script)
    join(script, group, "a", topic)
    moves = consumer_group(script, "moves")
    join(script, moves, "a", topic)
    join(script, moves, "b", topic)
    empty = consumer_group(script, "nobody")
    join(script, empty, "a", topic)
    beat(script, empty, "a", -1)
    script.ask_all()
    if script.version >= 4:
        for states in (["Reconciling"], ["Empty", "Assigning"], ["stable"]):
            script.ask_all(states_filter=states, types_filter=[])
    if script.version >= 5:
        for types in (["consumer"], ["Consumer", "classic"], ["classic"]):
            script.ask_all(states_filter=[], types_filter=types)
