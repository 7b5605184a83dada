"""Requests of `gateway acl`, with their results as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gateway.access import Operation, ResourceType
from gateway.admin.client import AdminClient, raise_for
from gateway.core.acls import (
    CODE_OF,
    OPERATIONS,
    PATTERN_TYPES,
    PERMISSIONS,
    RESOURCE_TYPES,
    Code,
    PatternType,
    Permission,
)

_DESCRIBE, _CREATE, _DELETE = 29, 30, 31

Row = dict[str, Any]


class Place(NamedTuple):
    """A type of resource, and the name of one or None for all."""

    kind: ResourceType
    name: str | None


class Wanted(NamedTuple):
    """Which ACLs to list or to remove. None stands for all."""

    principal: str | None = None
    host: str | None = None
    operation: Operation | None = None
    permission: Permission | None = None
    place: Place | None = None
    pattern: PatternType | None = None
    match: bool = False  # also ACLs of patterns that match the name

    def filter(self) -> Row:
        """Return the fields of a filter. Those of an array and of DescribeAcls are the same."""
        place = self.place
        pattern = CODE_OF[self.pattern] if self.pattern else int(Code.ANY)
        return {
            "resource_type_filter": CODE_OF[place.kind] if place else int(Code.ANY),
            "resource_name_filter": place.name if place else None,
            "pattern_type_filter": int(Code.MATCH) if self.match else pattern,
            "principal_filter": self.principal,
            "host_filter": self.host,
            "operation": CODE_OF[self.operation] if self.operation else int(Code.ANY),
            "permission_type": CODE_OF[self.permission] if self.permission else int(Code.ANY),
        }


async def list_acls(client: AdminClient, wanted: Wanted) -> list[Row]:
    """Return the ACLs that a filter matches, by resource. Raises AdminError."""
    answer = await client.send(_DESCRIBE, wanted.filter())
    raise_for(answer.error_code, answer.error_message, "DescribeAcls")
    found = [_row(place, acl) for place in answer.resources for acl in place.acls]
    return sorted(found, key=_order)


async def add_acls(client: AdminClient, rows: Sequence[Row]) -> None:
    """Create ACLs. Raises AdminError with the first that is refused."""
    creations = [
        {
            "resource_type": CODE_OF[row["resource_type"]],
            "resource_name": row["resource_name"],
            "resource_pattern_type": CODE_OF[row["pattern_type"]],
            "principal": row["principal"],
            "host": row["host"],
            "operation": CODE_OF[row["operation"]],
            "permission_type": CODE_OF[row["permission"]],
        }
        for row in rows
    ]
    answer = await client.send(_CREATE, {"creations": creations})
    for row, result in zip(rows, answer.results, strict=True):
        about = f"{row['operation']} {row['resource_type']} {row['resource_name']}"
        raise_for(result.error_code, result.error_message, about)


async def remove_acls(client: AdminClient, wanted: Wanted) -> list[Row]:
    """Delete the ACLs that a filter matches. Returns them. Raises AdminError."""
    answer = await client.send(_DELETE, {"filters": [wanted.filter()]})
    rows: list[Row] = []
    for result in answer.filter_results:
        raise_for(result.error_code, result.error_message, "DeleteAcls")
        for acl in result.matching_acls:
            raise_for(acl.error_code, acl.error_message, "DeleteAcls")
            rows.append(_row(acl, acl))
    return sorted(rows, key=_order)


async def explain_acl(
    client: AdminClient, principal: str, host: str, operation: Operation, place: Place
) -> Row:
    """Return the decision of the connected gateway, and the rule that decided.

    Raises AdminError if the server is no gateway of this project, or has no authorizer.
    """
    asked = {
        "principal": principal,
        "host": host,
        "operation": operation.value,
        "resource_type": place.kind.value,
        "resource_name": place.name,
    }
    answer = await client.ask_gateway({"ask": "acl", **asked})
    return {**asked, **{key: answer[key] for key in ("allowed", "rule", "acl", "node_id")}}


def _row(place: Any, acl: Any) -> Row:
    """Return an ACL of an answer. Numbers of a later release are shown as they are."""
    return {
        "principal": acl.principal,
        "permission": _name(PERMISSIONS, acl.permission_type),
        "operation": _name(OPERATIONS, acl.operation),
        "resource_type": _name(RESOURCE_TYPES, place.resource_type),
        "resource_name": place.resource_name,
        "pattern_type": _name(PATTERN_TYPES, place.pattern_type),
        "host": acl.host,
    }


def _name(names: Any, code: int) -> str:
    found = names.get(code)
    return str(code) if found is None else str(found.value)


def _order(row: Row) -> tuple[str, ...]:
    keys = ("resource_type", "resource_name", "pattern_type", "principal", "permission")
    return tuple(str(row[key]) for key in (*keys, "operation", "host"))
