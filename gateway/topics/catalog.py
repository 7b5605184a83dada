"""Which topics there are: names, ids, partitions and settings, kept in the metadata store.

    /gateway/topics/by-name/<name>   the topic's id
    /gateway/topics/by-id/<uuid>     all the rest, sealed
    create: listeners prepare streams ─▶ one multi names it ─▶ visible
    delete: one multi forgets it ─▶ invisible ─▶ listeners drop its data

A crash on either way leaves streams that no topic names, never a topic without streams.
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
from ledger.world.metadata import ANY_VERSION, Create, Delete, MetadataStore, Node

ROOT = "/gateway/topics"
_NAMES = f"{ROOT}/by-name"
_IDS = f"{ROOT}/by-id"

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


class Catalog:
    """All topics, in memory; each change is durable before its call returns.

    `on_created` listeners run, awaited in turn, before a topic (or one with more partitions than
    before) becomes visible; one that raises stops the creation. `on_deleted` listeners run after
    it has gone.
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
        self.unreadable: dict[str, str] = {}  # path: what is wrong with it
        self._store = store
        self._defaults = defaults or TopicDefaults()
        self._bookies = bookies
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}  # also those whose creation is under way
        self._by_key: dict[str, str] = {}  # collision key: name
        self._configs: dict[UUID, TopicConfig] = {}
        self._sorted: list[Topic] | None = None
        self._partitions_total = 0
        self._busy: dict[str, asyncio.Event] = {}  # collision key: set when its change is over
        self._tasks: set[asyncio.Task[Any]] = set()

    async def load(self) -> None:
        """Every topic of the store is known. One that cannot be read is left out, and told."""
        for path in (_NAMES, _IDS):
            try:
                await self._store.create(path, parents=True)
            except NodeExists:
                pass
        for path, node in (await self._store.read_tree(_IDS)).items():
            try:
                self._publish(_decode(path, node))
            except CorruptFormat as error:
                self.unreadable[path] = str(error)
                logger().error("topic is offline: its metadata cannot be read", reason=str(error))

    # Looking up.

    def by_name(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: UUID) -> Topic | None:
        """Also a topic whose creation is under way, which `by_name` does not show yet."""
        return self._by_id.get(topic_id)

    async def is_stored(self, topic_id: UUID) -> bool:
        """The store has this topic now, whether or not it is known here."""
        await self._store.sync(_IDS)
        return await self._store.exists(f"{_IDS}/{topic_id}")

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
        self._by_id[topic.topic_id] = topic  # so that its streams are nobody's left-overs
        try:
            await _tell(self.on_created, topic)
            await self._store.multi(
                [
                    Create(f"{_NAMES}/{name}", str(topic.topic_id).encode()),
                    Create(f"{_IDS}/{topic.topic_id}", _encode(topic)),
                ]
            )
        except NodeExists:
            self._forget(topic)
            await _tell(self.on_deleted, topic)
            await self._load_one(name)
            raise TopicExists(name) from None
        except BaseException:
            self._forget(topic)
            raise
        self._publish(topic)
        return topic

    async def _delete(self, name: str, topic_id: UUID | None) -> None:
        topic = self._by_name.get(name)
        if topic is None or topic_id not in (None, topic.topic_id):
            raise UnknownTopic
        try:
            await self._store.multi(
                [
                    Delete(f"{_IDS}/{topic.topic_id}", ANY_VERSION),
                    Delete(f"{_NAMES}/{name}", ANY_VERSION),
                ]
            )
        except NoNode:  # another gateway was faster
            self._forget(topic)
            raise UnknownTopic from None
        self._forget(topic)
        try:
            await _tell(self.on_deleted, topic)
        except LedgerError as error:
            logger().warning("data of a deleted topic stays for now", topic=name, reason=str(error))

    async def _add_partitions(self, name: str, total: int) -> Topic:
        while True:
            topic = self.check_total(name, total)
            path = f"{_IDS}/{topic.topic_id}"
            try:
                node = await self._store.get(path)
                grown = replace(topic, partitions=total)
                await _tell(self.on_created, grown)
                document = unseal(node.data, path) | {"partitions": total}
                await self._store.set(path, seal(document), node.version)
            except BadVersion:  # never the new version with the old content: look again
                await self._load_one(name)
                continue
            except NoNode:
                self._forget(topic)
                raise UnknownTopic from None
            self._publish(grown)
            return grown

    async def _load_one(self, name: str) -> None:
        """The topic of that name is known as the store has it, or unknown when it has none."""
        try:
            topic_id = (await self._store.get(f"{_NAMES}/{name}")).data.decode()
            path = f"{_IDS}/{topic_id}"
            topic = _decode(path, await self._store.get(path))
        except (NoNode, CorruptFormat):
            return
        self._publish(topic)

    # Memory.

    def _publish(self, topic: Topic) -> None:
        known = self._by_name.get(topic.name)
        if known is not None:
            self._forget(known)
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        self._by_key[collision_key(topic.name)] = topic.name
        self._partitions_total += topic.partitions
        self._sorted = None

    def _forget(self, topic: Topic) -> None:
        self._by_id.pop(topic.topic_id, None)
        self._configs.pop(topic.topic_id, None)
        known = self._by_name.get(topic.name)
        if known is not None and known.topic_id == topic.topic_id:
            del self._by_name[topic.name]
            self._by_key.pop(collision_key(topic.name), None)
            self._partitions_total -= known.partitions
            self._sorted = None

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


def _encode(topic: Topic) -> bytes:
    return seal(
        {
            "name": topic.name,
            "partitions": topic.partitions,
            "replication_factor": topic.replication_factor,
            "configs": dict(topic.configs),
        }
    )


def _decode(path: str, node: Node) -> Topic:
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
