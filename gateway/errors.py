"""The one place where a ledger error becomes a Kafka error code.

A code that means "not written" may be sent only when the record can never become visible. So a
failed append whose outcome is unknown gets NOT_LEADER_OR_FOLLOWER, which makes clients retry, and
never UNKNOWN_SERVER_ERROR (it makes Java's idempotent producer double records, KAFKA-14034).
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from ledger import errors
from ledger.errors import LedgerError

CODES: dict[type[LedgerError], ErrorCode] = {
    errors.Fenced: ErrorCode.not_leader_or_follower,
    errors.NotEnoughBookies: ErrorCode.not_enough_replicas,
    errors.WrongQuorum: ErrorCode.invalid_replication_factor,
    errors.NoSuchLedger: ErrorCode.kafka_storage_error,
    errors.NoSuchEntry: ErrorCode.kafka_storage_error,
    errors.EntryUnknown: ErrorCode.kafka_storage_error,
    errors.BookieUnavailable: ErrorCode.not_enough_replicas,
    errors.StorageFull: ErrorCode.kafka_storage_error,
    errors.Unauthorized: ErrorCode.kafka_storage_error,
    errors.LedgerClosed: ErrorCode.not_leader_or_follower,
    errors.AddFailed: ErrorCode.not_leader_or_follower,
    errors.EntryTooLarge: ErrorCode.message_too_large,
    errors.CorruptFormat: ErrorCode.kafka_storage_error,
    errors.ForeignDirectory: ErrorCode.kafka_storage_error,
    errors.DirectoryInUse: ErrorCode.kafka_storage_error,
    errors.BookieIdInUse: ErrorCode.kafka_storage_error,
    errors.MetadataError: ErrorCode.kafka_storage_error,
    errors.ForeignLayout: ErrorCode.kafka_storage_error,
    errors.NoNode: ErrorCode.unknown_topic_or_partition,
    errors.NodeExists: ErrorCode.kafka_storage_error,
    errors.NotEmpty: ErrorCode.kafka_storage_error,
    errors.BadVersion: ErrorCode.not_leader_or_follower,
    errors.MetadataUnavailable: ErrorCode.not_leader_or_follower,
    errors.ReadOnlyStore: ErrorCode.kafka_storage_error,
    errors.Truncated: ErrorCode.offset_out_of_range,
    errors.NotOwner: ErrorCode.not_leader_or_follower,
    errors.StreamUnavailable: ErrorCode.not_leader_or_follower,
}


def code_for(error: LedgerError, *, unknown_outcome: bool = False) -> ErrorCode:
    """The code for clients. `unknown_outcome`: the record may yet turn out to be written."""
    if unknown_outcome:
        return ErrorCode.not_leader_or_follower
    for kind in type(error).__mro__:
        code = CODES.get(kind)
        if code is not None:
            return code
    raise AssertionError(f"no code for {type(error).__name__}")
