"""Judge a history of sends and polls: was it a log, and did every acknowledgement hold.

Pure, and linear in the history but for sorting. What is known of a partition is drawn from all
polls and from sends whose effect is certain; then offsets are replaced by dense indices, so that
what nobody could see (a transaction's marker, a compacted record) is no hole.
Source: Jepsen, `jepsen.tests.kafka` (names and definitions of its anomalies); ours are
real-time-order, offset-gap, offset-reused, shown-again, phantom, early-read, no-offset and what
falls. An accepted loss explains what is missing inside of its offsets. Not judged here:
precommitted-read, torn transactions and cycles between them (G1c); see `transactions.py`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

from tests.histories.history import FAIL, FINAL, FOREVER_S, INFO, OK, Key, Op, Value
from tests.histories.register import Access, stale_accesses

ALLOWED = frozenset(
    {
        "int-send-skip",  # others write between two records of one request
        "duplicate-plain",  # a producer without idempotence may retry what was written
        # One that is told of an accepted loss in a partition begins a new epoch, and sends what is
        # in flight to any partition again in it.
        "duplicate-new-epoch",
        "nonmonotonic-send-plain",  # and may retry it after the next one went to a new leader
        "metadata-stale",  # nodes hear of a new leader one after the other
    }
)

RETRYING = frozenset({"aiokafka", "librdkafka"})  # send a commit again when its answer is lost


class Finding(NamedTuple):
    """Something that a log does not do. `anomaly` is its kind."""

    anomaly: str
    key: Key
    what: str


class Log:
    """What is known of one partition."""

    def __init__(self) -> None:
        self.at: dict[int, list[Value]] = {}
        self.offsets: list[int] = []
        self.first: dict[Value, int] = {}  # lowest offset of a value
        self.index: dict[Value, int] = {}
        self.copies: Counter[Value] = Counter()
        self.lost: list[Lost] = []  # apart, by their first offset
        self.lost_indices: list[int] = []  # of `offsets` in `lost`

    def note(self, offset: int, value: Value) -> None:
        there = self.at.setdefault(offset, [])
        if value not in there:
            there.append(value)

    def settle(self) -> None:
        """Everything was noted."""
        self.offsets = sorted(self.at)
        for index, offset in enumerate(self.offsets):
            for value in self.at[offset]:
                self.copies[value] += 1
                self.first.setdefault(value, offset)
                self.index.setdefault(value, index)
        self.lost = _apart(self.lost)
        self.lost_indices = [
            index for index, offset in enumerate(self.offsets) if self.is_lost(offset)
        ]

    def is_lost(self, offset: int, before_s: float = FOREVER_S) -> bool:
        """Whether the loss of this offset was accepted, and that before `before_s`."""
        at = bisect_right(self.lost, offset, key=lambda lost: lost.first) - 1
        return at >= 0 and offset <= self.lost[at].last and self.lost[at].end_s < before_s

    def lost_between(self, before: int, after: int) -> int:
        """The accepted offsets strictly between two others."""
        return sum(
            max(0, min(lost.last, after - 1) - max(lost.first, before + 1) + 1)
            for lost in self.lost
        )

    def known_lost_between(self, before: int, after: int) -> int:
        """The indices of accepted offsets, of which somebody knows a record, between two others."""
        return max(
            0, bisect_left(self.lost_indices, after) - bisect_right(self.lost_indices, before)
        )


class Lost(NamedTuple):
    """Offsets whose loss was accepted, as of `end_s`."""

    first: int
    last: int
    end_s: float


def _apart(found: Sequence[Lost]) -> list[Lost]:
    """By their first offset. Where some overlap, each offset is lost as of the first acceptance."""
    apart: list[Lost] = []
    edges = sorted({edge for lost in found for edge in (lost.first, lost.last + 1)})
    begins = deque(sorted(found))
    there: list[tuple[float, int]] = []  # a heap of acceptances, with the last offset of each
    for first, after in pairwise(edges):
        while begins and begins[0].first <= first:
            lost = begins.popleft()
            heappush(there, (lost.end_s, lost.last))
        while there and there[0][1] < first:
            heappop(there)
        if there:
            apart.append(Lost(first, after - 1, there[0][0]))
    return apart


class Facts:
    """A history, sorted and looked up."""

    def __init__(self, ops: Iterable[Op], dense: bool = True) -> None:
        self.dense = dense
        self.ops = sorted(ops, key=lambda op: op.end_s)
        self.sends = [op for op in self.ops if op.kind == "send"]
        self.polls = [op for op in self.ops if op.kind == "poll" and op.result != FAIL]
        self.writer: dict[tuple[Key, Value], Op] = {
            (key, value): op for op in self.sends for key, value, _ in op.value
        }
        self.polled: dict[Key, set[Value]] = defaultdict(set)
        self.logs: dict[Key, Log] = defaultdict(Log)
        for op in self.polls:
            for key, pairs in op.value.items():
                log, seen = self.logs[key], self.polled[key]
                for offset, value in pairs:
                    log.note(offset, value)
                    seen.add(value)
        for op in self.sends:
            for key, value, offset in op.value:
                if offset is not None and offset >= 0 and op.result == OK:
                    self.logs[key].note(offset, value)
        # When each loss was accepted: since when at the earliest, and until when.
        self.accepted_s: list[tuple[float, float]] = []
        for op in self.ops:
            if op.kind == "gap":
                self._note_losses(op)
        for log in self.logs.values():
            log.settle()

    def _note_losses(self, op: Op) -> None:
        for key, gaps in op.value.items():
            lost = [
                Lost(first, last, op.end_s)
                for kind, first, last, accepted in gaps
                if kind == "DATALOSS" and accepted
            ]
            self.logs[key].lost += lost
            self.accepted_s += [(op.start_s, op.end_s)] if lost else []

    def shown(self) -> Iterator[tuple[Op, Key, Value]]:
        """Every record of every poll."""
        for op in self.polls:
            for key, pairs in op.value.items():
                yield from ((op, key, value) for _, value in pairs)

    def by_process(self, *kinds: str) -> dict[str, list[Op]]:
        found: dict[str, list[Op]] = defaultdict(list)
        for op in self.ops:
            if op.kind in kinds:
                found[op.process].append(op)
        return found


def check(ops: Iterable[Op], *, dense: bool = True) -> list[Finding]:
    """Every anomaly of the history; those in ALLOWED are of no harm.

    `dense`: no offset is without a record: nothing is compacted, and there are no transactions.
    """
    facts = Facts(ops, dense)
    judges = (
        _what_logs_say,
        _what_was_assigned_again,
        _what_readers_saw,
        _what_nobody_saw,
        _what_the_last_reader_misses,
        _polls_by_process,
        _sends_by_process,
        _sends_in_real_time,
        _what_fell,
        _what_metadata_said,
        _committed,
    )
    return [finding for judge in judges for finding in judge(facts)]


def bad(findings: Iterable[Finding]) -> list[Finding]:
    """Those that are not allowed."""
    return [finding for finding in findings if finding.anomaly not in ALLOWED]


# --- the log ------------------------------------------------------------------------------------


def _what_logs_say(facts: Facts) -> Iterator[Finding]:
    """inconsistent-offsets: two values at one offset. duplicate: one value at two offsets."""
    for key, log in facts.logs.items():
        for offset, values in log.at.items():
            if len(values) > 1:
                yield Finding("inconsistent-offsets", key, f"offset {offset} is {values}")
        for value, copies in log.copies.items():
            if copies > 1:
                name = _duplicate(facts, facts.writer.get((key, value)))
                places = [offset for offset in log.offsets if value in log.at[offset]]
                yield Finding(name, key, f"{value} is at {places}")


def _duplicate(facts: Facts, writer: Op | None) -> str:
    if writer is None:
        return "duplicate"
    if not writer.idempotent:
        return "duplicate-plain"
    in_flight = any(
        writer.start_s <= until_s and since_s <= writer.end_s
        for since_s, until_s in facts.accepted_s
    )
    return "duplicate-new-epoch" if in_flight else "duplicate"


def _what_was_assigned_again(facts: Facts) -> Iterator[Finding]:
    """offset-reused: an offset of which one record was known went to another one, sent later."""
    conflicts = {
        (key, offset): dict[Value, float]()
        for key, log in facts.logs.items()
        for offset, values in log.at.items()
        if len(values) > 1
    }
    for op in (op for op in facts.ops if conflicts and op.result == OK):
        for key, offset, value in _told(op):
            known = conflicts.get((key, offset))
            if known is not None:
                known[value] = min(known.get(value, FOREVER_S), op.end_s)
    for (key, offset), known in conflicts.items():
        first, first_s = min(known.items(), key=lambda each: each[1])
        for value in sorted(known.keys() - {first}, key=str):
            writer = facts.writer.get((key, value))
            if writer is not None and writer.start_s > first_s:
                yield Finding("offset-reused", key, f"offset {offset} of {first} is {value} now")


def _told(op: Op) -> Iterator[tuple[Key, int, Value]]:
    """The records of which this send or poll told the offset."""
    if op.kind == "send":
        yield from ((key, at, value) for key, value, at in op.value if at is not None and at >= 0)
    elif op.kind == "poll":
        for key, pairs in op.value.items():
            yield from ((key, at, value) for at, value in pairs)


def _what_readers_saw(facts: Facts) -> Iterator[Finding]:
    """phantom: nobody sent it. G1a: its send failed. early-read: seen before it was sent.

    shown-again: its loss had been accepted before the poll began.
    """
    for op in (op for op in facts.polls if any(facts.logs[key].lost for key in op.value)):
        for key, offset, value in _told(op):
            log = facts.logs[key]
            if log.is_lost(offset, before_s=op.start_s):
                yield Finding("shown-again", key, f"{op.process} was shown {value}, given up")
    seen: set[tuple[Key, Value]] = set()
    for op, key, value in facts.shown():
        if (key, value) in seen:
            continue
        seen.add((key, value))
        writer = facts.writer.get((key, value))
        if writer is None:
            yield Finding("phantom", key, f"{op.process} was shown {value}")
        elif writer.result == FAIL:
            yield Finding("G1a", key, f"{op.process} was shown {value}, which failed")
        elif op.end_s < writer.start_s:
            yield Finding("early-read", key, f"{value} was seen before it was sent")


def _what_nobody_saw(facts: Facts) -> Iterator[Finding]:
    """lost-write: acknowledged, passed by every reader. unseen: acknowledged, beyond them all.

    no-offset: acknowledged without a place in the log.
    """
    bounds = {
        key: max((facts.logs[key].index[value] for value in values), default=-1)
        for key, values in facts.polled.items()
    }
    for op in facts.sends:
        if op.result != OK:
            continue
        for key, value, offset in op.value:
            if offset is None or offset < 0:
                yield Finding("no-offset", key, f"{value} was acknowledged at {offset}")
            if value in facts.polled.get(key, ()):
                continue
            if offset is not None and facts.logs[key].is_lost(offset):
                continue
            index = facts.logs[key].index.get(value, FOREVER_S)
            name = "lost-write" if index <= bounds.get(key, -1) else "unseen"
            yield Finding(name, key, f"{value} was acknowledged at {offset}, and nobody saw it")


def _what_the_last_reader_misses(facts: Facts) -> Iterator[Finding]:
    """lost: acknowledged or once shown, and not there when all is read after the end.

    Judged for keys that a reader whose name begins with FINAL was assigned: it began at the start.
    """
    last = [op for op in facts.ops if op.process.startswith(FINAL)]
    start_s = min((op.start_s for op in last), default=FOREVER_S)
    kept: dict[Key, set[Value]] = {
        key: set() for op in last if op.kind == "assign" for key in op.value
    }
    for op, key, value in facts.shown():
        if op.process.startswith(FINAL):
            kept.setdefault(key, set()).add(value)
    for key, there in kept.items():
        known = {
            value
            for op in facts.sends
            if op.result == OK and op.end_s <= start_s
            for where, value, _ in op.value
            if where == key
        }
        log = facts.logs[key]
        for value in sorted((known | facts.polled[key]) - there, key=str):
            if value in log.first and log.is_lost(log.first[value]):
                continue
            yield Finding("lost", key, f"{value} is not there any more")


# --- what one process sees ----------------------------------------------------------------------


def _polls_by_process(facts: Facts) -> Iterator[Finding]:
    """poll-skip, nonmonotonic-poll: between two polls; with int- before it: inside of one.

    offset-gap: a reader went on over offsets of which nobody knows a record.
    """
    for ops in facts.by_process("poll", "assign", "subscribe").values():
        last: dict[Key, Value] = {}
        for op in ops:
            if op.kind == "subscribe":
                last.clear()
            elif op.kind == "assign":
                last = {key: value for key, value in last.items() if key in op.value}
            elif op.result == OK:
                yield from _polls_of(facts, op, last)


def _polls_of(facts: Facts, op: Op, last: dict[Key, Value]) -> Iterator[Finding]:
    """One poll, after `last`; moves it on."""
    for key in op.rebalanced:
        last.pop(key, None)
    for key, pairs in op.value.items():
        if not pairs:
            continue
        log = facts.logs[key]
        if key in last:
            yield from _step(log, key, op.process, "", "poll", last[key], pairs[0][1])
            yield from _gap(facts, key, last[key], pairs[0][1])
        last[key] = pairs[-1][1]
        if key not in op.rebalanced:
            for (_, before), (_, after) in pairwise(pairs):
                yield from _step(log, key, op.process, "int-", "poll", before, after)
                yield from _gap(facts, key, before, after)


def _gap(facts: Facts, key: Key, before: Value, after: Value) -> Iterator[Finding]:
    log = facts.logs[key]
    missing = log.first[after] - log.first[before] - (log.index[after] - log.index[before])
    missing -= log.lost_between(log.first[before], log.first[after])
    missing += log.known_lost_between(log.index[before], log.index[after])
    if facts.dense and missing > 0:
        told = f"{missing} offsets without a record before {log.first[after]}"
        yield Finding("offset-gap", key, told)


def _step(
    log: Log, key: Key, process: str, inside: str, verb: str, before: Value, after: Value
) -> Iterator[Finding]:
    """From one value to the next, the log goes on by one."""
    if log.copies[before] != 1 or log.copies[after] != 1:
        return  # said elsewhere, or nobody knows where it is
    delta = log.index[after] - log.index[before]
    delta -= log.known_lost_between(log.index[before], log.index[after])
    told = f"{process}: {before} at {log.first[before]}, then {after} at {log.first[after]}"
    if delta < 1:
        yield Finding(f"{inside}nonmonotonic-{verb}", key, told)
    elif delta > 1 and (verb == "poll" or inside):
        yield Finding(f"{inside}{verb}-skip", key, f"{told}; {delta - 1} between them")


def _sends_by_process(facts: Facts) -> Iterator[Finding]:
    """nonmonotonic-send: a producer's records lie in the order in which it sent them.

    It has `-plain` behind it where the producer is not idempotent, and so promises nothing.
    """
    for ops in facts.by_process("send").values():
        last: dict[Key, Value] = {}
        for op in sorted(ops, key=lambda op: op.start_s):
            if op.result != FAIL:
                yield from _sends_of(facts, op, last)


def _sends_of(facts: Facts, op: Op, last: dict[Key, Value]) -> Iterator[Finding]:
    """One request, after `last`; moves it on."""
    inside: set[Key] = set()
    verb = "send" if op.idempotent else "send-plain"
    for key, value, _ in op.value:
        log = facts.logs[key]
        if value not in log.index:
            continue
        if key in last:
            word = "int-" if key in inside else ""
            yield from _step(log, key, op.process, word, verb, last[key], value)
        last[key] = value
        inside.add(key)


# --- in real time -------------------------------------------------------------------------------


class _Claim(NamedTuple):
    """From `end_s` on the world knows `value`; whoever asks from `start_s` on was told it."""

    start_s: float
    end_s: float
    value: float
    who: str


def _fallen(
    claims: Iterable[_Claim], answers: Sequence[_Claim], *, strictly: bool = False
) -> Iterator[tuple[_Claim, _Claim]]:
    """(earlier, later): the later one began after the earlier one ended, and is below it.

    `strictly`: equal is below, too.
    """
    known = sorted(claims, key=lambda claim: claim.end_s)
    best: _Claim | None = None
    at = 0
    for answer in sorted(answers, key=lambda claim: claim.start_s):
        while at < len(known) and known[at].end_s < answer.start_s:
            if best is None or known[at].value > best.value:
                best = known[at]
            at += 1
        if best is not None and (
            answer.value < best.value or (strictly and answer.value == best.value)
        ):
            yield best, answer


def _sends_in_real_time(facts: Facts) -> Iterator[Finding]:
    """real-time-order: sent after another one was acknowledged, and before it in the log."""
    claims: dict[Key, list[_Claim]] = defaultdict(list)
    for op in facts.sends:
        for key, value, _ in op.value:
            log = facts.logs[key]
            if op.result != FAIL and log.copies[value] == 1:
                end_s = op.end_s if op.result == OK else FOREVER_S
                claim = _Claim(op.start_s, end_s, log.first[value], f"{op.process} {value}")
                claims[key].append(claim)
    for key, said in claims.items():
        for earlier, later in _fallen(said, said, strictly=True):
            told = f"{later.who} at {later.value} was sent after {earlier.who} at {earlier.value}"
            yield Finding("real-time-order", key, told)


def _what_fell(facts: Facts) -> Iterator[Finding]:
    """high-watermark-fell, log-start-fell, leader-epoch-fell: as any client sees it, in real time.

    An acknowledged or polled record is below the high watermark from then on.
    """
    looks: dict[tuple[str, Key], list[_Claim]] = defaultdict(list)
    floors: dict[Key, list[_Claim]] = defaultdict(list)
    for op in facts.ops:
        if op.kind == "look":
            for name, key, value in _looked(op):
                looks[name, key].append(_Claim(op.start_s, op.end_s, value, op.process))
        elif op.kind in ("send", "poll") and op.result == OK:
            for key, end in _ends(op):
                floors[key].append(_Claim(op.start_s, op.end_s, end, op.process))
    for (name, key), said in looks.items():
        known = said + floors[key] if name == _FALLS[0] else said
        for earlier, later in _fallen(known, said):
            told = f"{later.who} was told {later.value} after {earlier.who} knew {earlier.value}"
            yield Finding(name, key, told)


_FALLS = ("high-watermark-fell", "log-start-fell", "leader-epoch-fell")


def _looked(op: Op) -> Iterator[tuple[str, Key, int]]:
    """What a look was told, by what it means when that falls."""
    for key, said in op.value.items():
        yield from (
            (name, key, value) for name, value in zip(_FALLS, said, strict=True) if value >= 0
        )


def _ends(op: Op) -> Iterator[tuple[Key, int]]:
    """The high watermark that this send or poll proves."""
    if op.kind == "send":
        yield from ((key, at + 1) for key, _, at in op.value if at is not None and at >= 0)
    else:
        yield from ((key, pairs[-1][0] + 1) for key, pairs in op.value.items() if pairs)


def _what_metadata_said(facts: Facts) -> Iterator[Finding]:
    """metadata-fell: one node tells an older epoch than before; metadata-stale: than another."""
    said: dict[Key, list[_Claim]] = defaultdict(list)
    for op in facts.ops:
        if op.kind == "metadata" and op.result == OK:
            node, partitions = op.value
            for key, (_, epoch) in partitions.items():
                said[key].append(_Claim(op.start_s, op.end_s, epoch, f"node {node}"))
    for key, claims in said.items():
        nodes: dict[str, list[_Claim]] = defaultdict(list)
        claims = [claim for claim in claims if claim.value >= 0]  # -1: nobody has it open
        for claim in claims:
            nodes[claim.who].append(claim)
        for own in nodes.values():
            for earlier, later in _fallen(own, own):
                told = f"{later.who} told epoch {later.value} after {earlier.value}"
                yield Finding("metadata-fell", key, told)
        for earlier, later in _fallen(claims, claims):
            told = f"{later.who} told {later.value} after {earlier.who} told {earlier.value}"
            yield Finding("metadata-stale", key, told)


def _committed(facts: Facts) -> Iterator[Finding]:
    """Committed offsets are a register for each group and key: see `register.py`."""
    accesses: dict[tuple[str, Key], list[Access]] = defaultdict(list)
    for op in facts.ops:
        if op.kind not in ("commit", "fetch") or (op.kind == "fetch" and op.result != OK):
            continue
        group, committed = op.value
        for key, value in committed.items():
            sure = op.result == OK
            end_s = FOREVER_S if op.result == INFO else op.end_s
            writes, failed, again = op.kind == "commit", op.result == FAIL, op.client in RETRYING
            access = Access(writes, value, op.start_s, end_s, sure, failed, again)
            accesses[group, key].append(access)
    for (group, key), history in accesses.items():
        for anomaly, what in stale_accesses(history):
            yield Finding(anomaly, key, f"group {group}: {what}")
