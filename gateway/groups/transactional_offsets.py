"""Offsets that consumers commit in transactions: pending, until a marker commits or drops them.

    TxnOffsetCommit ─▶ verified, if the group does not know its producer
                    ─▶ the group is in the index ─▶ verified at the coordinator of the transaction
                    ─▶ checked ─▶ pending, durable
    marker ─▶ one record that ends the producer's transaction in the group's log

Only the second verification admits offsets. The first one keeps a client without a transaction from
changing the index. A group is in the index before the coordinator answers the second one, so a
marker that is sent after this answer finds the group. A marker voids verifications under way: a
request that began before the end of its transaction stores nothing after it. Each marker names the
ownership under which the index has the group, so that a late copy ends nothing
(docs/decisions/0021-late-markers.md). Source: Kafka, GroupCoordinatorService
.commitTransactionalOffsets and completeTransaction; KIP-447, KIP-890.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.core.group_members import State
from gateway.core.partition_transactions import EndMarker
from gateway.core.transaction_states import EPOCH_BUMP_VERSION
from gateway.errors import commit_code, coordinator_code
from gateway.groups.group_transactions import GroupTransactions
from gateway.groups.loaded_group import LoadedGroup
from gateway.groups.loaded_groups import LOAD_WAIT_S, LoadedGroups
from gateway.groups.transactional_groups import TransactionalGroups
from gateway.groups.views import Refused
from ledger.errors import LedgerError
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition
from subscriptions.store import TransactionalStore

PENDING_BYTES_MAX: Final = 16 * 1024 * 1024
"""Pending offsets of one group. More are refused with INVALID_COMMIT_OFFSET_SIZE."""

_OFFSET_BYTES: Final = 100  # of one pending offset, besides its metadata, in its log and in memory

Verify = Callable[[], Awaitable[ErrorCode]]
"""Asks the coordinator of the transaction whether the group's partition is in it."""


class TransactionalCommit(NamedTuple):
    """One TxnOffsetCommit: its producer, its member, and the offsets."""

    group_id: str
    producer_id: int
    epoch: int
    member_id: str
    generation: int
    instance_id: str | None
    offsets: Mapping[TopicIdPartition, CommittedOffset]

    @property
    def size_bytes(self) -> int:
        """Return about how many bytes the pending offsets take."""
        return sum(_OFFSET_BYTES + len(each.metadata) for each in self.offsets.values())


class TransactionalOffsets:
    """The pending offsets of the groups that this broker coordinates."""

    def __init__(
        self,
        loaded_groups: LoadedGroups,
        store: TransactionalStore,
        groups: TransactionalGroups,
        new_ownership: Callable[[], UUID],
    ) -> None:
        """Take the pending offsets of `loaded_groups`. `new_ownership` returns random numbers."""
        self._new_ownership = new_ownership
        self._loaded_groups = loaded_groups
        self._store = store
        self.groups = groups
        loaded_groups.unstable = self.unstable
        loaded_groups.before_release = self._before_release

    def unstable(self, loaded: LoadedGroup) -> Collection[TopicIdPartition]:
        """Return the partitions with offsets that are pending, or are about to be. A live view."""
        memory = loaded.transactions
        pending = self._store.pending(loaded.group_id)
        if memory is None or not memory.in_flight:
            return pending
        return _Either(pending, memory.in_flight)

    async def commit(self, commit: TransactionalCommit, verify: Verify) -> ErrorCode:
        """Store pending offsets. NONE means that they are durable."""
        try:
            loaded = await self._loaded_groups.find(commit.group_id, create=commit.generation < 0)
        except Refused as refused:
            return refused.code
        if loaded is None:
            code = await verify()
            return ErrorCode.illegal_generation if code is ErrorCode.none else code
        if not commit.offsets:
            code = await verify()
            return self._check(loaded, commit) if code is ErrorCode.none else code
        memory = self._memory(loaded)
        code = await self._prepare(loaded, memory, commit, verify)
        if code is not ErrorCode.none:
            return code
        with memory.verifying(commit.producer_id, commit.epoch) as verification:
            code = await verify()
            # No await from here to the write, so that a rebalance or a marker fences it.
            if code is ErrorCode.none:
                code = self._check(loaded, commit)
            if code is not ErrorCode.none:
                return code
            if verification.voided:
                return ErrorCode.invalid_txn_state
            durable = self._write(loaded, memory, commit)
        try:
            await asyncio.shield(durable)
        except LedgerError as error:
            return commit_code(error)
        return ErrorCode.none if self._loaded_groups.serves() else ErrorCode.not_coordinator

    async def _prepare(
        self,
        loaded: LoadedGroup,
        memory: GroupTransactions,
        commit: TransactionalCommit,
        verify: Verify,
    ) -> ErrorCode:
        """Learn the producer and add the group to the index, before the offsets are verified."""
        if not memory.remembers(commit.producer_id):
            # What `learn` and `_register` change is shared with others, and they write nodes.
            with memory.verifying(commit.producer_id, commit.epoch) as verification:
                code = await verify()
            if code is not ErrorCode.none:
                return code
            if verification.voided:
                return ErrorCode.invalid_txn_state
            if not self._serves(loaded):
                return ErrorCode.not_coordinator
        memory.learn(commit.producer_id, self._new_ownership())
        try:
            await self._register(loaded, memory)
        except LedgerError as error:
            return coordinator_code(error)
        return ErrorCode.none

    async def end(
        self,
        group_id: str,
        marker: EndMarker,
        ownership: UUID | None,
        *,
        wait_s: float = LOAD_WAIT_S,
    ) -> ErrorCode:
        """Commit or drop the producer's pending offsets of a group. NONE: durably, or none were.

        `ownership` is the one under which the index had the group. If it is not the present one,
        the answer is COORDINATOR_NOT_AVAILABLE while the producer has offsets here: the sender
        reads the index again. NOT_COORDINATOR if another broker coordinates the group. An unclaimed
        group is claimed. COORDINATOR_LOAD_IN_PROGRESS if it is not loaded after `wait_s`.
        """
        try:
            loaded = await self._loaded_groups.find(group_id, create=True, wait_s=wait_s)
        except Refused as refused:
            return refused.code
        if loaded is None or not self._serves(loaded):
            return ErrorCode.not_coordinator
        memory = self._memory(loaded)
        memory.note_listed(ownership)
        known = memory.check_marker(marker) if memory.names_this(ownership) else None
        if known is not None:
            return known
        epoch = self._epoch(loaded, memory, marker.producer_id)
        if epoch is not None and _is_older(marker, epoch):
            return ErrorCode.invalid_producer_epoch
        if not memory.names_this(ownership):
            return await self._end_under_another_ownership(loaded, memory, marker, epoch)
        memory.void(marker)
        if epoch is not None:
            durable = self._store.end_pending(
                group_id, marker.producer_id, marker.epoch, commits=marker.commit
            )
            self._loaded_groups.track(loaded, durable)
            try:
                await asyncio.shield(durable)
            except LedgerError as error:
                return coordinator_code(error)
        memory.note_marker(marker)
        return ErrorCode.none if self._loaded_groups.serves() else ErrorCode.not_coordinator

    async def _end_under_another_ownership(
        self, loaded: LoadedGroup, memory: GroupTransactions, marker: EndMarker, epoch: int | None
    ) -> ErrorCode:
        """Answer a marker that another load of the group was to get, or a late copy of one."""
        if epoch is None and not memory.is_verifying(marker.producer_id):
            return ErrorCode.none
        try:
            await self._register(loaded, memory)
        except LedgerError as error:
            return coordinator_code(error)
        return ErrorCode.coordinator_not_available

    async def _register(self, loaded: LoadedGroup, memory: GroupTransactions) -> None:
        """Add the group to the index, in place of nodes of earlier loads. Raises LedgerError."""
        while not memory.registered:
            ownership = memory.ownership
            memory.listed.add(ownership)
            await self.groups.add(loaded.group_id, ownership)
            memory.registered = memory.ownership == ownership
        await self._remove(loaded, memory, memory.listed - {memory.ownership})

    async def _remove(
        self, loaded: LoadedGroup, memory: GroupTransactions, ownerships: Iterable[UUID | None]
    ) -> None:
        """Remove nodes from the index. One that stays makes markers load the group for nothing."""
        for ownership in list(ownerships):
            with suppress(LedgerError):
                await self.groups.remove(loaded.group_id, ownership)
                memory.listed.discard(ownership)

    def _epoch(
        self, loaded: LoadedGroup, memory: GroupTransactions, producer_id: int
    ) -> int | None:
        """Return the greatest epoch of the producer's offsets, durable or not; None without any."""
        epochs = (
            self._store.pending(loaded.group_id).epoch(producer_id),
            memory.writing_epoch(producer_id),
        )
        return max((each for each in epochs if each is not None), default=None)

    def _memory(self, loaded: LoadedGroup) -> GroupTransactions:
        if loaded.transactions is None:
            loaded.transactions = GroupTransactions(self._new_ownership())
        return loaded.transactions

    def _serves(self, loaded: LoadedGroup) -> bool:
        here = self._loaded_groups.groups.get(loaded.group_id) is loaded
        return here and self._loaded_groups.serves()

    def _check(self, loaded: LoadedGroup, commit: TransactionalCommit) -> ErrorCode:
        if loaded.consumer is None or loaded.group.state is State.DEAD:
            code = loaded.group.check_commit(
                commit.member_id, commit.generation, commit.instance_id, now_ms=None
            )
        else:
            code = self._loaded_groups.consumers.commit_code(
                loaded.consumer,
                commit.member_id,
                commit.generation,
                commit.offsets,
                new_version=True,
                transactional=True,
            )
        if code is not ErrorCode.none:
            return code
        if not self._serves(loaded):
            return ErrorCode.not_coordinator
        pending = self._store.pending(commit.group_id)
        epoch = self._epoch(loaded, self._memory(loaded), commit.producer_id)
        if epoch is not None and commit.epoch < epoch:
            return ErrorCode.invalid_producer_epoch
        if pending.size_bytes + commit.size_bytes > PENDING_BYTES_MAX:
            return ErrorCode.invalid_commit_offset_size
        return ErrorCode.none

    def _write(
        self, loaded: LoadedGroup, memory: GroupTransactions, commit: TransactionalCommit
    ) -> Future[None]:
        keys = Counter(commit.offsets.keys())
        memory.begin_writing(commit.producer_id, commit.epoch, keys)
        durable = self._store.advance_pending(
            commit.group_id, commit.producer_id, commit.epoch, commit.offsets
        )
        self._loaded_groups.track(loaded, durable)

        def on_durable(_: Future[None]) -> None:
            memory.end_writing(commit.producer_id, commit.epoch, keys)

        durable.add_done_callback(on_durable)
        return durable

    async def _before_release(self, loaded: LoadedGroup) -> None:
        """Remove the group from the index, if certainly no offset of it is pending."""
        memory = loaded.transactions
        if memory is None or loaded.unsure:
            return
        if not loaded.stored or not self._store.pending(loaded.group_id):
            await self._remove(loaded, memory, memory.listed)


class _Either(Collection[TopicIdPartition]):
    """The partitions in one of two collections."""

    def __init__(
        self, one: Collection[TopicIdPartition], other: Collection[TopicIdPartition]
    ) -> None:
        self._one = one
        self._other = other

    def __contains__(self, key: object) -> bool:
        return key in self._one or key in self._other

    def __iter__(self) -> Iterator[TopicIdPartition]:
        yield from self._one
        yield from (key for key in self._other if key not in self._one)

    def __len__(self) -> int:
        return len(self._one) + sum(key not in self._one for key in self._other)


def _is_older(marker: EndMarker, epoch: int) -> bool:
    """Return whether a marker is of an earlier epoch than the pending offsets."""
    bumped = marker.version >= EPOCH_BUMP_VERSION
    return marker.epoch < epoch or (bumped and marker.epoch == epoch)
