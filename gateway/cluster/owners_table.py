"""The owners of each topic's partitions as this gateway last saw them, and the way to change them.

    /gateway/owners/<topic id>   persistent, versioned; see `gateway.core.ownership`

A change is one compare-and-set, however many partitions it is about. Whether it happened is told
by the content alone: it is read again after anything but success, and decided anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from uuid import UUID

from gateway.core.ownership import Owners
from gateway.log import logger
from ledger.errors import BadVersion, CorruptFormat, NodeExists, NoNode
from ledger.ports.metadata import ANY_VERSION, MetadataStore, Unwatch

OWNERS = "/gateway/owners"
AT_ONCE = 64  # nodes read or written at the same time
_TRIES = 16  # others changed the node in between: then it is left for the next round

T = TypeVar("T")


class TopicOwners:
    """One topic's node. Used by one task at a time."""

    __slots__ = ("owners", "path", "readable", "topic_id", "unwatch", "version")

    def __init__(self, topic_id: UUID) -> None:
        self.topic_id = topic_id
        self.path = f"{OWNERS}/{topic_id}"
        self.owners = Owners()
        self.version = ANY_VERSION  # there is no node
        self.readable = True  # False: what is there is not ours to change
        self.unwatch: Unwatch = lambda: None


class OwnersTable:
    """The nodes of all topics that are followed. `on_stale` runs when one of them has changed."""

    def __init__(self, metadata: MetadataStore, on_stale: Callable[[], None]) -> None:
        self._metadata = metadata
        self._on_stale = on_stale
        self._topics: dict[UUID, TopicOwners] = {}
        self._stale: dict[UUID, TopicOwners] = {}  # may have changed since they were read
        self._changed: dict[UUID, TopicOwners] = {}  # since they were last taken

    def get(self, topic_id: UUID) -> TopicOwners | None:
        return self._topics.get(topic_id)

    def all(self) -> list[TopicOwners]:
        return list(self._topics.values())

    def take_changed(self) -> list[TopicOwners]:
        """Those whose owners are others than when this was last asked."""
        changed, self._changed = self._changed, {}
        return list(changed.values())

    def follow(self, topic_id: UUID) -> None:
        """Its changes are told, from its first reading on."""
        if topic_id in self._topics:
            return
        topic = self._topics[topic_id] = self._stale[topic_id] = TopicOwners(topic_id)

        def on_news() -> None:
            self._mark(topic)
            self._on_stale()

        topic.unwatch = self._metadata.watch(topic.path, on_news)

    def unfollow(self, topic_id: UUID) -> None:
        topic = self._topics.pop(topic_id, None)
        self._stale.pop(topic_id, None)
        self._changed.pop(topic_id, None)
        if topic is not None:
            topic.unwatch()

    def close(self) -> None:
        for topic_id in list(self._topics):
            self.unfollow(topic_id)

    def _mark(self, topic: TopicOwners) -> None:
        if self._topics.get(topic.topic_id) is topic:
            self._stale[topic.topic_id] = topic

    def _see(self, topic: TopicOwners, owners: Owners, version: int) -> None:
        """That is what the node holds, unless something later was seen already."""
        if version >= topic.version:
            topic.owners, topic.version = owners, version
            if self._topics.get(topic.topic_id) is topic:
                self._changed[topic.topic_id] = topic

    async def refresh(self) -> None:
        """Every node that may have changed has been read. Raises MetadataUnavailable."""
        while self._stale:
            await each(list(self._stale.values()), self._read)

    async def _read(self, topic: TopicOwners) -> None:
        self._stale.pop(topic.topic_id, None)
        try:
            node = await self._metadata.get(topic.path)
            if node.version > topic.version or not topic.readable:
                self._see(topic, Owners.decode(node.data, topic.path), node.version)
            topic.readable = True
        except NoNode:
            if topic.version != ANY_VERSION or not topic.readable:
                topic.version = ANY_VERSION
                self._see(topic, Owners(), ANY_VERSION)
            topic.readable = True
        except CorruptFormat as error:
            topic.readable = False
            logger().error("the owners of a topic cannot be read", reason=str(error))
        except BaseException:
            self._mark(topic)
            raise

    async def change(
        self, topic: TopicOwners, wanted: Callable[[TopicOwners], Owners | None]
    ) -> bool:
        """The node is as `wanted` has it, which is asked again for each state that is found.

        None ends it: nothing is to be changed (any more). False: others were faster too often, or
        the node cannot be read. Raises MetadataUnavailable: the outcome is unknown, and is seen
        when the node is read.
        """
        for _ in range(_TRIES):
            if topic.topic_id in self._stale:
                await self._read(topic)
            if not topic.readable:
                return False
            owners = wanted(topic)
            if owners is None:
                return True
            await self._set(topic, owners)
        return False

    async def _set(self, topic: TopicOwners, owners: Owners) -> None:
        """By version. If that fails, the node is read before anything else is decided."""
        try:
            if topic.version == ANY_VERSION:
                await self._metadata.create(topic.path, owners.encode(), parents=True)
                version = 0
            else:
                version = await self._metadata.set(topic.path, owners.encode(), topic.version)
        except (BadVersion, NodeExists, NoNode):
            self._mark(topic)
        except BaseException:
            self._mark(topic)
            raise
        else:
            self._see(topic, owners, version)

    async def names(self) -> list[UUID]:
        """Topics that have a node. Raises MetadataUnavailable."""
        try:
            names = await self._metadata.children(OWNERS)
        except NoNode:
            return []
        return [topic_id for name in names if (topic_id := _uuid(name)) is not None]

    async def remove(self, topic_id: UUID) -> None:
        """The topic has no node: it was deleted. Raises MetadataUnavailable."""
        try:
            await self._metadata.delete(f"{OWNERS}/{topic_id}")
        except NoNode:
            pass


async def each(things: Sequence[T], run: Callable[[T], Awaitable[None]]) -> None:
    """`run` has ended for every thing; some run at a time. The first error ends it, and is raised
    when those under way have ended."""
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

    workers = [work() for _ in range(min(AT_ONCE, len(things)))]
    for ended in await asyncio.gather(*workers, return_exceptions=True):
        if isinstance(ended, BaseException):
            raise ended


def _uuid(name: str) -> UUID | None:
    try:
        return UUID(name)
    except ValueError:
        return None
