"""Client quotas: entities, limits and filters, checked as in Kafka. Pure.

An entity is a user, a client id, both, or an IP address; a name of None stands for the default of
all entities of that type. Source: Kafka, ClientQuotaControlManager and ClientQuotasImage (rules and
texts, KIP-546).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import IntEnum
from itertools import islice
from typing import NamedTuple

from gateway.core.shown_text import shown
from gateway.core.stored_names import NAME_BYTES_MAX, is_too_long

USER, CLIENT_ID, IP = "user", "client-id", "ip"
KINDS = (CLIENT_ID, USER, IP)
"""The types of names, in the order in which Kafka lists them."""

Entity = Mapping[str, str | None]
"""The names of an entity by type."""


class QuotaRefused(Exception):
    """The error that an entity, a limit or a filter is not valid, with Kafka's text."""


class UnknownEntityType(QuotaRefused):
    """The error that a filter names a type that does not exist."""


class MatchType(IntEnum):
    """The values of match_type in DescribeClientQuotas."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


class QuotaOp(NamedTuple):
    """One change of a limit. A value of None removes the limit."""

    key: str
    value: float | None


class Filter(NamedTuple):
    """The entities that a DescribeClientQuotas asks for."""

    exact: Entity  # the names that must be equal, by type
    present: frozenset[str]  # the types that must be there, with any name
    strict: bool  # whether no other type may be there


class _Limit(NamedTuple):
    at_most: float
    too_large: str  # the type that Kafka's text names
    whole: bool


_LONG = _Limit(float(2**63 - 1), "a LONG", whole=True)
_INT = _Limit(2**31 - 1, "an INT", whole=True)
_DOUBLE = _Limit(float("inf"), "a DOUBLE", whole=False)
_CLIENT_LIMITS = {
    "producer_byte_rate": _LONG,
    "consumer_byte_rate": _LONG,
    "request_percentage": _DOUBLE,
    "controller_mutation_rate": _DOUBLE,
}
_IP_LIMITS = {"connection_creation_rate": _INT}
# The limits in the order in which Kafka lists them.
_LIMITS_ORDER = (
    "connection_creation_rate",
    "producer_byte_rate",
    "consumer_byte_rate",
    "controller_mutation_rate",
    "request_percentage",
)
_NAMES_SHOWN_MAX = 4  # names of an entity that an error text shows
_FRACTION_MAX = 1e-6
_LONG_MAX = 2**63 - 1


def ordered(entity: Entity) -> list[tuple[str, str | None]]:
    """Return types and names in the order in which Kafka lists them, unknown types first."""
    unknown = [(kind, name) for kind, name in entity.items() if kind not in KINDS]
    return [*unknown, *((kind, entity[kind]) for kind in KINDS if kind in entity)]


def ordered_limits(limits: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return the limits in the order in which Kafka lists them, unknown ones last."""
    unknown = [(key, value) for key, value in limits.items() if key not in _LIMITS_ORDER]
    return [*((key, limits[key]) for key in _LIMITS_ORDER if key in limits), *unknown]


def entity_text(entity: Entity) -> str:
    """Return the entity as Kafka's texts show it."""
    entries = ", ".join(
        f"{shown(kind)}={'null' if name is None else shown(name)}"
        for kind, name in islice(ordered(entity), _NAMES_SHOWN_MAX)
    )
    return f"ClientQuotaEntity(entries={{{entries}}})"


def check_entity(entity: Entity) -> None:
    """Raise QuotaRefused unless quotas can be set for such an entity."""
    if not entity:
        raise QuotaRefused("Invalid empty client quota entity")
    for kind, name in ordered(entity):
        if kind not in KINDS:
            raise QuotaRefused(f"Unhandled client quota entity type: {shown(kind)}")
        if name == "":
            raise QuotaRefused(f"Empty {kind} not supported")
        if name is not None and is_too_long(name):
            raise QuotaRefused(f"The {kind} is longer than {NAME_BYTES_MAX} bytes.")
    if IP in entity and len(entity) > 1:
        raise QuotaRefused(
            "Invalid quota entity combination, IP entity shouldnot be combined with User or "
            "ClientId"
        )


def changed_limits(
    entity: Entity, before: Mapping[str, float], ops: Iterable[QuotaOp]
) -> dict[str, float]:
    """Return the limits of an entity after all `ops`. Raises QuotaRefused."""
    limits = _IP_LIMITS if IP in entity else _CLIENT_LIMITS
    after = dict(before)
    for op in ops:
        if op.value is None:
            after.pop(op.key, None)
            continue
        limit = limits.get(op.key)
        if limit is None:
            raise QuotaRefused(f"Invalid configuration key {shown(op.key)}")
        _check_value(op.key, op.value, limit)
        after[op.key] = op.value
    return after


def _check_value(key: str, value: float, limit: _Limit) -> None:
    """Check one limit. As in Kafka, NaN fails no comparison and is stored."""
    if value <= 0:
        raise QuotaRefused(f"Quota {key} must be greater than 0")
    if value > limit.at_most:
        raise QuotaRefused(f"Proposed value for {key} is too large for {limit.too_large}.")
    if limit.whole and abs(value - _whole(value)) > _FRACTION_MAX:
        raise QuotaRefused(f"{key} cannot be a fractional value.")


def _whole(value: float) -> float:
    """Return the number as Java's conversion to a long and back makes it. NaN stays NaN."""
    return value if math.isnan(value) else float(min(int(value), _LONG_MAX))


def filter_of(components: Iterable[tuple[str, int, str | None]], *, strict: bool) -> Filter:
    """Return the filter of components (type, match type, name). Raises QuotaRefused."""
    exact: dict[str, str | None] = {}
    present: set[str] = set()
    for kind, match_type, name in components:
        if not kind:
            raise QuotaRefused("Invalid empty entity type.")
        if kind in exact or kind in present:
            raise QuotaRefused(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in KINDS:
            raise UnknownEntityType(f"Unsupported entity type {shown(kind)}")
        if _checked_type(match_type, name) is MatchType.SPECIFIED:
            present.add(kind)
        else:
            exact[kind] = name
    named = exact.keys() | present
    if IP in named and len(named) > 1:
        raise QuotaRefused(
            "Invalid entity filter component combination. IP filter component should not be used "
            "with user or clientId filter component."
        )
    return Filter(exact, frozenset(present), strict)


def _checked_type(match_type: int, name: str | None) -> MatchType:
    try:
        kind = MatchType(match_type)
    except ValueError:
        raise QuotaRefused(f"Unknown match type {match_type}") from None
    if kind is MatchType.EXACT:
        if name is None:
            raise QuotaRefused("Request specified MATCH_TYPE_EXACT, but set match string to null.")
    elif name is not None:
        raise QuotaRefused(
            f"Request specified MATCH_TYPE_{kind.name}, but also specified a match string."
        )
    return kind


def matches(entity: Entity, wanted: Filter) -> bool:
    """Return whether the filter asks for the entity."""
    if wanted.strict and len(entity) != len(wanted.exact) + len(wanted.present):
        return False
    if not wanted.present <= entity.keys():
        return False
    return all(kind in entity and entity[kind] == name for kind, name in wanted.exact.items())
