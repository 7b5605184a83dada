"""Which topics there are: names, ids, partitions and settings, kept in the metadata store.

    /gateway/topics/by-name/<name>   the topic's id
    /gateway/topics/by-id/<uuid>     all the rest, sealed
    create: listeners prepare streams ─▶ one multi names it ─▶ visible
    delete: one multi forgets it ─▶ invisible ─▶ listeners drop its data

A crash on either way leaves streams that no topic names, never a topic without streams.
What other gateways change is followed by watches.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from uuid import UUID, uuid4

from gateway.config import TopicDefaults
from gateway.core.names import FORBIDDEN_TOPIC, collision_key, is_internal, topic_name_fault
from gateway.core.sealed import seal, unseal
from gateway.log import logger
from gateway.topics.catalog_watch import NodeWatch
from gateway.topics.configs import TopicConfig, normalize, topic_config
from gateway.topics.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidTopic,
    TopicExists,
    UnknownTopic,
)
from ledger.errors import BadVersion, CorruptFormat, LedgerError, NodeExists, NoNode
from ledger.ports.metadata import ANY_VERSION, Create, Delete, MetadataStore, Node

ROOT = "/gateway/topics"
NAMES = f"{ROOT}/by-name"
IDS = f"{ROOT}/by-id"
_NO_ID = UUID(int=0)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Topic:
    """One life of a topic; recreated, it has another id."""

    name: str
    topic_id: UUID
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(hash=False)  # overrides only, normalized
    is_internal: bool


Listener = Callable[[Topic], Awaitable[None] | None]
Configs = Mapping[str, str]


class Catalog:
    """All topics, in memory; each change is durable before its call returns.

    Where a change is made: `on_created` listeners run, awaited in turn, before a topic (or one
    with more partitions than before) becomes visible; one that raises stops the creation.
    `on_deleted` listeners run after it has gone, and delete its data.

    `on_forgotten` is called when another gateway has deleted a topic: stop serving it, its data is
    not ours to delete. `on_changed` is called after any change of topics or of partition counts,
    whoever made it, once for several.
    """

    def __init__(
        self,
        store: MetadataStore,
        defaults: TopicDefaults | None = None,
        *,
        bookies: Callable[[], int] = lambda: 1,
    ) -> None:
        self.on_created: list[Listener] = []
        self.on_deleted: list[Listener] = []
        self.on_forgotten: list[Callable[[Topic], None]] = []  # another gateway deleted it
        self.on_changed: list[Callable[[], None]] = []
        self.unreadable: dict[str, str] = {}  # path: what is wrong with it
        self._store = store
        self._defaults = defaults or TopicDefaults()
        self._bookies = bookies
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._creating: dict[UUID, Topic] = {}
        self._deleting: set[UUID] = set()
        self._versions: dict[UUID, int] = {}  # of their nodes
        self._by_key: dict[str, str] = {}  # collision key: name
        self._configs: dict[UUID, TopicConfig] = {}
        self._sorted: list[Topic] | None = None
        self._partitions_total = 0
        self._busy: dict[str, asyncio.Event] = {}  # collision key: set when its change is over
        self._tasks: set[asyncio.Task[Any]] = set()
        self._news = False  # something changed since `on_changed` was called
        self._gone_in_round: set[UUID] = set()  # what is read of them now is old
        self._watch = NodeWatch(store, IDS, self)

    async def load(self) -> None:
        """Every topic of the store is known, and so will be what other gateways change.

        One that cannot be read is left out, and told.
        """
        for path in (NAMES, IDS):
            try:
                await self._store.create(path, parents=True)
            except NodeExists:
                pass
        await self._watch.start()

    async def close(self) -> None:
        """What others change is not followed any more."""
        await self._watch.stop()

    # Looking up.

    def by_name(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: UUID) -> Topic | None:
        """Also a topic whose creation is under way, which `by_name` does not show yet."""
        return self._by_id.get(topic_id) or self._creating.get(topic_id)

    def by_name_or_id(self, topic: str | UUID) -> Topic | None:
        return self.by_id(topic) if isinstance(topic, UUID) else self.by_name(topic)

    async def is_stored(self, topic_id: UUID) -> bool:
        """The store has this topic now, whether or not it is known here."""
        await self._store.sync(IDS)
        return await self._store.exists(f"{IDS}/{topic_id}")

    def all(self) -> list[Topic]:
        """Sorted by name. The list is shared: do not change it."""
        if self._sorted is None:
            self._sorted = sorted(self._by_name.values(), key=lambda topic: topic.name)
        return self._sorted

    def config(self, topic: Topic) -> TopicConfig:
        """Effective settings, typed."""
        config = self._configs.get(topic.topic_id)
        if config is None:
            config = topic_config(topic.configs)
            if topic.topic_id in self._by_id:
                self._configs[topic.topic_id] = config
        return config

    # Changing.

    def check_new(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str | None],
    ) -> Topic:
        """The topic that `create` would make now. Raises a TopicError."""
        self._check_name(name)
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
                f"{bookies} broker(s) are registered."
            )
        return Topic(
            name=name,
            topic_id=uuid4(),
            partitions=partitions,
            replication_factor=replication_factor,
            configs=normalize(configs),
            is_internal=is_internal(name),
        )

    async def create(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str | None],
    ) -> Topic:
        """The topic exists, with a new id. Raises a TopicError, or what a listener raised."""
        return await self._alone(
            name, lambda: self._create(name, partitions, replication_factor, configs)
        )

    async def delete(self, name: str, topic_id: UUID | None = None) -> None:
        """The topic is gone; so is its data, once the listeners have run. Raises UnknownTopic.

        With `topic_id` only that life of the topic is deleted, never a later one.
        """
        await self._alone(name, lambda: self._delete(name, topic_id))

    async def add_partitions(self, name: str, total: int) -> Topic:
        """The topic has `total` partitions. Raises UnknownTopic, InvalidPartitions."""
        return await self._alone(name, lambda: self._add_partitions(name, total))

    async def change_configs(self, name: str, changed: Callable[[Configs], Configs]) -> Topic:
        """The topic's own settings are what `changed` makes of them, normalized.

        `changed` may be asked more than once, when others change them too. Raises UnknownTopic,
        and what `changed` raises.
        """

        async def configured(topic: Topic) -> Topic:
            return replace(topic, configs=normalize(changed(topic.configs)))

        return await self._alone(name, lambda: self._change(name, configured))

    def check_total(self, name: str, total: int) -> Topic:
        """The topic that `add_partitions` would change. Raises like it."""
        topic = self._by_name.get(name)
        if topic is None:
            raise UnknownTopic
        if total == topic.partitions:
            raise InvalidPartitions(f"Topic already has {total} partition(s).")
        if total < topic.partitions:
            raise InvalidPartitions(
                f"The topic {name} currently has {topic.partitions} partition(s); "
                f"{total} would not be an increase."
            )
        self._check_partitions(total, added=total - topic.partitions)
        return topic

    # Rules.

    def _check_name(self, name: str) -> None:
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
                f"{total} partitions are more than a topic may have: "
                f"{self._defaults.partitions_max}."
            )
        if self._partitions_total + added > self._defaults.partitions_total_max:
            raise InvalidPartitions(
                f"{added} partitions more are too many: there are {self._partitions_total}, and "
                f"{self._defaults.partitions_total_max} is the limit of all topics together."
            )

    # The changes themselves, one at a time for a name.

    async def _create(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str | None],
    ) -> Topic:
        topic = self.check_new(name, partitions, replication_factor, configs)
        self._creating[topic.topic_id] = topic  # so that its streams are nobody's left-overs
        try:
            await _tell(self.on_created, topic)
            await self._store.multi(
                [
                    Create(f"{NAMES}/{name}", str(topic.topic_id).encode()),
                    Create(f"{IDS}/{topic.topic_id}", _encode(topic)),
                ]
            )
            self._publish(topic, 0)
        except NodeExists:
            await _tell(self.on_deleted, topic)
            await self._load_one(name)
            raise TopicExists(name) from None
        finally:
            del self._creating[topic.topic_id]
        self._tell_changed()
        return topic

    async def _delete(self, name: str, topic_id: UUID | None) -> None:
        topic = self._by_name.get(name)
        if topic is None or topic_id not in (None, topic.topic_id):
            raise UnknownTopic
        self._deleting.add(topic.topic_id)
        try:
            await self._store.multi(
                [
                    Delete(f"{IDS}/{topic.topic_id}", ANY_VERSION),
                    Delete(f"{NAMES}/{name}", ANY_VERSION),
                ]
            )
            self._forget(topic, ours=True)
        except NoNode:  # another gateway was faster
            self._forget(topic)
            raise UnknownTopic from None
        except LedgerError:
            self._watch.look_again()  # it may be gone
            raise
        finally:
            self._deleting.discard(topic.topic_id)
            self._tell_changed()
        try:
            await _tell(self.on_deleted, topic)
        except LedgerError as error:
            logger().warning("data of a deleted topic stays for now", topic=name, reason=str(error))

    async def _add_partitions(self, name: str, total: int) -> Topic:
        async def grown(topic: Topic) -> Topic:
            self.check_total(name, total)
            larger = replace(topic, partitions=total)
            await _tell(self.on_created, larger)
            return larger

        return await self._change(name, grown)

    async def _change(self, name: str, changed: Callable[[Topic], Awaitable[Topic]]) -> Topic:
        """The topic's node says what `changed` makes of it; asked again when others changed it."""
        while True:
            topic = self._by_name.get(name)
            if topic is None:
                raise UnknownTopic
            path = f"{IDS}/{topic.topic_id}"
            try:
                node = await self._store.get(path)
                document = unseal(node.data, path)
                topic = decode_topic(path, node)
                self._publish(topic, node.version)  # perhaps another gateway's change is news
                topic = await changed(topic)
                document |= {"partitions": topic.partitions, "configs": dict(topic.configs)}
                version = await self._store.set(path, seal(document), node.version)
            except BadVersion:  # never the new version with the old content: look again
                await self._load_one(name)
                continue
            except NoNode:
                self._forget(topic)
                self._tell_changed()
                raise UnknownTopic from None
            self._publish(topic, version)
            self._tell_changed()
            return topic

    async def _load_one(self, name: str) -> None:
        """The topic of that name is known as the store has it, or unknown when it has none."""
        try:
            topic_id = (await self._store.get(f"{NAMES}/{name}")).data.decode()
            path = f"{IDS}/{topic_id}"
            node = await self._store.get(path)
            self._publish(decode_topic(path, node), node.version)
        except (NoNode, CorruptFormat):
            return
        self._tell_changed()

    # What the store has, as the watch reads it: a `Followed`.

    def known(self) -> set[str]:
        self._gone_in_round.clear()
        return {str(topic_id) for topic_id in self._by_id}

    def found(self, name: str, node: Node) -> None:
        path = f"{IDS}/{name}"
        try:
            topic = decode_topic(path, node)
        except CorruptFormat as error:
            if path not in self.unreadable:
                logger().error("topic is offline: its metadata cannot be read", reason=str(error))
            self.unreadable[path] = str(error)
            return
        self.unreadable.pop(path, None)
        topic_id = topic.topic_id
        if topic_id not in self._gone_in_round and topic_id not in self._deleting:
            self._publish(topic, node.version)

    def gone(self, name: str) -> None:
        self.unreadable.pop(f"{IDS}/{name}", None)
        topic = self._by_id.get(_uuid(name) or _NO_ID)
        if topic is not None and topic.topic_id not in self._deleting:
            self._forget(topic)

    def round_over(self) -> None:
        self._gone_in_round.clear()
        self._tell_changed()

    # Memory.

    def _publish(self, topic: Topic, version: int) -> None:
        if version < self._versions.get(topic.topic_id, 0):
            return  # read before a change that is known already
        known = self._by_name.get(topic.name)
        if known is not None and known.topic_id != topic.topic_id:
            self._forget(known)
            known = None
        before = known.partitions if known is not None else 0
        self._news = self._news or before != topic.partitions
        self._partitions_total += topic.partitions - before
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        self._by_key[collision_key(topic.name)] = topic.name
        self._versions[topic.topic_id] = version
        self._configs.pop(topic.topic_id, None)
        self._sorted = None

    def _forget(self, topic: Topic, *, ours: bool = False) -> None:
        """It is not known any more. `ours`: deleted here, so `on_deleted` listeners are told."""
        known = self._by_id.pop(topic.topic_id, None)
        self._gone_in_round.add(topic.topic_id)
        if known is None:
            return
        self._configs.pop(topic.topic_id, None)
        self._versions.pop(topic.topic_id, None)
        del self._by_name[known.name]
        self._by_key.pop(collision_key(known.name), None)
        self._partitions_total -= known.partitions
        self._sorted = None
        self._news = True
        if not ours:
            for stop_serving in self.on_forgotten:
                stop_serving(known)

    def _tell_changed(self) -> None:
        if self._news:
            self._news = False
            for on_changed in self.on_changed:
                on_changed()

    async def _alone(self, name: str, change: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The change, run to its end even if the caller goes away: memory follows the store."""

        async def main() -> T:
            async with self._turn(collision_key(name)):
                return await change()

        task = asyncio.get_running_loop().create_task(main())
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # taken, also when the caller has gone

    @asynccontextmanager
    async def _turn(self, key: str) -> AsyncGenerator[None]:
        while (busy := self._busy.get(key)) is not None:
            await busy.wait()
        over = self._busy[key] = asyncio.Event()
        try:
            yield
        finally:
            del self._busy[key]
            over.set()


async def _tell(listeners: list[Listener], topic: Topic) -> None:
    for listener in listeners:
        waiting = listener(topic)
        if waiting is not None:
            await waiting


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _encode(topic: Topic) -> bytes:
    return seal(
        {
            "name": topic.name,
            "partitions": topic.partitions,
            "replication_factor": topic.replication_factor,
            "configs": dict(topic.configs),
        }
    )


def decode_topic(path: str, node: Node) -> Topic:
    """Raises CorruptFormat, naming the path."""
    document = unseal(node.data, path)
    try:
        name = str(document["name"])
        if topic_name_fault(name) is not None:
            raise CorruptFormat(f"{path}: {name!r} names no topic")
        return Topic(
            name=name,
            topic_id=UUID(path.rpartition("/")[2]),
            partitions=int(document["partitions"]),
            replication_factor=int(document["replication_factor"]),
            configs=normalize(document["configs"]),
            is_internal=is_internal(name),
        )
    except (KeyError, ValueError, TypeError, AttributeError, InvalidConfig) as error:
        raise CorruptFormat(f"{path}: {error!r}") from error
