"""Judge a history of transactions: is each of them seen whole, once committed, or not at all.

Pure. All readers of such a history read committed records only; `fetch` asks for stable offsets.
The records of transactions are also judged as those of a log, by `checker.py`: aborted records
that are shown (G1a), lost writes, duplicates and the order of records are found there.

Source: Jepsen, `jepsen.tests.kafka` (G1a, precommitted-read, G1c, lost-write). Edges between
transactions are drawn from writers to readers only: Kafka does not isolate writes, so transactions
may lie across each other in two partitions. Ours are torn, copied-twice and not-copied.

The outcome of a commit without an answer is drawn from its records: if one was shown, the
transaction is committed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from tests.histories.checker import Finding, check
from tests.histories.history import FAIL, FINAL, FOREVER_S, INFO, OK, Key, Op, Value

COMMIT, ABORT = "commit", "abort"
NOTHING = -1  # what a fetch answers where nothing is committed
CYCLES_MAX = 100
SHOWN = ("poll", "txn-poll")


@dataclass(slots=True)
class Transaction:
    """What one transaction did. Commits that were never requested cannot happen: `FAIL`."""

    number: int
    process: str
    outcome: str = FAIL
    commit_s: float = FOREVER_S  # when the commit was requested
    end_s: float = FOREVER_S  # when the commit was acknowledged
    shown_s: float = FOREVER_S  # when a reader first had one of its records
    over_s: float = FOREVER_S  # from when on its outcome is certain to be visible
    sends: list[Op] = field(default_factory=list)
    polls: list[Op] = field(default_factory=list)
    offsets: dict[tuple[str, Key], int] = field(default_factory=dict)

    @property
    def committed(self) -> bool:
        """True if it is known to be committed."""
        return self.outcome == OK or (self.outcome == INFO and self.shown_s < FOREVER_S)

    @property
    def proved_s(self) -> float:
        """When a client first knew that it is committed."""
        return min(self.end_s, self.shown_s) if self.committed else FOREVER_S

    def records(self) -> Iterator[tuple[Key, Value]]:
        """Every record that may be in the log."""
        for op in self.sends:
            if op.result != FAIL:
                yield from ((key, value) for key, value, _ in op.value[1])


class Facts:
    """The transactions of a history, and what readers were shown of them."""

    def __init__(self, ops: Iterable[Op]) -> None:
        self.ops = sorted(ops, key=lambda op: op.end_s)
        self.transactions = {
            op.value: Transaction(op.value, op.process) for op in self.ops if op.kind == "begin"
        }
        for op in self.ops:
            self._note(op)
        self.writer = {
            record: found for found in self.transactions.values() for record in found.records()
        }
        self.shown: dict[tuple[Key, Value], float] = {}
        self.kept: dict[Key, set[Value]] = defaultdict(set)  # by the last reader, which reads all
        for op in self.ops:
            self._note_shown(op)
        for record, at_s in self.shown.items():
            if record in self.writer:
                found = self.writer[record]
                found.shown_s = min(found.shown_s, at_s)
        self._note_ends()

    def _note(self, op: Op) -> None:
        if op.kind == "txn-send":
            self.transactions[op.value[0]].sends.append(op)
        elif op.kind == "txn-poll":
            self.transactions[op.value[0]].polls.append(op)
        elif op.kind == "txn-offsets":
            number, group, committed = op.value
            offsets = {(group, key): offset for key, offset in committed.items()}
            self.transactions[number].offsets |= offsets
        elif op.kind == "end" and op.value[1] == COMMIT:
            found = self.transactions[op.value[0]]
            found.outcome, found.commit_s = op.result, op.start_s
            found.end_s = op.end_s if op.result == OK else FOREVER_S

    def _note_shown(self, op: Op) -> None:
        if op.process.startswith(FINAL) and op.kind == "assign":
            for key in op.value:
                self.kept[key] |= set()
        for key, _, value in _records(op):
            self.shown.setdefault((key, value), op.end_s)
            if op.process.startswith(FINAL):
                self.kept[key].add(value)

    def _note_ends(self) -> None:
        """A producer begins its next transaction once the last one of its id has ended."""
        over_s: dict[str, float] = {}
        for op in sorted(self.ops, key=lambda op: op.start_s, reverse=True):
            if op.kind == "begin":
                found = self.transactions[op.value]
                found.over_s = min(found.end_s, over_s.get(op.process, FOREVER_S))
                over_s[op.process] = op.start_s


def check_transactions(ops: Sequence[Op]) -> list[Finding]:
    """Return every anomaly of the history, also those of its records as logs."""
    facts = Facts(ops)
    judges = (_seen_early, _torn, _cycles, _committed_offsets, _copies)
    found = [finding for judge in judges for finding in judge(facts)]
    return [*check(_as_log(facts), dense=False), *found]


def _records(op: Op) -> Iterator[tuple[Key, int, Value]]:
    """What a poll was shown."""
    if op.kind in SHOWN and op.result != FAIL:
        polled = op.value[1] if op.kind == "txn-poll" else op.value
        for key, pairs in polled.items():
            yield from ((key, offset, value) for offset, value in pairs)


def _as_log(facts: Facts) -> list[Op]:
    """The sends with the outcome of their transactions, and all that was read."""
    plain: list[Op] = []
    for op in facts.ops:
        if op.kind == "txn-send":
            number, records = op.value
            found = facts.transactions[number]
            outcome = OK if found.committed else found.outcome
            result = op.result if outcome == OK or op.result == FAIL else outcome
            plain.append(op._replace(kind="send", result=result, value=records))
        elif op.kind == "txn-poll":
            plain.append(op._replace(kind="poll", value=op.value[1]))
        elif op.kind in ("poll", "assign", "subscribe"):
            plain.append(op)
    return plain


def _seen_early(facts: Facts) -> Iterator[Finding]:
    """precommitted-read: a record was shown before the commit of its transaction was requested."""
    for (key, value), at_s in facts.shown.items():
        writer = facts.writer.get((key, value))
        if writer is not None and writer.outcome != FAIL and at_s < writer.commit_s:
            told = f"{value} of transaction {writer.number} was shown before its commit"
            yield Finding("precommitted-read", key, told)


def _torn(facts: Facts) -> Iterator[Finding]:
    """torn: a record of a transaction was shown, and another one is not there at the end."""
    for found in facts.transactions.values():
        if found.shown_s == FOREVER_S:
            continue
        for key, value in found.records():
            if key in facts.kept and value not in facts.kept[key]:
                told = f"{value} of transaction {found.number} is missing; others were shown"
                yield Finding("torn", key, told)


def _cycles(facts: Facts) -> Iterator[Finding]:
    """G1c: committed transactions that read each other's records, in a circle."""
    read: dict[int, dict[int, Key]] = defaultdict(dict)  # reader: its writers, by what was read
    for found in facts.transactions.values():
        polls = found.polls if found.committed else ()
        for key, value in [(key, value) for op in polls for key, _, value in _records(op)]:
            writer = facts.writer.get((key, value))
            if writer is not None and writer.committed and writer is not found:
                read[found.number].setdefault(writer.number, key)
    for _ in range(CYCLES_MAX):
        try:
            TopologicalSorter(read).prepare()
            return
        except CycleError as cycle:
            writer, reader = cycle.args[1][:2]
            path = " -> ".join(str(number) for number in cycle.args[1])
            yield Finding("G1c", read[reader].pop(writer), f"each read from the one before: {path}")


def _committed_offsets(facts: Facts) -> Iterator[Finding]:
    """Offsets of transactions, by group and partition. A fetch asks for stable offsets.

    G1a: of an aborted transaction. precommitted-read: before its commit was requested.
    committed-phantom: of none. torn or lost-write: those of a committed transaction are not there,
    and its records were shown, or it has none.
    """
    places = {place for found in facts.transactions.values() for place in found.offsets}
    for op in facts.ops:
        group, committed = op.value if op.kind == "fetch" and op.result == OK else ("", {})
        for key, offset in committed.items():
            if (group, key) in places:
                yield from _fetched(facts, op, (group, key), offset)


def _fetched(facts: Facts, op: Op, place: tuple[str, Key], offset: int) -> Iterator[Finding]:
    """One committed offset that a fetch returned."""
    group, key = place
    told = f"group {group}: {op.process} was told {offset}"
    here = [found for found in facts.transactions.values() if place in found.offsets]
    writers = [found for found in here if found.offsets[place] == offset]
    possible = [found for found in writers if found.outcome != FAIL]
    since_s = min((found.commit_s for found in possible), default=FOREVER_S)
    if offset != NOTHING and not possible:
        yield Finding("G1a" if writers else "committed-phantom", key, told)
    elif offset != NOTHING and op.end_s < since_s:
        yield Finding("precommitted-read", key, f"{told} before the commit of {offset}")
    else:
        for found in here:
            newest = found.proved_s < op.start_s and found.offsets[place] != offset
            if newest and all(other.over_s < found.commit_s for other in possible):
                name = "torn" if found.shown_s < FOREVER_S else "lost-write"
                yield Finding(name, key, f"{told} after {found.offsets[place]} was committed")
                return


def _copies(facts: Facts) -> Iterator[Finding]:
    """copied-twice: two committed transactions of a group have the same input record.

    not-copied: the group's offset is past a record that no transaction has as its input.
    """
    copies: dict[tuple[str, Key], list[Transaction]] = defaultdict(list)
    for found in facts.transactions.values():
        unknown = found.outcome == INFO and not any(found.records())
        for place in found.offsets if found.committed or unknown else ():
            copies[place].append(found)
    last: dict[Key, dict[int, Value]] = defaultdict(dict)
    for op in facts.ops:
        for key, offset, value in _records(op) if op.process.startswith(FINAL) else ():
            last[key][offset] = value
    for (group, key), copied in copies.items():
        taken: dict[int, Transaction] = {}
        for found, offset in [(each, at) for each in copied for at in _inputs(each, key)]:
            first = taken.setdefault(offset, found)
            if first is not found and found.committed and first.committed:
                told = f"group {group}: {offset} by {first.number} and {found.number}"
                yield Finding("copied-twice", key, told)
        end = max(found.offsets[group, key] for found in copied)
        for offset in sorted(last[key].keys() - taken.keys()):
            if offset < end:
                yield Finding("not-copied", key, f"group {group}: {offset} is {last[key][offset]}")


def _inputs(found: Transaction, key: Key) -> set[int]:
    """The offsets of the input records of a transaction in one partition."""
    return {offset for op in found.polls for place, offset, _ in _records(op) if place == key}
