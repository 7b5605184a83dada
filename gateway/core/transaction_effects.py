"""The requests, answers and effects of the transaction coordinator. Pure values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from gateway.core.transaction_states import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    TopicPartition,
    TransactionMetadata,
    TransactionState,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """The limits of a transaction coordinator, with Kafka's names and defaults."""

    timeout_ms_max: int = 900_000  # transaction.max.timeout.ms
    id_expiration_ms: int = 604_800_000  # transactional.id.expiration.ms, 7 days
    scan_ms: int = 10_000  # transaction.abort.timed.out.transaction.cleanup.interval.ms
    # The largest value of a record, as with Kafka's message.max.bytes; a transaction with more
    # partitions is refused.
    record_bytes_max: int = 1_048_588
    expired_at_once: int = 1_000  # ids that expire in one tick, so that a tick stays short
    held_ms: int = 60_000  # between two copies of a marker that a partition refuses for good

    def __post_init__(self) -> None:
        assert 0 < self.timeout_ms_max < 2**31
        assert self.id_expiration_ms > 0 < self.scan_ms


class Initializing(NamedTuple):
    """One InitProducerId with a transactional id.

    A producer that goes on after an error names its id and epoch (v3+).
    """

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH


class Adding(NamedTuple):
    """One transaction of an AddPartitionsToTxn, or an AddOffsetsToTxn.

    `version` is the transaction version that the request implies: 2 from AddPartitionsToTxn v4 on,
    which brokers send, otherwise 0.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    partitions: frozenset[TopicPartition]
    version: int = 0


class Ending(NamedTuple):
    """One EndTxn. `version` is 2 from EndTxn v5 on, otherwise 0."""

    transactional_id: str
    producer_id: int
    epoch: int
    commit: bool
    version: int = 0


class Initialized(NamedTuple):
    """The answer to an InitProducerId."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH


class Added(NamedTuple):
    """The answer to an AddPartitionsToTxn or AddOffsetsToTxn, for all its partitions."""

    error: ErrorCode


class Ended(NamedTuple):
    """The answer to an EndTxn. Protocol 2 returns the producer's next id and epoch."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH


Result = Initialized | Added | Ended


class Marker(NamedTuple):
    """The end of one transaction, for some of its partitions.

    `number` orders the transactions of one coordinator epoch: a partition recognises a late copy
    of an earlier marker by it. It is -1 in a marker of another origin, such as an admin client.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    coordinator_epoch: int
    commit: bool
    partitions: frozenset[TopicPartition]
    version: int
    number: int = -1


class Append(NamedTuple):
    """Append this state to the transaction log; None deletes the id with a tombstone.

    Pass this object to `TransactionCoordinator.on_appended` once the record is durable.
    """

    transactional_id: str
    metadata: TransactionMetadata | None


class Answer(NamedTuple):
    """Answer a waiting request."""

    waiter: object
    result: Result


class SendMarkers(NamedTuple):
    """Send a marker to the owners of its partitions, and pass the answers to `on_marked`."""

    marker: Marker


class Reload(NamedTuple):
    """Drop this coordinator and load the map again: another coordinator may have taken over."""


class Hold(NamedTuple):
    """Log that the partitions of this marker still refuse its coordinator epoch after a reload.

    The transaction stays prepared. `tick` sends the marker again every `held_ms`.
    """

    marker: Marker


Effect = Append | Answer | SendMarkers | Reload | Hold


class TransactionView(NamedTuple):
    """One id as DescribeTransactions and ListTransactions show it."""

    transactional_id: str
    producer_id: int
    epoch: int
    state: TransactionState
    timeout_ms: int
    started_ms: int
    partitions: frozenset[TopicPartition]
