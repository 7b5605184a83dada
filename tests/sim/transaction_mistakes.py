"""Known mistakes of transactions, planted into the real cores; the checkers must find each.

python -m tests.sim.transaction_mistakes [name ...]
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from gateway.core.partition_transactions import NO_OFFSET, PartitionTransactions
from gateway.core.transaction_effects import Answer, Ended, Initialized
from gateway.core.transaction_states import PREPARED, TransactionState
from gateway.core.transactions import TransactionCoordinator
from tests.sim.transaction_world import run_seed

SEEDS_MAX = 5_000


class AnswersEarly(TransactionCoordinator):
    """EndTxn is answered when its record is appended, before it is durable."""

    def _append(self, entry, target, waiter, wants):
        if wants is not Ended:
            return super()._append(entry, target, waiter, wants)
        after = target.completed(0)
        ids = (after.producer_id, after.epoch) if target.bumps_epoch else ()
        early = Answer(waiter, Ended(ErrorCode.none, *ids))
        return [early, *super()._append(entry, target, None, wants)]


class CompletesEarly(TransactionCoordinator):
    """The first answer to a marker completes the transaction."""

    def _complete_if_marked(self, entry, now_ms):
        entry.unmarked.clear()
        return super()._complete_if_marked(entry, now_ms)


class ForgetsPrepared(TransactionCoordinator):
    """A takeover sends no markers."""

    def start(self, now_ms):
        return []


class KeepsEpoch(TransactionCoordinator):
    """A transaction that times out is aborted with the epoch of its producer."""

    def _abort_timed_out(self, entry, now_ms):
        if entry.append is not None:
            return super()._abort_timed_out(entry, now_ms)
        target = entry.metadata.prepared(TransactionState.PREPARE_ABORT, 0, -1, now_ms)
        return self._append(entry, target, None, Ended)


class InitializesEarly(TransactionCoordinator):
    """InitProducerId gives the next epoch while the markers of an abort are still sent."""

    def initialize(self, request, waiter, now_ms):
        entry = self._entries.get(request.transactional_id)
        if entry is None or entry.append or entry.metadata.state not in PREPARED:
            return super().initialize(request, waiter, now_ms)
        entry.marker = None
        target = replace(
            entry.metadata,
            state=TransactionState.EMPTY,
            partitions=frozenset(),
            epoch=entry.metadata.epoch + 1,
        )
        return self._append(entry, target, waiter, Initialized)


class AnyCoordinator(PartitionTransactions):
    """Markers are not compared with the coordinator epoch of earlier ones."""

    def check_marker(self, marker):
        found = super().check_marker(marker)
        return ErrorCode.none if found is ErrorCode.transaction_coordinator_fenced else found


class AnyProducer(PartitionTransactions):
    """Markers are not compared with the epoch of the producer."""

    def check_marker(self, marker):
        known = self.producer(marker.producer_id)
        epoch = marker.epoch if known is None else max(marker.epoch, known.epoch + 1)
        return super().check_marker(marker._replace(epoch=epoch))


class KeepsGuards(PartitionTransactions):
    """A marker leaves verifications valid that began before it."""

    def accept_marker(self, marker, offset, now_ms):
        guards = dict(self._guards)
        super().accept_marker(marker, offset, now_ms)
        self._guards.update(guards)


class NoVerification(PartitionTransactions):
    """The first batch of a transaction is appended without asking the coordinator."""

    def begin_verification(self, *words, **more):
        found = super().begin_verification(*words, **more)
        return found if isinstance(found, ErrorCode) else None

    def check_batch(self, *words, **more):
        found = super().check_batch(*words, **more)
        return ErrorCode.none if found is ErrorCode.invalid_txn_state else found


class StableEarly(PartitionTransactions):
    """The last stable offset passes a transaction whose marker is not durable."""

    def _end(self, producer_id, first, marker, offset):
        super()._end(producer_id, first, marker, offset)
        del self._unstable[first]
        self._ended.pop()


class ForgetsOpen(PartitionTransactions):
    """A snapshot has no open transactions."""

    def encode(self, end_offset):
        kept = self._producers
        closed = {key: one._replace(first_offset=NO_OFFSET) for key, one in kept.items()}
        events = tuple(self._events)
        self._producers = closed
        self._events.clear()
        try:
            return super().encode(end_offset)
        finally:
            self._producers = kept
            self._events.extend(events)


class EncodesTooMuch(PartitionTransactions):
    """A snapshot has transactions that began after its end."""

    def encode(self, end_offset):
        events = tuple(self._events)
        self._events.clear()
        try:
            return super().encode(end_offset)
        finally:
            self._events.extend(events)


class Mistake(NamedTuple):
    """One mistake: what it changes in the rules of every seed."""

    trap: str
    name: str
    changes: dict[str, Any]


def _coordinator(trap, name, kind, **more):
    return Mistake(trap, name, {"coordinator": kind, **more})


def _partition(trap, name, kind, **more):
    return Mistake(trap, name, {"partition": kind, **more})


_LATE_END = {
    "protocol": 1,
    "late_ends": True,
    "partitions": 2,
    "plans": ((((0,), False), ((0, 1), True)),),
    "lates": 2,
    **dict.fromkeys(("takeovers", "failovers", "timeouts", "losses", "given_up"), 0),
}
MISTAKES = (
    _coordinator("K15", "EndTxn is answered before Prepare is durable", AnswersEarly),
    _coordinator("K13", "Complete is written before the last marker", CompletesEarly),
    _coordinator("K13", "Prepare is forgotten at a takeover", ForgetsPrepared),
    Mistake("K13", "two coordinators have one epoch", {"same_epoch": True}),
    _partition("K13", "the coordinator epoch of a marker is not checked", AnyCoordinator),
    _partition(
        "K11",
        "the producer epoch of a marker is not checked",
        AnyProducer,
        numbered=False,
        protocol=2,
    ),
    Mistake(
        "K13",
        "a late copy of a marker ends the next transaction",
        {"numbered": False, "protocol": 1},
    ),
    _coordinator("K15", "a timeout aborts without an epoch bump", KeepsEpoch),
    _coordinator("K11", "InitProducerId is answered before the abort ended", InitializesEarly),
    _partition("K14", "a verified batch is appended after an abort", KeepsGuards),
    _partition("K14", "the first batch is not verified", NoVerification),
    _partition("K12", "the LSO passes a marker that is not durable", StableEarly),
    _partition("K12", "a snapshot lacks an open transaction", ForgetsOpen),
    _partition("K12", "a snapshot has a transaction that began after its end", EncodesTooMuch),
    Mistake("T20", "EndTxn of protocol 1 arrives late, as Kafka cannot prevent", _LATE_END),
)


def hunt(mistake):
    """Return the number of seeds until it was found, and how. 0 and "" if it was not."""
    for seed in range(SEEDS_MAX):
        found = run_seed(seed, **mistake.changes)
        if found:
            return seed + 1, found
    return 0, ""


def main(names):
    missed = 0
    for mistake in MISTAKES:
        if names and mistake.name not in names:
            continue
        seeds, how = hunt(mistake)
        missed += not seeds
        print(f"{mistake.trap:4} {mistake.name:60} {seeds:6} {how}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
