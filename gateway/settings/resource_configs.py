"""Keeps the configs of groups, client metrics and brokers: stored, and in memory of each gateway.

Configs of topics are in the nodes of the topics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.settings.stored_rows import StoredRows, Value
from ledger.ports.metadata import MetadataStore

ROOT = "/gateway/configs"

Configs = Mapping[str, str]


class ResourceConfigs:
    """The overrides of each resource, by its type and name."""

    def __init__(self, store: MetadataStore) -> None:
        self._rows = StoredRows(store, ROOT, "configs of groups, client metrics and brokers")
        self.load = self._rows.load
        self.close = self._rows.close
        self.on_changed = self._rows.on_changed

    def get(self, kind: int, name: str) -> Configs:
        """Return the overrides of a resource, or none."""
        return _configs(self._rows.get(_key(kind, name)))

    def names(self, kind: int) -> list[str]:
        """Return the resources of a type that have overrides, sorted."""
        begin = _key(kind, "")
        keys = (key for key, _ in self._rows.items())
        return sorted(key.removeprefix(begin) for key in keys if key.startswith(begin))

    async def change(self, kind: int, name: str, changed: Callable[[Configs], Configs]) -> None:
        """Replace the overrides by `changed(overrides)`. A resource without any is not listed.

        Raises TableFull, LedgerError, and any exception of `changed`.
        """

        def value(before: Value | None) -> Value | None:
            return dict(changed(_configs(before))) or None

        await self._rows.change(_key(kind, name), value)


def _key(kind: int, name: str) -> str:
    return f"{kind}/{name}"


def _configs(value: Value | None) -> Configs:
    return {name: str(text) for name, text in (value or {}).items()}
