"""DescribeClientQuotas: filters of every form, for entities of the case."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.cases.k49_alter_client_quotas import RATE, altered
from tests.compat.differential.script import Script, case

KEY = 48
EXACT, DEFAULT, SPECIFIED = 0, 1, 2


def part(kind: str, match_type: int, match: str | None = None) -> dict[str, Any]:
    return {"entity_type": kind, "match_type": match_type, "match": match}


@case(KEY)
def a_user_and_its_clients(script: Script) -> None:
    user, client = script.name("ann"), script.name("app")
    altered(script, (("user", user),), (RATE, 10.0), ("request_percentage", 0.5))
    altered(script, (("client-id", client), ("user", user)), (RATE, 20.0))
    altered(script, (("client-id", None), ("user", user)), (RATE, 30.0))
    script.published()
    for strict in (False, True):
        script.ask(components=[part("user", EXACT, user)], strict=strict)
        script.ask(components=[part("client-id", EXACT, client)], strict=strict)
        for second in (part("client-id", EXACT, client), part("client-id", DEFAULT)):
            script.ask(components=[part("user", EXACT, user), second], strict=strict)


@case(KEY)
def unknown_entities(script: Script) -> None:
    for kind in ("user", "client-id", "ip"):
        for name in (script.name("absent"), ""):
            script.ask(components=[part(kind, EXACT, name)], strict=False)


@case(KEY)
def filters_that_cannot_be(script: Script) -> None:
    for components in (
        [part("ip", SPECIFIED), part("user", SPECIFIED)],
        [part("ip", EXACT, "1.2.3.4"), part("client-id", DEFAULT)],
        [part("user", SPECIFIED), part("user", EXACT, "a")],
        [part("zebra", SPECIFIED)],
        [part("zebra", 9), part("zebra", 9)],
        [part("user", EXACT, "a"), part("zebra", 9)],
        [part("", SPECIFIED)],
        [part("user", EXACT, None)],
        [part("user", DEFAULT, "a")],
        [part("user", SPECIFIED, "a")],
        [part("user", 3)],
        [part("user", -1)],
    ):
        script.ask(components=components, strict=False)
