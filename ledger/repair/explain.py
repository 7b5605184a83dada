"""Explain the state of a ledger or entry as sentences made from facts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ledger.core.accepted_losses import LostRange
from ledger.core.ledger_metadata import LedgerMetadata, LedgerState
from ledger.core.loss import CopyAnswer, Verdict, judge, state_of, waited_for
from ledger.core.text import names_of
from ledger.ids import BookieId, EntryId
from ledger.ports.bookies import BookieInfo
from ledger.repair.checker import UNKNOWN_CONTENTS, LedgerCheck, ReplicaContents, bookies_of
from ledger.repair.entry_ranges import EMPTY, EntryRanges, as_text, count, difference, intersection
from ledger.repair.plan import wider_quorum
from ledger.repair.underreplicated_ledgers import NO_NOTE, RepairNote, UnderreplicatedLedger


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """The facts about one ledger."""

    metadata: LedgerMetadata
    lac: EntryId
    registered: Mapping[BookieId, BookieInfo]
    replicas: Mapping[BookieId, ReplicaContents]
    found: LedgerCheck
    accepted: tuple[LostRange, ...] = ()  # losses that were accepted; `found` is without them
    mark: UnderreplicatedLedger | None = None
    note: RepairNote = NO_NOTE
    worker: BookieId | None = None  # the owner of the ledger's lock
    auditor: BookieId | None = None
    enabled: bool = True
    draining: frozenset[BookieId] = frozenset()
    now_ms: int = 0


class ReplicaAnswer(Enum):
    """One bookie's answer about one entry: what to print, and what it is worth as evidence."""

    SHOWS = ("has it, with a valid digest", CopyAnswer.HELD)
    DAMAGED = ("has a corrupt copy: the digest is invalid", CopyAnswer.DAMAGED)
    DENIES = ("does not have it", CopyAnswer.DENIED)
    LIMBO = ("does not have it, and may have lost it: it is in limbo", CopyAnswer.LOST)
    SILENT = ("is registered, but gave no usable answer", CopyAnswer.UNKNOWN)
    AWAY = ("is absent", CopyAnswer.UNKNOWN)

    @property
    def text(self) -> str:
        """Return the rest of the sentence that begins with the bookie's name."""
        return self.value[0]

    @property
    def evidence(self) -> CopyAnswer:
        """Return what the answer says of the bookie's copy."""
        return self.value[1]


def explain_ledger(facts: LedgerFacts) -> list[str]:
    """Explain the state, the copies and the repair of a ledger, one sentence each."""
    return [
        _state(facts),
        *_bookies(facts),
        *_copies(facts),
        *map(_accepted_text, facts.accepted),
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
            "The ledger is in recovery: another process took it over from its writer and has not "
            f"closed it yet, or stopped before; {confirmed}. `gateway ledger recover` completes it."
        )
    return f"The ledger is open: its writer may still add; {confirmed}."


def _bookies(facts: LedgerFacts) -> list[str]:
    lines: list[str] = []
    for bookie in sorted(bookies_of(facts.metadata)):
        info = facts.registered.get(bookie)
        replica = facts.replicas.get(bookie, UNKNOWN_CONTENTS)
        if info is None:
            lines.append(f"{bookie} is absent.")
        elif replica.limbo:
            lines.append(
                f"{bookie} is in limbo for this ledger: it may have lost entries. Until its share "
                "is complete again, an entry that it lacks may still exist elsewhere."
            )
        elif not replica.complete:
            lines.append(f"{bookie} is registered, but does not report which entries it has.")
        if info is not None and info.read_only:
            lines.append(f"{bookie} is read-only.")
        if bookie in facts.draining:
            lines.append(f"{bookie} is being drained; its copies move to other bookies.")
    return lines


def _copies(facts: LedgerFacts) -> list[str]:
    lines: list[str] = []
    found = facts.found
    if found.lost:
        lines.append(
            f"Lost: none of their bookies has entries {as_text(found.lost)}. Readers stop there "
            "until an operator accepts the loss. Nothing was deleted."
        )
    waiting = difference(found.unreadable, found.lost)
    if waiting:
        lines.append(
            f"Entries {as_text(waiting)} cannot be read now: no bookie has shown them, and one "
            "that may have them does not answer."
        )
    for gap in found.gaps:
        rest = difference(gap.missing, found.unreadable)
        replica = facts.replicas.get(gap.bookie, UNKNOWN_CONTENTS)
        if rest and gap.bookie in facts.registered and (replica.complete or replica.limbo):
            lines.append(_gap_text(gap.bookie, rest, intersection(rest, replica.damaged)))
    if not found.gaps:
        lines.append("Every confirmed entry has all its copies.")
    return lines


def _accepted_text(lost: LostRange) -> str:
    accepted = lost.evidence.acceptance
    by = "" if accepted is None else f" by {accepted.by}"
    stays = "Readers pass them, and they stay lost if a copy turns up."
    if lost.forced:
        return (
            f"It was closed by force{by}: offsets {lost.offsets.first} to {lost.offsets.last} are "
            "reserved, because some of them may have been acknowledged."
        )
    entries = as_text(((lost.first, lost.last),))
    return f"Entries {entries} were given up{by}. {stays}"


def _gap_text(bookie: BookieId, missing: EntryRanges, damaged: EntryRanges) -> str:
    text = f"{bookie} lacks {count(missing)} copies that others have: entries {as_text(missing)}"
    if damaged != EMPTY:
        text += f" (corrupt there: {as_text(damaged)})"
    return text + "."


def _repair(facts: LedgerFacts) -> list[str]:
    lines: list[str] = []
    mark = facts.mark
    if mark is None:
        if facts.found.gaps:
            lines.append("It is not on the repair list: no audit has found it yet.")
        if wider_quorum(facts.metadata) is not None:
            lines.append(
                "It was created with fewer copies than wanted, because there were too few bookies."
            )
    else:
        lost = names_of(mark.missing)
        because = f" because of {lost}" if lost else ""
        lines.append(f"It is on the repair list{because}{_since(mark.since_ms, facts.now_ms)}.")
        if facts.worker is not None:
            lines.append(f"{facts.worker} is repairing it now.")
        lines += [
            f"The last attempt could not repair it: {reason}." for reason in facts.note.reasons
        ]
    if (mark is not None or facts.found.gaps) and not facts.enabled:
        lines.append("Repair is disabled in this cluster.")
    if (mark is not None or facts.found.gaps) and facts.auditor is None:
        lines.append("No auditor is running: start `bookie audit`.")
    return lines


def _since(since_ms: int | None, now_ms: int) -> str:
    if since_ms is None:
        return ""
    seconds = max(0, now_ms - since_ms) // 1000
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f" for {seconds // size} {unit}"
    return f" for {seconds} seconds"


def explain_entry(
    facts: LedgerFacts, entry: EntryId, answers: Mapping[BookieId, ReplicaAnswer]
) -> list[str]:
    """Explain one entry: the answers of its bookies, and the conclusion."""
    metadata = facts.metadata
    if metadata.last_entry is not None and entry > metadata.last_entry:
        return [f"Entry {entry} is not in the ledger, which was closed at {metadata.last_entry}."]
    bookies = metadata.bookies_of(entry)
    lines = [f"{bookie} {answers[bookie].text}." for bookie in bookies]
    if any(each.first <= entry <= each.last for each in facts.accepted):
        return [*lines, f"Entry {entry} was given up: it stays lost for all readers."]
    return [*lines, _conclusion(facts, entry, {bookie: answers[bookie] for bookie in bookies})]


def _conclusion(
    facts: LedgerFacts, entry: EntryId, answers: Mapping[BookieId, ReplicaAnswer]
) -> str:
    metadata = facts.metadata
    if not metadata.closed and entry > facts.lac:
        return f"Entry {entry} is not known to be confirmed, so readers do not get it."
    copies = [state_of(bookie, answer.evidence) for bookie, answer in answers.items()]
    verdict = judge(copies, metadata.ack_quorum)
    if verdict is Verdict.DELIVER:
        return f"Entry {entry} can be read."
    if verdict.lost:
        return f"Entry {entry} is lost: none of its {len(copies)} bookies has it."
    waiting = names_of(waited_for(copies))
    return f"Entry {entry} cannot be read now, but may not be lost: {waiting} may have it."
