"""From a request to what a view gets: who asks, what for, and whether that is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.access import (
    ANONYMOUS,
    Operation,
    Resource,
    ResourceType,
    auditing,
    is_allowed,
)
from gateway.http.pages import CURSOR_CHARACTERS_MAX, LIMIT, LIMIT_MAX, Asked, Needs, Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from gateway.http.site import Site

SLASH: Final = "\udc2f"
"""Stands for an encoded slash in the path until a route is found: `%2F` is a part of a name.

No request can contain it: it is half of a character.
"""


def principal_of(request: Request) -> str:
    """Return the principal that the guard found."""
    return str(request.scope["state"].get("principal", ANONYMOUS))


def address_of(request: Request) -> str:
    """Return the address of the peer."""
    return request.client.host if request.client else ""


def path_of(request: Request) -> dict[str, str]:
    """Return the parts of the path, by name."""
    parts = request.path_params.items()
    return {name: str(value).replace(SLASH, "/") for name, value in parts}


def require(
    site: Site, principal: str, address: str, operation: Operation, resource: Resource
) -> None:
    """Let a request pass if its principal at this address may do this. Raises Refused."""
    if not is_allowed(site.ctx.authorizer, principal, address, operation, resource):
        auditing.page_denied(principal, address, operation, resource)
        code = f"{resource.kind}_AUTHORIZATION_FAILED"
        raise Refused(403, code, f"not authorized: {operation} on {resource.name}")


def may(site: Site, asked: Asked, operation: Operation, topic: str) -> bool:
    """Return whether the principal of a request may do this with a topic that a page shows."""
    return may_on(site, asked, operation, Resource(ResourceType.TOPIC, topic))


def may_on(site: Site, asked: Asked, operation: Operation, resource: Resource) -> bool:
    """Return whether the principal of a request may do this with a resource.

    A page leaves out what it may not show, as lists of Kafka do; that is no denial.
    """
    return is_allowed(site.ctx.authorizer, asked.principal, asked.address, operation, resource)


def asked_of(
    site: Site, request: Request, needs: Needs, form: Mapping[str, str] | None = None
) -> Asked:
    """Return what a request asks for. Raises Refused if it is not allowed, or is malformed."""
    path = path_of(request)
    require(site, principal_of(request), address_of(request), *needs(path))
    query = dict(request.query_params)
    if len(query) != len(request.query_params.multi_items()):
        raise Refused(400, "INVALID_REQUEST", "a parameter is there twice")
    cursor = query.get("cursor") or None
    if cursor is not None and len(cursor) > CURSOR_CHARACTERS_MAX:
        raise Refused(400, "INVALID_REQUEST", "cursor is not one of this page")
    limit = query.get("limit") or str(LIMIT)
    is_number = limit.isascii() and limit.isdecimal() and len(limit) < 10
    if not is_number or not 1 <= int(limit) <= LIMIT_MAX:
        raise Refused(400, "INVALID_REQUEST", f"limit must be 1 to {LIMIT_MAX}")
    return Asked(
        path, query, principal_of(request), address_of(request), form or {}, cursor, int(limit)
    )
