"""Which limit counts for a client of a user: the most specific of eight. Pure.

    (user, client) (user, default) (user) (default, client) (default, default) (default)
    (client) (default client)

The first that is set counts. Clients that share the entity of a limit share what it allows: a limit
of a user is one for all of its clients, a default client's limit is one for each client id.
Source: Kafka, ClientQuotaManager.DefaultQuotaCallback.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final, NamedTuple

from gateway.core.client_quotas import CLIENT_ID, USER, Entity

ABSENT: Final = ""
"""Stands for a name that an entity does not have, where None stands for the default."""

Sharers = tuple[str, str | None]
"""The user and the client id whose use counts together. `ABSENT` stands for any."""


_NAME_MAX: Final = 128  # characters of a name that is kept as it is
_FOUND_MAX: Final = 1_024  # clients whose limits are kept: some 300 KiB with the longest names


class Limit(NamedTuple):
    """A limit, and who shares it."""

    sharers: Sharers
    value: float


class ClientLimits:
    """The limits of one kind, such as `producer_byte_rate`."""

    __slots__ = ("_found", "_limits")

    def __init__(self, rows: Iterable[tuple[Entity, float]] = ()) -> None:
        """Create the limits of entities of users and client ids."""
        self._limits = {
            (entity.get(USER, ABSENT), entity.get(CLIENT_ID, ABSENT)): limit
            for entity, limit in rows
        }
        # The limits of clients that were looked up. These rows never change.
        self._found: dict[Sharers, Limit | None] = {}

    def __len__(self) -> int:
        return len(self._limits)

    def find(self, user: str, client: str | None) -> Limit | None:
        """Return the limit of a client of a user, or None if there is none."""
        asked = user, client
        if asked in self._found:
            return self._found[asked]
        limit = self._find(user, client)
        if len(user) <= _NAME_MAX and (client is None or len(client) <= _NAME_MAX):
            if len(self._found) >= _FOUND_MAX:
                self._found.clear()
            self._found[asked] = limit
        return limit

    def _find(self, user: str, client: str | None) -> Limit | None:
        sharers = self._sharers(user, client)
        value = self._value(*sharers)
        if value is None:
            return None
        user, client = sharers
        return Limit((_bounded(user), client and _bounded(client)), value)

    def _sharers(self, user: str, client: str | None) -> Sharers:
        limits = self._limits
        named = bool(client)
        if (named and (user, client) in limits) or (user, None) in limits:
            return user, client
        if (user, ABSENT) in limits:
            return user, ABSENT
        if (named and (None, client) in limits) or (None, None) in limits:
            return user, client
        if (None, ABSENT) in limits:
            return user, ABSENT
        return ABSENT, client

    def _value(self, user: str, client: str | None) -> float | None:
        if client is None:
            return None
        places: tuple[tuple[str | None, str | None], ...]
        if user and client:
            places = (user, client), (user, None), (None, client), (None, None)
        elif user:
            places = (user, ABSENT), (None, ABSENT)
        elif client:
            places = (ABSENT, client), (ABSENT, None)
        else:
            return None
        for place in places:
            value = self._limits.get(place)
            if value is not None:
                return value
        return None


def _bounded(name: str) -> str:
    """Return the name, or a digest of a long one: a client may choose one of 32 KiB each time."""
    if len(name) <= _NAME_MAX:
        return name
    return "sha256:" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
