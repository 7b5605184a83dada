"""Maps ledger errors to Kafka error codes: the one place where a ledger error becomes a code.

A code that means "not written" may be sent only if the record can never become visible. So a failed
append of unknown outcome gets NOT_LEADER_OR_FOLLOWER, which makes clients retry.
UNKNOWN_SERVER_ERROR would make Java's idempotent producer duplicate records (KAFKA-14034).
"""

from __future__ import annotations

from typing import NamedTuple

from kio.schema.errors import ErrorCode

from ledger import errors
from ledger.errors import LedgerError

MALFORMED = (
    "This most likely occurs because of a request being malformed by the client library or the "
    "message was sent to an incompatible broker. See the broker logs for more details."
)
"""Kafka's text of INVALID_REQUEST, for an error without a text of its own."""


class KafkaCodes(NamedTuple):
    """The codes of one kind of ledger error, one for each kind of request."""

    partition: ErrorCode
    """For Produce, Fetch, ListOffsets and DeleteRecords."""

    coordinator: ErrorCode = ErrorCode.coordinator_not_available
    """For requests about groups. Clients find the coordinator again and retry."""


CODES: dict[type[LedgerError], KafkaCodes] = {
    errors.Fenced: KafkaCodes(ErrorCode.not_leader_or_follower),
    errors.NotEnoughBookies: KafkaCodes(ErrorCode.not_enough_replicas),
    errors.WrongQuorum: KafkaCodes(ErrorCode.invalid_replication_factor),
    errors.NoSuchLedger: KafkaCodes(ErrorCode.kafka_storage_error),
    errors.NoSuchEntry: KafkaCodes(ErrorCode.kafka_storage_error),
    errors.EntryUnknown: KafkaCodes(ErrorCode.kafka_storage_error),
    errors.BookieUnavailable: KafkaCodes(ErrorCode.not_enough_replicas),
    errors.StorageFull: KafkaCodes(ErrorCode.kafka_storage_error),
    errors.Unauthorized: KafkaCodes(ErrorCode.kafka_storage_error),
    errors.LedgerClosed: KafkaCodes(ErrorCode.not_leader_or_follower),
    errors.AddFailed: KafkaCodes(ErrorCode.not_leader_or_follower),
    errors.EntryTooLarge: KafkaCodes(ErrorCode.message_too_large),
    errors.CorruptFormat: KafkaCodes(ErrorCode.kafka_storage_error),
    errors.ForeignDirectory: KafkaCodes(ErrorCode.kafka_storage_error),
    errors.DirectoryInUse: KafkaCodes(ErrorCode.kafka_storage_error),
    errors.UringUnavailable: KafkaCodes(ErrorCode.kafka_storage_error),
    errors.BookieIdInUse: KafkaCodes(ErrorCode.kafka_storage_error),
    errors.MetadataError: KafkaCodes(ErrorCode.kafka_storage_error),
    errors.ForeignLayout: KafkaCodes(ErrorCode.kafka_storage_error),
    errors.NoNode: KafkaCodes(ErrorCode.unknown_topic_or_partition),
    errors.NodeExists: KafkaCodes(ErrorCode.kafka_storage_error),
    errors.NotEmpty: KafkaCodes(ErrorCode.kafka_storage_error),
    errors.BadVersion: KafkaCodes(ErrorCode.not_leader_or_follower),
    errors.MetadataUnavailable: KafkaCodes(ErrorCode.not_leader_or_follower),
    errors.AccessDenied: KafkaCodes(ErrorCode.not_leader_or_follower),
    errors.OpenToAnyone: KafkaCodes(ErrorCode.kafka_storage_error),
    errors.ReadOnlyStore: KafkaCodes(ErrorCode.kafka_storage_error),
    errors.Truncated: KafkaCodes(ErrorCode.offset_out_of_range),
    errors.NotOwner: KafkaCodes(ErrorCode.not_leader_or_follower, ErrorCode.not_coordinator),
    errors.StreamUnavailable: KafkaCodes(ErrorCode.not_leader_or_follower),
    errors.InvalidArgument: KafkaCodes(ErrorCode.invalid_request),
    errors.WrongState: KafkaCodes(ErrorCode.not_leader_or_follower),
}


def partition_code(error: LedgerError, *, unknown_outcome: bool = False) -> ErrorCode:
    """Return the code for a partition.

    With `unknown_outcome`, the record may still become durable after this error.
    """
    if unknown_outcome:
        return ErrorCode.not_leader_or_follower
    codes = _codes(error)
    assert codes is not None, f"no code for {type(error).__name__}"
    return codes.partition


def coordinator_code(error: BaseException) -> ErrorCode:
    """Return the code for a request about a group."""
    codes = _codes(error)
    return ErrorCode.coordinator_not_available if codes is None else codes.coordinator


def commit_code(error: BaseException) -> ErrorCode:
    """Return the code for a commit of offsets, which may be too large to be stored together."""
    if isinstance(error, errors.EntryTooLarge):
        return ErrorCode.invalid_commit_offset_size
    return coordinator_code(error)


def admin_code(error: LedgerError) -> ErrorCode:
    """Return the code for a request about topics or configs.

    The code of a retryable error makes admin clients find the controller and retry.
    """
    return ErrorCode.not_controller if error.retryable else partition_code(error)


def _codes(error: BaseException) -> KafkaCodes | None:
    for kind in type(error).__mro__:
        codes = CODES.get(kind)
        if codes is not None:
            return codes
    return None
