"""AlterUserScramCredentials: bounds, mechanisms, users that are named twice, deletions."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.script import Script, case

KEY = 51
DESCRIBE = 50


def upsertion(
    name: str, mechanism: int = 1, iterations: int = 4_096, password: bytes = b"p" * 32
) -> dict[str, Any]:
    return {
        "name": name,
        "mechanism": mechanism,
        "iterations": iterations,
        "salt": b"salt",
        "salted_password": password,
    }


def deletion(name: str, mechanism: int = 1) -> dict[str, Any]:
    return {"name": name, "mechanism": mechanism}


def described(script: Script, *names: str) -> None:
    """Compare the mechanisms of users."""
    script.published()
    script.other(DESCRIBE, 0, users=[{"name": name} for name in names])


@case(KEY)
def credentials_that_are_stored(script: Script) -> None:
    name = script.name("ann")
    for mechanism, iterations in ((1, 4_096), (2, 16_384), (1, 16_384)):
        script.ask(deletions=[], upsertions=[upsertion(name, mechanism, iterations)])
        described(script, name)
    for mechanism in (1, 2, 1):
        script.ask(deletions=[deletion(name, mechanism)], upsertions=[])
        described(script, name)


@case(KEY)
def credentials_that_are_refused(script: Script) -> None:
    name = script.name("ann")
    script.ask(deletions=[], upsertions=[])
    for bad in (
        upsertion(name, 1, 4_095),
        upsertion(name, 1, 16_385),
        upsertion(name, 1, -1),
        upsertion(name, 0),
        upsertion(name, 3, 1),
        upsertion(name, -1),
        upsertion(""),
        upsertion("", 9),
        upsertion(name, 1, 4_096, b""),
        upsertion(name, 1, 1, b""),
    ):
        script.ask(deletions=[], upsertions=[bad])
    described(script, name)


@case(KEY)
def deletions_that_are_refused(script: Script) -> None:
    absent = script.name("absent")
    for bad in (deletion(absent), deletion(absent, 9), deletion(""), deletion("", 9)):
        script.ask(deletions=[bad], upsertions=[])
        script.ask(deletions=[bad, bad], upsertions=[])


@case(KEY)
def users_named_twice(script: Script) -> None:
    name = script.name("ann")
    script.prepare(KEY, 0, deletions=[], upsertions=[upsertion(name)])
    script.published()
    for deletions, upsertions in (
        ([], [upsertion(name), upsertion(name)]),
        ([], [upsertion(name), upsertion(name, 2)]),
        ([], [upsertion(name), upsertion(name, 9)]),
        ([], [upsertion(name, 9), upsertion(name)]),
        ([], [upsertion(name, 1, 1), upsertion(name, 1, 1)]),
        ([deletion(name)], [upsertion(name, 2)]),
        ([deletion(name, 9)], [upsertion(name, 2)]),
        ([deletion(name), deletion(name)], []),
    ):
        script.ask(deletions=deletions, upsertions=upsertions)
    described(script, name)


@case(KEY)
def a_refused_user_does_not_hinder_the_others(script: Script) -> None:
    ann, bob, cleo = (script.name(each) for each in ("ann", "bob", "cleo"))
    users = [upsertion(bob), upsertion(ann, 1, 1), upsertion(cleo, 1, 4_096, b"")]
    script.ask(deletions=[], upsertions=users)
    described(script, ann, bob, cleo)
