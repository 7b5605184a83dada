"""The coordinator of consumer groups: what members, consumers and operators ask of one gateway.

    coordinator ─▶ residents   groups in memory: claimed, loaded, written, let go
                ─▶ census      all stored groups: resting ones, orphans, expiry

Each change of membership and each commit is durable before anybody is told. Nothing is answered
for a group that this gateway has not claimed, nor while its lease does not hold: the answer is
NOT_COORDINATOR, and while a group is loading COORDINATOR_LOAD_IN_PROGRESS; never a guess.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Iterable, Mapping
from uuid import uuid4

from kio.schema.errors import ErrorCode

from gateway.cluster.port import GroupClaims
from gateway.cluster.single_broker import SingleBroker
from gateway.config import GroupLimits, MetricsLimits
from gateway.core.group_members import (
    GroupSettings,
    Joined,
    Joining,
    Leaving,
    State,
    Synced,
    Syncing,
)
from gateway.core.offset_expiry import CONSUMER, subscribed_topics
from gateway.errors import coordinator_code
from gateway.groups.group_scanner import GroupScanner
from gateway.groups.group_snapshots import GroupSnapshot, GroupSnapshots
from gateway.groups.loaded_groups import LOAD_WAIT_S, LoadedGroup, LoadedGroups
from gateway.groups.views import GroupListing, GroupView, Refused
from gateway.topics.catalog import Catalog, Topic
from ledger.errors import LedgerError
from ledger.ports.clock import Clock
from ledger.ports.metadata import MetadataStore
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition
from subscriptions.store import SubscriptionsStore
from subscriptions.znodes.znode_store import GroupZnodeStore

__all__ = ["Coordinator", "GroupListing", "GroupView", "Refused", "fresh_id"]


class Coordinator:
    """The consumer groups of this gateway. Runs on one event loop; `start` once, `stop` once."""

    def __init__(
        self,
        metadata: MetadataStore,
        catalog: Catalog,
        clock: Clock,
        limits: GroupLimits,
        *,
        store: SubscriptionsStore | None = None,
        claims: GroupClaims | None = None,
    ) -> None:
        """`claims` of None: no other gateway exists."""
        self.limits = limits
        self._store: SubscriptionsStore = GroupZnodeStore(metadata) if store is None else store
        self._catalog = catalog
        claims = SingleBroker(0, lambda _: -1) if claims is None else claims
        settings = GroupSettings(
            limits.initial_rebalance_delay_ms, limits.new_member_timeout_ms, limits.members_max
        )
        self._residents = LoadedGroups(self._store, claims, clock, settings, self._on_rest)
        self._census = GroupScanner(
            self._store,
            claims,
            self._residents,
            catalog,
            clock,
            limits.offsets_retention_minutes * 60_000,
        )
        self._standings = GroupSnapshots(self._store, self._residents, self._census, claims, clock)
        self._background: asyncio.Task[None] | None = None
        self._forgetting: set[asyncio.Task[None]] = set()
        catalog.on_deleted.append(self._on_topic_deleted)
        catalog.on_forgotten.append(self._on_topic_forgotten)

    async def start(self) -> None:
        """Groups are served. Those that have members are loaded in the background."""
        self._background = asyncio.get_running_loop().create_task(self._census.run())

    async def adopt(self, groups: Iterable[str]) -> None:
        """Of these groups, whose gateway is gone, those that have members are in memory here.

        To be called when the members of the cluster have changed; also other groups are taken that
        nobody else has now. A group that another gateway claims first is that gateway's. Raises
        MetadataUnavailable.
        """
        await self._census.adopt(groups)

    def lost(self) -> None:
        """This incarnation has ended, and every claim with it: all groups are forgotten."""
        self._residents.lose_all()

    async def hand_over(self) -> None:
        """Every group is written back and released, and none is claimed any more.

        Members keep their ids, generation and assignments; they are told NOT_COORDINATOR and find
        the next coordinator. Accepted commits are answered. `stop` comes after it.
        """
        await self._end_background()
        await self._residents.hand_over()

    async def stop(self) -> None:
        """Nobody waits here any more, and what was accepted is durable. May be called again."""
        if self._on_topic_deleted in self._catalog.on_deleted:
            self._catalog.on_deleted.remove(self._on_topic_deleted)
            self._catalog.on_forgotten.remove(self._on_topic_forgotten)
        await self._end_background()
        await asyncio.gather(*self._forgetting, return_exceptions=True)
        await self._residents.stop()
        await self._store.close()

    async def _end_background(self) -> None:
        if self._background is not None:
            self._background.cancel()
            await asyncio.gather(self._background, return_exceptions=True)

    def release_waiters(self) -> None:
        """Members that wait in a rebalance are told to come back later; they keep their ids."""
        self._residents.release_waiters()

    def _on_rest(self, resident: LoadedGroup) -> None:
        self._standings.forget(resident.group_id)
        self._census.on_rest(resident)

    async def _on_topic_deleted(self, topic: Topic) -> None:
        await self._census.forget_topic(topic.topic_id)

    def _on_topic_forgotten(self, topic: Topic) -> None:
        """Another gateway deleted it: only we know the groups that are in memory here."""
        task = asyncio.get_running_loop().create_task(self._on_topic_deleted(topic))
        self._forgetting.add(task)
        task.add_done_callback(self._forgetting.discard)

    # members

    async def join(self, group_id: str, joining: Joining) -> Joined:
        """Waits until the rebalance that this starts, or takes part in, has its members."""
        try:
            loaded = await self._residents.find(group_id, create=not joining.member_id)
        except Refused as refused:
            return Joined(refused.code, joining.member_id)
        if loaded is None:
            return Joined(ErrorCode.unknown_member_id, joining.member_id)
        waiter: Future[Joined] = asyncio.get_running_loop().create_future()
        self._residents.run(loaded, loaded.group.join(joining, waiter, self._residents.now_ms()))
        joined = await waiter
        if not self._residents.serves():
            return Joined(ErrorCode.not_coordinator, joining.member_id)
        return joined

    async def sync(self, group_id: str, syncing: Syncing) -> Synced:
        """Waits until the leader's assignments are durable."""
        try:
            loaded = await self._residents.find(group_id)
        except Refused as refused:
            return Synced(refused.code)
        if loaded is None:
            return Synced(ErrorCode.unknown_member_id)
        waiter: Future[Synced] = asyncio.get_running_loop().create_future()
        self._residents.run(loaded, loaded.group.sync(syncing, waiter, self._residents.now_ms()))
        synced = await waiter
        return synced if self._residents.serves() else Synced(ErrorCode.not_coordinator)

    def heartbeat_now(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None
    ) -> ErrorCode | None:
        """The answer, or None when the group is not loaded: then ask `heartbeat`."""
        loaded = self._residents.resident(group_id)
        if loaded is None:
            return None
        # Without a lease the member is heard, so that it is not out when the lease is back.
        code = loaded.group.heartbeat(member_id, generation, instance_id, self._residents.now_ms())
        self._residents.note_deadline(loaded)
        return code if self._residents.serves() else ErrorCode.not_coordinator

    async def heartbeat(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None
    ) -> ErrorCode:
        """As `heartbeat_now`; loads the group if need be.

        A group that takes long to load gets NONE, as in Kafka: the other code is fatal to clients.
        """
        try:
            loaded = await self._residents.find(group_id)
        except Refused as refused:
            if refused.code is not ErrorCode.coordinator_load_in_progress:
                return refused.code
            claimed = self._residents.claimed(group_id)
            return ErrorCode.none if claimed else ErrorCode.coordinator_not_available
        if loaded is None:
            return ErrorCode.unknown_member_id
        code = self.heartbeat_now(group_id, member_id, generation, instance_id)
        return ErrorCode.coordinator_not_available if code is None else code

    async def leave(self, group_id: str, leavings: tuple[Leaving, ...]) -> list[ErrorCode]:
        """A code for each. Raises Refused."""
        loaded = await self._residents.find(group_id)
        if loaded is None:
            return [ErrorCode.unknown_member_id] * len(leavings)
        errors, effects = loaded.group.leave(leavings, self._residents.now_ms())
        self._residents.run(loaded, effects)
        return errors

    # offsets

    async def commit(
        self,
        group_id: str,
        member_id: str,
        generation: int,
        instance_id: str | None,
        offsets: Mapping[TopicIdPartition, CommittedOffset],
    ) -> ErrorCode:
        """The offsets are durable and seen by every later fetch, if the code is NONE.

        GROUP_ID_NOT_FOUND: a generation of a group that does not exist.
        """
        await self._store.room()
        try:
            loaded = await self._residents.find(group_id, create=generation < 0)
        except Refused as refused:
            return refused.code
        if loaded is None:
            return ErrorCode.group_id_not_found
        code = loaded.group.check_commit(
            member_id, generation, instance_id, self._residents.now_ms()
        )
        self._residents.note_deadline(loaded)
        if code is not ErrorCode.none or not offsets:
            return code
        durable = self._residents.write(loaded, offsets)
        try:
            await asyncio.shield(durable)
        except LedgerError as error:
            return coordinator_code(error)
        return ErrorCode.none if self._residents.serves() else ErrorCode.not_coordinator

    async def offsets(self, group_id: str) -> Mapping[TopicIdPartition, CommittedOffset]:
        """What is committed, deleted topics included. Raises Refused, never guesses."""
        loaded = await self._residents.find(group_id)
        if loaded is None:
            return {}
        if loaded.group.state is State.DEAD:
            raise Refused(ErrorCode.coordinator_not_available)
        return loaded.offsets

    async def delete_offsets(
        self, group_id: str, topics: Mapping[TopicIdPartition, str]
    ) -> dict[TopicIdPartition, ErrorCode]:
        """Offsets are removed, but for topics (their names) that a member subscribes to.

        Raises Refused.
        """
        loaded = await self._residents.find(group_id)
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
            await self._census.remove_offsets(
                loaded, [key for key in gone if key in loaded.offsets]
            )
        except LedgerError as error:
            raise Refused(coordinator_code(error)) from error
        if not self._residents.serves():
            raise Refused(ErrorCode.not_coordinator)
        return codes

    # operators

    async def describe(self, group_id: str) -> GroupView | None:
        """None: there is no such group. Raises Refused."""
        loaded = await self._residents.find(group_id)
        if loaded is None or loaded.group.state is State.DEAD:
            return None
        group = loaded.group
        protocol = group.protocol if group.state is State.STABLE else None
        return GroupView(group.state, group.protocol_type or "", protocol or "", group.views())

    async def list(self) -> list[GroupListing]:
        """The groups that this gateway coordinates, and those that rest with it; in no order.

        Over all gateways that is every group, once. Raises Refused while they are not all known.
        """
        try:
            async with asyncio.timeout(LOAD_WAIT_S):
                await self._census.looked.wait()
                listed = await self._census.listings()
        except TimeoutError:
            raise Refused(ErrorCode.coordinator_load_in_progress) from None
        except LedgerError as error:
            raise Refused(coordinator_code(error)) from error
        if not self._residents.serves():
            # Clients ask again after this one; they give up after NOT_COORDINATOR.
            raise Refused(ErrorCode.coordinator_not_available)
        return listed

    async def standings(self, limits: MetricsLimits) -> tuple[list[GroupSnapshot], int]:
        """Where groups of this gateway stand, and how many more there are; see `GroupSnapshots`."""
        return await self._standings.look(limits)

    def stored(self, group_id: str) -> bool:
        """There is such a group, here or at another gateway, as far as it is known here."""
        return self._census.knows(group_id)

    async def delete(self, group_id: str) -> ErrorCode:
        """The group and its offsets are gone, if the code is NONE."""
        try:
            loaded = await self._residents.find(group_id)
        except Refused as refused:
            return refused.code
        if loaded is None or loaded.group.state is State.DEAD:
            return ErrorCode.group_id_not_found
        if loaded.group.state is not State.EMPTY:
            return ErrorCode.non_empty_group
        try:
            await self._residents.delete(loaded)
        except LedgerError as error:
            return coordinator_code(error)
        return ErrorCode.none if self._residents.serves() else ErrorCode.not_coordinator


def fresh_id() -> str:
    """What the id of a new member ends with."""
    return str(uuid4())
