"""The coordinator of consumer groups: the pure groups, their store, and one timer for all of them.

A group is loaded when it is first asked for, and then belongs to this process. Each change of
membership and each commit is durable before anybody is told. When the store says that the group
is another's, or does not know what became of a write, the group is dropped, everybody who waits
is told to look for the coordinator, and the next request loads it anew.

Nothing here awaits between reading a group's state and acting on it; writes answer by callback.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple, cast
from uuid import UUID, uuid4

from kio.schema.errors import ErrorCode

from gateway.config import GroupLimits
from gateway.core.deadlines import Deadlines
from gateway.core.group import Group
from gateway.core.group_members import (
    AnswerJoin,
    AnswerSync,
    Effect,
    GroupSettings,
    Joined,
    Joining,
    Leaving,
    MemberView,
    Persist,
    State,
    Synced,
    Syncing,
)
from gateway.core.offset_expiry import CONSUMER, GroupAge, expired, subscribed_topics
from gateway.groups.membership import StoredMembership, decode_membership, encode_membership
from gateway.log import logger
from gateway.topics.catalog import Catalog, Topic
from ledger.errors import LedgerError, MetadataError, NotOwner
from ledger.world.clock import Clock
from ledger.world.metadata import MetadataStore
from subscriptions.positions import Position, PositionKey
from subscriptions.store import Subscription, SubscriptionsStore
from subscriptions.znode_store import GroupPositions

LOAD_WAIT_S = 2.0  # then COORDINATOR_LOAD_IN_PROGRESS; the load goes on
SWEEP_S = 600.0  # Kafka: offsets.retention.check.interval.ms


class Refused(Exception):
    """The group cannot be asked now; `code` tells the client why and what to do."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class GroupView(NamedTuple):
    """A group as DescribeGroups shows it."""

    state: State
    protocol_type: str
    protocol: str
    members: tuple[MemberView, ...]


class GroupListing(NamedTuple):
    """A group as ListGroups shows it."""

    group_id: str
    protocol_type: str
    state: State


class _Loaded:
    """A group that belongs to this process. `positions` are durable ones only."""

    __slots__ = ("empty_since_ms", "group", "group_id", "positions", "writes")

    def __init__(self, group_id: str, group: Group, found: Subscription, since_ms: int) -> None:
        self.group_id = group_id
        self.group = group
        self.positions = found.positions
        self.writes = 0  # accepted and not known to be durable yet
        self.empty_since_ms = since_ms


class _Resting(NamedTuple):
    """A stored group without members that nobody has asked for yet."""

    protocol_type: str
    check_at_ms: int  # wall time before which none of its offsets expires


class Coordinator:
    """All consumer groups of this process. Runs on one event loop; `start` once, `stop` once."""

    def __init__(
        self,
        metadata: MetadataStore,
        catalog: Catalog,
        clock: Clock,
        limits: GroupLimits,
        *,
        store: SubscriptionsStore | None = None,
    ) -> None:
        self.limits = limits
        self._store: SubscriptionsStore = GroupPositions(metadata) if store is None else store
        self._catalog = catalog
        self._clock = clock
        self._settings = GroupSettings(
            limits.initial_rebalance_delay_ms, limits.new_member_timeout_ms, limits.members_max
        )
        self._groups: dict[str, _Loaded] = {}
        self._loading: dict[str, asyncio.Task[_Loaded | ErrorCode | None]] = {}
        self._resting: dict[str, _Resting] = {}
        self._deadlines: Deadlines[str] = Deadlines()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self._looked = asyncio.Event()  # every stored group was looked at once
        self._background: asyncio.Task[None] | None = None
        catalog.on_deleted.append(self._on_topic_deleted)

    async def start(self) -> None:
        """Groups are served. Those that have members are loaded in the background."""
        self._background = asyncio.get_running_loop().create_task(self._run_background())

    async def stop(self) -> None:
        """Nobody waits here any more, and what was accepted is durable. May be called again."""
        if self._on_topic_deleted in self._catalog.on_deleted:
            self._catalog.on_deleted.remove(self._on_topic_deleted)
        if self._background is not None:
            self._background.cancel()
            await asyncio.gather(self._background, return_exceptions=True)
        for task in list(self._loading.values()):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        self.release_waiters()
        await self._store.close()

    def release_waiters(self) -> None:
        """Members that wait in a rebalance are told to come back later; they keep their ids."""
        for loaded in list(self._groups.values()):
            self._drop(loaded, ErrorCode.coordinator_not_available)

    # members

    async def join(self, group_id: str, joining: Joining) -> Joined:
        """Waits until the rebalance that this starts, or takes part in, has its members."""
        try:
            loaded = await self._find(group_id, create=not joining.member_id)
        except Refused as refused:
            return Joined(refused.code, joining.member_id)
        if loaded is None:
            return Joined(ErrorCode.unknown_member_id, joining.member_id)
        waiter: Future[Joined] = asyncio.get_running_loop().create_future()
        self._run(loaded, loaded.group.join(joining, waiter, self._now_ms()))
        return await waiter

    async def sync(self, group_id: str, syncing: Syncing) -> Synced:
        """Waits until the leader's assignments are durable."""
        try:
            loaded = await self._find(group_id)
        except Refused as refused:
            return Synced(refused.code)
        if loaded is None:
            return Synced(ErrorCode.unknown_member_id)
        waiter: Future[Synced] = asyncio.get_running_loop().create_future()
        self._run(loaded, loaded.group.sync(syncing, waiter, self._now_ms()))
        return await waiter

    def heartbeat_now(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None
    ) -> ErrorCode | None:
        """The answer, or None when the group is not loaded: then ask `heartbeat`."""
        loaded = self._groups.get(group_id)
        if loaded is None:
            return None
        code = loaded.group.heartbeat(member_id, generation, instance_id, self._now_ms())
        self._note_deadline(loaded)
        return code

    async def heartbeat(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None
    ) -> ErrorCode:
        """As `heartbeat_now`; loads the group if need be.

        A group that takes long to load gets NONE, as in Kafka: an error would start a rebalance.
        """
        try:
            loaded = await self._find(group_id)
        except Refused as refused:
            loading = refused.code is ErrorCode.coordinator_load_in_progress
            return ErrorCode.none if loading else refused.code
        if loaded is None:
            return ErrorCode.unknown_member_id
        code = self.heartbeat_now(group_id, member_id, generation, instance_id)
        return ErrorCode.coordinator_not_available if code is None else code

    async def leave(self, group_id: str, leavings: tuple[Leaving, ...]) -> list[ErrorCode]:
        """A code for each. Raises Refused."""
        loaded = await self._find(group_id)
        if loaded is None:
            return [ErrorCode.unknown_member_id] * len(leavings)
        errors, effects = loaded.group.leave(leavings, self._now_ms())
        self._run(loaded, effects)
        return errors

    # offsets

    async def commit(
        self,
        group_id: str,
        member_id: str,
        generation: int,
        instance_id: str | None,
        positions: Mapping[PositionKey, Position],
    ) -> ErrorCode:
        """The positions are durable and seen by every later fetch, if the code is NONE.

        GROUP_ID_NOT_FOUND: a generation of a group that does not exist.
        """
        await self._store.room()
        try:
            loaded = await self._find(group_id, create=generation < 0)
        except Refused as refused:
            return refused.code
        if loaded is None:
            return ErrorCode.group_id_not_found
        code = loaded.group.check_commit(member_id, generation, instance_id, self._now_ms())
        self._note_deadline(loaded)
        if code is not ErrorCode.none or not positions:
            return code
        durable = self._write(loaded, positions)
        try:
            await asyncio.shield(durable)
        except LedgerError as error:
            return _code_for(error)
        return ErrorCode.none

    async def offsets(self, group_id: str) -> Mapping[PositionKey, Position]:
        """What is committed, deleted topics included. Raises Refused, never guesses."""
        loaded = await self._find(group_id)
        if loaded is None:
            return {}
        if loaded.group.state is State.DEAD:
            raise Refused(ErrorCode.coordinator_not_available)
        return loaded.positions

    async def delete_offsets(
        self, group_id: str, topics: Mapping[PositionKey, str]
    ) -> dict[PositionKey, ErrorCode]:
        """Offsets are removed, but for topics (their names) that a member subscribes to.

        Raises Refused.
        """
        loaded = await self._find(group_id)
        if loaded is None or loaded.group.state is State.DEAD:
            raise Refused(ErrorCode.group_id_not_found)
        group = loaded.group
        subscribed: frozenset[str] | None = frozenset()
        if group.state is not State.EMPTY:
            if group.protocol_type != CONSUMER:
                raise Refused(ErrorCode.non_empty_group)
            subscribed = subscribed_topics(group.members, group.protocol_type, group.protocol)
        codes = {
            key: ErrorCode.group_subscribed_to_topic
            if subscribed is None or name in subscribed
            else ErrorCode.none
            for key, name in topics.items()
        }
        gone = [key for key, code in codes.items() if code is ErrorCode.none]
        try:
            await self._remove_offsets(loaded, [key for key in gone if key in loaded.positions])
        except LedgerError as error:
            raise Refused(_code_for(error)) from error
        return codes

    # operators

    async def describe(self, group_id: str) -> GroupView | None:
        """None: there is no such group. Raises Refused."""
        loaded = await self._find(group_id)
        if loaded is None or loaded.group.state is State.DEAD:
            return None
        group = loaded.group
        protocol = group.protocol if group.state is State.STABLE else None
        return GroupView(group.state, group.protocol_type or "", protocol or "", group.views())

    async def list(self) -> list[GroupListing]:
        """All groups, in no special order. Raises Refused while they are not all known."""
        try:
            await asyncio.wait_for(self._looked.wait(), LOAD_WAIT_S)
        except TimeoutError:
            raise Refused(ErrorCode.coordinator_load_in_progress) from None
        listed = [
            GroupListing(group_id, loaded.group.protocol_type or "", loaded.group.state)
            for group_id, loaded in self._groups.items()
            if loaded.group.state is not State.DEAD
        ]
        listed += [
            GroupListing(group_id, resting.protocol_type, State.EMPTY)
            for group_id, resting in self._resting.items()
        ]
        return listed

    async def delete(self, group_id: str) -> ErrorCode:
        """The group and its offsets are gone, if the code is NONE."""
        try:
            loaded = await self._find(group_id)
        except Refused as refused:
            return refused.code
        if loaded is None or loaded.group.state is State.DEAD:
            return ErrorCode.group_id_not_found
        if loaded.group.state is not State.EMPTY:
            return ErrorCode.non_empty_group
        try:
            await self._delete(loaded)
        except LedgerError as error:
            return _code_for(error)
        return ErrorCode.none

    # loading and dropping

    async def _find(self, group_id: str, *, create: bool = False) -> _Loaded | None:
        """The group, loaded; None when there is none and none is to be made. Raises Refused."""
        while True:
            loaded = self._groups.get(group_id)
            if loaded is not None:
                return loaded
            task = self._loading.get(group_id)
            if task is None:
                task = asyncio.get_running_loop().create_task(self._load(group_id, create))
                self._loading[group_id] = task
            await asyncio.wait([task], timeout=LOAD_WAIT_S)
            if not task.done():
                raise Refused(ErrorCode.coordinator_load_in_progress)
            if task.cancelled():
                raise Refused(ErrorCode.coordinator_not_available)
            result = task.result()
            if isinstance(result, ErrorCode):
                raise Refused(result)
            if result is not None or not create:
                return result

    async def _load(self, group_id: str, create: bool) -> _Loaded | ErrorCode | None:
        """One at a time for a group: a second claim would shut out the first."""
        try:
            found = await self._store.read(group_id)
            if not found.exists and not create:
                return None
            return self._adopt(group_id, await self._store.load(group_id))
        except LedgerError as error:
            logger().error("a group cannot be loaded", group=group_id, reason=str(error))
            return _code_for(error)
        finally:
            del self._loading[group_id]

    def _adopt(self, group_id: str, found: Subscription) -> _Loaded:
        stored = decode_membership(found.note, f"group {group_id!r}")
        group = Group.restore(stored.membership, self._settings, self._now_ms())
        loaded = _Loaded(group_id, group, found, stored.empty_since_ms)
        self._groups[group_id] = loaded
        self._resting.pop(group_id, None)
        self._note_deadline(loaded)
        return loaded

    def _drop(self, loaded: _Loaded, code: ErrorCode) -> None:
        """The group is not ours, or not known for sure: forget it, and tell who waits."""
        if self._groups.get(loaded.group_id) is loaded:
            del self._groups[loaded.group_id]
            self._deadlines.clear(loaded.group_id)
        for effect in loaded.group.abandon(code):
            _answer(effect)

    # effects and time

    def _now_ms(self) -> int:
        return int(self._clock.monotonic_s() * 1000)

    def _run(self, loaded: _Loaded, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Persist):
                self._persist(loaded, effect)
            else:
                _answer(effect)
        self._note_deadline(loaded)

    def _persist(self, loaded: _Loaded, effect: Persist) -> None:
        empty = not effect.membership.members
        loaded.empty_since_ms = self._clock.now_ms() if empty else 0
        note = encode_membership(StoredMembership(effect.membership, loaded.empty_since_ms))
        durable = self._write(loaded, {}, note)
        durable.add_done_callback(partial(self._on_persisted, loaded, effect))

    def _write(
        self,
        loaded: _Loaded,
        positions: Mapping[PositionKey, Position | None],
        note: bytes | None = None,
    ) -> Future[None]:
        """Durable, and seen in `positions`, when the future resolves. Do not cancel it: shield."""
        loaded.writes += 1
        durable = self._store.advance(loaded.group_id, positions, note)
        durable.add_done_callback(partial(self._on_written, loaded, positions))
        return durable

    def _on_written(
        self,
        loaded: _Loaded,
        positions: Mapping[PositionKey, Position | None],
        durable: Future[None],
    ) -> None:
        loaded.writes -= 1
        error = durable.exception()
        if error is not None:
            logger().warning("a group was lost", group=loaded.group_id, reason=str(error))
            self._drop(loaded, _code_for(error))
            return
        for key, position in positions.items():
            if position is None:
                loaded.positions.pop(key, None)
            else:
                loaded.positions[key] = position

    def _on_persisted(self, loaded: _Loaded, effect: Persist, durable: Future[None]) -> None:
        if loaded.group.state is not State.DEAD:  # as it is when the write failed
            self._run(loaded, effect.then(self._now_ms()))

    def _note_deadline(self, loaded: _Loaded) -> None:
        if self._groups.get(loaded.group_id) is not loaded:
            return  # dropped: another may have its place by now
        at_ms = loaded.group.deadline_ms
        if at_ms is None:
            self._deadlines.clear(loaded.group_id)
            return
        self._deadlines.set(loaded.group_id, at_ms)
        if self._timer is None or at_ms < self._timer_at_ms:
            self._arm(at_ms)

    def _arm(self, at_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = at_ms
        wait_s = max(at_ms / 1000 - self._clock.monotonic_s(), 0.001)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_ms = self._now_ms()
        for group_id in self._deadlines.due(now_ms):
            loaded = self._groups[group_id]
            self._run(loaded, loaded.group.tick(now_ms))
        at_ms = self._deadlines.next()
        if self._timer is None and at_ms is not None:
            self._arm(at_ms)

    # offsets that nobody needs any more

    async def _on_topic_deleted(self, topic: Topic) -> None:
        """Its offsets go from every loaded group; elsewhere they are invisible and expire."""
        await asyncio.gather(
            *(
                self._remove_offsets(
                    loaded, [key for key in loaded.positions if key.topic_id == topic.topic_id]
                )
                for loaded in list(self._groups.values())
            ),
            return_exceptions=True,  # such a group is dropped; the topic is gone all the same
        )

    async def _remove_offsets(self, loaded: _Loaded, keys: Iterable[PositionKey]) -> None:
        gone: dict[PositionKey, Position | None] = dict.fromkeys(keys)
        if gone:
            await asyncio.shield(self._write(loaded, gone))

    async def _delete(self, loaded: _Loaded) -> None:
        """Until it is gone the group stays known as dead, so that nobody loads it meanwhile."""
        for effect in loaded.group.abandon(ErrorCode.coordinator_not_available):
            _answer(effect)
        try:
            await self._store.delete(loaded.group_id)
        finally:
            self._drop(loaded, ErrorCode.coordinator_not_available)
            self._store.release(loaded.group_id)

    async def _run_background(self) -> None:
        retry_s = 1.0
        while True:
            wait_s = SWEEP_S
            try:
                for group_id in await self._store.list():
                    await self._look_at(group_id)
                self._looked.set()
                await self._sweep()
                retry_s = 1.0
            except LedgerError as error:
                logger().warning("groups could not be looked through", reason=str(error))
                wait_s = retry_s
                retry_s = min(2 * retry_s, SWEEP_S)
            await asyncio.sleep(wait_s)

    async def _look_at(self, group_id: str) -> None:
        """A stored group that is not loaded is, if it has members, else it is known to rest."""
        await asyncio.sleep(0)
        if group_id in self._groups or group_id in self._resting:
            return
        try:
            found = await self._store.read(group_id)
            stored = decode_membership(found.note, f"group {group_id!r}")
        except MetadataError:
            raise
        except LedgerError as error:
            logger().error("a group cannot be read", group=group_id, reason=str(error))
            return
        if not found.exists or group_id in self._groups:
            return
        if stored.membership.members:
            await self._look_for(group_id)
            return
        check_at_ms = min(
            (
                position.expire_time_ms
                if position.expire_time_ms >= 0
                else max(stored.empty_since_ms, position.commit_time_ms) + self._retention_ms()
                for position in found.positions.values()
            ),
            default=0,
        )
        self._resting[group_id] = _Resting(stored.membership.protocol_type or "", check_at_ms)

    async def _look_for(self, group_id: str) -> _Loaded | None:
        try:
            return await self._find(group_id)
        except Refused:
            return None

    def _retention_ms(self) -> int:
        return self.limits.offsets_retention_minutes * 60_000

    async def _sweep(self) -> None:
        """Expired offsets are gone, and so are empty groups that have none left."""
        now_ms = self._clock.now_ms()
        for group_id, resting in list(self._resting.items()):
            if resting.check_at_ms <= now_ms:
                await self._look_for(group_id)
        for loaded in list(self._groups.values()):
            await asyncio.sleep(0)
            if loaded.group.state is not State.DEAD and not loaded.writes:
                await self._sweep_group(loaded)

    async def _sweep_group(self, loaded: _Loaded) -> None:
        group = loaded.group
        subscribed = None
        if group.state is State.STABLE:
            subscribed = subscribed_topics(group.members, group.protocol_type, group.protocol)
        age = GroupAge(group.state, group.protocol_type, loaded.empty_since_ms, subscribed)
        gone = expired(
            loaded.positions, age, self._topic_name, self._clock.now_ms(), self._retention_ms()
        )
        await self._remove_offsets(loaded, gone)
        # A commit that is under way is not among the positions yet, and must not be deleted.
        if group.idle and not loaded.positions and not loaded.writes:
            await self._delete(loaded)

    def _topic_name(self, topic_id: UUID) -> str | None:
        topic = self._catalog.by_id(topic_id)
        return None if topic is None else topic.name


def fresh_id() -> str:
    """What the id of a new member ends with."""
    return str(uuid4())


def _answer(effect: Effect) -> None:
    """Whoever waits has the answer; a connection that went away does not wait any more."""
    if isinstance(effect, AnswerJoin | AnswerSync):
        waiter = cast("Future[Joined | Synced]", effect.waiter)
        if not waiter.done():
            waiter.set_result(effect.joined if isinstance(effect, AnswerJoin) else effect.synced)


def _code_for(error: BaseException) -> ErrorCode:
    if isinstance(error, NotOwner):
        return ErrorCode.not_coordinator
    return ErrorCode.coordinator_not_available
