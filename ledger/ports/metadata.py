"""The port to the metadata store: a tree of small versioned nodes, as ZooKeeper's.

Two implementations pass one contract suite: `sqlite_metadata` and (for clusters) ZooKeeper.
Paths are absolute, `/a/b`; no empty, `.` or `..` parts, no NUL, no trailing slash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

ANY_VERSION = -1
NODE_BYTES_MAX = 1023 * 1024  # with its path one request of what ZooKeeper takes by default


class Node(NamedTuple):
    data: bytes
    version: int  # 0 when created, +1 at each set


class Create(NamedTuple):
    path: str
    data: bytes = b""
    ephemeral: bool = False


class Set(NamedTuple):
    path: str
    data: bytes
    version: int


class Delete(NamedTuple):
    path: str
    version: int = ANY_VERSION


class Check(NamedTuple):
    path: str
    version: int


Op = Create | Set | Delete | Check
Unwatch = Callable[[], None]


class MetadataStore(Protocol):
    """Every change is durable and totally ordered before its call returns.

    Errors: NoNode (also for a missing parent), NodeExists, NotEmpty, BadVersion; and
    MetadataUnavailable when the outcome is unknown.
    """

    async def get(self, path: str) -> Node: ...

    async def exists(self, path: str) -> bool: ...

    async def set(self, path: str, data: bytes, version: int) -> int:
        """The node holds `data`; its new version is returned. BadVersion if it had moved on."""
        ...

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        parents: bool = False,
    ) -> str:
        """The node exists with version 0; its path is returned.

        `sequential` appends a ten-digit number, larger than any given under that parent before.
        `parents` creates missing ancestors, empty.
        """
        ...

    async def delete(self, path: str, version: int = ANY_VERSION) -> None: ...

    async def multi(self, ops: Sequence[Op]) -> None:
        """All of `ops` happened in order, or none did and the first failure is raised."""
        ...

    async def children(self, path: str) -> list[str]:
        """Names, sorted."""
        ...

    async def read_tree(self, path: str) -> dict[str, Node]:
        """Every node below `path` (itself not included), by path. Empty if it does not exist.

        One consistent picture in the embedded store; elsewhere node by node, but what a multi
        moves to another name under the same parent is found under one of the two.
        """
        ...

    async def paths(self, path: str) -> list[str]:
        """Every path below `path`, without data, parents first. Empty if it does not exist."""
        ...

    async def sync(self, path: str) -> None:
        """Later reads see every change that was complete before this call."""
        ...

    def watch(self, path: str, on_changed: Callable[[], None]) -> Unwatch:
        """`on_changed` runs on the loop after any later change of this node's data or children.

        Several changes may be told once. It stays armed until the returned function is called.
        """
        ...

    def watch_session(self, on_renewed: Callable[[], None]) -> Unwatch:
        """`on_renewed` runs after a session was lost and a new one serves.

        The ephemeral nodes of the old one are gone, or go now; nothing is created again by
        itself. Watches stay armed and are told once. A store without sessions never calls it.
        """
        ...

    async def close(self) -> None:
        """Ephemeral nodes of this session are gone."""
        ...
