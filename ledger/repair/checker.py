"""Which copies of a ledger are missing, by what its bookies say. Pure.

Three kinds of answer are kept apart: a bookie shows an entry, it says that it does not have it,
or it says nothing (away, limbo, an error). Silence is never taken for absence. An entry that
nobody shows is *hopeless* once so many of its bookies deny it that its readers are told the same
(Qw - Qa + 1); else it only waits for a bookie. A hopeless entry is reported, and stays where it
is: nothing is deleted or closed over it.
Source: BookKeeper, `LedgerChecker.java`; evidence: seed 001, "Fencing".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ledger.core.ledger_metadata import Fragment, LedgerMetadata
from ledger.core.quorum import coverage_size
from ledger.ids import NO_ENTRY, BookieId, EntryId
from ledger.ports.bookies import EntriesReply, Status
from ledger.repair.entry_ranges import (
    EMPTY,
    EntryRanges,
    difference,
    in_at_least,
    intersection,
    merged,
    share,
    union,
)


@dataclass(frozen=True, slots=True)
class ReplicaContents:
    """What is known of one bookie's copies of one ledger."""

    held: EntryRanges = EMPTY  # it shows them; damaged copies included
    complete: bool = False  # what is not in `held` is not there; else it may be
    damaged: EntryRanges = EMPTY  # copies whose digest is wrong
    limbo: bool = False  # it knows that it may have lost some

    @property
    def good(self) -> EntryRanges:
        return difference(self.held, self.damaged)


UNKNOWN_CONTENTS = ReplicaContents()
"""Of a bookie that is away or gave no answer that counts."""


def contents_of(reply: EntriesReply) -> ReplicaContents:
    """What a bookie's list of entries proves."""
    if reply.status is Status.OK:
        return ReplicaContents(merged(reply.runs), complete=True)
    if reply.status is Status.NO_LEDGER:
        return ReplicaContents(complete=True)
    if reply.status is Status.UNKNOWN_LEDGER_STATE:
        return ReplicaContents(limbo=True)
    return UNKNOWN_CONTENTS


class LedgerFragment(NamedTuple):
    """The entries of a fragment that are confirmed: first..last, none when last < first."""

    fragment: Fragment
    last: EntryId
    closed: bool  # neither a writer nor a recovery can add to it any more

    @property
    def first(self) -> EntryId:
        return self.fragment.first

    @property
    def ensemble(self) -> tuple[BookieId, ...]:
        return self.fragment.ensemble

    @property
    def entries(self) -> EntryRanges:
        return merged([(self.first, self.last)])


def fragments_of(metadata: LedgerMetadata, lac: EntryId) -> list[LedgerFragment]:
    """What of each fragment is confirmed when all up to `lac` is.

    A fragment is closed when the ledger is, or when it is not the last and the LAC has reached
    the start of the next one.
    """
    found: list[LedgerFragment] = []
    fragments = metadata.fragments
    for fragment, following in zip(fragments, (*fragments[1:], None), strict=True):
        if metadata.last_entry is not None:
            end = metadata.last_entry if following is None else following.first - 1
            found.append(LedgerFragment(fragment, EntryId(min(end, metadata.last_entry)), True))
        elif following is None:
            found.append(LedgerFragment(fragment, lac, False))
        else:
            end = following.first - 1
            found.append(LedgerFragment(fragment, EntryId(min(end, lac)), lac >= end))
    return found


@dataclass(frozen=True, slots=True)
class ReplicaGap:
    """Entries that the bookie at `index` of a fragment should show and does not."""

    fragment: LedgerFragment
    index: int
    missing: EntryRanges

    @property
    def bookie(self) -> BookieId:
        return self.fragment.ensemble[self.index]


class LedgerCheck(NamedTuple):
    """What a ledger lacks. Clean when `gaps` is empty."""

    gaps: tuple[ReplicaGap, ...]
    unreadable: EntryRanges  # confirmed entries of which no bookie shows a good copy
    lost: EntryRanges  # those of `unreadable` that enough bookies deny


def check_ledger(
    metadata: LedgerMetadata,
    lac: EntryId,
    holdings: Mapping[BookieId, ReplicaContents],
    settled: EntryId = NO_ENTRY,
) -> LedgerCheck:
    """What is missing of the confirmed entries, given what the bookies say of themselves.

    Of an open last fragment also what some bookie shows above the LAC, up to `settled`: entries
    up to there are no longer on their way to anybody.
    """
    gaps: list[ReplicaGap] = []
    unreadable = lost = EMPTY
    for fragment in fragments_of(metadata, lac):
        found = _lacks_of(fragment, metadata, holdings, settled)
        gaps += found
        hidden = _shown_by_none(fragment, metadata, holdings) if found else EMPTY
        denied = [_denied(gap, holdings) for gap in found]
        needed = coverage_size(metadata.write_quorum, metadata.ack_quorum)
        unreadable = union(unreadable, hidden)
        lost = union(lost, intersection(hidden, in_at_least(needed, denied)))
    return LedgerCheck(tuple(gaps), unreadable, lost)


def share_of(fragment: LedgerFragment, index: int, metadata: LedgerMetadata) -> EntryRanges:
    """What the bookie at `index` should hold of the span."""
    return share(
        index, fragment.first, fragment.last, metadata.ensemble_size, metadata.write_quorum
    )


def bookies_of(metadata: LedgerMetadata) -> frozenset[BookieId]:
    """Every bookie that any fragment names."""
    return frozenset(bookie for fragment in metadata.fragments for bookie in fragment.ensemble)


def _lacks_of(
    fragment: LedgerFragment,
    metadata: LedgerMetadata,
    holdings: Mapping[BookieId, ReplicaContents],
    settled: EntryId,
) -> list[ReplicaGap]:
    found: list[ReplicaGap] = []
    if not fragment.closed and settled > fragment.last:
        entries = union(fragment.entries, _shown_above(fragment, holdings, settled))
        fragment = fragment._replace(last=settled)
    else:
        entries = fragment.entries
    for index, bookie in enumerate(fragment.ensemble):
        good = holdings.get(bookie, UNKNOWN_CONTENTS).good
        missing = difference(intersection(share_of(fragment, index, metadata), entries), good)
        if missing:
            found.append(ReplicaGap(fragment, index, missing))
    return found


def _shown_above(
    fragment: LedgerFragment, holdings: Mapping[BookieId, ReplicaContents], settled: EntryId
) -> EntryRanges:
    """Entries of the span's bookies that may be acknowledged, though no LAC says so yet."""
    above = merged([(max(fragment.first, fragment.last + 1), settled)])
    shown = EMPTY
    for bookie in fragment.ensemble:
        shown = union(shown, intersection(above, holdings.get(bookie, UNKNOWN_CONTENTS).good))
    return shown


def _shown_by_none(
    fragment: LedgerFragment, metadata: LedgerMetadata, holdings: Mapping[BookieId, ReplicaContents]
) -> EntryRanges:
    shown: Iterable[EntryRanges] = (
        intersection(
            share_of(fragment, index, metadata), holdings.get(bookie, UNKNOWN_CONTENTS).good
        )
        for index, bookie in enumerate(fragment.ensemble)
    )
    hidden = fragment.entries
    for runs in shown:
        hidden = difference(hidden, runs)
    return hidden


def _denied(gap: ReplicaGap, holdings: Mapping[BookieId, ReplicaContents]) -> EntryRanges:
    """What the bookie says it does not have. A damaged copy is not a denial."""
    holding = holdings.get(gap.bookie, UNKNOWN_CONTENTS)
    return difference(gap.missing, holding.held) if holding.complete else EMPTY
