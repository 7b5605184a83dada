"""DescribeAcls: a broker without an authorizer, and elements that the client did not know."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.script import Script, case

KEY = 29


def wanted(**fields: Any) -> dict[str, Any]:
    return {
        "resource_type_filter": 2,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
        **fields,
    }


@case(KEY)
def all_acls(script: Script) -> None:
    script.ask(**wanted())
    script.ask(**wanted(resource_name_filter="", principal_filter="", host_filter=""))


@case(KEY)
def elements_of_the_future(script: Script) -> None:
    for field in ("resource_type_filter", "pattern_type_filter", "operation", "permission_type"):
        for code in (99, -1):
            script.ask(**wanted(**{field: code}))


@case(KEY)
def unknown_elements(script: Script) -> None:
    for field in ("resource_type_filter", "pattern_type_filter", "operation", "permission_type"):
        script.ask(**wanted(**{field: 0}))
