"""All stored groups: who of them rests, who has to be loaded, whose offsets have expired.

Every gateway knows every resting group by name; what it does about one depends on the ring: only
the candidate of a group that nobody has claimed lists it, and sweeps it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import NamedTuple
from uuid import UUID

from gateway.cluster.port import GroupClaims
from gateway.core.group_members import State
from gateway.core.offset_expiry import GroupAge, expired, expires_at_ms, subscribed_topics
from gateway.groups.loaded_groups import LoadedGroup, LoadedGroups
from gateway.groups.stored_membership import decode_membership
from gateway.groups.views import GroupListing, Refused
from gateway.log import logger
from gateway.topics.catalog import Catalog
from ledger.errors import LedgerError, MetadataError
from ledger.ports.clock import Clock
from subscriptions.committed_offset import TopicIdPartition
from subscriptions.store import SubscriptionsStore

SWEEP_S = 600.0  # Kafka: offsets.retention.check.interval.ms
LOOKS_MAX = 64  # groups that are read or loaded at once
_SLICE = 500  # names that are looked at without giving way


class IdleGroup(NamedTuple):
    """A stored group without members that is not in memory."""

    protocol_type: str
    check_at_ms: int  # wall time before which none of its offsets expires


class GroupScanner:
    """Runs beside the requests. `looked` is set once every stored group was looked at."""

    def __init__(
        self,
        store: SubscriptionsStore,
        claims: GroupClaims,
        residents: LoadedGroups,
        catalog: Catalog,
        clock: Clock,
        retention_ms: int,
    ) -> None:
        self.resting: dict[str, IdleGroup] = {}
        self.looked = asyncio.Event()
        self._elsewhere: set[str] = set()  # have members, and were not for us when looked at
        self._left_open: set[str] = set()  # rest, but a gateway died before it let them go
        self._counting = asyncio.Lock()
        self._store = store
        self._claims = claims
        self._residents = residents
        self._catalog = catalog
        self._clock = clock
        self._retention_ms = retention_ms

    async def run(self) -> None:
        """For ever: news from other gateways, then the sweep."""
        retry_s = 1.0
        while True:
            wait_s = SWEEP_S
            try:
                await self.count()
                await self._sweep()
                retry_s = 1.0
            except LedgerError as error:
                logger().warning("groups could not be looked through", reason=str(error))
                wait_s = retry_s
                retry_s = min(2 * retry_s, SWEEP_S)
            await asyncio.sleep(wait_s)

    async def count(self) -> None:
        """Every stored group is in memory, another gateway's, or known to rest.

        Raises MetadataUnavailable.
        """
        async with self._counting:
            names = set(await self._store.list())
            for gone in [name for name in self.resting if name not in names]:
                del self.resting[gone]
            self._elsewhere &= names
            known = self._residents.groups.keys() | self.resting.keys() | self._elsewhere
            await self.look([*(names - known), *await self._now_for_us()])
            self.looked.set()

    async def _now_for_us(self) -> list[str]:
        """Groups with members that another gateway had, and that nobody has now but we may."""
        ours = [name for name in self._elsewhere if self._claims.candidate(name)]
        claimed = await self._claims.claimed_elsewhere(ours) if ours else set[str]()
        return [name for name in ours if name not in claimed]

    async def adopt(self, names: Iterable[str]) -> None:
        """Groups of dead gateways are in memory if they have members; the sweep tidies the others.

        Raises MetadataUnavailable.
        """
        orphans = list(names)
        await self.look(orphans)
        self._left_open.update(name for name in orphans if name in self.resting)
        await self.count()

    async def look(self, names: Iterable[str]) -> None:
        """These groups are read. One that has members and would be ours is loaded."""
        failures: list[LedgerError] = []

        async def look_at(name: str) -> None:
            try:
                await self._look_at(name)
            except MetadataError as error:
                failures.append(error)
            except LedgerError as error:
                logger().error("a group cannot be read", group=name, reason=str(error))

        await _each(names, look_at, failures)
        if failures:
            raise failures[0]

    async def _look_at(self, name: str) -> None:
        found = await self._store.read(name)
        stored = decode_membership(found.note, f"group {name!r}")
        if name in self._residents.groups:
            return
        self._forget(name)
        if not found.exists:
            return
        if not stored.membership.members:
            self.rest(
                name,
                stored.membership.protocol_type,
                expires_at_ms(found.offsets.values(), stored.empty_since_ms, self._retention_ms),
            )
            return
        self._elsewhere.add(name)
        if self._claims.candidate(name):
            await self._load(name)

    def knows(self, name: str) -> bool:
        """From memory: a group of this name is here, or was found in the store."""
        resident = self._residents.groups.get(name)
        if resident is not None:
            return resident.group.state is not State.DEAD
        return name in self.resting or name in self._elsewhere

    def _forget(self, name: str) -> None:
        self.resting.pop(name, None)
        self._elsewhere.discard(name)

    def rest(self, name: str, protocol_type: str | None, check_at_ms: int) -> None:
        self.resting[name] = IdleGroup(protocol_type or "", check_at_ms)

    def on_rest(self, resident: LoadedGroup) -> None:
        """It has been let go, with nobody in it."""
        self.rest(
            resident.group_id,
            resident.group.protocol_type,
            expires_at_ms(resident.offsets.values(), resident.empty_since_ms, self._retention_ms),
        )

    async def listings(self) -> list[GroupListing]:
        """The groups in memory, and those that rest with this gateway.

        Raises MetadataUnavailable.
        """
        await self.count()
        ours = [
            name
            async for name in _unhurried(list(self.resting))
            if name in self.resting and self._claims.candidate(name)
        ]
        elsewhere = await self._claims.claimed_elsewhere(ours)
        groups = self._residents.groups
        listed = [
            GroupListing(name, resident.group.protocol_type or "", resident.group.state)
            for name, resident in groups.items()
            if resident.group.state is not State.DEAD
        ]
        listed += [
            GroupListing(name, self.resting[name].protocol_type, State.EMPTY)
            for name in ours
            if name in self.resting and name not in groups and name not in elsewhere
        ]
        return listed

    # offsets that nobody needs any more

    async def _sweep(self) -> None:
        """Expired offsets are gone, and so are empty groups that have none left.

        What a dead gateway left open is loaded too: when it is let go again, it is in order.
        """
        now_ms = self._clock.now_ms()
        due = [
            name
            async for name in _unhurried(list(self.resting))
            if self._resting_due(name, now_ms) and self._claims.candidate(name)
        ]
        self._left_open.clear()
        await _each(due, self._load, [])
        for resident in list(self._residents.groups.values()):
            await asyncio.sleep(0)
            if resident.group.state is not State.DEAD and not resident.writes:
                await self._sweep_group(resident)

    def _resting_due(self, name: str, now_ms: int) -> bool:
        resting = self.resting.get(name)
        due = resting is not None and resting.check_at_ms <= now_ms
        return due or name in self._left_open

    async def _load(self, name: str) -> None:
        """In memory, unless it cannot be ours now: then whoever has it looks after it."""
        try:
            await self._residents.find(name)
        except Refused:
            return
        self._forget(name)

    async def _sweep_group(self, resident: LoadedGroup) -> None:
        if not self._residents.serves():
            return
        group = resident.group
        subscribed = None
        if group.state is State.STABLE:
            subscribed = subscribed_topics(group.members, group.protocol_type, group.protocol)
        age = GroupAge(group.state, group.protocol_type, resident.empty_since_ms, subscribed)
        gone = expired(
            resident.offsets, age, self._topic_name, self._clock.now_ms(), self._retention_ms
        )
        await self.remove_offsets(resident, gone)
        # A commit that is under way is not among the offsets yet, and must not be deleted.
        if resident.quiet and not resident.offsets:
            await self._residents.delete(resident)

    async def remove_offsets(self, resident: LoadedGroup, keys: Iterable[TopicIdPartition]) -> None:
        """Their removal is durable. Raises LedgerError."""
        gone = dict.fromkeys(keys)
        if gone:
            await asyncio.shield(self._residents.write(resident, gone))

    async def forget_topic(self, topic_id: UUID) -> None:
        """Its offsets go from every group in memory; elsewhere they are invisible and expire."""
        await asyncio.gather(
            *(
                self.remove_offsets(
                    resident, [key for key in resident.offsets if key.topic_id == topic_id]
                )
                for resident in list(self._residents.groups.values())
            ),
            return_exceptions=True,  # such a group is let go; the topic is gone all the same
        )

    def _topic_name(self, topic_id: UUID) -> str | None:
        topic = self._catalog.by_id(topic_id)
        return None if topic is None else topic.name


async def _unhurried(names: list[str]) -> AsyncIterator[str]:
    """The names, with a pause now and then: others are on this loop too."""
    for number, name in enumerate(names, 1):
        if not number % _SLICE:
            await asyncio.sleep(0)
        yield name


async def _each(
    names: Iterable[str], work: Callable[[str], Awaitable[None]], failures: list[LedgerError]
) -> None:
    """`work` was done for every name, LOOKS_MAX at once; or ended soon after the first failure."""
    waiting = iter(list(names))

    async def worker() -> None:
        for name in waiting:
            if failures:
                return
            await work(name)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(LOOKS_MAX):
            tasks.create_task(worker())
