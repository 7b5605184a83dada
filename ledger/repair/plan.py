"""What to do about a ledger that lacks copies, one step at a time. Pure.

    copies missing on a bookie that serves     ─▶ Fill: copy them there, metadata stays
    a bookie that is gone                      ─▶ Replace: copy its share to another, then swap
    the open last fragment names a gone bookie ─▶ Fence: recover the ledger, which closes it
    a bookie in limbo holds its share again    ─▶ EndLimbo
    made narrower than wanted, whole otherwise ─▶ Widen: copy all to more bookies, then one swap

What cannot be done now is a reason in words. A share that is not whole is never swapped in, and
an entry that nobody shows blocks its share: nothing is closed over it.
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
    """How wide a ledger is, or should be."""

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
    """Copy the whole share of an index to another bookie, then swap that one in."""

    fragment: LedgerFragment
    index: int

    @property
    def bookie(self) -> BookieId:
        return self.fragment.ensemble[self.index]


@dataclass(frozen=True, slots=True)
class EndLimbo:
    """The bookie holds its whole share again: let it answer plainly."""

    bookie: BookieId


@dataclass(frozen=True, slots=True)
class RecoverLedger:
    """Recover the ledger once the grace period is over; its last fragment cannot be mended else."""

    bookies: tuple[BookieId, ...]  # why
    needs_spare: bool  # pointless while no other bookie could take their place


@dataclass(frozen=True, slots=True)
class WidenEnsemble:
    """Copy every entry to so many more bookies, then make them members, all in one set."""

    quorum: QuorumSizes


RepairStep = FillCopies | ReplaceBookie | EndLimbo | RecoverLedger | WidenEnsemble


class RepairPlan(NamedTuple):
    """Steps that can be tried now, and why anything else must wait. Neither: it is whole."""

    steps: tuple[RepairStep, ...]
    reasons: tuple[str, ...]

    @property
    def clean(self) -> bool:
        return not self.steps and not self.reasons


@dataclass(frozen=True, slots=True)
class BookieView:
    """What is known of the bookies at the moment."""

    registered: Mapping[BookieId, BookieInfo]
    holdings: Mapping[BookieId, ReplicaContents]
    gone: frozenset[BookieId] = frozenset()  # away for too long, or being emptied
    refused: frozenset[BookieId] = frozenset()  # did not take a good copy instead of a bad one

    def is_writable(self, bookie: BookieId) -> bool:
        info = self.registered.get(bookie)
        return info is not None and not info.read_only


def plan_repair(
    metadata: LedgerMetadata, lac: EntryId, found: LedgerCheck, view: BookieView
) -> RepairPlan:
    """What to do next about what `found` says."""
    planner = _Planner(metadata, found, view)
    for fragment in fragments_of(metadata, lac):
        if fragment.closed:
            planner.mend_closed(fragment)
        else:
            planner.look_at_open(fragment)
    planner.end_limbos(lac)
    planner.widen()
    return RepairPlan(tuple(planner.steps), tuple(dict.fromkeys(planner.reasons)))


class _Planner:
    def __init__(self, metadata: LedgerMetadata, found: LedgerCheck, view: BookieView) -> None:
        self.steps: list[RepairStep] = []
        self.reasons: list[str] = []
        self._metadata = metadata
        self._view = view
        self._unshown = found.unreadable
        self._lacks = {(gap.fragment.first, gap.index): gap for gap in found.gaps}
        self._explain_unshown(found)

    def _explain_unshown(self, found: LedgerCheck) -> None:
        if found.lost:
            text = as_text(found.lost)
            self.reasons.append(f"hopeless: entries {text} are gone from the bookies that answer")
        waiting = difference(found.unreadable, found.lost)
        if waiting:
            self.reasons.append(f"entries {as_text(waiting)} are shown by no bookie now")

    def mend_closed(self, fragment: LedgerFragment) -> None:
        for index, bookie in enumerate(fragment.ensemble):
            gap = self._lacks.get((fragment.first, index))
            if bookie in self._view.gone:
                self._replace(fragment, index)
            elif gap is not None:
                self._mend(gap)

    def _replace(self, fragment: LedgerFragment, index: int) -> None:
        """Only a whole share may be swapped in."""
        if not intersection(share_of(fragment, index, self._metadata), self._unshown):
            self.steps.append(ReplaceBookie(fragment, index))

    def _mend(self, gap: ReplicaGap) -> None:
        view, bookie = self._view, gap.bookie
        holding = view.holdings.get(bookie, UNKNOWN_CONTENTS)
        if bookie not in view.registered:
            self.reasons.append(f"{bookie} is away")
        elif not (holding.complete or holding.limbo):
            self.reasons.append(f"{bookie} does not say which entries it has")
        elif bookie in view.refused or not view.is_writable(bookie):
            self._replace(gap.fragment, gap.index)
        else:
            there = difference(gap.missing, self._unshown)
            if there:
                self.steps.append(FillCopies(gap, there))

    def look_at_open(self, fragment: LedgerFragment) -> None:
        """Its writer may be at work: only what no writer can mend is touched, and fenced first."""
        view = self._view
        ensemble = fragment.ensemble
        gone = tuple(bookie for bookie in ensemble if bookie in view.gone)
        limbo = tuple(b for b in ensemble if view.holdings.get(b, UNKNOWN_CONTENTS).limbo)
        if gone or limbo:
            self.steps.append(RecoverLedger((*gone, *limbo), needs_spare=not limbo))
        elif any((fragment.first, index) in self._lacks for index in range(len(ensemble))):
            self.reasons.append("copies are missing in the last fragment, which is open")

    def end_limbos(self, lac: EntryId) -> None:
        """For bookies in limbo of which nothing is missing any more."""
        lacking = {gap.bookie for gap in self._lacks.values()}
        still_open = {
            bookie
            for fragment in fragments_of(self._metadata, lac)
            if not fragment.closed
            for bookie in fragment.ensemble
        }
        for bookie in sorted(bookies_of(self._metadata) - lacking - still_open):
            if self._view.holdings.get(bookie, UNKNOWN_CONTENTS).limbo:
                self.steps.append(EndLimbo(bookie))

    def widen(self) -> None:
        if self.steps or self.reasons:
            return
        wanted = wider_quorum(self._metadata)
        if wanted is not None:
            self.steps.append(WidenEnsemble(wanted))


def wider_quorum(metadata: LedgerMetadata) -> QuorumSizes | None:
    """How wide a closed ledger should become that was made narrower; None: it is wide enough.

    Every bookie of such a ledger holds every entry (E = Qw), and so will the added ones.
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
    """What its maker would have chosen had there been more bookies; None: it did."""
    try:
        numbers = [int(part) for part in metadata.custom[WANTED_QUORUM].split(b",")]
        ensemble_size, write_quorum, ack_quorum = numbers
    except (KeyError, ValueError):
        return None
    if not ensemble_size >= write_quorum >= ack_quorum >= 1:
        return None
    return QuorumSizes(ensemble_size, write_quorum, ack_quorum)


def swapped(
    metadata: LedgerMetadata, fragment: LedgerFragment, index: int, bookie: BookieId
) -> LedgerMetadata | None:
    """`bookie` at `index` of the span's fragment; None: it is there already.

    Raises FragmentChanged when the fragment is no longer the one that was copied.
    """
    old = fragment.fragment
    at, current = _fragment(metadata, fragment)
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
    """Somebody else changed the fragment meanwhile: look at the ledger again."""


def _fragment(metadata: LedgerMetadata, fragment: LedgerFragment) -> tuple[int, Fragment]:
    """The fragment with the same entries as the span's, now."""
    for now in fragments_of(metadata, fragment.last):
        if now.first == fragment.first and now.last == fragment.last and now.closed:
            return metadata.fragments.index(now.fragment), now.fragment
    raise FragmentChanged(f"ledger {metadata.ledger} fragment {fragment.first}")


def widened(
    metadata: LedgerMetadata,
    before: LedgerMetadata,
    quorum: QuorumSizes,
    added: Mapping[EntryId, tuple[BookieId, ...]],
) -> LedgerMetadata | None:
    """`before` with the bookies `added` to each fragment, by its first entry; None: it is so.

    Raises FragmentChanged when the ledger is no longer as it was copied.
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
