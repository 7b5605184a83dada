"""Plan the repair of a ledger, one step at a time. Pure.

    copies missing on a live bookie              ─▶ FillCopies: copy them there; metadata stays
    a bookie that is gone                        ─▶ ReplaceBookie: copy its share to another
                                                    bookie, then replace it in the metadata
    the open last fragment names a gone bookie   ─▶ RecoverLedger, which closes the ledger
    a bookie in limbo has its share again        ─▶ EndLimbo
    created narrower than wanted, complete else  ─▶ WidenEnsemble: copy all entries to more
                                                    bookies, then add these in one update

Steps that are impossible now are returned as reasons. A bookie joins an ensemble only with a full
share. An unreadable entry blocks its share, and nothing is closed because of it.
Source: BookKeeper, `ReplicationWorker.java`; apache/bookkeeper #4163; invariant L19.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from ledger.client.client import WANTED_QUORUM
from ledger.core.ledger_metadata import Fragment, LedgerMetadata
from ledger.ids import BookieId, EntryId
from ledger.ports.bookies import BookieInfo
from ledger.repair.checker import (
    UNKNOWN_CONTENTS,
    LedgerCheck,
    LedgerFragment,
    ReplicaContents,
    ReplicaGap,
    bookies_of,
    fragments_of,
    share_of,
)
from ledger.repair.entry_ranges import EntryRanges, as_text, difference, intersection


class QuorumSizes(NamedTuple):
    """The quorum sizes that a ledger has or should have."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int


@dataclass(frozen=True, slots=True)
class FillCopies:
    """Copy `missing` to the bookie that should have it."""

    gap: ReplicaGap
    missing: EntryRanges


@dataclass(frozen=True, slots=True)
class ReplaceBookie:
    """Copy the share of an index to another bookie, then replace the old one by it."""

    fragment: LedgerFragment
    index: int

    @property
    def bookie(self) -> BookieId:
        """The bookie to be replaced."""
        return self.fragment.ensemble[self.index]


@dataclass(frozen=True, slots=True)
class EndLimbo:
    """End the limbo of a bookie that has its share again."""

    bookie: BookieId


@dataclass(frozen=True, slots=True)
class RecoverLedger:
    """Recover the ledger after the grace period. Only a recovery can repair the open
    last fragment.
    """

    bookies: tuple[BookieId, ...]  # bookies of the last fragment that are gone or in limbo
    needs_spare: bool  # True if a repair needs another bookie to replace `bookies`


@dataclass(frozen=True, slots=True)
class WidenEnsemble:
    """Copy every entry to more bookies, then add these to all fragments in one update."""

    quorum: QuorumSizes


RepairStep = FillCopies | ReplaceBookie | EndLimbo | RecoverLedger | WidenEnsemble


class RepairPlan(NamedTuple):
    """Steps that can be tried now, and reasons why others must wait. Empty for a
    complete ledger.
    """

    steps: tuple[RepairStep, ...]
    reasons: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """True if nothing is missing."""
        return not self.steps and not self.reasons


@dataclass(frozen=True, slots=True)
class BookieView:
    """The current state of the bookies."""

    registered: Mapping[BookieId, BookieInfo]
    replicas: Mapping[BookieId, ReplicaContents]
    gone: frozenset[BookieId] = frozenset()  # bookies absent for too long, or being drained
    # Bookies that kept a corrupt copy although a good one was sent
    refused: frozenset[BookieId] = frozenset()

    def is_writable(self, bookie: BookieId) -> bool:
        """True if the bookie is registered and accepts adds."""
        info = self.registered.get(bookie)
        return info is not None and not info.read_only


def plan_repair(
    metadata: LedgerMetadata, lac: EntryId, found: LedgerCheck, view: BookieView
) -> RepairPlan:
    """Plan the next steps for the gaps in `found`."""
    planner = _Planner(metadata, found, view)
    for fragment in fragments_of(metadata, lac):
        if fragment.closed:
            planner.plan_closed(fragment)
        else:
            planner.plan_open(fragment)
    planner.end_limbos(lac)
    planner.widen()
    return RepairPlan(tuple(planner.steps), tuple(dict.fromkeys(planner.reasons)))


class _Planner:
    """The steps and reasons collected for one ledger. Used once, by `plan_repair`."""

    def __init__(self, metadata: LedgerMetadata, found: LedgerCheck, view: BookieView) -> None:
        self.steps: list[RepairStep] = []
        self.reasons: list[str] = []
        self._metadata = metadata
        self._view = view
        self._unreadable = found.unreadable
        self._gaps = {(gap.fragment.first, gap.index): gap for gap in found.gaps}
        self._explain_unreadable(found)

    def _explain_unreadable(self, found: LedgerCheck) -> None:
        if found.lost:
            text = as_text(found.lost)
            self.reasons.append(f"lost: entries {text} are missing on all their bookies")
        waiting = difference(found.unreadable, found.lost)
        if waiting:
            self.reasons.append(f"entries {as_text(waiting)} cannot be read from any bookie now")

    def plan_closed(self, fragment: LedgerFragment) -> None:
        """Plan the repair of a fragment that no writer or recovery can still add to."""
        for index, bookie in enumerate(fragment.ensemble):
            gap = self._gaps.get((fragment.first, index))
            if bookie in self._view.gone:
                self._replace(fragment, index)
            elif gap is not None:
                self._fill_or_replace(gap)

    def _replace(self, fragment: LedgerFragment, index: int) -> None:
        """Plan a replacement, unless an entry of the share is unreadable."""
        if not intersection(share_of(fragment, index, self._metadata), self._unreadable):
            self.steps.append(ReplaceBookie(fragment, index))

    def _fill_or_replace(self, gap: ReplicaGap) -> None:
        view, bookie = self._view, gap.bookie
        replica = view.replicas.get(bookie, UNKNOWN_CONTENTS)
        if bookie not in view.registered:
            self.reasons.append(f"{bookie} is absent")
        elif not (replica.complete or replica.limbo):
            self.reasons.append(f"{bookie} does not report which entries it has")
        elif bookie in view.refused or not view.is_writable(bookie):
            self._replace(gap.fragment, gap.index)
        else:
            present = difference(gap.missing, self._unreadable)
            if present:
                self.steps.append(FillCopies(gap, present))

    def plan_open(self, fragment: LedgerFragment) -> None:
        """Plan a recovery if bookies are gone or in limbo, because no writer can repair that."""
        view = self._view
        ensemble = fragment.ensemble
        gone = tuple(bookie for bookie in ensemble if bookie in view.gone)
        limbo = tuple(b for b in ensemble if view.replicas.get(b, UNKNOWN_CONTENTS).limbo)
        if gone or limbo:
            self.steps.append(RecoverLedger((*gone, *limbo), needs_spare=not limbo))
        elif any((fragment.first, index) in self._gaps for index in range(len(ensemble))):
            self.reasons.append("copies are missing in the open last fragment")

    def end_limbos(self, lac: EntryId) -> None:
        """Plan the end of limbo for bookies without gaps."""
        lacking = {gap.bookie for gap in self._gaps.values()}
        still_open = {
            bookie
            for fragment in fragments_of(self._metadata, lac)
            if not fragment.closed
            for bookie in fragment.ensemble
        }
        for bookie in sorted(bookies_of(self._metadata) - lacking - still_open):
            if self._view.replicas.get(bookie, UNKNOWN_CONTENTS).limbo:
                self.steps.append(EndLimbo(bookie))

    def widen(self) -> None:
        """Widen the ledger if it is complete and has fewer copies than wanted."""
        if self.steps or self.reasons:
            return
        wanted = wider_quorum(self._metadata)
        if wanted is not None:
            self.steps.append(WidenEnsemble(wanted))


def wider_quorum(metadata: LedgerMetadata) -> QuorumSizes | None:
    """Return the quorum sizes to which a closed ledger should be widened, or None.

    Every bookie of such a ledger has every entry (E = Qw). The added bookies get every entry too.
    """
    wanted = wanted_quorum(metadata)
    if wanted is None or not metadata.closed:
        return None
    if metadata.ensemble_size != metadata.write_quorum:
        return None
    if wanted.write_quorum <= metadata.write_quorum:
        return None
    return QuorumSizes(wanted.write_quorum, wanted.write_quorum, wanted.ack_quorum)


def wanted_quorum(metadata: LedgerMetadata) -> QuorumSizes | None:
    """Return the quorum sizes wanted at creation, or None if the ledger was created with these."""
    try:
        numbers = [int(part) for part in metadata.custom[WANTED_QUORUM].split(b",")]
        ensemble_size, write_quorum, ack_quorum = numbers
    except (KeyError, ValueError):
        return None
    if not ensemble_size >= write_quorum >= ack_quorum >= 1:
        return None
    return QuorumSizes(ensemble_size, write_quorum, ack_quorum)


def with_replacement(
    metadata: LedgerMetadata, fragment: LedgerFragment, index: int, bookie: BookieId
) -> LedgerMetadata | None:
    """Return the metadata with `bookie` at `index` of the fragment, or None if it is there already.

    Raises FragmentChanged if the fragment has changed since it was copied.
    """
    old = fragment.fragment
    at, current = _current_fragment(metadata, fragment)
    if current.ensemble[index] == bookie:
        return None
    if current.ensemble[index] != old.ensemble[index] or bookie in current.ensemble:
        raise FragmentChanged(f"ledger {metadata.ledger} fragment {old.first}")
    ensemble = list(current.ensemble)
    ensemble[index] = bookie
    fragments = list(metadata.fragments)
    fragments[at] = Fragment(old.first, tuple(ensemble))
    return replace(metadata, fragments=tuple(fragments))


class FragmentChanged(Exception):
    """The error for a fragment that changed since it was examined. Examine the ledger again."""


def _current_fragment(metadata: LedgerMetadata, fragment: LedgerFragment) -> tuple[int, Fragment]:
    """Return the index and the fragment that now has the same entries."""
    for now in fragments_of(metadata, fragment.last):
        if now.first == fragment.first and now.last == fragment.last and now.closed:
            return metadata.fragments.index(now.fragment), now.fragment
    raise FragmentChanged(f"ledger {metadata.ledger} fragment {fragment.first}")


def with_more_bookies(
    metadata: LedgerMetadata,
    before: LedgerMetadata,
    quorum: QuorumSizes,
    added: Mapping[EntryId, tuple[BookieId, ...]],
) -> LedgerMetadata | None:
    """Return `before` with the bookies `added` to each fragment, or None if that is stored already.

    `added` is keyed by the first entry of each fragment. Raises FragmentChanged if the ledger has
    changed since it was copied.
    """
    fragments = tuple(
        Fragment(one.first, (*one.ensemble, *added[one.first])) for one in before.fragments
    )
    wide = replace(
        before,
        ensemble_size=quorum.ensemble_size,
        write_quorum=quorum.write_quorum,
        ack_quorum=quorum.ack_quorum,
        fragments=fragments,
    )
    if metadata == wide:
        return None
    if metadata != before:
        raise FragmentChanged(f"ledger {metadata.ledger}")
    return wide
