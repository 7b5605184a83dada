"""AlterClientQuotas: limits at their edges, entities that cannot be, duplicates, validation."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.script import Script, case

KEY = 49
DESCRIBE = 48
RATE, CONNECTIONS = "producer_byte_rate", "connection_creation_rate"
Entity = tuple[tuple[str, str | None], ...]


def entry(entity: Entity, *ops: tuple[str, float | None]) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
        "ops": [
            {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
            for key, value in ops
        ],
    }


def altered(script: Script, entity: Entity, *ops: tuple[str, float | None]) -> None:
    """Change limits as a preparation."""
    script.prepare(KEY, 1, entries=[entry(entity, *ops)], validate_only=False)


def described(script: Script, user: str) -> None:
    """Compare the limits of a user."""
    script.published()
    component = {"entity_type": "user", "match_type": 0, "match": user}
    script.other(DESCRIBE, 1, components=[component], strict=False)


@case(KEY)
def limits_that_are_stored(script: Script) -> None:
    user = script.name("ann")
    for key, value in (
        (RATE, 100.0),
        (RATE, 1e-7),
        (RATE, 1.0000001),
        ("consumer_byte_rate", 2.0**62),
        ("consumer_byte_rate", 2.0**63),
        ("request_percentage", 0.5),
        ("request_percentage", float("inf")),
        ("controller_mutation_rate", 2.5),
    ):
        script.ask(entries=[entry((("user", user),), (key, value))], validate_only=False)
        described(script, user)
    script.ask(entries=[entry((("user", user),), (RATE, None))], validate_only=False)
    described(script, user)


@case(KEY)
def limits_that_are_refused(script: Script) -> None:
    user = script.name("ann")
    for key, value in (
        (RATE, 100.5),
        (RATE, 1.00001),
        (RATE, 0.0),
        (RATE, -1.0),
        (RATE, float("inf")),
        (RATE, 1e300),
        ("request_percentage", 0.0),
        (CONNECTIONS, 2.0),
        ("nope", 2.0),
        ("", 2.0),
    ):
        script.ask(entries=[entry((("user", user),), (key, value))], validate_only=False)
    good_and_bad = (("consumer_byte_rate", 5.0), ("nope", 5.0))
    script.ask(entries=[entry((("user", user),), *good_and_bad)], validate_only=False)
    described(script, user)


@case(KEY)
def entities_that_cannot_be(script: Script) -> None:
    for entity in (
        (),
        (("zebra", "a"),),
        (("", "a"),),
        (("user", ""),),
        (("client-id", ""),),
        (("ip", ""),),
        (("ip", "1.2.3.999"),),
        (("zebra", "a"), ("ip", "b")),
        (("user", "a"), ("zebra", "a")),
        (("ip", "1.2.3.4"), ("user", "a")),
        (("client-id", "a"), ("ip", "1.2.3.4")),
    ):
        script.ask(entries=[entry(entity, (RATE, 1.0))], validate_only=False)


@case(KEY)
def addresses(script: Script) -> None:
    for address in ("1.2.3.4", "::1", "1.2.3"):
        for key, value in ((CONNECTIONS, 1e9), (CONNECTIONS, 4.5), (RATE, 4.0)):
            script.ask(entries=[entry((("ip", address),), (key, value))], validate_only=True)
        script.ask(entries=[entry((("ip", address),), (CONNECTIONS, 2.0**31))], validate_only=True)


@case(KEY)
def host_names(script: Script) -> None:
    for value in (1e9, 4.5):
        named = entry((("ip", "localhost"),), (CONNECTIONS, value))
        script.ask(entries=[named], validate_only=True)


@case(KEY)
def entities_and_keys_named_twice(script: Script) -> None:
    user, client = script.name("ann"), script.name("app")
    pair: Entity = (("client-id", client), ("user", user))
    again = [entry(pair, (RATE, 1.0)), entry(pair[::-1], (RATE, 2.0))]
    script.ask(entries=again, validate_only=False)
    described(script, user)
    twice = entry((("user", user),), (RATE, 2.0), ("consumer_byte_rate", 4.0), (RATE, 3.0))
    script.ask(entries=[twice], validate_only=False)
    bad = entry((("user", user),), ("nope", 2.0), ("nope", 4.0))
    script.ask(entries=[bad], validate_only=False)
    described(script, user)
    last = entry((("user", user), ("user", client)), (RATE, 2.0))
    script.ask(entries=[last], validate_only=False)
    described(script, client)


@case(KEY)
def removals_of_nothing(script: Script) -> None:
    user = script.name("ann")
    for ops in (((RATE, None),), (("nope", None),), ()):
        script.ask(entries=[entry((("user", user),), *ops)], validate_only=False)
    script.ask(entries=[], validate_only=False)
    described(script, user)


@case(KEY)
def only_validated(script: Script) -> None:
    user = script.name("ann")
    for value in (1.0, -1.0):
        script.ask(entries=[entry((("user", user),), (RATE, value))], validate_only=True)
    described(script, user)
