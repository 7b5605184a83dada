"""The groups that this broker coordinates, in memory: claimed, loaded, written, unloaded.

A group is claimed before it is loaded. It is unloaded when it is idle for a while, the broker
ends, the store reports another owner, or the outcome of a write is unknown. Then its waiting
requests are answered with an error that makes clients look up the coordinator. The next request
claims and loads the group again.

No method awaits between reading a group's state and acting on the state. Writes complete by
callback.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, Task
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from gateway.cluster.port import GroupClaims
from gateway.core.consumer_group import ConsumerGroup
from gateway.core.consumer_members import Changes
from gateway.core.group import Group
from gateway.core.group_members import (
    Effect,
    GroupMembership,
    GroupSettings,
    Persist,
    State,
)
from gateway.core.shown_text import shown
from gateway.errors import coordinator_code
from gateway.groups.deadline_timer import DeadlineTimer
from gateway.groups.group_memory import GroupMemory
from gateway.groups.loaded_group import LoadedGroup, answer
from gateway.groups.stored_consumer_group import encode_changes
from gateway.groups.stored_membership import (
    MembershipTooLarge,
    StoredMembership,
    decode_with_pauses,
    encode_membership,
    encode_with_pauses,
)
from gateway.groups.views import Refused
from gateway.log import ReasonThrottle, logger
from ledger.errors import LedgerError, NotOwner
from ledger.ports.clock import Clock
from ledger.tasks import reported, start_once
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition
from subscriptions.store import KeyedStore, Subscription, SubscriptionsStore

if TYPE_CHECKING:
    from gateway.groups.consumer_groups import ConsumerGroups

# Seconds until a request gets COORDINATOR_LOAD_IN_PROGRESS, while the load continues.
LOAD_WAIT_S = 2.0
IDLE_MS = 60_000  # a group without members and requests is unloaded after this time
REST_MS = 5_000  # the same for one that was loaded although nobody asked
LEASE_POLL_MS = 200  # the period of lease checks while session timeouts are suspended
UNLOADS_MAX = 64  # the number of groups that are unloaded at the same time
_ENCODE_AT_ONCE_BYTES = 64 * 1024  # a larger membership is encoded with pauses for other tasks


class _Loading:
    """A load in progress."""

    __slots__ = ("claimed", "task")

    def __init__(self) -> None:
        # True once this broker has claimed the group.
        self.claimed = False
        # The task that claims and loads. Its result is the group, an error code, or None if the
        # group does not exist.
        self.task: Task[LoadedGroup | ErrorCode | None]


class LoadedGroups:
    """All claimed groups of this broker. `on_evicted` runs for each evicted stored group."""

    # The groups of the consumer protocol among them. Set once, before the first load.
    consumers: ConsumerGroups

    def __init__(
        self,
        store: SubscriptionsStore,
        claims: GroupClaims,
        clock: Clock,
        settings: GroupSettings,
        bytes_max: int,
        on_evicted: Callable[[LoadedGroup], None],
    ) -> None:
        # The loaded groups by name. A group is removed before its claim is released.
        self.groups: dict[str, LoadedGroup] = {}
        # The memory counted for the members of all loaded groups.
        self.memory = GroupMemory(bytes_max)
        # Held while a large membership is encoded, so that one is encoded at a time.
        self._encoding = asyncio.Lock()
        # Set once, if offsets can be committed in transactions: the partitions with pending offsets
        # of a group, and work to be done after its last write and before its claim is released.
        self.unstable: Callable[[LoadedGroup], Collection[TopicIdPartition]] = lambda _: ()
        self.before_release: Callable[[LoadedGroup], Awaitable[None]] | None = None
        self._store = store
        self._claims = claims
        self._clock = clock
        self._settings = settings
        self._on_evicted = on_evicted
        # Loads in progress, at most one per group. Requests wait for the task of the load.
        self._loading: dict[str, _Loading] = {}
        # Unloads in progress, by group. A load of the same group waits for the task of the unload.
        self._unloading: dict[str, Task[None]] = {}
        # Incremented when all claims end at once. A load that began before the increment is
        # discarded.
        self._session_number = 0
        # False once `hand_over` or `stop` has begun. No group is loaded any more then.
        self._open = True
        # True while session timeouts are suspended because the lease does not hold.
        self._lease_lapsed = False
        # The next session or rebalance deadline of each loaded group that has one.
        self._session_timer = DeadlineTimer(clock, self._on_due)
        # The time at which each loaded group is next checked for idleness.
        self._idle_timer = DeadlineTimer(clock, self._on_idle)
        # Groups that may be idle, in the order of their deadlines, until `_evict` examines them.
        self._idle: deque[str] = deque()
        # The task that empties `_idle`; None while `_idle` is empty.
        self._evicting: Task[None] | None = None
        self._throttle = ReasonThrottle()
        self.rebalances = 0  # generations that began here; only grows

    def now_ms(self) -> int:
        return int(self._clock.monotonic_s() * 1000)

    # finding

    def serves(self) -> bool:
        """Return whether this broker may answer as coordinator. Check it before each answer."""
        return self._open and self._claims.lease_held()

    def use(self, group_id: str) -> LoadedGroup | None:
        """Return the group if it is loaded, and record the time of this use."""
        loaded = self.groups.get(group_id)
        if loaded is not None:
            loaded.used_ms = self.now_ms()
        return loaded

    def claimed(self, group_id: str) -> bool:
        """Return whether this broker has claimed the group, which may still be loading."""
        loading = self._loading.get(group_id)
        return group_id in self.groups or (loading is not None and loading.claimed)

    async def find(
        self,
        group_id: str,
        *,
        create: bool = False,
        stored: bool = False,
        wait_s: float = LOAD_WAIT_S,
    ) -> LoadedGroup | None:
        """Return the group, after loading it if necessary. Raises Refused after `wait_s`.

        Returns None if the group does not exist and `create` is False. Writes nothing in this case.
        `stored` means that the caller has found the group in the store.
        """
        while True:
            if not self.serves():
                raise Refused(ErrorCode.not_coordinator)
            loaded = self.use(group_id)
            if loaded is not None:
                return loaded
            loading = self._loading.get(group_id)
            if loading is None:
                loading = self._loading[group_id] = _Loading()
                loading.task = start_once(
                    "the load of a group", self._load(group_id, loading, create, stored)
                )
            await asyncio.wait([loading.task], timeout=wait_s)
            if not loading.task.done():
                raise Refused(ErrorCode.coordinator_load_in_progress)
            if loading.task.cancelled():
                raise Refused(ErrorCode.coordinator_not_available)
            result = loading.task.result()
            if isinstance(result, ErrorCode):
                raise Refused(result)
            if result is None and not create:
                if not self.serves():
                    raise Refused(ErrorCode.not_coordinator)
                return None

    async def _load(
        self, group_id: str, loading: _Loading, create: bool, stored: bool
    ) -> LoadedGroup | ErrorCode | None:
        """Claim and load a group. One load runs at a time: a second claim would fence the first."""
        session, tried = self._session_number, False
        try:
            leaving = self._unloading.get(group_id)
            if leaving is not None:
                await asyncio.wait([leaving])
            if not create and not stored and not await self._exists(group_id):
                return None
            tried = True
            await self._claims.claim(group_id)
            loading.claimed = True
            found = await self._store.load(group_id)
            decoded = await decode_with_pauses(found.note, f"group {group_id!r}")
            consumer = await self.consumers.restore(group_id, found)
            if session != self._session_number:
                self._store.release(group_id)
                return ErrorCode.not_coordinator
            if not found.exists and not create:
                self._store.release(group_id)
                await self._claims.release(group_id)
                return None
            return self._admit(group_id, found, decoded, consumer)
        except NotOwner:
            return ErrorCode.not_coordinator
        except LedgerError as error:
            # No other broker would find the group to be an orphan. A claim without a reply may be
            # stored too; `release` reads whether it is.
            if tried:
                with suppress(LedgerError):
                    await self._claims.release(group_id)
            self._log("a group cannot be loaded", group_id, str(error), "error")
            return coordinator_code(error)
        finally:
            del self._loading[group_id]

    async def wait_for_load(self, group_id: str) -> None:
        """Wait until a load of the group that is in progress has ended, however it ends."""
        loading = self._loading.get(group_id)
        if loading is not None:
            await asyncio.wait([loading.task])

    def rest_soon(self, group_id: str) -> None:
        """Unload a group that nobody uses after `REST_MS` instead of `IDLE_MS`."""
        loaded = self.groups.get(group_id)
        if loaded is not None and self.is_idle(loaded):
            loaded.used_ms = self.now_ms() - IDLE_MS + REST_MS
            self._idle_timer.set(group_id, loaded.used_ms + IDLE_MS)

    async def _exists(self, group_id: str) -> bool:
        """Return whether the group is stored. Raises NotOwner if another broker coordinates it.

        A claim would write for each unknown name of a request.
        """
        await self._claims.check(group_id)
        return await self._store.exists(group_id)

    def _admit(
        self,
        group_id: str,
        found: Subscription,
        stored: StoredMembership,
        consumer: ConsumerGroup | None,
    ) -> LoadedGroup:
        now_ms = self.now_ms()
        group = Group.restore(stored.membership, self._settings, now_ms)
        loaded = LoadedGroup(group_id, group, found, stored.empty_since_ms)
        loaded.consumer = consumer
        loaded.used_ms = now_ms
        self.groups[group_id] = loaded
        self._idle_timer.set(group_id, now_ms + IDLE_MS)
        self._count(loaded)
        self.note_deadline(loaded)
        return loaded

    # changes

    def run(self, loaded: LoadedGroup, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Persist):
                self._persist(loaded, effect)
            else:
                answer(effect)
        if loaded.group.generation > loaded.generation:
            self.rebalances += loaded.group.generation - loaded.generation
            loaded.generation = loaded.group.generation
        self._count(loaded)
        self.note_deadline(loaded)

    def _count(self, loaded: LoadedGroup) -> None:
        """Update `memory` after a change of this group."""
        if self.groups.get(loaded.group_id) is not loaded:
            self._uncount(loaded)
            return
        changes = loaded.group.take_byte_changes()
        if loaded.consumer is not None:
            changes = Counter(changes)
            changes.update(loaded.consumer.roster.take_byte_changes())
        self.memory.change(changes)
        for host, more in changes.items():
            loaded.counted[host] += more
            if not loaded.counted[host]:
                del loaded.counted[host]

    def _uncount(self, loaded: LoadedGroup) -> None:
        loaded.counted, counted = Counter(), loaded.counted
        self.memory.change({host: -count for host, count in counted.items()})

    def _persist(self, loaded: LoadedGroup, effect: Persist) -> None:
        """Encode and write the membership, or queue it if it is large or others are queued."""
        if effect.size_bytes > self._settings.bytes_max:
            self._refuse(loaded, [effect])
            return
        empty = not effect.membership.members
        loaded.empty_since_ms = self._clock.now_ms() if empty else 0
        if loaded.encoding is None and effect.size_bytes <= _ENCODE_AT_ONCE_BYTES:
            note = encode_membership(StoredMembership(effect.membership, loaded.empty_since_ms))
            self._write_membership(loaded, [effect], note)
            return
        loaded.unencoded.append(effect)
        loaded.writes += 1
        if loaded.encoding is None:
            loaded.encoding = start_once("the encoding of a group", self._encode(loaded))

    async def _encode(self, loaded: LoadedGroup) -> None:
        """Encode and write the last of the queued memberships, until none is queued."""
        try:
            async with self._encoding:
                while loaded.unencoded:
                    effects, loaded.unencoded = loaded.unencoded, []
                    loaded.writes -= len(effects) - 1
                    await self._encode_last(loaded, effects)
                    loaded.writes -= 1
        except BaseException:  # no member may wait for ever
            self.unload(loaded, ErrorCode.coordinator_not_available)
            raise
        finally:
            loaded.encoding = None

    async def _encode_last(self, loaded: LoadedGroup, effects: list[Persist]) -> None:
        stored = StoredMembership(effects[-1].membership, loaded.empty_since_ms)
        try:
            note = await encode_with_pauses(stored)
        except MembershipTooLarge:
            self._refuse(loaded, effects)
            return
        self._write_membership(loaded, effects, note)

    def _log(self, event: str, group_id: str, reason: str, level: str = "warning") -> None:
        """Log what went wrong with a group, at most once a minute for each reason."""
        reason = shown(reason)  # it may quote the name of the group, which clients choose
        if self._throttle.allows(event, "", reason, self._clock.monotonic_s()):
            getattr(logger(), level)(event, group=shown(group_id), reason=reason)

    def _refuse(self, loaded: LoadedGroup, effects: list[Persist]) -> None:
        last = effects[-1]
        reason = f"{last.size_bytes} bytes of {len(last.membership.members)} members"
        self._log("a group's membership is too large to be stored", loaded.group_id, reason)
        for effect in effects:
            if loaded.group.state is not State.DEAD:
                self.run(loaded, effect.refuse(self.now_ms()))

    def _write_membership(self, loaded: LoadedGroup, effects: list[Persist], note: bytes) -> None:
        durable = self.write(loaded, {}, note)
        durable.add_done_callback(partial(self._on_persisted, loaded, loaded.group, effects))

    def write(
        self,
        loaded: LoadedGroup,
        offsets: Mapping[TopicIdPartition, CommittedOffset | None],
        note: bytes | None = None,
    ) -> Future[None]:
        """Write offsets and the note. Both are durable and in memory when the future resolves.

        Do not cancel the future; shield it.
        """
        return self.track(loaded, self._store.advance(loaded.group_id, offsets, note))

    def write_records(
        self, loaded: LoadedGroup, changes: Changes, note: bytes | None = None
    ) -> Future[None]:
        """Write the records of a group of the consumer protocol, and its note unless it is None.

        `ConsumerGroups.settle` waits until they are durable.
        """
        assert isinstance(self._store, KeyedStore)
        durable = self._store.advance_keyed(loaded.group_id, encode_changes(changes), note)
        loaded.last_change = durable
        self._count(loaded)
        self.note_deadline(loaded)
        return self.track(loaded, durable)

    def is_loaded(self, loaded: LoadedGroup) -> bool:
        """Return whether this is still the group of its name."""
        return self.groups.get(loaded.group_id) is loaded

    def begin_classic(self, loaded: LoadedGroup, membership: GroupMembership) -> None:
        """Replace the state of the classic protocol. Members that wait in the old one join again.

        `loaded.consumer` must be None, or the group of these members is not counted yet.
        """
        for effect in loaded.group.abandon(ErrorCode.rebalance_in_progress):
            answer(effect)
        self._uncount(loaded)
        loaded.group = Group.restore(membership, self._settings, self.now_ms())
        loaded.generation = membership.generation
        self.run(loaded, ())

    def track(self, loaded: LoadedGroup, durable: Future[None]) -> Future[None]:
        """Count a write of the group that the store has accepted. If it fails, unload the group."""
        loaded.writes += 1
        loaded.last_write = durable
        durable.add_done_callback(partial(self._on_written, loaded))
        return durable

    def is_idle(self, loaded: LoadedGroup) -> bool:
        """Return whether the group has neither members, nor writes, nor an open transaction."""
        return loaded.idle and not self.unstable(loaded)

    def _on_written(self, loaded: LoadedGroup, durable: Future[None]) -> None:
        loaded.writes -= 1
        loaded.commits += 1
        if durable is loaded.last_write:
            loaded.last_write = None
        if durable is loaded.last_change:
            loaded.last_change = None
        error = durable.exception()
        if error is not None:
            loaded.unsure = True
            if self.groups.get(loaded.group_id) is loaded:
                self._log("a group was lost", loaded.group_id, str(error))
                self.unload(loaded, coordinator_code(error))
            return
        loaded.stored = True

    def _on_persisted(
        self, loaded: LoadedGroup, group: Group, effects: list[Persist], durable: Future[None]
    ) -> None:
        for effect in effects:
            if group.state is not State.DEAD:  # the write failed, or the group has ended
                self.run(loaded, effect.then(self.now_ms()))

    async def delete(self, loaded: LoadedGroup) -> None:
        """Delete the group and all of its offsets. Raises LedgerError.

        During the deletion the group stays in `groups` as DEAD, so that no request loads it.
        """
        for effect in loaded.group.abandon(ErrorCode.coordinator_not_available):
            answer(effect)
        try:
            if loaded.encoding is not None:  # its write would create the group again
                await asyncio.wait([loaded.encoding])
            await self._store.delete(loaded.group_id)
            loaded.stored = False
        finally:
            self.unload(loaded, ErrorCode.coordinator_not_available)

    # unloading

    def unload(self, loaded: LoadedGroup, code: ErrorCode, *, release: bool = True) -> None:
        """Forget the group and answer its waiting requests with `code`.

        If `release` is True, the claim is released once the group's writes have ended.
        """
        group_id = loaded.group_id
        for effect in loaded.group.abandon(code):
            answer(effect)
        if self.groups.get(group_id) is not loaded:
            return
        del self.groups[group_id]
        self._count(loaded)
        self._session_timer.clear(group_id)
        self._idle_timer.clear(group_id)
        self._unloading[group_id] = start_once(
            "the unload of a group", self._unload(loaded, release)
        )

    async def _unload(self, loaded: LoadedGroup, release: bool) -> None:
        group_id = loaded.group_id
        try:
            if loaded.encoding is not None:
                await asyncio.wait([loaded.encoding])
            while loaded.last_write is not None:
                await asyncio.wait([loaded.last_write])
                await asyncio.sleep(0)  # let the callbacks of the write run
            if release:
                if self.before_release is not None:
                    await self.before_release(loaded)
                await self._store.unload(group_id)
                await self._claims.release(group_id)
            else:
                self._store.release(group_id)
        except LedgerError as error:  # the claim then lasts until this incarnation ends
            self._log("a group was not released", group_id, str(error))
        finally:
            del self._unloading[group_id]

    def lose_all(self) -> None:
        """Unload all groups with NOT_COORDINATOR, because all claims ended with the session."""
        self._session_number += 1
        for loaded in list(self.groups.values()):
            self.unload(loaded, ErrorCode.not_coordinator, release=False)

    def release_waiters(self) -> None:
        """Unload all groups, so that members that wait in a rebalance retry with their ids."""
        for loaded in list(self.groups.values()):
            self.unload(loaded, ErrorCode.coordinator_not_available)

    async def hand_over(self) -> None:
        """Write back and release every group. Requests load no group any more."""
        self._open = False
        for loading in list(self._loading.values()):
            await asyncio.wait([loading.task])
        await self._unload_all(ErrorCode.not_coordinator)

    async def stop(self) -> None:
        """Answer all waiting requests, and wait until no load, write or unload is in progress."""
        self._open = False
        for loading in list(self._loading.values()):
            loading.task.cancel()
            await asyncio.gather(loading.task, return_exceptions=True)
        self._session_timer.stop()
        self._idle_timer.stop()
        self._idle.clear()
        await self._unload_all(ErrorCode.coordinator_not_available)
        if self._evicting is not None:
            await self._evicting

    async def _unload_all(self, code: ErrorCode) -> None:
        """Unload all groups. Release their claims only while the lease holds."""
        while self.groups:
            for loaded in list(self.groups.values())[:UNLOADS_MAX]:
                self.unload(loaded, code, release=self._claims.lease_held())
            await self._wait_unloaded()
        await self._wait_unloaded()

    async def _wait_unloaded(self) -> None:
        await asyncio.gather(*self._unloading.values(), return_exceptions=True)

    # time

    def note_deadline(self, loaded: LoadedGroup) -> None:
        if self.groups.get(loaded.group_id) is not loaded:
            return  # the group was unloaded, and another object may have its name by now
        at_ms = loaded.deadline_ms
        if at_ms is None:
            self._session_timer.clear(loaded.group_id)
        else:
            self._session_timer.set(loaded.group_id, at_ms)

    def _on_due(self, group_ids: list[str]) -> None:
        """Expire members whose session timed out, but not while the lease is lost.

        Without a lease their heartbeats could not have arrived. All sessions restart when it
        returns.
        """
        now_ms = self.now_ms()
        if not self._claims.lease_held():
            self._lease_lapsed = True
            for group_id in group_ids:
                self._session_timer.set(group_id, now_ms + LEASE_POLL_MS)
            return
        if self._lease_lapsed:
            self._lease_lapsed = False
            for loaded in self.groups.values():
                loaded.group.extend_sessions(now_ms)
                self.consumers.extend_sessions(loaded)
        for group_id in group_ids:
            with reported("the deadline of a group"):
                loaded = self.groups[group_id]
                # Another deadline, in case the group raises before it sets one
                self._session_timer.set(group_id, now_ms + LEASE_POLL_MS)
                self.run(loaded, loaded.group.tick(now_ms))
                self.consumers.on_due(loaded)

    def _on_idle(self, group_ids: list[str]) -> None:
        self._idle.extend(group_ids)
        if self._evicting is None:
            self._evicting = start_once("the eviction of idle groups", self._evict_idle())

    async def _evict_idle(self) -> None:
        """Evict idle groups, up to `UNLOADS_MAX` at a time. Each costs requests to the store."""
        try:
            while self._idle:
                some = [self._idle.popleft() for _ in range(min(len(self._idle), UNLOADS_MAX))]
                await asyncio.gather(*filter(None, map(self._evict, some)), return_exceptions=True)
        finally:
            self._evicting = None

    def _evict(self, group_id: str) -> Task[None] | None:
        """Unload the group if it is idle. Returns None if the group is gone or was used."""
        loaded = self.groups.get(group_id)
        if loaded is None:
            return None
        now_ms = self.now_ms()
        if not self.is_idle(loaded) or now_ms - loaded.used_ms < IDLE_MS:
            at_ms = loaded.used_ms + IDLE_MS
            self._idle_timer.set(group_id, at_ms if at_ms > now_ms else now_ms + IDLE_MS)
            return None
        self.unload(loaded, ErrorCode.coordinator_not_available)
        if loaded.stored:
            self._on_evicted(loaded)
        return self._unloading[group_id]
