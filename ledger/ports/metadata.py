"""The port to the metadata store: a tree of small versioned nodes, as in ZooKeeper.

SQLite implements the port on one machine, ZooKeeper in a cluster; both pass one contract suite.
Paths are absolute, `/a/b`. A path has no empty, `.` or `..` parts, no NUL and no trailing slash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

ANY_VERSION = -1
# A node of this size, with its path, fits into one request of ZooKeeper's default limit
NODE_BYTES_MAX = 1023 * 1024


class Node(NamedTuple):
    data: bytes
    version: int  # 0 after `create`; each `set` adds 1


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
    """A tree of nodes. A change is durable and totally ordered before its call returns.

    The errors are NoNode (also for a missing parent), NodeExists, NotEmpty and BadVersion.
    MetadataUnavailable means that the outcome is unknown. EntryTooLarge means that the store has a
    limit of one request, and that paths and data exceed it: nothing was sent.
    """

    async def get(self, path: str) -> Node: ...

    async def exists(self, path: str) -> bool: ...

    async def set(self, path: str, data: bytes, version: int) -> int:
        """Replace the data of a node. Returns the new version. Raises BadVersion if `version`
        differs.
        """
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
        """Create a node with version 0. Returns its path.

        `sequential` appends a ten-digit number, larger than all earlier numbers below that parent.
        `parents` creates missing ancestors without data.
        """
        ...

    async def delete(self, path: str, version: int = ANY_VERSION) -> None: ...

    async def multi(self, ops: Sequence[Op]) -> None:
        """Apply all of `ops` in order. If one fails, none is applied and the first failure is
        raised.
        """
        ...

    async def children(self, path: str) -> list[str]:
        """Return the names of the children, sorted."""
        ...

    async def read_tree(self, path: str) -> dict[str, Node]:
        """Return every node below `path`, without `path` itself. The result is empty without that
        node.

        The embedded store returns one consistent snapshot. ZooKeeper is read node by node; a node
        that a multi renames below the same parent is found under one of its two names.
        """
        ...

    async def paths(self, path: str) -> list[str]:
        """Return every path below `path`, parents first. The result is empty if `path` does not
        exist.
        """
        ...

    async def sync(self, path: str) -> None:
        """Make later reads see every change that was complete before this call."""
        ...

    def watch(self, path: str, on_changed: Callable[[], None]) -> Unwatch:
        """Run `on_changed` on the loop after each later change of this node's data or children.

        Several changes may cause one call. The watch stays armed until the returned function is
        called.
        """
        ...

    def watch_session(self, on_renewed: Callable[[], None]) -> Unwatch:
        """Run `on_renewed` after a session was lost and a new one is established.

        The ephemeral nodes of the old session are gone or about to go; the store does not create
        them again. Watches stay armed, and each fires once. A store without sessions never calls
        `on_renewed`.
        """
        ...

    async def close(self) -> None:
        """Delete the ephemeral nodes of this session and release the store."""
        ...
