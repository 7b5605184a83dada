"""Keeps the topics: names, ids, partitions and configs, in memory and in the metadata store.

    /gateway/topics/by-name/<name>   the topic's id
    /gateway/topics/by-id/<uuid>     all the rest, sealed
    create: listeners prepare streams ─▶ one transaction writes both nodes ─▶ visible
    delete: one transaction deletes both nodes ─▶ invisible ─▶ listeners delete the data

A crash between two steps leaves streams without a topic (orphans), never a topic without streams.
Watches follow the changes of other brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import UUID, uuid4

from gateway.config import TopicDefaults
from gateway.core.topic_names import (
    FORBIDDEN_TOPIC,
    collision_key,
    is_fixed,
    is_internal,
    topic_name_fault,
)
from gateway.log import logger
from gateway.topics.auto_creation import AutoCreation
from gateway.topics.catalog_watch import NodeWatch
from gateway.topics.configs import TopicConfig, normalize, topic_config
from gateway.topics.errors import (
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidTopic,
    TopicError,
    TopicExists,
    UnknownTopic,
)
from gateway.topics.internal_topics import INTERNAL_PARTITIONS, internal_topic
from gateway.topics.stored_topic import Topic, check_fits, decode_topic, encode_topic
from ledger.errors import BadVersion, CorruptFormat, LedgerError, NodeExists, NoNode
from ledger.ports.metadata import ANY_VERSION, Create, Delete, MetadataStore, Node
from ledger.sealed import seal, unseal
from ledger.tasks import start_once

__all__ = ["IDS", "NAMES", "ROOT", "Catalog", "Topic", "decode_topic"]

ROOT = "/gateway/topics"
NAMES = f"{ROOT}/by-name"
IDS = f"{ROOT}/by-id"
_NO_ID = UUID(int=0)

T = TypeVar("T")


TopicListener = Callable[[Topic], Awaitable[None] | None]
Configs = Mapping[str, str]


class Catalog:
    """All topics of the cluster. A change is durable before its call returns.

    Source: Kafka, MetadataCache and ReplicationControlManager.
    """

    # The defaults of topic configs that were altered, normalized. Replaced by `use_defaults`.
    defaults: Mapping[str, str] = MappingProxyType({})
    # A number that changes whenever a topic appears, grows or disappears, and one that rises
    # whenever one appears.
    version = created = 0

    def __init__(
        self,
        store: MetadataStore,
        defaults: TopicDefaults | None = None,
        *,
        bookies: Callable[[], int] = lambda: 1,
    ) -> None:
        """Create an empty catalog.

        `bookies()` returns the number of writable bookies, which limits the replication factor.
        """
        # Listeners are added before `load`, and stay. They are awaited in order before a topic or
        # its added partitions become visible, if this broker makes the change. An exception stops
        # the change.
        self.on_created: list[TopicListener] = []
        # Awaited to delete a topic's data, after this broker deleted the topic.
        self.on_deleted: list[TopicListener] = []
        # Called after another broker deleted a topic, so that this broker stops serving it.
        self.on_forgotten: list[Callable[[Topic], None]] = []
        # Called after topics or partition counts changed on any broker, once for several changes.
        self.on_changed: list[Callable[[], None]] = []
        # The reasons why topic nodes cannot be decoded, by path. Such a topic is offline: it is in
        # no other table, its name is not free, and its data stays. An entry is removed when the
        # node is deleted or can be decoded again.
        self.unreadable: dict[str, str] = {}
        self._store = store
        self._defaults = defaults or TopicDefaults()
        self._bookies = bookies
        # The visible topics. These five tables always hold the same topics. Only `_publish` and
        # `_forget` change them.
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        # The version of the topic's node, so that an older reading does not replace a newer one.
        self._versions: dict[UUID, int] = {}
        # The topic name by its collision key ("a.b" and "a_b" collide).
        self._by_key: dict[str, str] = {}
        # The number of partitions of all visible topics that are not internal.
        self._partitions_total = 0
        # Caches of the tables above: typed configs, filled on demand, and the topics sorted by
        # name. A change of a topic drops its configs and the sorted list.
        self._configs: dict[UUID, TopicConfig] = {}
        self._sorted: list[Topic] | None = None
        # Topics that this broker is creating. They are not visible, but their streams are not
        # orphans.
        self._creating: dict[UUID, Topic] = {}
        # Topics that this broker is deleting. What the watch reads of them is ignored.
        self._deleting: set[UUID] = set()
        # The changes in progress on this broker, at most one per collision key. Each has an event
        # that is set when the change ends.
        self._changing: dict[str, asyncio.Event] = {}
        # The tasks of the changes in progress. They run to their end even if a caller is cancelled.
        self._tasks: set[asyncio.Task[Any]] = set()
        # True if topics or partition counts changed after `on_changed` was last called.
        self._changed = False
        # Topics that were deleted during the watch's current round. Readings of their nodes are out
        # of date.
        self._gone_in_round: set[UUID] = set()
        self._watch = NodeWatch(store, IDS, self)
        # The topics that are created in the background: those that Metadata names, internal ones.
        self.auto_creation = AutoCreation(self.create_by_itself, self._changing.__contains__)

    async def load(self) -> None:
        """Read every topic of the store, and follow the changes of other brokers from now on.

        A topic that cannot be decoded is left out and logged.
        """
        for path in (NAMES, IDS):
            try:
                await self._store.create(path, parents=True)
            except NodeExists:
                pass
        await self._watch.start()

    async def close(self) -> None:
        """Stop following the changes of other brokers, and creating topics that clients named."""
        await self.auto_creation.close()
        await self._watch.stop()

    # -- lookups ------------------------------------------------------------------------------

    def by_name(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: UUID) -> Topic | None:
        """Return the topic, even while it is being created and `by_name` does not return it."""
        return self._by_id.get(topic_id) or self._creating.get(topic_id)

    def by_name_or_id(self, topic: str | UUID) -> Topic | None:
        return self.by_id(topic) if isinstance(topic, UUID) else self.by_name(topic)

    async def is_stored(self, topic_id: UUID) -> bool:
        """Return whether the store has this topic now, even if this broker has not read it yet."""
        await self._store.sync(IDS)
        return await self._store.exists(f"{IDS}/{topic_id}")

    async def stored_partitions(self, name: str) -> int | None:
        """Return how many partitions the topic has in the store now, 0 without such a topic.

        Returns None if the topic cannot be decoded. Raises MetadataUnavailable.
        """
        if topic_name_fault(name) is not None:
            return 0
        await self._store.sync(IDS)
        try:
            path = f"{IDS}/{(await self._store.get(f'{NAMES}/{name}')).data.decode()}"
            return decode_topic(path, await self._store.get(path)).partitions
        except NoNode:
            return 0
        except CorruptFormat:
            return None

    def all(self) -> list[Topic]:
        """Return the topics sorted by name. Do not change the list, which is shared."""
        if self._sorted is None:
            self._sorted = sorted(self._by_name.values(), key=lambda topic: topic.name)
        return self._sorted

    def config(self, topic: Topic) -> TopicConfig:
        """Return the effective configs, typed."""
        config = self._configs.get(topic.topic_id)
        if config is None:
            config = topic_config({**self.defaults, **topic.configs})
            if topic.topic_id in self._by_id:
                self._configs[topic.topic_id] = config
        return config

    def use_defaults(self, defaults: Mapping[str, str]) -> None:
        """Use other defaults of topic configs from now on. They are normalized."""
        self.defaults = defaults
        self._configs.clear()

    # -- changes ------------------------------------------------------------------------------

    def check_new(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str | None],
    ) -> Topic:
        """Return the topic that `create` would create now. Raises TopicError."""
        self.check_name(name)
        if not is_internal(name) or partitions != INTERNAL_PARTITIONS:  # those have no limits
            self._check_partitions(partitions, added=partitions)
        if replication_factor <= 0:
            raise InvalidReplicationFactor(
                "Replication factor was set to an invalid non-positive value."
            )
        bookies = self._bookies()
        if replication_factor > bookies:
            raise InvalidReplicationFactor(
                f"Unable to replicate the partition {replication_factor} time(s): The target "
                f"replication factor of {replication_factor} cannot be reached because only "
                f"{bookies} broker(s) are registered. Each copy needs a bookie of its own; bookies "
                f"that take writes: {bookies}."
            )
        topic = Topic(
            name=name,
            topic_id=uuid4(),
            partitions=partitions,
            replication_factor=replication_factor,
            configs=normalize(configs),
            is_internal=is_internal(name),
        )
        check_fits(topic)
        return topic

    async def create(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str | None],
    ) -> Topic:
        """Create the topic with a new id. Raises TopicError, and any exception of a listener."""
        return await self._serialized(
            name, lambda: self._create(name, partitions, replication_factor, configs)
        )

    async def create_by_itself(self, name: str) -> None:
        """Create a topic that no client gave settings for. Raises TopicError."""
        own, defaults = internal_topic(name, self._bookies()), self._defaults
        if own is not None:
            await self.create(name, own.partitions, own.replication_factor, own.configs)
        else:
            await self.create(name, defaults.partitions, defaults.replication_factor, {})

    async def delete(self, name: str, topic_id: UUID | None = None) -> None:
        """Delete the topic, then its data. Raises UnknownTopic, or InvalidTopic for a fixed one.

        With `topic_id`, delete only the topic with this id, not a later one of the same name.
        """
        await self._serialized(name, lambda: self._delete(name, topic_id))

    async def add_partitions(self, name: str, total: int) -> Topic:
        """Add partitions up to `total`. Raises UnknownTopic, InvalidTopic or InvalidPartitions."""
        return await self._serialized(name, lambda: self._add_partitions(name, total))

    async def change_configs(self, name: str, changed: Callable[[Configs], Configs]) -> Topic:
        """Replace the topic's overrides by `changed(overrides)`, normalized.

        If another broker changes the topic at the same time, `changed` runs again. Raises
        UnknownTopic, and any exception of `changed`.
        """

        async def configured(topic: Topic) -> Topic:
            after = replace(topic, configs=normalize(changed(topic.configs)))
            check_fits(after)
            return after

        return await self._serialized(name, lambda: self._change(name, configured))

    def check_added_partitions(self, name: str, total: int) -> Topic:
        """Return the topic that `add_partitions` would change. Raises the same errors."""
        topic = self._by_name.get(name)
        if topic is None:
            raise UnknownTopic
        if is_fixed(name):
            raise InvalidTopic(f"Topic '{name}' is internal and keeps its number of partitions.")
        if total == topic.partitions:
            raise InvalidPartitions(f"Topic already has {total} partition(s).")
        if total < topic.partitions:
            raise InvalidPartitions(
                f"The topic {name} currently has {topic.partitions} partition(s); "
                f"{total} would not be an increase."
            )
        self._check_partitions(total, added=total - topic.partitions)
        return topic

    # -- rules --------------------------------------------------------------------------------

    def check_name(self, name: str) -> None:
        """Check that a topic may be created under this name now. Raises TopicError."""
        fault = topic_name_fault(name)
        if fault is not None:
            raise InvalidTopic(f"Topic name is invalid: {fault}")
        if name == FORBIDDEN_TOPIC:
            raise InvalidTopic(f"Creation of internal topic {name} is prohibited.")
        if name in self._by_name:
            raise TopicExists(name)
        other = self._by_key.get(collision_key(name))
        if other is not None:
            raise InvalidTopic(f"Topic '{name}' collides with existing topic: {other}")

    def _check_partitions(self, total: int, *, added: int) -> None:
        if total <= 0:
            raise InvalidPartitions(
                "Number of partitions was set to an invalid non-positive value."
            )
        if total > self._defaults.partitions_max:
            raise InvalidPartitions(
                f"A topic with {total} partitions would exceed the limit of "
                f"{self._defaults.partitions_max} partitions per topic."
            )
        if self._partitions_total + added > self._defaults.partitions_total_max:
            raise InvalidPartitions(
                f"Adding {added} partitions would exceed the cluster limit of "
                f"{self._defaults.partitions_total_max} (currently {self._partitions_total})."
            )

    # -- the changes, one at a time per name --------------------------------------------------

    async def _create(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str | None],
    ) -> Topic:
        topic = self.check_new(name, partitions, replication_factor, configs)
        # `by_id` must find the topic, so that its streams are not orphans
        self._creating[topic.topic_id] = topic
        try:
            await _notify(self.on_created, topic)
            await self._store.multi(
                [
                    Create(f"{NAMES}/{name}", str(topic.topic_id).encode()),
                    Create(f"{IDS}/{topic.topic_id}", encode_topic(topic)),
                ]
            )
            self._publish(topic, 0)
        except NodeExists:
            await _notify(self.on_deleted, topic)
            await self._load_one(name)
            raise TopicExists(name) from None
        finally:
            del self._creating[topic.topic_id]
        self._notify_changed()
        return topic

    async def _delete(self, name: str, topic_id: UUID | None) -> None:
        topic = self._by_name.get(name)
        if topic is None or topic_id not in (None, topic.topic_id):
            raise UnknownTopic
        if is_fixed(name):
            raise InvalidTopic(f"Topic '{name}' is internal and cannot be deleted.")
        self._deleting.add(topic.topic_id)
        try:
            await self._store.multi(
                [
                    Delete(f"{IDS}/{topic.topic_id}", ANY_VERSION),
                    Delete(f"{NAMES}/{name}", ANY_VERSION),
                ]
            )
            self._forget(topic, ours=True)
        except NoNode:  # another broker deleted the topic first
            self._forget(topic)
            raise UnknownTopic from None
        except LedgerError:
            self._watch.relist()  # the outcome of the deletion is unknown
            raise
        finally:
            self._deleting.discard(topic.topic_id)
            self._notify_changed()
        try:
            await _notify(self.on_deleted, topic)
        except LedgerError as error:
            logger().warning(
                "cannot delete the data of a deleted topic; will retry",
                topic=name,
                reason=str(error),
            )

    async def _add_partitions(self, name: str, total: int) -> Topic:
        async def grown(topic: Topic) -> Topic:
            self.check_added_partitions(name, total)
            larger = replace(topic, partitions=total)
            await _notify(self.on_created, larger)
            return larger

        return await self._change(name, grown)

    async def _change(self, name: str, changed: Callable[[Topic], Awaitable[Topic]]) -> Topic:
        """Store `changed(topic)`. Repeat the change if another broker changed the topic first."""
        while True:
            topic = self._by_name.get(name)
            if topic is None:
                raise UnknownTopic
            path = f"{IDS}/{topic.topic_id}"
            try:
                node = await self._store.get(path)
                document = unseal(node.data, path)
                topic = decode_topic(path, node)
                self._publish(topic, node.version)  # the node may hold a change of another broker
                topic = await changed(topic)
                document |= {"partitions": topic.partitions, "configs": dict(topic.configs)}
                version = await self._store.set(path, seal(document), node.version)
            except BadVersion:  # another broker changed the node after it was read
                await self._load_one(name)
                continue
            except NoNode:
                self._forget(topic)
                self._notify_changed()
                raise UnknownTopic from None
            self._publish(topic, version)
            self._notify_changed()
            return topic

    async def _load_one(self, name: str) -> None:
        """Read the topic of this name from the store, if it exists."""
        try:
            topic_id = (await self._store.get(f"{NAMES}/{name}")).data.decode()
            path = f"{IDS}/{topic_id}"
            node = await self._store.get(path)
            self._publish(decode_topic(path, node), node.version)
        except (NoNode, CorruptFormat):
            return
        self._notify_changed()

    # -- changes in the store: the `NodeListener` of the watch ---------------------------------

    def known_names(self) -> set[str]:
        self._gone_in_round.clear()
        return {str(topic_id) for topic_id in self._by_id}

    def on_found(self, name: str, node: Node) -> None:
        path = f"{IDS}/{name}"
        try:
            topic = decode_topic(path, node)
        except CorruptFormat as error:
            if path not in self.unreadable:
                known = self._by_id.get(_uuid(name) or _NO_ID)
                logger().error(
                    "topic is offline: its metadata cannot be read",
                    topic=name if known is None else known.name,
                    reason=str(error),
                )
            self.unreadable[path] = str(error)
            return
        self.unreadable.pop(path, None)
        topic_id = topic.topic_id
        if topic_id not in self._gone_in_round and topic_id not in self._deleting:
            self._publish(topic, node.version)

    def on_gone(self, name: str) -> None:
        self.unreadable.pop(f"{IDS}/{name}", None)
        topic = self._by_id.get(_uuid(name) or _NO_ID)
        if topic is not None and topic.topic_id not in self._deleting:
            self._forget(topic)

    def on_round_over(self) -> None:
        self._gone_in_round.clear()
        self._notify_changed()

    # -- memory -------------------------------------------------------------------------------

    def _publish(self, topic: Topic, version: int) -> None:
        if version < self._versions.get(topic.topic_id, 0):
            return  # this node was read before a change that is already applied
        known = self._by_name.get(topic.name)
        if known is not None and known.topic_id != topic.topic_id:
            self._forget(known)
            known = None
        before = known.partitions if known is not None else 0
        self._changed = self._changed or before != topic.partitions
        self.version += before != topic.partitions
        self.created += known is None
        self._partitions_total += 0 if topic.is_internal else topic.partitions - before
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        self._by_key[collision_key(topic.name)] = topic.name
        self._versions[topic.topic_id] = version
        self._configs.pop(topic.topic_id, None)
        self._sorted = None

    def _forget(self, topic: Topic, *, ours: bool = False) -> None:
        """Remove the topic. If this broker deleted it, `ours` is True and `on_deleted` will run."""
        known = self._by_id.pop(topic.topic_id, None)
        self._gone_in_round.add(topic.topic_id)
        if known is None:
            return
        self._configs.pop(topic.topic_id, None)
        self._versions.pop(topic.topic_id, None)
        del self._by_name[known.name]
        self._by_key.pop(collision_key(known.name), None)
        self._partitions_total -= 0 if known.is_internal else known.partitions
        self._sorted = None
        self._changed = True
        self.version += 1
        if not ours:
            for stop_serving in self.on_forgotten:
                stop_serving(known)

    def _notify_changed(self) -> None:
        if self._changed:
            self._changed = False
            for on_changed in self.on_changed:
                on_changed()

    async def _serialized(self, name: str, change: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run the change after earlier changes of the same name, even if the caller is cancelled.

        A change that is cut short could leave memory and store different.
        """

        async def main() -> T:
            async with self._lock(collision_key(name)):
                return await change()

        task = start_once("a change of a topic", main(), expected=(LedgerError, TopicError))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    @asynccontextmanager
    async def _lock(self, key: str) -> AsyncGenerator[None]:
        while (changing := self._changing.get(key)) is not None:
            await changing.wait()
        over = self._changing[key] = asyncio.Event()
        try:
            yield
        finally:
            del self._changing[key]
            over.set()
            self.auto_creation.on_changed(key)


async def _notify(listeners: list[TopicListener], topic: Topic) -> None:
    for listener in listeners:
        waiting = listener(topic)
        if waiting is not None:
            await waiting


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
