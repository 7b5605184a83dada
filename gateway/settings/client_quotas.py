"""Keeps the client quotas of the cluster: in the store, and in memory of each gateway."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator, Sequence

from gateway.core.client_quotas import (
    IP,
    Entity,
    QuotaOp,
    QuotaRefused,
    changed_limits,
    check_entity,
)
from gateway.settings.stored_rows import StoredRows, Value
from ledger.ports.metadata import MetadataStore

ROOT = "/gateway/quotas"
_RESOLVE_S_MAX = 2.0
_HOST_CHARACTERS_MAX = 253


class ClientQuotas:
    """The limits of each entity. They are stored and described, and not enforced."""

    def __init__(self, store: MetadataStore) -> None:
        self._rows = StoredRows(store, ROOT, "client quotas")
        self.load = self._rows.load
        self.close = self._rows.close
        # Held while a host name is looked up, so that one request keeps one thread busy.
        self._resolving = asyncio.Lock()

    def all(self) -> Iterator[tuple[Entity, dict[str, float]]]:
        """Return all entities that have limits, and the limits."""
        return ((_entity_of(key), _limits_of(value)) for key, value in self._rows.items())

    async def alter(self, entity: Entity, ops: Sequence[QuotaOp], *, validate_only: bool) -> None:
        """Change the limits of an entity. Raises QuotaRefused, TableFull and LedgerError."""
        check_entity(entity)
        address = entity.get(IP)
        if address is not None and not await self._is_host(address):
            raise QuotaRefused(f"{address} is not a valid IP or resolvable host.")
        key = _key_of(entity)

        def changed(value: Value | None) -> Value | None:
            after = changed_limits(entity, _limits_of(value or {}), ops)
            # As text, because JSON has no NaN.
            return {name: repr(limit) for name, limit in after.items()} or None

        if validate_only:
            changed(self._rows.get(key))
        else:
            await self._rows.change(key, changed)

    async def _is_host(self, address: str) -> bool:
        if len(address) > _HOST_CHARACTERS_MAX or "\0" in address:
            return False
        if _is_address(address):
            return True
        if address[-1].isdigit():
            return False  # the last label of a host name is no number
        async with self._resolving:
            try:
                async with asyncio.timeout(_RESOLVE_S_MAX):
                    await asyncio.get_running_loop().getaddrinfo(address, None)
            except (OSError, UnicodeError, TimeoutError):
                return False
        return True


def _is_address(text: str) -> bool:
    for family in (socket.AF_INET6, socket.AF_INET):
        try:
            socket.inet_pton(family, text)
        except (OSError, ValueError):
            continue
        return True
    try:
        socket.inet_aton(text)  # also the short forms that Java reads, such as 1.2.3
    except (OSError, ValueError):
        return False
    return not any(character.isspace() for character in text)


def _key_of(entity: Entity) -> str:
    return json.dumps(dict(entity), sort_keys=True, separators=(",", ":"))


def _entity_of(key: str) -> Entity:
    entity: dict[str, str | None] = json.loads(key)
    return entity


def _limits_of(value: Value) -> dict[str, float]:
    return {name: float(text) for name, text in value.items()}
