"""ListGroups: all groups, by state and by type."""

from __future__ import annotations

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
