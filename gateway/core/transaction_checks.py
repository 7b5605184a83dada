"""Which requests of a producer fit the state of its transactional id. Pure.

`busy` is True while a record of the id is appended or its markers are sent.

Source: Apache Kafka 4.3, TransactionCoordinator: prepareInitProducerIdTransit,
endTransactionWithTV1 and endTransaction.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.core.transaction_effects import Ending, Initializing
from gateway.core.transaction_states import (
    EPOCH_LAST,
    NO_EPOCH,
    NO_PRODUCER_ID,
    TransactionMetadata,
    TransactionState,
    is_exhausted,
)


def check_initializing(request: Initializing, timeout_ms_max: int) -> ErrorCode:
    """Check the fields of an InitProducerId, whatever the state of its id."""
    if (request.producer_id == NO_PRODUCER_ID) != (request.epoch == NO_EPOCH):
        return ErrorCode.invalid_request
    if not request.transactional_id:
        return ErrorCode.invalid_request
    if not 0 < request.timeout_ms <= timeout_ms_max:
        return ErrorCode.invalid_transaction_timeout
    return ErrorCode.none


def may_initialize(metadata: TransactionMetadata, request: Initializing) -> bool:
    """Return True unless the producer that asks to go on is fenced by its id."""
    if request.producer_id == NO_PRODUCER_ID or metadata.epoch == NO_EPOCH:
        return True
    if request.producer_id == metadata.producer_id:
        return True
    # The answer with the new producer id may have been lost.
    return request.producer_id == metadata.previous_producer_id and is_exhausted(request.epoch)


def check_producer(metadata: TransactionMetadata, producer_id: int, epoch: int) -> ErrorCode:
    """Check the id and epoch of the producer that sends a request."""
    if metadata.producer_id != producer_id:
        return ErrorCode.invalid_producer_id_mapping
    return ErrorCode.none if metadata.epoch == epoch else ErrorCode.producer_fenced


def check_ending(metadata: TransactionMetadata, request: Ending, *, busy: bool) -> ErrorCode | None:
    """Check an EndTxn of protocol 1. Returns None if the coordinator can prepare the outcome."""
    error = check_producer(metadata, request.producer_id, request.epoch)
    if error is not ErrorCode.none:
        return error
    if busy:
        return ErrorCode.concurrent_transactions
    if metadata.state is TransactionState.ONGOING:
        return None
    return ErrorCode.none if metadata.state is _done(request) else ErrorCode.invalid_txn_state


def check_ending_with_bump(
    metadata: TransactionMetadata, request: Ending, *, busy: bool
) -> ErrorCode | None:
    """Check an EndTxn of protocol 2.

    Returns None if the coordinator can prepare the outcome, and NONE for a retry of the last
    EndTxn. A retry has the epoch before the bump, or the last epoch of the producer id before this
    one.
    """
    if busy:
        # First of all checks: a new producer id may be about to become durable.
        return ErrorCode.concurrent_transactions
    overflowed = (
        metadata.previous_producer_id == request.producer_id
        and request.epoch == EPOCH_LAST
        and metadata.epoch == 0
    )
    if metadata.producer_id != request.producer_id and not overflowed:
        return ErrorCode.invalid_producer_id_mapping
    completed = metadata.state in _COMPLETED
    retried = completed and (overflowed or metadata.epoch == request.epoch + 1)
    if metadata.epoch != request.epoch and not retried:
        return ErrorCode.producer_fenced
    if metadata.state is TransactionState.ONGOING:
        return None
    if retried:
        return ErrorCode.none if metadata.state is _done(request) else ErrorCode.invalid_txn_state
    # Protocol 2 may abort although the coordinator has no open transaction.
    return ErrorCode.invalid_txn_state if request.commit else None


def _done(request: Ending) -> TransactionState:
    return TransactionState.COMPLETE_COMMIT if request.commit else TransactionState.COMPLETE_ABORT


_COMPLETED = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
