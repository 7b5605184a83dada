"""The metadata store of a process as readers may see it: nothing can be changed through it.

`shown` holds nodes that readers need and the store does not hold. Nodes at and below the paths in
`hidden` are secret: for readers they do not exist, and no watch of them fires.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ledger.adapters.links.refused_changes import RefusedChanges
from ledger.errors import NoNode
from ledger.ports.metadata import MetadataStore, Node, Unwatch


class ShownMetadata(RefusedChanges):
    """A read-only `MetadataStore` over another one, which stays open after `close`."""

    def __init__(
        self, store: MetadataStore, shown: Mapping[str, bytes], hidden: Sequence[str]
    ) -> None:
        self._store = store
        self._hidden = tuple(hidden)
        self._shown = {path: Node(data, 0) for path, data in shown.items()}

    def _hides(self, path: str) -> bool:
        return any(path == each or path.startswith(f"{each}/") for each in self._hidden)

    # The reads of the port.

    async def get(self, path: str) -> Node:
        if self._hides(path):
            raise NoNode(path)
        return self._shown.get(path) or await self._store.get(path)

    async def exists(self, path: str) -> bool:
        if self._hides(path):
            return False
        return path in self._shown or await self._store.exists(path)

    async def children(self, path: str) -> list[str]:
        if self._hides(path):
            raise NoNode(path)
        prefix = _prefix(path)
        shown = {each[len(prefix) :] for each in self._shown if each.startswith(prefix)}
        names = {name for name in shown if "/" not in name}
        try:
            names.update(await self._store.children(path))
        except NoNode:
            if path not in self._shown:
                raise
        return sorted(name for name in names if not self._hides(prefix + name))

    async def read_tree(self, path: str) -> dict[str, Node]:
        prefix = _prefix(path)
        nodes = await self._store.read_tree(path)
        nodes |= {each: node for each, node in self._shown.items() if each.startswith(prefix)}
        return {each: node for each, node in sorted(nodes.items()) if not self._hides(each)}

    async def paths(self, path: str) -> list[str]:
        prefix = _prefix(path)
        found = {*await self._store.paths(path)}
        found.update(each for each in self._shown if each.startswith(prefix))
        return sorted(each for each in found if not self._hides(each))

    async def sync(self, path: str) -> None:
        await self._store.sync(path)

    def watch(self, path: str, on_changed: Callable[[], None]) -> Unwatch:
        return _ignore if self._hides(path) else self._store.watch(path, on_changed)

    def watch_session(self, on_renewed: Callable[[], None]) -> Unwatch:
        return self._store.watch_session(on_renewed)

    async def close(self) -> None:
        """Do nothing: the store is closed by its owner."""


def _prefix(path: str) -> str:
    return "/" if path == "/" else f"{path}/"


def _ignore() -> None:
    """Stop a watch that was never set."""
