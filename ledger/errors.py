"""What can go wrong in the ledger tier, by what the caller may do about it."""

from __future__ import annotations

from typing import ClassVar


class LedgerError(Exception):
    """Base. `retryable`: the same call may succeed later with no change by the caller."""

    retryable: ClassVar[bool] = False


class Fenced(LedgerError):
    """A reader took this ledger over; this writer can never add to it again.

    The outcome of a pending add is unknown: recovery may keep it. Source: seed 001.
    """


class NotEnoughBookies(LedgerError):
    """Fewer live bookies than the ack quorum. Nothing was written."""

    retryable = True


class WrongQuorum(LedgerError):
    """Not E >= Qw >= Qa >= 1. Nothing was made."""


class NoSuchLedger(LedgerError):
    """The ledger does not exist: metadata, or a bookie that would know, says so."""


class NoSuchEntry(LedgerError):
    """The entry does not exist; said only by evidence, never because a replica was unreachable."""


class EntryUnknown(LedgerError):
    """Whether the entry exists could not be learnt now (I/O error, rot, limbo, no connection)."""

    retryable = True


class BookieUnavailable(LedgerError):
    """The bookie did not take the request, or ended before it answered."""

    retryable = True


class StorageFull(LedgerError):
    """No room on the bookie's disk. Nothing was written; free some space."""

    retryable = True


class Unauthorized(LedgerError):
    """The master key does not match the ledger's."""


class LedgerClosed(LedgerError):
    """The ledger is closed; nothing can be added."""


class AddFailed(LedgerError):
    """An add could not reach its ack quorum; its outcome is unknown until recovery."""

    retryable = True


class EntryTooLarge(LedgerError):
    """The entry is larger than the store takes; send less at once."""


class CorruptFormat(LedgerError):
    """Stored bytes do not parse. The message names the path or place."""


class ForeignDirectory(LedgerError):
    """A data directory of another or a newer format; nothing in it was touched."""


class DirectoryInUse(LedgerError):
    """Another process holds this data directory."""


class BookieIdInUse(LedgerError):
    """Another process is registered as this bookie: a copy of its directory, or its twin."""


class MetadataError(LedgerError):
    """Base of what the metadata store answers."""


class ForeignLayout(MetadataError):
    """The store holds no cluster, or one laid out in a way that is not ours."""


class NoNode(MetadataError):
    """The path does not exist."""


class NodeExists(MetadataError):
    """The path exists already."""


class NotEmpty(MetadataError):
    """The path has children and cannot be deleted."""


class BadVersion(MetadataError):
    """The node changed since it was read. Read again before deciding anything."""

    retryable = True


class MetadataUnavailable(MetadataError):
    """The store did not answer. The change may or may not have happened."""

    retryable = True


class ReadOnlyStore(MetadataError):
    """This store is shown for reading only; whoever owns it can change it."""


class Truncated(LedgerError):
    """The position lies below the start of the stream."""


class NotOwner(LedgerError):
    """This process does not (or no longer) own the stream."""


class StreamUnavailable(LedgerError):
    """The stream is being opened or recovered; try again."""

    retryable = True


def copy_error(error: LedgerError) -> LedgerError:
    """Return a new exception of the same kind: one raised twice would collect both tracebacks."""
    return type(error)(*error.args)
