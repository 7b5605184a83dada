"""Errors of the ledger tier, by what the caller can do about them."""

from __future__ import annotations

from typing import ClassVar


class LedgerError(Exception):
    """Base class of ledger errors. If `retryable`, the unchanged call may succeed later."""

    retryable: ClassVar[bool] = False


class Fenced(LedgerError):
    """A reader took this ledger over: its writer can never add to it again.

    The outcome of a pending add is unknown, because recovery may keep it. Source: seed 001.
    """


class NotEnoughBookies(LedgerError):
    """There are fewer live bookies than the ack quorum. Nothing was written."""

    retryable = True


class WrongQuorum(LedgerError):
    """The quorums do not satisfy E >= Qw >= Qa >= 1. Nothing was created."""


class NoSuchLedger(LedgerError):
    """The ledger does not exist, according to the metadata or to a bookie with complete data."""


class NoSuchEntry(LedgerError):
    """The entry does not exist: its ledger is closed below it, or the entry is lost.

    Raised on evidence only, never because a replica did not answer.
    """


class EntryUnknown(LedgerError):
    """The entry may exist, but cannot be read now: I/O error, bit rot, limbo, no connection."""

    retryable = True


class BookieUnavailable(LedgerError):
    """The bookie did not take the request, or shut down before it answered."""

    retryable = True


class StorageFull(LedgerError):
    """The bookie's disk is full. Nothing was written; free some space."""

    retryable = True


class UringUnavailable(LedgerError):
    """io_uring was demanded, and the kernel or the missing package does not permit it."""


class Unauthorized(LedgerError):
    """The master key does not match the ledger's."""


class LedgerClosed(LedgerError):
    """The ledger is closed: no entry can be added."""


class AddFailed(LedgerError):
    """An add could not reach its ack quorum; its outcome is unknown until recovery."""

    retryable = True


class EntryTooLarge(LedgerError):
    """The entry is larger than the limit; send less at once."""


class CorruptFormat(LedgerError):
    """Stored bytes do not parse. The message names the path or the position."""


class ForeignDirectory(LedgerError):
    """The data directory has another or a newer format. Nothing in it was changed."""


class DirectoryInUse(LedgerError):
    """Another process uses this data directory."""


class BookieIdInUse(LedgerError):
    """Another process is registered with this bookie's id, for instance from a copied directory."""


class MetadataError(LedgerError):
    """Base class for errors of the metadata store."""


class ForeignLayout(MetadataError):
    """The store holds no cluster, or one with another layout."""


class NoNode(MetadataError):
    """The path does not exist."""


class NodeExists(MetadataError):
    """The path exists already."""


class NotEmpty(MetadataError):
    """The path has children and cannot be deleted."""


class BadVersion(MetadataError):
    """The node changed since it was read. Read it again before any decision."""

    retryable = True


class MetadataUnavailable(MetadataError):
    """The store did not answer. A change may or may not have been made."""

    retryable = True


class AccessDenied(MetadataUnavailable):
    """The ACL of a node refuses this process. Nothing was changed, and the ACL may change."""


class OpenToAnyone(MetadataError):
    """Nodes of the store are open to every client of it. Nothing was started."""


class ReadOnlyStore(MetadataError):
    """This store was opened for reading; only its owner can change it."""


class Truncated(LedgerError):
    """The position is below the start of the stream."""


class NotOwner(LedgerError):
    """This process does not own the stream, or no longer does."""


class InvalidArgument(LedgerError):
    """The caller passed a value that is not valid here. The message names it and the valid ones."""


class WrongState(LedgerError):
    """The object was not started, was started before, or is closed."""


class StreamUnavailable(LedgerError):
    """The stream is being opened or recovered; retry."""

    retryable = True


def copy_error(error: LedgerError) -> LedgerError:
    """Return a new exception of the same kind: one raised twice would collect both tracebacks."""
    return type(error)(*error.args)
