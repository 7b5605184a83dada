"""Read and write the nodes that name the owners of each topic's partitions.

    /gateway/owners/<topic id>   persistent, versioned; see `gateway.core.ownership`

A change is one compare-and-set, for any number of partitions. Only the content of the node proves
that the change happened. After any failure the node is read again, and the change is decided anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from uuid import UUID

from gateway.core.ownership import FORMAT_1, FORMAT_2, Owners
from gateway.log import logger
from ledger.errors import BadVersion, CorruptFormat, NodeExists, NoNode
from ledger.ports.metadata import ANY_VERSION, MetadataStore, Unwatch

OWNERS = "/gateway/owners"
REQUESTS_MAX = 64  # the number of nodes read or written at the same time
LOOKED_AT = 256  # the number of nodes that one look reads again
_TRIES = 16  # attempts per change in one round, because other brokers may keep changing the node
_NO_NODE = ANY_VERSION
# Lower than every version, so that any readable content counts as newer.
_CORRUPT, _UNREAD = -2, -3

T = TypeVar("T")


class _OwnersNode:
    """One topic's node. One task at a time reads or writes it."""

    __slots__ = ("path", "topic_id", "unwatch", "version")

    def __init__(self, topic_id: UUID) -> None:
        self.topic_id = topic_id
        self.path = f"{OWNERS}/{topic_id}"
        # The version of the content that `on_read` received last, or `_NO_NODE` or `_CORRUPT`.
        # `_UNREAD` before the first reading.
        self.version = _UNREAD
        # Removes the watch. Set by `follow`.
        self.unwatch: Unwatch = lambda: None


class OwnersTable:
    """The owners nodes of all topics that are followed.

    `on_stale` runs when a node has changed. `on_read` runs with the content of a node each time
    that a newer version was read or written. It also runs if the first reading finds no node. Its
    argument is None if the node is corrupt.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        on_stale: Callable[[], None],
        on_read: Callable[[UUID, Owners | None], None],
        topic_name: Callable[[UUID], str] = str,
        *,
        keeps_epochs: bool = True,
    ) -> None:
        """With `keeps_epochs` nodes are written in the format that has last epochs."""
        self._metadata = metadata
        self._on_stale = on_stale
        self._on_read = on_read
        self._topic_name = topic_name  # for the log
        self._format = FORMAT_2 if keeps_epochs else FORMAT_1
        # All followed topics, from `follow` to `unfollow`.
        self._nodes: dict[UUID, _OwnersNode] = {}
        # The followed nodes that may have changed since they were read. Filled by watches and by
        # failed writes, emptied by `refresh`.
        self._stale: dict[UUID, _OwnersNode] = {}
        # The followed topics that the present pass of looks has still to read, the next last. A
        # pass begins with all topics when the list is empty.
        self._unlooked: list[UUID] = []

    def follow(self, topic_id: UUID) -> None:
        """Read the topic's node in the next `refresh`, and again whenever it changes."""
        if topic_id in self._nodes:
            return
        node = self._nodes[topic_id] = self._stale[topic_id] = _OwnersNode(topic_id)

        def on_changed() -> None:
            self._mark(node)
            self._on_stale()

        node.unwatch = self._metadata.watch(node.path, on_changed)

    def unfollow(self, topic_id: UUID) -> None:
        node = self._nodes.pop(topic_id, None)
        self._stale.pop(topic_id, None)
        if node is not None:
            node.unwatch()

    def close(self) -> None:
        for topic_id in list(self._nodes):
            self.unfollow(topic_id)

    def look_again(self) -> None:
        """Read some nodes again in the next `refresh`, although no watch has fired.

        Each call continues with the next `LOOKED_AT` topics, so that a lost watch is noticed after
        a pass over all topics, at a bounded cost.
        """
        if not self._unlooked:
            self._unlooked = list(self._nodes)
        some, self._unlooked = self._unlooked[-LOOKED_AT:], self._unlooked[:-LOOKED_AT]
        for topic_id in some:
            if topic_id in self._nodes:
                self._mark(self._nodes[topic_id])

    def _mark(self, node: _OwnersNode) -> None:
        if self._nodes.get(node.topic_id) is node:
            self._stale[node.topic_id] = node

    def _see(self, node: _OwnersNode, owners: Owners | None, version: int) -> None:
        node.version = version
        if self._nodes.get(node.topic_id) is node:
            self._on_read(node.topic_id, owners)

    async def refresh(self) -> None:
        """Read every node that may have changed. Raises MetadataUnavailable."""
        while self._stale:
            await each(list(self._stale.values()), self._read)

    async def _read(self, node: _OwnersNode) -> None:
        self._stale.pop(node.topic_id, None)
        try:
            found = await self._metadata.get(node.path)
            if found.version > node.version:
                self._see(node, Owners.decode(found.data, node.path), found.version)
        except NoNode:
            if node.version != _NO_NODE:
                self._see(node, Owners(), _NO_NODE)
        except CorruptFormat as error:
            self._see(node, None, _CORRUPT)
            logger().error(
                "the owners of a topic cannot be read",
                topic=self._topic_name(node.topic_id),
                reason=str(error),
            )
        except BaseException:
            self._mark(node)
            raise

    async def change(self, topic_id: UUID, next_owners: Callable[[], Owners | None]) -> bool:
        """Write the result of `next_owners`, until it returns None because no change is needed.

        `next_owners` is called again for each newer content of the node. Returns False if other
        brokers changed the node too often, or if the node is corrupt. After MetadataUnavailable the
        outcome is unknown, and the next `refresh` reads the node.
        """
        node = self._nodes.get(topic_id)
        if node is None:
            return True
        for _ in range(_TRIES):
            if self._stale.get(topic_id) is node:
                await self._read(node)
            if node.version == _CORRUPT:
                return False
            owners = next_owners()
            if owners is None:
                return True
            await self._write(node, owners)
        return False

    async def _write(self, node: _OwnersNode, owners: Owners) -> None:
        """Compare and set the node. After a failure the node is marked to be read again first."""
        try:
            if node.version == _NO_NODE:
                await self._metadata.create(node.path, owners.encode(self._format), parents=True)
                version = 0
            else:
                version = await self._metadata.set(
                    node.path, owners.encode(self._format), node.version
                )
        except (BadVersion, NodeExists, NoNode):
            self._mark(node)
        except BaseException:
            self._mark(node)
            raise
        else:
            if version >= node.version:
                self._see(node, owners, version)

    async def topic_ids(self) -> list[UUID]:
        """Return the topics that have a node. Raises MetadataUnavailable."""
        try:
            names = await self._metadata.children(OWNERS)
        except NoNode:
            return []
        return [topic_id for name in names if (topic_id := _uuid(name)) is not None]

    async def remove(self, topic_id: UUID) -> None:
        """Remove the node of a topic that was deleted. Raises MetadataUnavailable."""
        try:
            await self._metadata.delete(f"{OWNERS}/{topic_id}")
        except NoNode:
            pass


async def each(things: Sequence[T], run: Callable[[T], Awaitable[None]]) -> None:
    """Await `run` for every thing, for `REQUESTS_MAX` things at a time.

    After the first error no further call starts. The calls in progress end, then the error is
    raised.
    """
    waiting = iter(things)
    failed = False

    async def work() -> None:
        nonlocal failed
        for thing in waiting:
            if failed:
                return
            try:
                await run(thing)
            except BaseException:
                failed = True
                raise

    workers = [work() for _ in range(min(REQUESTS_MAX, len(things)))]
    for ended in await asyncio.gather(*workers, return_exceptions=True):
        if isinstance(ended, BaseException):
            raise ended


def _uuid(name: str) -> UUID | None:
    try:
        return UUID(name)
    except ValueError:
        return None
