"""The groups that this gateway coordinates, in memory: claimed, loaded, written, let go.

A group is claimed before it is loaded, and belongs to this process until it is let go: because
nobody needed it for a while, because the gateway ends, or because the store said that it is
another's or did not say what became of a write. Then it is forgotten, everybody who waits is told
to look for the coordinator, and the next request claims and loads it anew.

Nothing here awaits between reading a group's state and acting on it; writes answer by callback.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, Task
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import cast

from kio.schema.errors import ErrorCode

from gateway.cluster.port import GroupClaims
from gateway.core.group import Group
from gateway.core.group_members import (
    AnswerJoin,
    AnswerSync,
    Effect,
    GroupSettings,
    Joined,
    Persist,
    State,
    Synced,
)
from gateway.errors import coordinator_code
from gateway.groups.deadline_timer import DeadlineTimer
from gateway.groups.stored_membership import StoredMembership, decode_membership, encode_membership
from gateway.groups.views import Refused
from gateway.log import logger
from ledger.errors import LedgerError, NotOwner
from ledger.ports.clock import Clock
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition
from subscriptions.store import Subscription, SubscriptionsStore

LOAD_WAIT_S = 2.0  # then COORDINATOR_LOAD_IN_PROGRESS; the load goes on
IDLE_MS = 60_000  # a group without members that nobody asks for is let go after it
LAPSE_LOOK_MS = 200  # without a lease no member is judged; so often it is looked for
LET_GO_MAX = 64  # groups that are let go at once


class LoadedGroup:
    """A group that belongs to this process. `offsets` are durable ones only."""

    __slots__ = (
        "empty_since_ms",
        "group",
        "group_id",
        "last_write",
        "offsets",
        "stored",
        "used_ms",
        "writes",
    )

    def __init__(self, group_id: str, group: Group, found: Subscription, since_ms: int) -> None:
        self.group_id = group_id
        self.group = group
        self.offsets = found.offsets
        self.stored = found.exists
        self.writes = 0  # accepted and not known to be durable yet
        self.last_write: Future[None] | None = None
        self.empty_since_ms = since_ms
        self.used_ms = 0

    @property
    def quiet(self) -> bool:
        """Nobody is in it, and nothing is on its way to the store."""
        return self.group.idle and not self.writes


class _Loading:
    """A load under way. `claimed`: no other gateway coordinates the group."""

    __slots__ = ("claimed", "task")

    def __init__(self) -> None:
        self.claimed = False
        self.task: Task[LoadedGroup | ErrorCode | None]


class LoadedGroups:
    """See the module. `on_rest` hears of every stored group that is let go for being idle."""

    def __init__(
        self,
        store: SubscriptionsStore,
        claims: GroupClaims,
        clock: Clock,
        settings: GroupSettings,
        on_rest: Callable[[LoadedGroup], None],
    ) -> None:
        self.groups: dict[str, LoadedGroup] = {}
        self._store = store
        self._claims = claims
        self._clock = clock
        self._settings = settings
        self._on_rest = on_rest
        self._loading: dict[str, _Loading] = {}
        self._letting_go: dict[str, Task[None]] = {}
        self._life = 0  # rises when all claims have ended at once
        self._open = True
        self._lapsed = False
        self._sessions = DeadlineTimer(clock, self._on_due)
        self._idle = DeadlineTimer(clock, self._on_idle)
        self._idlers: deque[str] = deque()
        self._resting: Task[None] | None = None

    def now_ms(self) -> int:
        return int(self._clock.monotonic_s() * 1000)

    # finding

    def serves(self) -> bool:
        """This gateway may answer as coordinator. To be asked last, before each answer."""
        return self._open and self._claims.lease_held()

    def resident(self, group_id: str) -> LoadedGroup | None:
        """The group, if it is in memory; then it is in use."""
        resident = self.groups.get(group_id)
        if resident is not None:
            resident.used_ms = self.now_ms()
        return resident

    def claimed(self, group_id: str) -> bool:
        """No other gateway coordinates the group, though it may not be loaded yet."""
        loading = self._loading.get(group_id)
        return group_id in self.groups or (loading is not None and loading.claimed)

    async def find(self, group_id: str, *, create: bool = False) -> LoadedGroup | None:
        """The group, loaded; None when there is none and none is to be made. Raises Refused."""
        while True:
            if not self.serves():
                raise Refused(ErrorCode.not_coordinator)
            resident = self.resident(group_id)
            if resident is not None:
                return resident
            loading = self._loading.get(group_id)
            if loading is None:
                loading = self._loading[group_id] = _Loading()
                loading.task = asyncio.get_running_loop().create_task(
                    self._load(group_id, loading, create)
                )
            await asyncio.wait([loading.task], timeout=LOAD_WAIT_S)
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
        self, group_id: str, loading: _Loading, create: bool
    ) -> LoadedGroup | ErrorCode | None:
        """One at a time for a group: a second claim would shut out the first."""
        life = self._life
        try:
            leaving = self._letting_go.get(group_id)
            if leaving is not None:
                await asyncio.wait([leaving])
            await self._claims.claim(group_id)
            loading.claimed = True
            found = await self._store.load(group_id)
            if life != self._life:
                self._store.release(group_id)
                return ErrorCode.not_coordinator
            if not found.exists and not create:
                self._store.release(group_id)
                await self._claims.release(group_id)
                return None
            return self._move_in(group_id, found)
        except NotOwner:
            return ErrorCode.not_coordinator
        except LedgerError as error:
            logger().error("a group cannot be loaded", group=group_id, reason=str(error))
            return coordinator_code(error)
        finally:
            del self._loading[group_id]

    def _move_in(self, group_id: str, found: Subscription) -> LoadedGroup:
        stored = decode_membership(found.note, f"group {group_id!r}")
        now_ms = self.now_ms()
        group = Group.restore(stored.membership, self._settings, now_ms)
        resident = LoadedGroup(group_id, group, found, stored.empty_since_ms)
        resident.used_ms = now_ms
        self.groups[group_id] = resident
        self._idle.set(group_id, now_ms + IDLE_MS)
        self.note_deadline(resident)
        return resident

    # what changes

    def run(self, resident: LoadedGroup, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Persist):
                self._persist(resident, effect)
            else:
                _answer(effect)
        self.note_deadline(resident)

    def _persist(self, resident: LoadedGroup, effect: Persist) -> None:
        empty = not effect.membership.members
        resident.empty_since_ms = self._clock.now_ms() if empty else 0
        note = encode_membership(StoredMembership(effect.membership, resident.empty_since_ms))
        durable = self.write(resident, {}, note)
        durable.add_done_callback(partial(self._on_persisted, resident, effect))

    def write(
        self,
        resident: LoadedGroup,
        offsets: Mapping[TopicIdPartition, CommittedOffset | None],
        note: bytes | None = None,
    ) -> Future[None]:
        """Durable, and seen in `offsets`, when the future resolves. Do not cancel it: shield."""
        resident.writes += 1
        durable = resident.last_write = self._store.advance(resident.group_id, offsets, note)
        durable.add_done_callback(partial(self._on_written, resident, offsets))
        return durable

    def _on_written(
        self,
        resident: LoadedGroup,
        offsets: Mapping[TopicIdPartition, CommittedOffset | None],
        durable: Future[None],
    ) -> None:
        resident.writes -= 1
        if durable is resident.last_write:
            resident.last_write = None
        error = durable.exception()
        if error is not None:
            if self.groups.get(resident.group_id) is resident:
                logger().warning("a group was lost", group=resident.group_id, reason=str(error))
                self.let_go(resident, coordinator_code(error))
            return
        resident.stored = True
        for key, committed in offsets.items():
            if committed is None:
                resident.offsets.pop(key, None)
            else:
                resident.offsets[key] = committed

    def _on_persisted(self, resident: LoadedGroup, effect: Persist, durable: Future[None]) -> None:
        if resident.group.state is not State.DEAD:  # as it is when the write failed
            self.run(resident, effect.then(self.now_ms()))

    async def delete(self, resident: LoadedGroup) -> None:
        """The group and all of its offsets are gone. Raises LedgerError.

        Until then the group stays known as dead, so that nobody loads it meanwhile.
        """
        for effect in resident.group.abandon(ErrorCode.coordinator_not_available):
            _answer(effect)
        try:
            await self._store.delete(resident.group_id)
            resident.stored = False
        finally:
            self.let_go(resident, ErrorCode.coordinator_not_available)

    # letting go

    def let_go(self, resident: LoadedGroup, code: ErrorCode, *, release: bool = True) -> None:
        """Forgotten here, and who waits is told `code`; once its writes have ended others may
        claim it (`release`), and the next request claims and loads it anew."""
        group_id = resident.group_id
        for effect in resident.group.abandon(code):
            _answer(effect)
        if self.groups.get(group_id) is not resident:
            return
        del self.groups[group_id]
        self._sessions.clear(group_id)
        self._idle.clear(group_id)
        self._letting_go[group_id] = asyncio.get_running_loop().create_task(
            self._let_go(resident, release)
        )

    async def _let_go(self, resident: LoadedGroup, release: bool) -> None:
        group_id = resident.group_id
        try:
            while resident.last_write is not None:
                await asyncio.wait([resident.last_write])
                await asyncio.sleep(0)  # its callbacks run
            if release:
                await self._store.unload(group_id)
                await self._claims.release(group_id)
            else:
                self._store.release(group_id)
        except LedgerError as error:  # the claim ends with this incarnation
            logger().warning("a group was not released", group=group_id, reason=str(error))
        finally:
            del self._letting_go[group_id]

    def lose_all(self) -> None:
        """All claims have ended at once; who waits is told to look for the coordinator."""
        self._life += 1
        for resident in list(self.groups.values()):
            self.let_go(resident, ErrorCode.not_coordinator, release=False)

    def release_waiters(self) -> None:
        """Members that wait in a rebalance are told to come back later; they keep their ids."""
        for resident in list(self.groups.values()):
            self.let_go(resident, ErrorCode.coordinator_not_available)

    async def hand_over(self) -> None:
        """Every group is written back and released; no request finds or claims one any more."""
        self._open = False
        for loading in list(self._loading.values()):
            await asyncio.wait([loading.task])
        await self._empty(ErrorCode.not_coordinator)

    async def stop(self) -> None:
        """Nobody waits here any more, and nothing is under way."""
        self._open = False
        for loading in list(self._loading.values()):
            loading.task.cancel()
            await asyncio.gather(loading.task, return_exceptions=True)
        self._sessions.stop()
        self._idle.stop()
        self._idlers.clear()
        await self._empty(ErrorCode.coordinator_not_available)
        if self._resting is not None:
            await self._resting

    async def _empty(self, code: ErrorCode) -> None:
        """All groups are let go; without a lease there is nothing left to release."""
        while self.groups:
            for resident in list(self.groups.values())[:LET_GO_MAX]:
                self.let_go(resident, code, release=self._claims.lease_held())
            await self._all_let_go()
        await self._all_let_go()

    async def _all_let_go(self) -> None:
        await asyncio.gather(*self._letting_go.values(), return_exceptions=True)

    # time

    def note_deadline(self, resident: LoadedGroup) -> None:
        if self.groups.get(resident.group_id) is not resident:
            return  # let go: another may have its place by now
        at_ms = resident.group.deadline_ms
        if at_ms is None:
            self._sessions.clear(resident.group_id)
        else:
            self._sessions.set(resident.group_id, at_ms)

    def _on_due(self, group_ids: list[str]) -> None:
        """Members that were silent are out; but nobody is judged by who cannot be reached."""
        now_ms = self.now_ms()
        if not self._claims.lease_held():
            self._lapsed = True
            for group_id in group_ids:
                self._sessions.set(group_id, now_ms + LAPSE_LOOK_MS)
            return
        if self._lapsed:
            self._lapsed = False
            for resident in self.groups.values():
                resident.group.extend_sessions(now_ms)
        for group_id in group_ids:
            resident = self.groups[group_id]
            self.run(resident, resident.group.tick(now_ms))

    def _on_idle(self, group_ids: list[str]) -> None:
        self._idlers.extend(group_ids)
        if self._resting is None:
            self._resting = asyncio.get_running_loop().create_task(self._let_idlers_go())

    async def _let_idlers_go(self) -> None:
        """A few at once, however many fell idle together: each is some requests to the store."""
        try:
            while self._idlers:
                some = [self._idlers.popleft() for _ in range(min(len(self._idlers), LET_GO_MAX))]
                await asyncio.gather(*filter(None, map(self._let_idler_go, some)))
        finally:
            self._resting = None

    def _let_idler_go(self, group_id: str) -> Task[None] | None:
        """None: it is gone already, or was used meanwhile."""
        resident = self.groups.get(group_id)
        if resident is None:
            return None
        now_ms = self.now_ms()
        if not resident.quiet or now_ms - resident.used_ms < IDLE_MS:
            at_ms = resident.used_ms + IDLE_MS
            self._idle.set(group_id, at_ms if at_ms > now_ms else now_ms + IDLE_MS)
            return None
        self.let_go(resident, ErrorCode.coordinator_not_available)
        if resident.stored:
            self._on_rest(resident)
        return self._letting_go[group_id]


def _answer(effect: Effect) -> None:
    """Whoever waits has the answer; a connection that went away does not wait any more."""
    if isinstance(effect, AnswerJoin | AnswerSync):
        waiter = cast("Future[Joined | Synced]", effect.waiter)
        if not waiter.done():
            waiter.set_result(effect.joined if isinstance(effect, AnswerJoin) else effect.synced)
