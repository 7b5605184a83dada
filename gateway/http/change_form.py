"""What every change of the page checks: the name that confirms it, rights, and fields of forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from gateway.access import Operation, Resource, auditing, is_allowed
from gateway.http.pages import Asked, Refused

if TYPE_CHECKING:
    from gateway.http.site import Site

T = TypeVar("T")


def confirmed(asked: Asked, name: str) -> None:
    """Raise Refused unless the field `confirm` has the name of what is changed."""
    if asked.form.get("confirm") != name:
        message = f"nothing was changed: to do it, type {name} into the field `confirm`"
        raise Refused(400, "NOT_CONFIRMED", message)


def require(asked: Asked, site: Site, operation: Operation, resource: Resource) -> None:
    """Raise Refused if the principal may not do this, besides what the path names."""
    authorizer = site.ctx.authorizer
    if not is_allowed(authorizer, asked.principal, asked.address, operation, resource):
        auditing.page_denied(asked.principal, asked.address, operation, resource)
        code = f"{resource.kind}_AUTHORIZATION_FAILED"
        raise Refused(403, code, f"not authorized: {operation} on {resource.name}")


def field(asked: Asked, name: str, parse: Callable[[str], T], default: T | None = None) -> T:
    """Return a field of the form. Raises Refused if it is missing without a default, or wrong."""
    word = asked.form.get(name, "")
    if not word:
        if default is None:
            raise Refused(400, "INVALID_REQUEST", f"{name} is missing")
        return default
    try:
        return parse(word)
    except (ValueError, OverflowError) as error:
        raise Refused(400, "INVALID_REQUEST", f"{name}: {error}") from None


def ticked(asked: Asked, name: str) -> bool:
    """Return whether a box of the form is ticked."""
    return bool(asked.form.get(name))


def pairs_of(text: str) -> list[tuple[str, str | None]]:
    """Return the pairs of lines such as `name=value`; the value of `name` alone is None.

    Raises ValueError for a line without a name.
    """
    found: list[tuple[str, str | None]] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        name, equals, value = line.partition("=")
        if not name:
            raise ValueError(f"{line[:40]!r} must be name=value, or a name alone")
        found.append((name, value if equals else None))
    return found
