"""Determine the missing copies of a ledger from the lists of its bookies. Pure.

Three answers are kept apart: a bookie has an entry, lacks it, or its state is unknown (absent,
error, limbo whose copies were not read). Unknown never counts as missing. An entry is *lost* once
every bookie of its write set lacks it, by the rule of `ledger.core.loss`: then readers receive
"no such entry". Otherwise the entry may return with a bookie. A lost entry is only reported:
nothing is deleted or closed because of it.
Source: BookKeeper, `LedgerChecker.java`; evidence: seed 001, "Fencing".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from ledger.core.ledger_metadata import Fragment, LedgerMetadata
from ledger.core.loss import AuthoritativeStatus, CopyAnswer, CopyState, state_of
from ledger.ids import NO_ENTRY, BookieId, EntryId
from ledger.ports.bookies import EntriesReply, Status
from ledger.repair.entry_ranges import (
    EMPTY,
    EntryRanges,
    contains,
    difference,
    intersection,
    merged,
    share,
    union,
)


@dataclass(frozen=True, slots=True)
class ReplicaContents:
    """The known state of one bookie's copies of one ledger."""

    held: EntryRanges = EMPTY  # entries that the bookie lists, including corrupt copies
    complete: bool = False  # True if every entry outside `held` is missing; False if unknown
    damaged: EntryRanges = EMPTY  # copies with an invalid digest
    limbo: bool = False  # True if the bookie may have lost entries
    # Entries that a bookie in limbo was asked for and does not have. Their loss there is certain.
    lacks: EntryRanges = EMPTY

    @property
    def good(self) -> EntryRanges:
        """Entries with a valid copy."""
        return difference(self.held, self.damaged)


UNKNOWN_CONTENTS = ReplicaContents()
"""The contents of a bookie that is absent or gave no usable answer."""


class LossTerms(NamedTuple):
    """What counts as lost besides the proof, while a person accepts a loss."""

    given_up: frozenset[BookieId] = frozenset()  # bookies that are not registered
    damaged: bool = False  # True if a copy with a wrong digest counts as lost


ONLY_PROVED = LossTerms()


def contents_of(reply: EntriesReply) -> ReplicaContents:
    """Interpret a bookie's list of entries."""
    if reply.status is Status.OK:
        return ReplicaContents(merged(reply.runs), complete=True)
    if reply.status is Status.NO_LEDGER:
        return ReplicaContents(complete=True)
    if reply.status is Status.UNKNOWN_LEDGER_STATE:
        return ReplicaContents(limbo=True)
    return UNKNOWN_CONTENTS


class LedgerFragment(NamedTuple):
    """The confirmed entries of a fragment, first..last; empty if last < first.

    Source: BookKeeper LedgerFragment.
    """

    fragment: Fragment
    last: EntryId
    closed: bool  # True if neither a writer nor a recovery can still add entries

    @property
    def first(self) -> EntryId:
        """The fragment's first entry."""
        return self.fragment.first

    @property
    def ensemble(self) -> tuple[BookieId, ...]:
        """The fragment's bookies."""
        return self.fragment.ensemble

    @property
    def entries(self) -> EntryRanges:
        """The confirmed entries."""
        return merged([(self.first, self.last)])


def fragments_of(metadata: LedgerMetadata, lac: EntryId) -> list[LedgerFragment]:
    """Return the confirmed part of each fragment, given the LAC.

    A fragment is closed if the ledger is closed, or if the LAC has reached the start of the next
    fragment.
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
    """Entries that the bookie at `index` of a fragment should have and does not list."""

    fragment: LedgerFragment
    index: int
    missing: EntryRanges

    @property
    def bookie(self) -> BookieId:
        """The bookie with the gap."""
        return self.fragment.ensemble[self.index]


class LedgerCheck(NamedTuple):
    """The gaps of a ledger. All copies exist if `gaps` is empty."""

    gaps: tuple[ReplicaGap, ...]
    unreadable: EntryRanges  # confirmed entries without a readable copy on any bookie
    lost: EntryRanges  # entries of `unreadable` that every bookie of their write set lacks


def check_ledger(
    metadata: LedgerMetadata,
    lac: EntryId,
    replicas: Mapping[BookieId, ReplicaContents],
    settled: EntryId = NO_ENTRY,
    *,
    accepted: EntryRanges = EMPTY,
    terms: LossTerms = ONLY_PROVED,
) -> LedgerCheck:
    """Find the confirmed entries that bookies lack.

    In an open last fragment, entries above the LAC that some bookie lists count too, up to
    `settled`: these have had time to reach all their bookies. Entries whose loss was `accepted` are
    left out, because nobody reads them.
    """
    gaps: list[ReplicaGap] = []
    unreadable = lost = EMPTY
    for fragment in fragments_of(metadata, lac):
        found = _find_gaps(fragment, metadata, replicas, settled)
        if accepted:
            found = _without(found, accepted)
        gaps += found
        unreadable_now = _unreadable_entries(fragment, metadata, replicas) if found else EMPTY
        unreadable_now = difference(unreadable_now, accepted)
        unreadable = union(unreadable, unreadable_now)
        lost = union(lost, _lost_entries(unreadable_now, fragment, metadata, replicas, terms))
    return LedgerCheck(tuple(gaps), unreadable, lost)


def share_of(fragment: LedgerFragment, index: int, metadata: LedgerMetadata) -> EntryRanges:
    """Return the entries of the fragment that the bookie at `index` should hold."""
    return share(
        index, fragment.first, fragment.last, metadata.ensemble_size, metadata.write_quorum
    )


def bookies_of(metadata: LedgerMetadata) -> frozenset[BookieId]:
    """Return every bookie in the ledger's fragments."""
    return frozenset(bookie for fragment in metadata.fragments for bookie in fragment.ensemble)


def _find_gaps(
    fragment: LedgerFragment,
    metadata: LedgerMetadata,
    replicas: Mapping[BookieId, ReplicaContents],
    settled: EntryId,
) -> list[ReplicaGap]:
    found: list[ReplicaGap] = []
    if not fragment.closed and settled > fragment.last:
        entries = union(fragment.entries, _entries_above_lac(fragment, replicas, settled))
        fragment = fragment._replace(last=settled)
    else:
        entries = fragment.entries
    for index, bookie in enumerate(fragment.ensemble):
        good = replicas.get(bookie, UNKNOWN_CONTENTS).good
        missing = difference(intersection(share_of(fragment, index, metadata), entries), good)
        if missing:
            found.append(ReplicaGap(fragment, index, missing))
    return found


def _without(gaps: Iterable[ReplicaGap], accepted: EntryRanges) -> list[ReplicaGap]:
    left = [replace(gap, missing=difference(gap.missing, accepted)) for gap in gaps]
    return [gap for gap in left if gap.missing]


def _entries_above_lac(
    fragment: LedgerFragment, replicas: Mapping[BookieId, ReplicaContents], settled: EntryId
) -> EntryRanges:
    """Return entries above the LAC that some bookie lists, which may be acknowledged."""
    above = merged([(max(fragment.first, fragment.last + 1), settled)])
    shown = EMPTY
    for bookie in fragment.ensemble:
        shown = union(shown, intersection(above, replicas.get(bookie, UNKNOWN_CONTENTS).good))
    return shown


def _unreadable_entries(
    fragment: LedgerFragment, metadata: LedgerMetadata, replicas: Mapping[BookieId, ReplicaContents]
) -> EntryRanges:
    shown: Iterable[EntryRanges] = (
        intersection(
            share_of(fragment, index, metadata), replicas.get(bookie, UNKNOWN_CONTENTS).good
        )
        for index, bookie in enumerate(fragment.ensemble)
    )
    unreadable_now = fragment.entries
    for runs in shown:
        unreadable_now = difference(unreadable_now, runs)
    return unreadable_now


def _lost_entries(
    unreadable: EntryRanges,
    fragment: LedgerFragment,
    metadata: LedgerMetadata,
    replicas: Mapping[BookieId, ReplicaContents],
    terms: LossTerms,
) -> EntryRanges:
    """Return the entries that no bookie can hold. A corrupt copy is not a lack."""
    for index, bookie in enumerate(fragment.ensemble):
        replica = replicas.get(bookie, UNKNOWN_CONTENTS)
        share_now = share_of(fragment, index, metadata)
        if replica.complete:
            kept = intersection(share_now, replica.held)
        elif bookie in terms.given_up:
            kept = EMPTY
        else:
            kept = difference(share_now, replica.lacks)
        if terms.damaged:
            kept = difference(kept, replica.damaged)
        unreadable = difference(unreadable, kept)
    return unreadable


def copy_state(
    bookie: BookieId, entry: EntryId, replica: ReplicaContents, terms: LossTerms = ONLY_PROVED
) -> CopyState:
    """Return what the contents of a bookie say of its copy of one entry."""
    lost = AuthoritativeStatus.UNDERREPLICATION
    if contains(replica.damaged, entry):
        state = state_of(bookie, CopyAnswer.DAMAGED)
        return state._replace(status=lost) if terms.damaged else state
    if contains(replica.held, entry):
        return state_of(bookie, CopyAnswer.HELD)
    if replica.complete:
        return state_of(bookie, CopyAnswer.DENIED)
    if contains(replica.lacks, entry):
        return state_of(bookie, CopyAnswer.LOST if replica.limbo else CopyAnswer.DENIED)
    if bookie in terms.given_up:
        return CopyState(bookie, CopyAnswer.UNKNOWN, lost)
    return state_of(bookie, CopyAnswer.UNKNOWN)
