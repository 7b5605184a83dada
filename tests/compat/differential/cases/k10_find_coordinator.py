"""FindCoordinator: groups, other types of keys, odd keys."""

from __future__ import annotations

from tests.compat.differential.script import Answer, Script, case

KEY = 10
MANY_FROM = 4
COORDINATOR_ERRORS = ("coordinator_not_available",)


def _find(script: Script, key: str, key_type: int = 0) -> Answer:
    return script.ask(key=key, key_type=key_type, coordinator_keys=[key])


@case(KEY)
def a_group(script: Script) -> None:
    script.settled(_find(script, script.name("group")), COORDINATOR_ERRORS)


@case(KEY)
def odd_groups(script: Script) -> None:
    for group in ("", "a b", "ä", "g" * 300):
        script.settled(_find(script, group), COORDINATOR_ERRORS)


@case(KEY, since=1)
def a_transactional_id(script: Script) -> None:
    script.settled(_find(script, script.name("id"), 1), COORDINATOR_ERRORS)


@case(KEY, since=1)
def unknown_types(script: Script) -> None:
    for key_type in (3, -1, 99):
        _find(script, script.name("x"), key_type)


@case(KEY, since=1)
def a_share_group(script: Script) -> None:
    for key in (script.name("x"), "", "a:b:c", "group:AAAAAAAAAAAAAAAAAAAABw:0"):
        script.settled(_find(script, key, 2), COORDINATOR_ERRORS)


@case(KEY, since=MANY_FROM)
def many_groups(script: Script) -> None:
    names = [script.name(word) for word in ("a", "b", "a")]
    script.settled(script.ask(key_type=0, coordinator_keys=names), COORDINATOR_ERRORS)
    script.ask(key_type=0, coordinator_keys=[])
