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
from ledger.repair.runs import NOTHING, Runs, common, in_at_least, joined, minus, share, union


@dataclass(frozen=True, slots=True)
class Holding:
    """What is known of one bookie's copies of one ledger."""

    held: Runs = NOTHING  # it shows them; damaged copies included
    complete: bool = False  # what is not in `held` is not there; else it may be
    damaged: Runs = NOTHING  # copies whose digest is wrong
    limbo: bool = False  # it knows that it may have lost some

    @property
    def good(self) -> Runs:
        return minus(self.held, self.damaged)


SILENT = Holding()
"""Of a bookie that is away or gave no answer that counts."""


def holding_of(reply: EntriesReply) -> Holding:
    """What a bookie's list of entries proves."""
    if reply.status is Status.OK:
        return Holding(joined(reply.runs), complete=True)
    if reply.status is Status.NO_LEDGER:
        return Holding(complete=True)
    if reply.status is Status.UNKNOWN_LEDGER_STATE:
        return Holding(limbo=True)
    return SILENT


class Span(NamedTuple):
    """The entries of a fragment that are confirmed: first..last, none when last < first."""

    fragment: Fragment
    last: EntryId
    closed: bool  # neither a writer nor a recovery can add to it any more

    @property
    def first(self) -> EntryId:
        return self.fragment.first

    @property
    def entries(self) -> Runs:
        return joined([(self.first, self.last)])


def spans(metadata: LedgerMetadata, lac: EntryId) -> list[Span]:
    """What of each fragment is confirmed when all up to `lac` is.

    A fragment is closed when the ledger is, or when it is not the last and the LAC has reached
    the start of the next one.
    """
    found: list[Span] = []
    fragments = metadata.fragments
    for fragment, following in zip(fragments, (*fragments[1:], None), strict=True):
        if metadata.last_entry is not None:
            end = metadata.last_entry if following is None else following.first - 1
            found.append(Span(fragment, EntryId(min(end, metadata.last_entry)), True))
        elif following is None:
            found.append(Span(fragment, lac, False))
        else:
            end = following.first - 1
            found.append(Span(fragment, EntryId(min(end, lac)), lac >= end))
    return found


@dataclass(frozen=True, slots=True)
class Lack:
    """Entries that the bookie at `index` of a fragment should show and does not."""

    span: Span
    index: int
    missing: Runs

    @property
    def bookie(self) -> BookieId:
        return self.span.fragment.ensemble[self.index]


class Check(NamedTuple):
    """What a ledger lacks. Clean when `lacks` is empty."""

    lacks: tuple[Lack, ...]
    unshown: Runs  # confirmed entries of which no bookie shows a good copy
    hopeless: Runs  # those of `unshown` that enough bookies deny


def check(
    metadata: LedgerMetadata,
    lac: EntryId,
    holdings: Mapping[BookieId, Holding],
    settled: EntryId = NO_ENTRY,
) -> Check:
    """What is missing of the confirmed entries, given what the bookies say of themselves.

    Of an open last fragment also what some bookie shows above the LAC, up to `settled`: entries
    up to there are no longer on their way to anybody.
    """
    lacks: list[Lack] = []
    unshown = hopeless = NOTHING
    for span in spans(metadata, lac):
        found = _lacks_of(span, metadata, holdings, settled)
        lacks += found
        hidden = _shown_by_none(span, metadata, holdings) if found else NOTHING
        denied = [_denied(lack, holdings) for lack in found]
        needed = coverage_size(metadata.write_quorum, metadata.ack_quorum)
        unshown = union(unshown, hidden)
        hopeless = union(hopeless, common(hidden, in_at_least(needed, denied)))
    return Check(tuple(lacks), unshown, hopeless)


def share_of(span: Span, index: int, metadata: LedgerMetadata) -> Runs:
    """What the bookie at `index` should hold of the span."""
    return share(index, span.first, span.last, metadata.ensemble_size, metadata.write_quorum)


def bookies_of(metadata: LedgerMetadata) -> frozenset[BookieId]:
    """Every bookie that any fragment names."""
    return frozenset(bookie for fragment in metadata.fragments for bookie in fragment.ensemble)


def _lacks_of(
    span: Span, metadata: LedgerMetadata, holdings: Mapping[BookieId, Holding], settled: EntryId
) -> list[Lack]:
    found: list[Lack] = []
    if not span.closed and settled > span.last:
        entries = union(span.entries, _shown_above(span, holdings, settled))
        span = span._replace(last=settled)
    else:
        entries = span.entries
    for index, bookie in enumerate(span.fragment.ensemble):
        good = holdings.get(bookie, SILENT).good
        missing = minus(common(share_of(span, index, metadata), entries), good)
        if missing:
            found.append(Lack(span, index, missing))
    return found


def _shown_above(span: Span, holdings: Mapping[BookieId, Holding], settled: EntryId) -> Runs:
    """Entries of the span's bookies that may be acknowledged, though no LAC says so yet."""
    above = joined([(max(span.first, span.last + 1), settled)])
    shown = NOTHING
    for bookie in span.fragment.ensemble:
        shown = union(shown, common(above, holdings.get(bookie, SILENT).good))
    return shown


def _shown_by_none(
    span: Span, metadata: LedgerMetadata, holdings: Mapping[BookieId, Holding]
) -> Runs:
    shown: Iterable[Runs] = (
        common(share_of(span, index, metadata), holdings.get(bookie, SILENT).good)
        for index, bookie in enumerate(span.fragment.ensemble)
    )
    hidden = span.entries
    for runs in shown:
        hidden = minus(hidden, runs)
    return hidden


def _denied(lack: Lack, holdings: Mapping[BookieId, Holding]) -> Runs:
    """What the bookie says it does not have. A damaged copy is not a denial."""
    holding = holdings.get(lack.bookie, SILENT)
    return minus(lack.missing, holding.held) if holding.complete else NOTHING
