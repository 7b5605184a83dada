"""Known mistakes of transactions, planted into a whole cluster; its seeds must find each.

python -m tests.sim.proof_transactions --mistakes
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.core.partition_transactions import NO_OFFSET, PartitionTransactions
from gateway.core.transaction_effects import Answer, Ended
from gateway.core.transactions import TransactionCoordinator
from gateway.groups.transactional_groups import TransactionalGroups
from gateway.topics.fetch_reader import FetchReader
from gateway.topics.partition import Partition
from gateway.transactions.coordinator_partition import CoordinatorPartition
from subscriptions.segments.segment_records import SubscriptionState
from tests.sim.planting import Mutation, patched
from tests.sim.transacting_world import TransactingWorld

_check_marker = PartitionTransactions.check_marker
_begin_verification = PartitionTransactions.begin_verification
_check_batch = PartitionTransactions.check_batch
_encode = PartitionTransactions.encode
_append = TransactionCoordinator._append
_of = TransactionalGroups.of
_apply = SubscriptionState.apply


def any_coordinator(self, marker):
    known = self.producer(marker.producer_id)
    if known is not None and known.coordinator_epoch > marker.coordinator_epoch:
        marker = marker._replace(coordinator_epoch=known.coordinator_epoch, number=-1)
    return _check_marker(self, marker)


def no_markers(self, now_ms):
    return []


def one_epoch(self, epoch):
    _opened(self, 0)


_opened = CoordinatorPartition.on_opened


async def first_group(self, partition):
    return (await _of(self, partition))[:1]


def no_pending(self, record):
    if record.commits is not None or record.producer_id < 0:
        _apply(self, record)


def without_open(self, end_offset):
    kept, events = self._producers, tuple(self._events)
    self._producers = {key: one._replace(first_offset=NO_OFFSET) for key, one in kept.items()}
    self._events.clear()
    try:
        return _encode(self, end_offset)
    finally:
        self._producers = kept
        self._events.extend(events)


def unverified(self, producer_id, epoch, first_sequence, now_ms, *, bumps_epoch):
    words = (producer_id, epoch, first_sequence, now_ms)
    found = _begin_verification(self, *words, bumps_epoch=bumps_epoch)
    return found if isinstance(found, ErrorCode) or bumps_epoch else None


def unguarded(
    self, producer_id, epoch, first_sequence, guard=None, *, transactional, first_of_producer=False
):
    found = _check_batch(
        self,
        producer_id,
        epoch,
        first_sequence,
        guard,
        transactional=transactional,
        first_of_producer=first_of_producer,
    )
    return ErrorCode.none if found is ErrorCode.invalid_txn_state else found


def answered_early(self, entry, target, waiter, wants):
    if wants is not Ended:
        return _append(self, entry, target, waiter, wants)
    after = target.completed(0)
    ids = (after.producer_id, after.epoch) if target.bumps_epoch else ()
    early = Answer(waiter, Ended(ErrorCode.none, *ids))
    return [early, *_append(self, entry, target, None, wants)]


def up_to_the_end(self):
    return self.high_watermark


def past_the_lso(self, result, log, records):
    if records:
        up_to = min(records[-1].end_sequence_id, log.stable_offset)
        aborted = log.aborted_cached(result.asked.fetch_offset, up_to)
        if aborted is None:
            return False
        result.aborted = [(one.producer_id, one.first_offset) for one in aborted]
    self.plan.add_records(result, records, log.stable_offset)
    return True


def nothing_aborted(self, start, end):
    return []


def completed_early(self, entry, now_ms):
    entry.unmarked.clear()
    return _complete(self, entry, now_ms)


_complete = TransactionCoordinator._complete_if_marked


def _mistake(trap, name, owner, **mistakes):
    return Mutation(trap, name, patched(owner, **mistakes), TransactingWorld)


MISTAKES = (
    _mistake(
        "K13",
        "markers are not checked for the coordinator epoch",
        PartitionTransactions,
        check_marker=any_coordinator,
    ),
    _mistake("K13", "Prepare is forgotten at a takeover", TransactionCoordinator, start=no_markers),
    _mistake("K13", "all coordinators have one epoch", CoordinatorPartition, on_opened=one_epoch),
    _mistake("K13", "pending offsets are lost at a takeover", SubscriptionState, apply=no_pending),
    _mistake("K13", "offsets of one of two groups end", TransactionalGroups, of=first_group),
    _mistake(
        "K12", "a snapshot lacks open transactions", PartitionTransactions, encode=without_open
    ),
    _mistake("K12", "the tail cache goes past the LSO", FetchReader, _add_committed=past_the_lso),
    _mistake(
        "K12", "all readers go past the LSO", Partition, stable_offset=property(up_to_the_end)
    ),
    _mistake(
        "K12",
        "the list of aborted transactions is empty",
        Partition,
        aborted_cached=nothing_aborted,
    ),
    _mistake(
        "K14",
        "the first batch of protocol 1 is not verified",
        PartitionTransactions,
        begin_verification=unverified,
        check_batch=unguarded,
    ),
    _mistake(
        "K15", "EndTxn is answered before Prepare", TransactionCoordinator, _append=answered_early
    ),
    _mistake(
        "K13",
        "Complete is written before the last marker",
        TransactionCoordinator,
        _complete_if_marked=completed_early,
    ),
)
