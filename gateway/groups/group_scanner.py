"""Scan all stored groups: find idle ones, load orphans, expire committed offsets.

Every broker knows every idle group by name. Only the candidate of an unclaimed group lists the
group and expires its offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from itertools import chain
from typing import NamedTuple
from uuid import UUID

from gateway.cluster.port import GroupClaims
from gateway.core.group_members import State
from gateway.core.offset_expiry import (
    CONSUMER,
    GroupAge,
    expired,
    expires_at_ms,
    subscribed_topics,
)
from gateway.core.shown_text import shown
from gateway.groups.loaded_group import LoadedGroup
from gateway.groups.loaded_groups import LoadedGroups
from gateway.groups.stored_consumer_group import has_members
from gateway.groups.stored_membership import decode_with_pauses
from gateway.groups.views import CLASSIC_GROUP, CONSUMER_GROUP, GroupListing, Refused
from gateway.log import logger
from gateway.topics.catalog import Catalog
from ledger.errors import LedgerError, MetadataError, NotOwner
from ledger.ports.clock import Clock
from ledger.streams.steady_clock import SteadyClock
from ledger.tasks import reported
from subscriptions.committed_offset import TopicIdPartition
from subscriptions.store import SubscriptionsStore

EXPIRE_S = 600.0  # Kafka: offsets.retention.check.interval.ms
READS_MAX = 64  # the number of groups read or loaded at the same time
_SLICE = 500  # the number of names between two pauses for other tasks


class IdleGroup(NamedTuple):
    """A stored group that has no members and is not loaded."""

    protocol_type: str
    check_at_ms: int  # none of the group's offsets expires before this wall time
    kind: str = CLASSIC_GROUP


class GroupScanner:
    """A background scanner that reads stored groups and expires offsets of this broker's groups."""

    def __init__(
        self,
        store: SubscriptionsStore,
        claims: GroupClaims,
        loaded_groups: LoadedGroups,
        catalog: Catalog,
        clock: Clock,
        retention_ms: int,
    ) -> None:
        # Stored groups without members, as last read or unloaded. Loading or deleting a group
        # removes it.
        self.idle: dict[str, IdleGroup] = {}
        # Set once every stored group was read, and never cleared.
        self.scanned = asyncio.Event()
        # Stored groups that had members when they were last read. This broker loads a group of
        # which it is or becomes the candidate. Loading or deleting a group removes it.
        self._elsewhere: set[str] = set()
        # Groups of dead coordinators that this broker has not loaded. Each expiry tries those of
        # them that are idle, so that their open segments end.
        self._unclean: set[str] = set()
        # Held by `scan`, so that one scan runs at a time.
        self._scanning = asyncio.Lock()
        self._store = store
        self._claims = claims
        self._loaded_groups = loaded_groups
        self._catalog = catalog
        self._clock = SteadyClock(clock)  # a clock that jumps expires no offset
        self._retention_ms = retention_ms

    async def run(self) -> None:
        """Scan the groups and expire offsets every `EXPIRE_S` seconds, forever."""
        retry_s = 1.0
        while True:
            wait_s = EXPIRE_S
            try:
                await self.scan()
                await self._expire()
                retry_s = 1.0
            except LedgerError as error:
                logger().warning("groups could not be looked through", reason=str(error))
                wait_s = retry_s
                retry_s = min(2 * retry_s, EXPIRE_S)
            await asyncio.sleep(wait_s)

    async def scan(self) -> None:
        """Read every stored group that is not loaded, idle or known to belong to another broker.

        Raises MetadataUnavailable.
        """
        async with self._scanning:
            names = set(await self._store.list())
            for gone in [name for name in self.idle if name not in names]:
                del self.idle[gone]
            self._elsewhere &= names
            self._unclean &= names
            known = self._loaded_groups.groups.keys() | self.idle.keys() | self._elsewhere
            await self.read([*(names - known), *await self._now_for_us()])
            self.scanned.set()

    async def _now_for_us(self) -> list[str]:
        """Return unclaimed groups with members of which this broker has become the candidate."""
        ours = [name for name in self._elsewhere if self._claims.candidate(name)]
        claimed = await self._claims.claimed_elsewhere(ours) if ours else set[str]()
        return [name for name in ours if name not in claimed]

    async def adopt(self, names: Iterable[str]) -> None:
        """Load the groups of dead brokers, before anybody asks, which ends their open segments.

        Those without members are unloaded soon. The next expiry tries those again that cannot be
        loaded now. Raises MetadataUnavailable, and NotOwner if the lease has lapsed meanwhile.
        """
        orphans, ends = list(names), list[LedgerError]()
        self._unclean.update(orphans)

        async def adopt_one(name: str) -> None:
            if not self._loaded_groups.serves():
                ends.append(NotOwner("this broker coordinates no group now"))
                return
            await self._load(name)
            self._loaded_groups.rest_soon(name)

        await _each(orphans, adopt_one, ends)
        await self.scan()
        if ends:
            raise ends[0]

    async def read(self, names: Iterable[str]) -> None:
        """Read these groups. Load those with members, if this broker is their candidate."""
        failures: list[LedgerError] = []

        async def read_group(name: str) -> None:
            try:
                await self._read_group(name)
            except MetadataError as error:
                failures.append(error)
            except LedgerError as error:
                logger().error(
                    "a group cannot be read", group=shown(name), reason=shown(str(error))
                )

        await _each(names, read_group, failures)
        if failures:
            raise failures[0]

    async def _read_group(self, name: str) -> None:
        found = await self._store.read(name)
        stored = await decode_with_pauses(found.note, f"group {name!r}")
        if name in self._loaded_groups.groups:
            return
        self._forget(name)
        if not found.exists:
            return
        if not stored.membership.members and not has_members(found.keyed):
            is_consumer = bool(found.keyed)
            self._add_idle(
                name,
                CONSUMER if is_consumer else stored.membership.protocol_type,
                expires_at_ms(found.offsets.values(), stored.empty_since_ms, self._retention_ms),
                CONSUMER_GROUP if is_consumer else CLASSIC_GROUP,
            )
            return
        self._elsewhere.add(name)
        if self._claims.candidate(name):
            await self._load(name)

    def knows(self, name: str) -> bool:
        """Return from memory whether a group of this name is loaded or was found in the store."""
        loaded = self._loaded_groups.groups.get(name)
        if loaded is not None:
            return loaded.group.state is not State.DEAD
        return name in self.idle or name in self._elsewhere

    def _forget(self, name: str) -> None:
        self.idle.pop(name, None)
        self._elsewhere.discard(name)

    def _add_idle(self, name: str, protocol_type: str | None, check_at_ms: int, kind: str) -> None:
        self.idle[name] = IdleGroup(protocol_type or "", check_at_ms, kind)

    def idle_kind(self, name: str) -> str:
        """Return the type of an idle group."""
        idle = self.idle.get(name)
        return CLASSIC_GROUP if idle is None else idle.kind

    def on_evicted(self, loaded: LoadedGroup) -> None:
        """Add an idle group that was unloaded."""
        self._add_idle(
            loaded.group_id,
            loaded.protocol_type,
            expires_at_ms(loaded.offsets.values(), loaded.empty_since_ms, self._retention_ms),
            loaded.kind,
        )

    async def listings(self) -> list[GroupListing]:
        """Return the loaded groups, and the idle ones of which this broker is the candidate.

        Raises MetadataUnavailable.
        """
        await self.scan()
        ours = [
            name
            async for name in _unhurried(list(self.idle))
            if name in self.idle and self._claims.candidate(name)
        ]
        elsewhere = await self._claims.claimed_elsewhere(ours)
        groups = self._loaded_groups.groups
        listed = [
            GroupListing(name, loaded.protocol_type or "", loaded.state, loaded.kind)
            for name, loaded in groups.items()
            if loaded.group.state is not State.DEAD
        ]
        listed += [
            GroupListing(name, self.idle[name].protocol_type, State.EMPTY, self.idle[name].kind)
            for name in ours
            if name in self.idle and name not in groups and name not in elsewhere
        ]
        return listed

    # expiry of offsets

    async def _expire(self) -> None:
        """Remove expired offsets, and delete empty groups without offsets.

        Groups in `_unclean` are loaded as well, because unloading them ends their open segments.
        """
        now_ms = self._clock.now_ms()
        due = [
            name
            async for name in _unhurried(list(self.idle))
            if self._idle_due(name, now_ms) and self._claims.candidate(name)
        ]
        await _each(due, self._load, [])
        for loaded in list(self._loaded_groups.groups.values()):
            await asyncio.sleep(0)
            if loaded.group.state is not State.DEAD and not loaded.writes:
                with reported("the expiry of offsets"):
                    await self._expire_group(loaded)

    def _idle_due(self, name: str, now_ms: int) -> bool:
        idle = self.idle.get(name)
        due = idle is not None and idle.check_at_ms <= now_ms
        return due or name in self._unclean

    async def _load(self, name: str) -> None:
        """Load a group, unless another broker coordinates it."""
        try:
            await self._loaded_groups.find(name, stored=True)
        except Refused:
            await self._loaded_groups.wait_for_load(name)
        if name in self._loaded_groups.groups:
            self._unclean.discard(name)
            self._forget(name)

    async def _expire_group(self, loaded: LoadedGroup) -> None:
        """Remove the group's expired offsets. After a LedgerError the next look tries again."""
        try:
            await self._remove_expired(loaded)
        except LedgerError as error:
            logger().warning(
                "expired offsets could not be removed",
                group=shown(loaded.group_id),
                reason=shown(str(error)),
            )

    async def _remove_expired(self, loaded: LoadedGroup) -> None:
        if not self._loaded_groups.serves():
            return
        group = loaded.group
        subscribed = None
        if loaded.consumer is not None:
            subscribed = frozenset(loaded.consumer.roster.subscribed_topics())
        elif group.state is State.STABLE:
            subscribed = subscribed_topics(group.members, group.protocol_type, group.protocol)
        # A topic of a group of the consumer protocol ages as soon as no member subscribes to it.
        state = State.STABLE if loaded.consumer is not None else group.state
        age = GroupAge(state, loaded.protocol_type, loaded.empty_since_ms, subscribed)
        gone = expired(
            loaded.offsets, age, self._topic_name, self._clock.now_ms(), self._retention_ms
        )
        # As in Kafka, a committed offset stays while a transaction has one of the same partition.
        unstable = self._loaded_groups.unstable(loaded)
        await self.remove_offsets(loaded, [key for key in gone if key not in unstable])
        # A commit in flight is not among the offsets yet, and its group must not be deleted.
        if self._loaded_groups.is_idle(loaded) and not loaded.offsets:
            await self._loaded_groups.delete(loaded)

    async def remove_offsets(self, loaded: LoadedGroup, keys: Iterable[TopicIdPartition]) -> None:
        """Remove these offsets, and wait until the removal is durable. Raises LedgerError."""
        gone = dict.fromkeys(keys)
        if gone:
            await asyncio.shield(self._loaded_groups.write(loaded, gone))

    async def forget_topic(self, topic_id: UUID) -> None:
        """Remove the topic's offsets from loaded groups. In other groups the offsets expire."""
        await asyncio.gather(
            *(
                self.remove_offsets(
                    loaded, [key for key in self._keys(loaded) if key.topic_id == topic_id]
                )
                for loaded in list(self._loaded_groups.groups.values())
            ),
            # After an error the group is unloaded, and its offsets expire later.
            return_exceptions=True,
        )

    def _keys(self, loaded: LoadedGroup) -> Iterable[TopicIdPartition]:
        """Return the partitions with committed or pending offsets."""
        return chain(loaded.offsets, self._loaded_groups.unstable(loaded))

    def _topic_name(self, topic_id: UUID) -> str | None:
        topic = self._catalog.by_id(topic_id)
        return None if topic is None else topic.name


async def _unhurried(names: list[str]) -> AsyncIterator[str]:
    """Yield the names, with a pause for other tasks after each `_SLICE` of them."""
    for number, name in enumerate(names, 1):
        if not number % _SLICE:
            await asyncio.sleep(0)
        yield name


async def _each(
    names: Iterable[str], work: Callable[[str], Awaitable[None]], failures: list[LedgerError]
) -> None:
    """Await `work` for every name, for READS_MAX names at a time. Stop after the first failure."""
    waiting = iter(list(names))

    async def worker() -> None:
        for name in waiting:
            if failures:
                return
            await work(name)
            await asyncio.sleep(0)  # the work of a broker that ends does not wait for anything

    async with asyncio.TaskGroup() as tasks:
        for _ in range(READS_MAX):
            tasks.create_task(worker())
