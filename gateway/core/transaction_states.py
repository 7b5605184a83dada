"""The state of one transactional id, and the next state for each event. Pure.

`TransactionMetadata` is what a record of the transaction log stores. Each method returns the
metadata of the next state and leaves its own unchanged, so a coordinator keeps the old state until
the record of the new one is durable.

Source: Apache Kafka 4.3, TransactionMetadata and TransactionState; KIP-98, KIP-360, KIP-890.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from gateway.core.java_map import java_hash

NO_PRODUCER_ID = -1
NO_EPOCH = -1
NO_TIME = -1
EPOCH_MAX = 2**15 - 1
EPOCH_LAST = EPOCH_MAX - 1
"""The last epoch that a producer may use. One more is left, so that it can always be fenced."""

EPOCH_BUMP_VERSION = 2
"""The transaction version from which on each transaction ends with an epoch of its own."""


class TransactionState(IntEnum):
    """The state of a transactional id. The values are those of Kafka's transaction log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def kafka_name(self) -> str:
        """The name that Kafka's tools show, such as PrepareCommit."""
        return "".join(word.capitalize() for word in self.name.split("_"))


_ENDED = (
    TransactionState.EMPTY,
    TransactionState.COMPLETE_COMMIT,
    TransactionState.COMPLETE_ABORT,
)
PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
PREVIOUS = {
    TransactionState.EMPTY: _ENDED,
    TransactionState.ONGOING: (TransactionState.ONGOING, *_ENDED),
    TransactionState.PREPARE_COMMIT: (TransactionState.ONGOING,),
    TransactionState.PREPARE_ABORT: (
        TransactionState.ONGOING,
        TransactionState.PREPARE_EPOCH_FENCE,
        *_ENDED,
    ),
    TransactionState.COMPLETE_COMMIT: (TransactionState.PREPARE_COMMIT,),
    TransactionState.COMPLETE_ABORT: (TransactionState.PREPARE_ABORT,),
    TransactionState.DEAD: _ENDED,
    TransactionState.PREPARE_EPOCH_FENCE: (TransactionState.ONGOING,),
}
"""The states that may come before each state."""


class TopicPartition(NamedTuple):
    """A partition of a transaction, by the name of its topic."""

    topic: str
    partition: int


_NO_PARTITIONS: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMetadata:
    """The stored state of one transactional id."""

    transactional_id: str
    producer_id: int
    epoch: int = NO_EPOCH  # the producer's epoch; -1 only before the first record is stored
    # The epoch before the last bump, for a retry of InitProducerId. Not stored; -1 after a load.
    last_epoch: int = NO_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID  # the producer id of the record before this one
    # The producer id after the end of this transaction. Set in Prepare states if the epochs of
    # `producer_id` are used up, otherwise -1.
    next_producer_id: int = NO_PRODUCER_ID
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = _NO_PARTITIONS
    started_ms: int = NO_TIME  # when the first partition was added
    updated_ms: int
    version: int = 0  # the transaction version of the client that caused this state
    # Tagged fields that this release does not use, by ascending tag; kept as they are.
    tagged: tuple[tuple[int, bytes], ...] = ()

    @property
    def exhausted(self) -> bool:
        """True if the producer id has no further epoch to give to a producer."""
        return is_exhausted(self.epoch)

    @property
    def bumps_epoch(self) -> bool:
        """True if this transaction is of protocol 2, where each end raises the epoch."""
        return self.version >= EPOCH_BUMP_VERSION

    def _to(self, state: TransactionState, **changes: object) -> TransactionMetadata:
        assert self.state in PREVIOUS[state], f"{self.state.name} to {state.name}"
        return replace(
            self,
            state=state,
            previous_producer_id=self.producer_id,
            **changes,  # pyright: ignore[reportArgumentType]
        )

    def initialized(
        self, timeout_ms: int, expected_epoch: int | None, now_ms: int
    ) -> TransactionMetadata | None:
        """Return the state for a producer that starts or goes on after an error.

        A producer that goes on names its epoch as `expected_epoch`. Returns None if that epoch is
        fenced. The same epoch is returned again for the retry of a request whose answer was lost.
        """
        assert not self.exhausted
        if expected_epoch is None:
            epochs = (self.epoch + 1, NO_EPOCH)
        elif expected_epoch == self.epoch or self.epoch == NO_EPOCH:
            epochs = (self.epoch + 1, self.epoch)
        elif expected_epoch == self.last_epoch:
            epochs = (self.epoch, self.last_epoch)
        else:
            return None
        return self._emptied(self.producer_id, epochs, timeout_ms, now_ms)

    def rotated(
        self, producer_id: int, timeout_ms: int, now_ms: int, *, keeps_last_epoch: bool
    ) -> TransactionMetadata:
        """Return the state with a new producer id, after the epochs of the old one."""
        last_epoch = self.epoch if keeps_last_epoch else NO_EPOCH
        return self._emptied(producer_id, (0, last_epoch), timeout_ms, now_ms)

    def _emptied(
        self, producer_id: int, epochs: tuple[int, int], timeout_ms: int, now_ms: int
    ) -> TransactionMetadata:
        return self._to(
            TransactionState.EMPTY,
            producer_id=producer_id,
            epoch=epochs[0],
            last_epoch=epochs[1],
            timeout_ms=timeout_ms,
            partitions=_NO_PARTITIONS,
            started_ms=NO_TIME,
            updated_ms=now_ms,
        )

    def added(
        self, partitions: frozenset[TopicPartition], version: int, now_ms: int
    ) -> TransactionMetadata:
        """Return the state with more partitions. The first ones start a transaction."""
        started_ms = self.started_ms if self.state is TransactionState.ONGOING else now_ms
        return self._to(
            TransactionState.ONGOING,
            partitions=self.partitions | partitions,
            started_ms=started_ms,
            updated_ms=now_ms,
            version=version,
        )

    def prepared(
        self, state: TransactionState, version: int, next_producer_id: int, now_ms: int
    ) -> TransactionMetadata:
        """Return the state from which on the outcome is decided.

        In protocol 2 the epoch rises here, so that the markers fence late batches.
        """
        epoch, last_epoch = self.epoch, self.last_epoch
        if version >= EPOCH_BUMP_VERSION:
            epoch, last_epoch = min(epoch + 1, EPOCH_MAX), epoch
        nothing_added = self.state is not TransactionState.ONGOING
        return self._to(
            state,
            epoch=epoch,
            last_epoch=last_epoch,
            next_producer_id=next_producer_id,
            started_ms=now_ms if nothing_added else self.started_ms,
            updated_ms=now_ms,
            version=version,
        )

    def fenced(self) -> TransactionMetadata:
        """Return the Ongoing state with a raised epoch, which no producer receives (protocol 1)."""
        assert self.state is TransactionState.ONGOING
        return replace(self, epoch=min(self.epoch + 1, EPOCH_MAX), last_epoch=NO_EPOCH)

    def completed(self, now_ms: int) -> TransactionMetadata:
        """Return the state after the last marker, with the next producer id if there is one."""
        commit = self.state is TransactionState.PREPARE_COMMIT
        producer_id, epoch = self.producer_id, self.epoch
        if self.bumps_epoch and self.next_producer_id != NO_PRODUCER_ID:
            producer_id, epoch = self.next_producer_id, 0
        return self._to(
            TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT,
            producer_id=producer_id,
            epoch=epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions=_NO_PARTITIONS,
            updated_ms=now_ms,
        )


def is_exhausted(epoch: int) -> bool:
    """Return True if no producer may receive an epoch above this one."""
    return epoch >= EPOCH_LAST


def coordinator_partition(transactional_id: str, partitions: int) -> int:
    """Return the partition of the transaction log for an id, out of `partitions`.

    Source: Kafka, TransactionStateManager.partitionFor; Java's String.hashCode over UTF-16 units.
    """
    hashed = java_hash(transactional_id)
    signed = hashed - 2**32 if hashed >= 2**31 else hashed
    return (0 if signed == -(2**31) else abs(signed)) % partitions
