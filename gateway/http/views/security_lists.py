"""Users, ACLs and quotas as lists with cursors, from the memory of this gateway.

A list may have some hundred thousand rows, so it is sorted in short slices.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway.core.client_quotas import ordered, ordered_limits
from gateway.core.scram_exchange import MECHANISMS
from gateway.figures.slices import Slices, sorted_in_slices
from gateway.http.views.listing import Matches, following, matcher, place_of
from gateway.settings.client_quotas import parsed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gateway.core.acls import Acl, Pattern
    from gateway.core.client_quotas import Entity
    from gateway.http.pages import Asked, Json
    from gateway.http.site import Site

ROWS_MAX: Final = 10**9
_FIRST_ROWS: Final = 10  # of each list on the page that shows all of them
_EXACT_MAX: Final = 2**53  # larger limits stay floats
_NAMES: Final = {int(mechanism): name for name, mechanism in MECHANISMS.items()}
_DEFAULT: Final = "<default>"


class Wanted(NamedTuple):
    """Some rows of a list: how many come before them, and how many there are at most."""

    at: int
    rows: int


FIRST: Final = Wanted(0, _FIRST_ROWS)


async def users(asked: Asked, site: Site) -> Json:
    """Return users with their mechanisms and iterations; a search finds a text or a glob.

    Neither salts nor keys are in it.
    """
    search = asked.query.get("search", "")
    return {"search": search, **await user_rows(site, wanted_of(asked), matcher(search))}


async def acls(asked: Asked, site: Site) -> Json:
    """Return ACLs by resource; a search finds a text or a glob in principals or resources."""
    principal, resource = asked.query.get("principal", ""), asked.query.get("resource", "")
    found = await acl_rows(site, wanted_of(asked), matcher(principal), matcher(resource))
    return {"principal": principal, "resource": resource, **found}


async def quotas(asked: Asked, site: Site) -> Json:
    """Return a row for each limit of an entity; a search finds a text or a glob."""
    search = asked.query.get("search", "")
    return {"search": search, **await quota_rows(site, wanted_of(asked), matcher(search))}


def wanted_of(asked: Asked) -> Wanted:
    """Return the rows that a request asks for. Raises Refused."""
    return Wanted(place_of(asked, ROWS_MAX), asked.limit)


async def user_rows(site: Site, wanted: Wanted, matches: Matches | None = None) -> Json:
    """Return a row for each user that matches."""
    scram = site.ctx.stored.scram
    slices = Slices(hurried=True)
    found: list[str] = []
    for name in scram.names():
        if matches is None or matches(name):
            found.append(name)
        await slices.pause()
    rows: list[Json] = []
    for name in found[wanted.at : wanted.at + wanted.rows]:
        iterations = scram.iterations(name)
        rows.append(
            {
                "user": name,
                "mechanisms": [_NAMES.get(each, str(each)) for each in iterations],
                "iterations": list(iterations.values()),
            }
        )
    return _page(rows, wanted, len(found))


async def acl_rows(
    site: Site,
    wanted: Wanted,
    matches_principal: Matches | None = None,
    matches_resource: Matches | None = None,
) -> Json:
    """Return a row for each ACL whose principal and resource match.

    A resource is a type and a name, such as `TOPIC:orders`. There are none without an authorizer.
    """
    stored = site.ctx.acls
    searched = matches_principal is not None or matches_resource is not None
    slices = Slices(hurried=True, long_steps=searched)
    places: dict[Pattern, list[Acl]] = {}
    together: list[frozenset[Acl]] = [] if stored is None else stored.by_pattern()
    for acl in chain.from_iterable(together):
        pattern = acl.pattern
        if (matches_principal is None or matches_principal(acl.principal)) and (
            matches_resource is None or matches_resource(f"{pattern.kind}:{pattern.name}")
        ):
            places.setdefault(pattern, []).append(acl)
        await slices.pause()
    rows: list[Json] = []
    before = 0
    for _, pattern in await sorted_in_slices(list(places), _pattern_key, slices):
        some = places[pattern]
        if _overlaps(wanted, before, len(some)):
            in_order = [acl for _, acl in await sorted_in_slices(some, _acl_key, slices)]
            rows += map(_acl_row, _part(wanted, before, in_order))
        before += len(some)
        await slices.pause()
    return {"authorizer": stored is not None, **_page(rows, wanted, before)}


async def quota_rows(site: Site, wanted: Wanted, matches: Matches | None = None) -> Json:
    """Return a row for each limit of the entities that match.

    An entity is written as `user=alice, client-id=app`.
    """
    slices = Slices(hurried=True)
    stored = list(site.ctx.stored.quotas.stored())
    rows: list[Json] = []
    before = 0
    for _, (key, value) in await sorted_in_slices(stored, lambda each: each[0], slices):
        await slices.pause()
        if matches is not None and not matches(_entity_text(parsed(key, {})[0])):
            continue
        if _overlaps(wanted, before, len(value)):
            limits = list(_limit_rows(*parsed(key, value)))
            rows += _part(wanted, before, limits)
        before += len(value)
    return _page(rows, wanted, before)


def _page(rows: list[Json], wanted: Wanted, total: int) -> Json:
    return {"rows": rows, "next": following(wanted.at + len(rows), total), "total": total}


def _overlaps(wanted: Wanted, before: int, count: int) -> bool:
    return before < wanted.at + wanted.rows and before + count > wanted.at


def _part(wanted: Wanted, before: int, some: Sequence[Json] | Sequence[Acl]) -> Sequence[Any]:
    return some[max(0, wanted.at - before) : wanted.at + wanted.rows - before]


def _pattern_key(pattern: Pattern) -> tuple[str, str, str]:
    return pattern.kind.value, pattern.name, pattern.type.value


def _acl_key(acl: Acl) -> tuple[str, str, str, str]:
    return acl.principal, acl.permission.value, acl.operation.value, acl.host


def _acl_row(acl: Acl) -> Json:
    """Return an ACL with the keys of `gateway acl list`."""
    return {
        "principal": acl.principal,
        "permission": acl.permission.value,
        "operation": acl.operation.value,
        "resource_type": acl.pattern.kind.value,
        "resource_name": acl.pattern.name,
        "pattern_type": acl.pattern.type.value,
        "host": acl.host,
    }


def _limit_rows(entity: Entity, limits: dict[str, float]) -> Iterator[Json]:
    for key, value in ordered_limits(limits):
        yield {
            "entity": dict(entity),  # a name of None is that of the default
            "entity_text": _entity_text(entity),
            "key": key,
            "value": _limit(value),
        }


def _entity_text(entity: Entity) -> str:
    names = ordered(entity)
    return ", ".join(f"{kind}={_DEFAULT if name is None else name}" for kind, name in names)


def _limit(value: float) -> float | str:
    """Return a limit as JSON can have it. NaN can be stored, as in Kafka."""
    if not math.isfinite(value):
        return str(value)
    return int(value) if value.is_integer() and abs(value) < _EXACT_MAX else value


def user_command(asked: Asked) -> str:
    """Return the command that lists all users."""
    return "gateway user list"


def acl_command(asked: Asked) -> str:
    """Return the command that lists all ACLs."""
    return "gateway acl list"


def quota_command(asked: Asked) -> str:
    """Return the commands that list all quotas. They are Kafka's own."""
    kinds = 'users clients ips "users --entity-type clients"'
    command = "kafka-configs.sh --bootstrap-server SERVERS --describe --entity-type $each"
    return f"for each in {kinds}; do {command}; done"
