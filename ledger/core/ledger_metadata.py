"""What the metadata store knows of one ledger. An immutable value; each change returns a new one.

    OPEN ──▶ IN_RECOVERY ──▶ CLOSED        and        OPEN ──▶ CLOSED

Nothing ever leads back. Source: BookKeeper replication protocol, "Ledgers", "Ensembles",
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
    """Numbers are those of the stored format."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


class Fragment(NamedTuple):
    """From entry `first` on, until the next fragment begins, entries live on `ensemble`."""

    first: EntryId
    ensemble: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerMetadata:
    """Invariant: E >= Qw >= Qa >= 1; fragments start at 0, rise, name E distinct bookies each."""

    ledger: LedgerId
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    fragments: tuple[Fragment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry: EntryId | None = None  # only when CLOSED; -1: the ledger is empty
    length: int = 0  # payload bytes, only when CLOSED
    digest_type: DigestType = DigestType.CRC32C
    password: bytes = b""
    created_ms: int | None = None
    custom: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    token: int | None = None  # random at create: tells one's own lost reply from a rival's node
    format_version: int = 3  # of the stored bytes: kept by every change
    unknown: bytes = b""  # stored fields of a newer version than this: kept by every change

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
        """The fragment that says where `entry` is."""
        assert entry >= 0
        for fragment in reversed(self.fragments):
            if fragment.first <= entry:
                return fragment
        raise AssertionError("the first fragment starts at entry 0")

    def bookies_of(self, entry: EntryId) -> tuple[BookieId, ...]:
        """The write set of `entry`, in the order of its write quorum."""
        ensemble = self.fragment_of(entry).ensemble
        indexes = write_set(entry, self.ensemble_size, self.write_quorum)
        return tuple(ensemble[index] for index in indexes)

    def in_recovery(self) -> LedgerMetadata:
        """A reader has begun to take the ledger over; its writer may only give up."""
        assert self.state is LedgerState.OPEN
        return replace(self, state=LedgerState.IN_RECOVERY)

    def close(self, last_entry: EntryId, length: int) -> LedgerMetadata:
        """The ledger ends at `last_entry` (-1: it is empty) for ever."""
        assert self.state is not LedgerState.CLOSED
        assert last_entry >= self.last_fragment.first - 1, "a fragment never loses its start"
        return replace(self, state=LedgerState.CLOSED, last_entry=last_entry, length=length)

    def with_ensemble(self, first: EntryId, ensemble: tuple[BookieId, ...]) -> LedgerMetadata:
        """Entries from `first` on live on `ensemble`; those before stay where they are.

        Replaces the last fragment when it starts at `first`, else appends one.
        """
        assert self.state is not LedgerState.CLOSED
        assert first >= self.last_fragment.first
        kept = self.fragments[:-1] if first == self.last_fragment.first else self.fragments
        return replace(self, fragments=(*kept, Fragment(first, ensemble)))


class Versioned(NamedTuple):
    """Ledger metadata, with the version of their node in the metadata store."""

    metadata: LedgerMetadata
    version: int
