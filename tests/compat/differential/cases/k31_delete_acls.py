"""DeleteAcls: a broker without an authorizer, and elements that the client did not know."""

from __future__ import annotations

from tests.compat.differential.cases.k29_describe_acls import wanted
from tests.compat.differential.script import Script, case

KEY = 31


@case(KEY)
def some_filters(script: Script) -> None:
    script.ask(filters=[])
    script.ask(filters=[wanted(), wanted(resource_name_filter="")])


@case(KEY)
def elements_of_the_future(script: Script) -> None:
    for field in ("resource_type_filter", "pattern_type_filter", "operation", "permission_type"):
        script.ask(filters=[wanted(**{field: code}) for code in (99, -1)])


@case(KEY)
def unknown_elements(script: Script) -> None:
    for field in ("resource_type_filter", "pattern_type_filter", "operation", "permission_type"):
        script.ask(filters=[wanted(), wanted(**{field: 0})])
