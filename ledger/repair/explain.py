"""Why a ledger, or one entry of it, is as it is: facts in, sentences out. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ledger.core.ledger_metadata import LedgerMetadata, LedgerState
from ledger.core.quorum import coverage_size
from ledger.ids import BookieId, EntryId
from ledger.ports.bookies import BookieInfo
from ledger.repair.checker import UNKNOWN_CONTENTS, LedgerCheck, ReplicaContents, bookies_of
from ledger.repair.entry_ranges import EMPTY, EntryRanges, as_text, count, difference, intersection
from ledger.repair.plan import wider_quorum
from ledger.repair.underreplicated_ledgers import NO_NOTE, RepairNote, UnderreplicatedLedger


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """What was found out about one ledger."""

    metadata: LedgerMetadata
    lac: EntryId
    registered: Mapping[BookieId, BookieInfo]
    holdings: Mapping[BookieId, ReplicaContents]
    found: LedgerCheck
    mark: UnderreplicatedLedger | None = None
    note: RepairNote = NO_NOTE
    worker: BookieId | None = None  # who mends it now
    auditor: BookieId | None = None
    enabled: bool = True
    draining: frozenset[BookieId] = frozenset()
    now_ms: int = 0


class ReplicaAnswer(Enum):
    """What one bookie says of one entry."""

    SHOWS = "shows it, and its digest is right"
    DAMAGED = "has a damaged copy: the digest is wrong"
    DENIES = "says that it does not have it"
    LIMBO = "does not know: it is in limbo since it may have lost entries"
    SILENT = "is registered and gives no answer that counts"
    AWAY = "is away"


def explain_ledger(facts: LedgerFacts) -> list[str]:
    """The state, the copies, the repair; one sentence each."""
    return [
        _state(facts),
        *_bookies(facts),
        *_copies(facts),
        *_repair(facts),
    ]


def _state(facts: LedgerFacts) -> str:
    metadata = facts.metadata
    if metadata.last_entry is not None:
        if metadata.last_entry < 0:
            return "The ledger is closed and empty."
        return f"The ledger is closed: entries 0 to {metadata.last_entry}, {metadata.length} bytes."
    confirmed = f"entries up to {facts.lac} are known to be confirmed"
    if metadata.state is LedgerState.IN_RECOVERY:
        return (
            "The ledger is in recovery: somebody took it over from its writer and has not closed "
            f"it yet, or ended before that; {confirmed}. `gateway ledger recover` finishes it."
        )
    return f"The ledger is open: its writer may still add; {confirmed}."


def _bookies(facts: LedgerFacts) -> list[str]:
    said: list[str] = []
    for bookie in sorted(bookies_of(facts.metadata)):
        info = facts.registered.get(bookie)
        holding = facts.holdings.get(bookie, UNKNOWN_CONTENTS)
        if info is None:
            said.append(f"{bookie} is away.")
        elif holding.limbo:
            said.append(
                f"{bookie} is in limbo for this ledger: it may have lost entries, so that its "
                "not having one proves nothing, until its share is complete again."
            )
        elif not holding.complete:
            said.append(f"{bookie} is registered and does not say which entries it has.")
        if info is not None and info.read_only:
            said.append(f"{bookie} is read-only.")
        if bookie in facts.draining:
            said.append(f"{bookie} is being emptied; its copies move to other bookies.")
    return said


def _copies(facts: LedgerFacts) -> list[str]:
    said: list[str] = []
    found = facts.found
    if found.lost:
        said.append(
            f"Hopeless: entries {as_text(found.lost)} are shown by no bookie, and so many say "
            "that they do not have them that readers are told the same. They come back only with "
            "a bookie that has them; nothing was deleted."
        )
    waiting = difference(found.unreadable, found.lost)
    if waiting:
        said.append(
            f"Entries {as_text(waiting)} cannot be read now: no bookie shows them, and one that "
            "may have them does not answer."
        )
    for gap in found.gaps:
        rest = difference(gap.missing, found.unreadable)
        holding = facts.holdings.get(gap.bookie, UNKNOWN_CONTENTS)
        if rest and gap.bookie in facts.registered and (holding.complete or holding.limbo):
            said.append(_lack(gap.bookie, rest, intersection(rest, holding.damaged)))
    if not found.gaps:
        said.append("Every entry that is confirmed has all its copies.")
    return said


def _lack(bookie: BookieId, missing: EntryRanges, damaged: EntryRanges) -> str:
    text = f"{bookie} lacks {count(missing)} copies that others have: entries {as_text(missing)}"
    if damaged != EMPTY:
        text += f" (damaged there: {as_text(damaged)})"
    return text + "."


def _repair(facts: LedgerFacts) -> list[str]:
    said: list[str] = []
    mark = facts.mark
    if mark is None:
        if facts.found.gaps:
            said.append("It is not on the repair list yet: the auditor has not noticed.")
        if wider_quorum(facts.metadata) is not None:
            said.append("It was made with fewer copies than wanted, for want of bookies.")
    else:
        lost = " and ".join(sorted(mark.missing))
        because = f" because of {lost}" if lost else ""
        said.append(f"It is on the repair list{because}{_since(mark.since_ms, facts.now_ms)}.")
        if facts.worker is not None:
            said.append(f"{facts.worker} is mending it now.")
        said += [f"The last attempt left it: {reason}." for reason in facts.note.reasons]
    if (mark is not None or facts.found.gaps) and not facts.enabled:
        said.append("Repair is switched off in the whole cluster.")
    if (mark is not None or facts.found.gaps) and facts.auditor is None:
        said.append("No auditor is running: start `bookie audit`.")
    return said


def _since(since_ms: int | None, now_ms: int) -> str:
    if since_ms is None:
        return ""
    seconds = max(0, now_ms - since_ms) // 1000
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f" for {seconds // size} {unit}"
    return f" for {seconds} seconds"


def explain_entry(
    facts: LedgerFacts, entry: EntryId, said: Mapping[BookieId, ReplicaAnswer]
) -> list[str]:
    """What its bookies say of it, and what follows."""
    metadata = facts.metadata
    if metadata.last_entry is not None and entry > metadata.last_entry:
        return [f"Entry {entry} is not in the ledger: it was closed at {metadata.last_entry}."]
    lines = [f"{bookie} {said[bookie].value}." for bookie in metadata.bookies_of(entry)]
    return [*lines, _verdict(facts, entry, [said[b] for b in metadata.bookies_of(entry)])]


def _verdict(facts: LedgerFacts, entry: EntryId, said: list[ReplicaAnswer]) -> str:
    metadata = facts.metadata
    needed = coverage_size(metadata.write_quorum, metadata.ack_quorum)
    denials = said.count(ReplicaAnswer.DENIES)
    if not metadata.closed and entry > facts.lac:
        return f"Entry {entry} is not known to be confirmed, so no reader is shown it."
    if ReplicaAnswer.SHOWS in said:
        return f"Entry {entry} can be read."
    if denials >= needed:
        return (
            f"Entry {entry} cannot be read: {denials} of {len(said)} bookies deny it, and "
            f"{needed} are enough to conclude that it is gone."
        )
    return (
        f"Entry {entry} cannot be read now, and is not known to be gone: {denials} of {len(said)} "
        f"bookies deny it, {needed} would be needed."
    )
