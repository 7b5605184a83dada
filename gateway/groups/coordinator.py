"""The coordinator of consumer groups: the requests of members, consumers and operators.

    coordinator ─▶ LoadedGroups    groups in memory: claimed, loaded, written, unloaded
                ─▶ GroupScanner    all stored groups: idle ones, orphans, expiry of offsets
                ─▶ GroupSnapshots  a bounded number of groups, for the metrics

Each change of membership and each commit is durable before it is answered. For a group that this
broker has not claimed, or while its lease does not hold, the answer is NOT_COORDINATOR. While a
group is loading the answer is COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from base64 import urlsafe_b64encode
from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING
from uuid import uuid4

from kio.schema.errors import ErrorCode

from gateway.cluster.port import GroupClaims
from gateway.cluster.single_broker import SingleBroker
from gateway.config import GroupLimits, MetricsLimits
from gateway.core.group import Group
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
from gateway.core.roster import assignment_growth
from gateway.core.shown_text import shown
from gateway.errors import commit_code, coordinator_code
from gateway.groups.consumer_groups import ConsumerGroups
from gateway.groups.group_scanner import GroupScanner
from gateway.groups.group_snapshots import GroupSnapshot, GroupSnapshots
from gateway.groups.loaded_group import LoadedGroup
from gateway.groups.loaded_groups import LOAD_WAIT_S, LoadedGroups
from gateway.groups.transactional_groups import TransactionalGroups
from gateway.groups.transactional_offsets import (
    TransactionalCommit,
    TransactionalOffsets,
    Verify,
)
from gateway.groups.views import GroupListing, GroupView, Refused
from gateway.log import Throttle, logger
from gateway.topics.catalog import Catalog, Topic
from ledger.errors import LedgerError
from ledger.ports.clock import Clock
from ledger.ports.metadata import MetadataStore
from ledger.tasks import start_once, start_restarting
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition
from subscriptions.store import KeyedStore, SubscriptionsStore, TransactionalStore
from subscriptions.znodes.znode_store import GroupZnodeStore

if TYPE_CHECKING:
    from gateway.groups.every_group import EveryGroup

__all__ = ["Coordinator", "GroupListing", "GroupView", "Refused", "fresh_id", "fresh_member_id"]


class Coordinator:
    """The consumer groups of this broker, on one event loop. Call `start` and `stop` once each."""

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
        """Create the coordinator. Without `claims`, this broker coordinates every group."""
        self.limits = limits
        self._store: SubscriptionsStore = GroupZnodeStore(metadata) if store is None else store
        self._catalog = catalog
        self._clock = clock
        self._throttle = Throttle()
        claims = SingleBroker(0, lambda _: -1) if claims is None else claims
        self._claims = claims
        settings = GroupSettings(
            limits.initial_rebalance_delay_ms,
            limits.new_member_timeout_ms,
            limits.members_max,
            limits.group_bytes_max,
        )
        self._loaded_groups = LoadedGroups(
            self._store, claims, clock, settings, limits.bytes_total_max, self._on_evicted
        )
        self.consumers = ConsumerGroups(self._loaded_groups, catalog, limits)
        self.consumers.admits = self._admits
        self._loaded_groups.consumers = self.consumers
        # True if the store can keep the records of groups of the consumer protocol.
        self.keeps_records = isinstance(self._store, KeyedStore)
        # The groups of all brokers that may have pending offsets, and the pending offsets of this
        # one. None if the store cannot keep them.
        self.transactional_groups = TransactionalGroups(metadata)
        self.transactional: TransactionalOffsets | None = None
        if isinstance(self._store, TransactionalStore):
            self.transactional = TransactionalOffsets(
                self._loaded_groups, self._store, self.transactional_groups, uuid4
            )
        self._scanner = GroupScanner(
            self._store,
            claims,
            self._loaded_groups,
            catalog,
            clock,
            limits.offsets_retention_minutes * 60_000,
        )
        self._snapshots = GroupSnapshots(
            self._store, self._loaded_groups, self._scanner, claims, clock
        )
        # The task of the scanner, from `start` until `hand_over` or `stop`.
        self._background: asyncio.Task[None] | None = None
        # Tasks that remove the offsets of topics that other brokers deleted. A task removes itself
        # when it ends.
        self._forgetting: set[asyncio.Task[None]] = set()
        catalog.on_deleted.append(self._on_topic_deleted)
        catalog.on_forgotten.append(self._on_topic_forgotten)

    async def start(self) -> None:
        """Start to serve groups. Groups that have members are loaded in the background."""
        self._background = start_restarting("the scan of groups", self._scanner.run)

    async def adopt(self, groups: Iterable[str]) -> None:
        """Load these groups. The coordinator of each of them is dead.

        Call this method when the brokers of the cluster have changed. It also loads unclaimed
        groups with members of which this broker is the candidate. A group that another broker
        claims first belongs to that broker. Raises MetadataUnavailable.
        """
        await self._scanner.adopt(groups)

    def lost(self) -> None:
        """Forget all groups: this incarnation has ended, and all its claims have ended too."""
        self._loaded_groups.lose_all()

    async def hand_over(self) -> None:
        """Write back and release every group. No group is claimed any more.

        Members keep their ids, generation and assignments. They get NOT_COORDINATOR and look up the
        next coordinator. Accepted commits are answered. Call `stop` afterwards.
        """
        await self._end_background()
        await self._loaded_groups.hand_over()

    async def stop(self) -> None:
        """Answer all waiting requests, and wait until accepted writes are durable. Idempotent."""
        if self._on_topic_deleted in self._catalog.on_deleted:
            self._catalog.on_deleted.remove(self._on_topic_deleted)
            self._catalog.on_forgotten.remove(self._on_topic_forgotten)
        await self._end_background()
        await asyncio.gather(*self._forgetting, return_exceptions=True)
        await self._loaded_groups.stop()
        await self._store.close()

    async def _end_background(self) -> None:
        if self._background is not None:
            self._background.cancel()
            await asyncio.gather(self._background, return_exceptions=True)

    @property
    def rebalances(self) -> int:
        """Return how many rebalances began a generation here, since the process started."""
        return self._loaded_groups.rebalances

    def release_waiters(self) -> None:
        """Make members that wait in a rebalance retry. They keep their ids."""
        self._loaded_groups.release_waiters()

    def _on_evicted(self, loaded: LoadedGroup) -> None:
        self._snapshots.forget(loaded.group_id)
        self._scanner.on_evicted(loaded)

    async def _on_topic_deleted(self, topic: Topic) -> None:
        await self._scanner.forget_topic(topic.topic_id)

    def _on_topic_forgotten(self, topic: Topic) -> None:
        """Remove the offsets of a topic that another broker deleted from the loaded groups."""
        task = start_once("the removal of a topic's offsets", self._on_topic_deleted(topic))
        self._forgetting.add(task)
        task.add_done_callback(self._forgetting.discard)

    # members

    async def join(self, group_id: str, joining: Joining) -> Joined:
        """Add the member to the group, and wait until the rebalance has all members."""
        try:
            loaded = await self._loaded_groups.find(group_id, create=not joining.member_id)
        except Refused as refused:
            return Joined(refused.code, joining.member_id)
        if loaded is None:
            return Joined(ErrorCode.unknown_member_id, joining.member_id)
        try:
            if loaded.consumer is not None and loaded.alive and loaded.consumer.members:
                taken = await self.consumers.join(loaded, joining)
                if taken is not None:
                    return taken
            self.consumers.become_classic(loaded)
            return await self._join_classic(loaded, joining)
        except Refused as refused:
            return Joined(refused.code, joining.member_id)

    async def _join_classic(self, loaded: LoadedGroup, joining: Joining) -> Joined:
        """Take a JoinGroup to a group of the classic protocol. Raises Refused."""
        growth = loaded.group.growth_bytes(joining)
        if not self._admits(loaded.group_id, growth):
            return Joined(ErrorCode.coordinator_not_available, joining.member_id)
        waiter: Future[Joined] = asyncio.get_running_loop().create_future()
        self._loaded_groups.run(
            loaded, loaded.group.join(joining, waiter, self._loaded_groups.now_ms())
        )
        joined = await waiter
        if loaded.last_change is not None:  # the group was one of the consumer protocol before
            await self.consumers.settle(loaded)
        if not self._loaded_groups.serves():
            return Joined(ErrorCode.not_coordinator, joining.member_id)
        return joined

    async def sync(self, group_id: str, syncing: Syncing) -> Synced:
        """Return the assignment, once the leader's assignments are durable."""
        try:
            loaded = await self._loaded_groups.find(group_id)
            if loaded is not None and loaded.consumer is not None and loaded.alive:
                return await self.consumers.sync(loaded, syncing)
        except Refused as refused:
            return Synced(refused.code)
        if loaded is None:
            return Synced(ErrorCode.unknown_member_id)
        if _assigns(loaded.group, syncing):
            growth = assignment_growth(loaded.group.members.values(), dict(syncing.assignments))
            if not self._admits(group_id, growth):
                return Synced(ErrorCode.coordinator_not_available)
        waiter: Future[Synced] = asyncio.get_running_loop().create_future()
        self._loaded_groups.run(
            loaded, loaded.group.sync(syncing, waiter, self._loaded_groups.now_ms())
        )
        synced = await waiter
        return synced if self._loaded_groups.serves() else Synced(ErrorCode.not_coordinator)

    def _admits(self, group_id: str, growth: Mapping[str, int]) -> bool:
        """Return whether the members of these client hosts may grow so, or log that not."""
        share = self._loaded_groups.memory.refused_share(growth)
        if share is None:
            return True
        if self._throttle.allows("group memory", share, self._clock.monotonic_s()):
            logger().warning(
                "members of groups use the memory of their address",
                peer=share,
                group=shown(group_id),
            )
        return False

    def heartbeat_now(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None
    ) -> ErrorCode | None:
        """Return the answer, or None if the group must first be loaded by `heartbeat`."""
        loaded = self._loaded_groups.use(group_id)
        if loaded is None:
            return None
        # Count the heartbeat even without a lease. Otherwise the member expires when the lease
        # returns.
        if loaded.consumer is not None and loaded.alive:
            code = self.consumers.classic_heartbeat(loaded, member_id, generation, instance_id)
        else:
            now_ms = self._loaded_groups.now_ms()
            code = loaded.group.heartbeat(member_id, generation, instance_id, now_ms)
        self._loaded_groups.note_deadline(loaded)
        return code if self._loaded_groups.serves() else ErrorCode.not_coordinator

    async def heartbeat(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None
    ) -> ErrorCode:
        """Load the group if necessary, then answer as `heartbeat_now`.

        While the group is loading the answer is NONE, as in Kafka, because clients treat
        COORDINATOR_LOAD_IN_PROGRESS as fatal in a heartbeat.
        """
        try:
            loaded = await self._loaded_groups.find(group_id)
        except Refused as refused:
            if refused.code is not ErrorCode.coordinator_load_in_progress:
                return refused.code
            claimed = self._loaded_groups.claimed(group_id)
            return ErrorCode.none if claimed else ErrorCode.coordinator_not_available
        if loaded is None:
            return ErrorCode.unknown_member_id
        code = self.heartbeat_now(group_id, member_id, generation, instance_id)
        return ErrorCode.coordinator_not_available if code is None else code

    async def leave(self, group_id: str, leavings: tuple[Leaving, ...]) -> list[ErrorCode]:
        """Remove the members. Returns a code for each. Raises Refused."""
        loaded = await self._loaded_groups.find(group_id)
        if loaded is None:
            return [ErrorCode.unknown_member_id] * len(leavings)
        if loaded.consumer is not None:
            return await self.consumers.leave(loaded, leavings)
        errors, effects = loaded.group.leave(leavings, self._loaded_groups.now_ms())
        self._loaded_groups.run(loaded, effects)
        return errors

    # offsets

    async def commit(
        self,
        group_id: str,
        member_id: str,
        generation: int,
        instance_id: str | None,
        offsets: Mapping[TopicIdPartition, CommittedOffset],
        *,
        new_version: bool = True,
    ) -> ErrorCode:
        """Commit the offsets. NONE means that they are durable, and every later fetch sees them.

        `new_version` is True from OffsetCommit v9, which members of the consumer protocol need.
        GROUP_ID_NOT_FOUND means that the request names a generation of a group that does not exist.
        """
        await self._store.room()
        try:
            loaded = await self._loaded_groups.find(group_id, create=generation < 0)
        except Refused as refused:
            return refused.code
        if loaded is None:
            return ErrorCode.group_id_not_found
        if loaded.consumer is not None and loaded.group.state is not State.DEAD:
            code = self.consumers.commit_code(
                loaded.consumer, member_id, generation, offsets, new_version=new_version
            )
        else:
            code = loaded.group.check_commit(
                member_id, generation, instance_id, self._loaded_groups.now_ms()
            )
        self._loaded_groups.note_deadline(loaded)
        if code is not ErrorCode.none or not offsets:
            return code
        durable = self._loaded_groups.write(loaded, offsets)
        try:
            await asyncio.shield(durable)
        except LedgerError as error:
            return commit_code(error)
        return ErrorCode.none if self._loaded_groups.serves() else ErrorCode.not_coordinator

    async def offsets(
        self, group_id: str, member_id: str | None = None, epoch: int = -1
    ) -> Mapping[TopicIdPartition, CommittedOffset]:
        """Return the committed offsets, including offsets of deleted topics. Raises Refused.

        A member of the consumer protocol names itself and its epoch.
        """
        loaded = await self._loaded_groups.find(group_id)
        if loaded is None:
            return {}
        if loaded.group.state is State.DEAD:
            raise Refused(ErrorCode.coordinator_not_available)
        return self.consumers.offsets(loaded, member_id, epoch)

    async def commit_in_transaction(self, commit: TransactionalCommit, verify: Verify) -> ErrorCode:
        """Store offsets that are pending until the transaction ends. NONE: they are durable."""
        if self.transactional is None:
            return ErrorCode.coordinator_not_available
        await self._store.room()
        return await self.transactional.commit(commit, verify)

    def unstable(self, group_id: str) -> Container[TopicIdPartition]:
        """Return the partitions of a group that `offsets` returned with pending offsets."""
        loaded = self._loaded_groups.use(group_id)
        return () if loaded is None else self._loaded_groups.unstable(loaded)

    async def delete_offsets(
        self, group_id: str, topics: Mapping[TopicIdPartition, str]
    ) -> dict[TopicIdPartition, ErrorCode]:
        """Remove offsets, except offsets of topics to which a member subscribes.

        `topics` maps each offset's key to the name of its topic. Raises Refused.
        """
        loaded = await self._loaded_groups.find(group_id)
        if loaded is None or loaded.group.state is State.DEAD:
            raise Refused(ErrorCode.group_id_not_found)
        group = loaded.group
        subscribed: frozenset[str] | None = frozenset()
        if loaded.consumer is not None:
            subscribed = frozenset(loaded.consumer.roster.subscribed_topics())
        elif group.state is not State.EMPTY:
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
        unstable = self._loaded_groups.unstable(loaded)
        try:
            await self._scanner.remove_offsets(
                loaded, [key for key in gone if key in loaded.offsets or key in unstable]
            )
        except LedgerError as error:
            raise Refused(coordinator_code(error)) from error
        if not self._loaded_groups.serves():
            raise Refused(ErrorCode.not_coordinator)
        return codes

    # operators

    async def describe(self, group_id: str) -> GroupView | None:
        """Return the group, or None if no group of the classic protocol has this name.

        Raises Refused.
        """
        loaded = await self._loaded_groups.find(group_id)
        if loaded is None or loaded.group.state is State.DEAD:
            return None
        if loaded.consumer is not None:
            return None
        group = loaded.group
        protocol = group.protocol if group.state is State.STABLE else None
        return GroupView(group.state, group.protocol_type or "", protocol or "", group.views())

    def has_consumer_group(self, group_id: str) -> bool:
        """Return whether a loaded group of this name is one of the consumer protocol."""
        loaded = self._loaded_groups.use(group_id)
        return loaded is not None and loaded.consumer is not None

    async def list(self) -> list[GroupListing]:
        """Return the groups that this broker coordinates and its idle ones, in no particular order.

        The lists of all brokers together contain every group once. Raises Refused until every
        stored group was read.
        """
        try:
            async with asyncio.timeout(LOAD_WAIT_S):
                await self._scanner.scanned.wait()
                listed = await self._scanner.listings()
        except TimeoutError:
            raise Refused(ErrorCode.coordinator_load_in_progress) from None
        except LedgerError as error:
            raise Refused(coordinator_code(error)) from error
        if not self._loaded_groups.serves():
            # Clients retry after COORDINATOR_LOAD_IN_PROGRESS, but not after NOT_COORDINATOR.
            raise Refused(ErrorCode.coordinator_not_available)
        return listed

    async def snapshots(self, limits: MetricsLimits) -> tuple[list[GroupSnapshot], int]:
        """Return snapshots of groups, and the number of groups left out. See `GroupSnapshots`."""
        return await self._snapshots.look(limits)

    async def claimed_elsewhere(self, groups: Iterable[str]) -> set[str]:
        """Return which of these groups other brokers have claimed. Raises MetadataUnavailable."""
        return await self._claims.claimed_elsewhere(groups)

    def every_group(self) -> EveryGroup:
        """Return a new look at all groups of this broker. See `EveryGroup`."""
        from gateway.groups.every_group import EveryGroup  # a gateway starts without it

        return EveryGroup(self._store, self._loaded_groups, self._scanner, self._claims)

    def stored(self, group_id: str) -> bool:
        """Return whether a group of this name is known on this broker or another one."""
        return self._scanner.knows(group_id)

    async def delete(self, group_id: str) -> ErrorCode:
        """Delete the group and its offsets. NONE means that both are deleted."""
        try:
            loaded = await self._loaded_groups.find(group_id)
        except Refused as refused:
            return refused.code
        if loaded is None or loaded.group.state is State.DEAD:
            return ErrorCode.group_id_not_found
        if loaded.state.value != State.EMPTY.value:
            return ErrorCode.non_empty_group
        try:
            await self._loaded_groups.delete(loaded)
        except LedgerError as error:
            return coordinator_code(error)
        return ErrorCode.none if self._loaded_groups.serves() else ErrorCode.not_coordinator


def _assigns(group: Group, syncing: Syncing) -> bool:
    """Return whether the group will keep the assignments of this SyncGroup."""
    return group.state is State.COMPLETING_REBALANCE and syncing.member_id == group.leader


def fresh_member_id() -> str:
    """Return a random id for a member of the consumer protocol, in the form of Kafka's Uuid."""
    return urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")


def fresh_id() -> str:
    """Return a random suffix for the id of a new member."""
    return str(uuid4())
