"""Offsets that consumers commit in transactions: pending, until a marker commits or drops them.

    TxnOffsetCommit ─▶ verified at the coordinator of the transaction ─▶ checked ─▶ pending, durable
    marker ─▶ one record that ends the producer's transaction in the group's log

A marker voids verifications under way: a request that began before the end of its transaction
stores nothing after it. Source: Kafka, GroupCoordinatorService.commitTransactionalOffsets and
completeTransaction; KIP-447, KIP-890.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from gateway.core.partition_transactions import EndMarker
from gateway.core.transaction_states import EPOCH_BUMP_VERSION
from gateway.errors import coordinator_code
from gateway.groups.group_transactions import GroupTransactions
from gateway.groups.loaded_groups import LoadedGroup, LoadedGroups
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
        self, loaded_groups: LoadedGroups, store: TransactionalStore, groups: TransactionalGroups
    ) -> None:
        self._loaded_groups = loaded_groups
        self._store = store
        self.groups = groups
        loaded_groups.has_transaction = self._is_open
        loaded_groups.before_release = self._before_release

    def unstable(self, loaded: LoadedGroup) -> Container[TopicIdPartition]:
        """Return the partitions with offsets that are pending, or are about to be."""
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
        memory = _memory(loaded)
        with memory.verifying(commit.producer_id, commit.epoch) as verification:
            code = await verify()
            if code is ErrorCode.none:
                code = self._check(loaded, commit)
            if code is not ErrorCode.none or not commit.offsets:
                return code
            if not memory.registered:
                try:
                    await self.groups.add(commit.group_id)
                except LedgerError as error:
                    return coordinator_code(error)
                memory.registered = True
            if verification.voided:
                return ErrorCode.invalid_txn_state
            if not self._serves(loaded):
                return ErrorCode.not_coordinator
            durable = self._write(loaded, memory, commit)
        try:
            await asyncio.shield(durable)
        except LedgerError as error:
            return coordinator_code(error)
        return ErrorCode.none if self._loaded_groups.serves() else ErrorCode.not_coordinator

    async def end(self, group_id: str, marker: EndMarker) -> ErrorCode:
        """Commit or drop the producer's pending offsets of a group. NONE: durably, or none were.

        NOT_COORDINATOR if another broker coordinates the group. An unclaimed group is claimed.
        """
        try:
            loaded = await self._loaded_groups.find(group_id, create=True)
        except Refused as refused:
            return refused.code
        if loaded is None or not self._serves(loaded):
            return ErrorCode.not_coordinator
        memory = _memory(loaded)
        memory.registered = True  # so that an unload removes it
        known = memory.check_marker(marker)
        if known is not None:
            return known
        pending = self._store.pending(group_id)
        epoch = pending.epoch(marker.producer_id)
        if epoch is not None and _is_older(marker, epoch):
            return ErrorCode.invalid_producer_epoch
        memory.void(marker)
        if epoch is not None or memory.writing[marker.producer_id]:
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

    def _serves(self, loaded: LoadedGroup) -> bool:
        here = self._loaded_groups.groups.get(loaded.group_id) is loaded
        return here and self._loaded_groups.serves()

    def _check(self, loaded: LoadedGroup, commit: TransactionalCommit) -> ErrorCode:
        code = loaded.group.check_commit(
            commit.member_id, commit.generation, commit.instance_id, now_ms=None
        )
        if code is not ErrorCode.none:
            return code
        if not self._serves(loaded):
            return ErrorCode.not_coordinator
        pending = self._store.pending(commit.group_id)
        epoch = pending.epoch(commit.producer_id)
        if epoch is not None and commit.epoch < epoch:
            return ErrorCode.invalid_producer_epoch
        if pending.size_bytes + commit.size_bytes > PENDING_BYTES_MAX:
            return ErrorCode.invalid_commit_offset_size
        return ErrorCode.none

    def _write(
        self, loaded: LoadedGroup, memory: GroupTransactions, commit: TransactionalCommit
    ) -> Future[None]:
        memory.in_flight.update(commit.offsets.keys())
        memory.writing[commit.producer_id] += 1
        durable = self._store.advance_pending(
            commit.group_id, commit.producer_id, commit.epoch, commit.offsets
        )
        self._loaded_groups.track(loaded, durable)

        def on_durable(_: Future[None]) -> None:
            memory.in_flight -= Counter(commit.offsets.keys())
            memory.writing -= Counter((commit.producer_id,))

        durable.add_done_callback(on_durable)
        return durable

    def _is_open(self, loaded: LoadedGroup) -> bool:
        """Return whether the group has pending offsets, and so must stay loaded."""
        memory = loaded.transactions
        if memory is None:
            return bool(self._store.pending(loaded.group_id))
        return bool(memory.writing) or bool(self._store.pending(loaded.group_id))

    async def _before_release(self, loaded: LoadedGroup) -> None:
        """Remove the group from the index, if certainly no offset of it is pending."""
        memory = loaded.transactions
        if memory is None or not memory.registered or loaded.unsure:
            return
        if not loaded.stored or not self._store.pending(loaded.group_id):
            with suppress(LedgerError):  # then it stays, and markers load the group for nothing
                await self.groups.remove(loaded.group_id)


def _memory(loaded: LoadedGroup) -> GroupTransactions:
    if loaded.transactions is None:
        loaded.transactions = GroupTransactions()
    return loaded.transactions


class _Either:
    """The partitions in one of two containers."""

    def __init__(
        self, one: Container[TopicIdPartition], other: Container[TopicIdPartition]
    ) -> None:
        self._one = one
        self._other = other

    def __contains__(self, key: TopicIdPartition) -> bool:
        return key in self._one or key in self._other


def _is_older(marker: EndMarker, epoch: int) -> bool:
    """Return whether a marker is of an earlier epoch than the pending offsets."""
    bumped = marker.version >= EPOCH_BUMP_VERSION
    return marker.epoch < epoch or (bumped and marker.epoch == epoch)
