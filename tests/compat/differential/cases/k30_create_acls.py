"""CreateAcls: a broker without an authorizer, and elements that the client did not know."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.script import Script, case

KEY = 30


def acl(**fields: Any) -> dict[str, Any]:
    return {
        "resource_type": 2,
        "resource_name": "orders",
        "resource_pattern_type": 3,
        "principal": "User:ann",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
        **fields,
    }


@case(KEY)
def some_acls(script: Script) -> None:
    script.ask(creations=[])
    script.ask(creations=[acl(), acl()])
    script.ask(creations=[acl(resource_name=""), acl(principal=""), acl(host="")])


@case(KEY)
def elements_of_the_future(script: Script) -> None:
    for field in ("resource_type", "resource_pattern_type", "operation", "permission_type"):
        script.ask(creations=[acl(**{field: code}) for code in (99, 1, -1)])


@case(KEY)
def unknown_elements(script: Script) -> None:
    for field in ("resource_type", "resource_pattern_type", "operation", "permission_type"):
        script.ask(creations=[acl(), acl(**{field: 0})])
