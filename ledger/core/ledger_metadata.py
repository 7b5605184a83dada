"""The metadata of one ledger, an immutable value. Each change returns a new value.

    OPEN ──▶ IN_RECOVERY ──▶ CLOSED        and        OPEN ──▶ CLOSED

There is no way back. Source: BookKeeper replication protocol, "Ledgers", "Ensembles",
"Closing a ledger" (seed 001).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple

from ledger.core.entry_format import DigestType
from ledger.core.quorum import write_set
from ledger.ids import NO_ENTRY, BookieId, EntryId, LedgerId


class LedgerState(IntEnum):
    """The state of a ledger, with the numbers of the stored format."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


class Fragment(NamedTuple):
    """The entries from `first` up to the next fragment, which are on the bookies of `ensemble`."""

    first: EntryId
    ensemble: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerMetadata:
    """The metadata of one ledger.

    Invariant: E >= Qw >= Qa >= 1. Fragments rise from entry 0 and have E distinct bookies each.
    """

    ledger: LedgerId
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    fragments: tuple[Fragment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry: EntryId | None = None  # set only if CLOSED; -1 if the ledger is empty
    length: int = 0  # payload bytes; set only if CLOSED
    digest_type: DigestType = DigestType.CRC32C
    password: bytes = b""
    created_ms: int | None = None
    custom: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    token: int | None = None  # random; `create` recognises its own node after a lost reply
    format_version: int = 3  # version of the stored bytes, kept by all changes
    unknown: bytes = b""  # stored fields of a newer version, kept by all changes

    def __post_init__(self) -> None:
        assert self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1
        assert self.fragments
        assert self.fragments[0].first == 0
        assert (self.last_entry is not None) == (self.state is LedgerState.CLOSED)
        assert self.length >= 0
        before = NO_ENTRY
        for fragment in self.fragments:
            assert fragment.first > before, "fragments rise"
            assert len(set(fragment.ensemble)) == self.ensemble_size, "E distinct bookies"
            before = fragment.first

    @property
    def closed(self) -> bool:
        return self.state is LedgerState.CLOSED

    @property
    def last_fragment(self) -> Fragment:
        return self.fragments[-1]

    def fragment_of(self, entry: EntryId) -> Fragment:
        """Return the fragment that `entry` belongs to."""
        assert entry >= 0
        for fragment in reversed(self.fragments):
            if fragment.first <= entry:
                return fragment
        raise AssertionError("the first fragment starts at entry 0")

    def bookies_of(self, entry: EntryId) -> tuple[BookieId, ...]:
        """Return the write set of `entry`, in the order of its write quorum."""
        ensemble = self.fragment_of(entry).ensemble
        indexes = write_set(entry, self.ensemble_size, self.write_quorum)
        return tuple(ensemble[index] for index in indexes)

    def in_recovery(self) -> LedgerMetadata:
        """Return the metadata in state IN_RECOVERY, in which the writer cannot continue."""
        assert self.state is LedgerState.OPEN
        return replace(self, state=LedgerState.IN_RECOVERY)

    def close(self, last_entry: EntryId, length: int) -> LedgerMetadata:
        """Return the metadata of the closed ledger: it ends at `last_entry`, -1 if it is empty."""
        assert self.state is not LedgerState.CLOSED
        assert last_entry >= self.last_fragment.first - 1, "a fragment never loses its start"
        return replace(self, state=LedgerState.CLOSED, last_entry=last_entry, length=length)

    def with_ensemble(self, first: EntryId, ensemble: tuple[BookieId, ...]) -> LedgerMetadata:
        """Return the metadata with entries from `first` on at `ensemble`.

        Replaces the last fragment if it starts at `first`, else appends one.
        """
        assert self.state is not LedgerState.CLOSED
        assert first >= self.last_fragment.first
        kept = self.fragments[:-1] if first == self.last_fragment.first else self.fragments
        return replace(self, fragments=(*kept, Fragment(first, ensemble)))


class Versioned(NamedTuple):
    """Ledger metadata, with the version of their node in the metadata store."""

    metadata: LedgerMetadata
    version: int
