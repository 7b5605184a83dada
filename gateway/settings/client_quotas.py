"""Keeps the client quotas of the cluster: in the store, and in memory of each gateway."""

from __future__ import annotations

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
from gateway.core.shown_text import shown
from gateway.settings.stored_rows import StoredRows, Value
from ledger.ports.metadata import MetadataStore

ROOT = "/gateway/quotas"


class ClientQuotas:
    """The limits of each entity, as they are stored; `EnforcedQuotas` acts on them."""

    def __init__(self, store: MetadataStore) -> None:
        self._rows = StoredRows(store, ROOT, "client quotas")
        self.load = self._rows.load
        self.close = self._rows.close
        self.stored = self._rows.items
        # Called after limits changed on any gateway.
        self.on_changed = self._rows.on_changed

    def all(self) -> Iterator[tuple[Entity, dict[str, float]]]:
        """Return all entities that have limits, and the limits."""
        return (parsed(key, value) for key, value in self._rows.items())

    async def alter(self, entity: Entity, ops: Sequence[QuotaOp], *, validate_only: bool) -> None:
        """Change the limits of an entity. Raises QuotaRefused, TableFull and LedgerError."""
        check_entity(entity)
        address = entity.get(IP)
        if address is not None:
            _check_address(address)
        key = _key_of(entity)

        def changed(value: Value | None) -> Value | None:
            after = changed_limits(entity, _limits_of(value or {}), ops)
            # As text, because JSON has no NaN.
            return {name: repr(limit) for name, limit in after.items()} or None

        if validate_only:
            changed(self._rows.get(key))
        else:
            await self._rows.change(key, changed)


def parsed(key: str, value: Value) -> tuple[Entity, dict[str, float]]:
    """Return the entity and the limits of a stored row."""
    return _entity_of(key), _limits_of(value)


def _check_address(text: str) -> None:
    """Raise QuotaRefused unless the text is an address. Host names are not looked up.

    Kafka looks them up. A slow name server would hold the request and those behind it.
    """
    if _is_address(text):
        return
    if text[-1].isdigit():  # the last label of a host name is no number
        raise QuotaRefused(f"{shown(text)} is not a valid IP or resolvable host.")
    raise QuotaRefused(f"{shown(text)} is not an IP address, and host names are not resolved.")


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
