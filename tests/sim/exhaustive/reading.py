"""A reader, an operator, a writer and the bookies of one ledger: every order of what may happen.

The real `ReadPlan` and `judge` decide about each entry, the real `Deliveries` about what the reader
delivers, and the real `StreamLosses` keep what was accepted. Small hosts stand for the rest. A
bookie is a column of small numbers, with its answer to the read that is under way. Bookies are
interchangeable (Qw = E), so columns are sorted. A read that repair overtakes begins again: what
may happen to it otherwise is a risk that docs/decisions/0012 accepts.

    python -m tests.sim.exhaustive.reading
"""

import copy
import sys
import time
from typing import NamedTuple

from ledger.core.accepted_losses import LostRange, StreamLosses
from ledger.core.deliveries import Deliveries, ReadRange
from ledger.core.gaps import (
    ENTRY_MAX,
    FIRST_POSITION,
    Acceptance,
    Evidence,
    Gap,
    GapKind,
    OffsetRange,
)
from ledger.core.loss import AuthoritativeStatus, CopyAnswer, CopyState, Verdict, judge, state_of
from ledger.core.read_plan import ReadPlan
from ledger.core.records import LogRecord
from ledger.core.segments import Segment
from ledger.ids import EntryId
from tests.sim.exhaustive.freeze import Interner, freeze
from tests.sim.exhaustive.search import search
from tests.sim.exhaustive.world import Violation

ANSWERS = (None, CopyAnswer.HELD, CopyAnswer.DENIED, CopyAnswer.LOST, CopyAnswer.UNKNOWN)
NO_ANSWER = 0
NOT_CLOSED = -2
LEDGER = 7


class Bounds(NamedTuple):
    """What is searched: all orders of all steps within these numbers."""

    ensemble_size: int
    ack_quorum: int
    entries: int = 3
    crashes: int = 1
    losses: int = 1  # bookies that come back with an empty or an old directory
    acceptances: int = 1


class Column(NamedTuple):
    """One bookie. Bits count entries from 0."""

    arrived: int = 0  # so many adds have reached it or were lost on their way
    held: int = 0
    acked: int = 0  # 1 if it has stored the entry that is pending
    lac: int = -1
    up: int = 1
    limbo: int = 0  # 1 if it knows that it may have lost entries
    lost: int = 0  # 1 if it has; ends with the repair of its share
    answer: int = NO_ANSWER  # to the read under way


class State(NamedTuple):
    columns: tuple
    sent: int
    acked: int  # the last entry that was acknowledged
    last: int  # the last entry of the closed ledger, or NOT_CLOSED
    reader: int  # number of the machine
    known_lac: int
    knows_close: int
    accepted: tuple  # (first, last) or ()
    knows_accepted: int
    crashes: int
    losses: int
    acceptances: int


class Reader:
    """The deliveries, and what of them is covered."""

    def __init__(self):
        self.core = Deliveries(ReadRange(FIRST_POSITION))

    def step(self, event):
        name, *rest = event
        return getattr(self, "_" + name)(*rest)

    def _entry(self, entry):
        self.core.begin(segment_of(NOT_CLOSED))
        record = LogRecord(0, entry + 1, entry, 1, False, b"%d" % entry)
        return self.core.on_entry(EntryId(entry), [record])

    def _lost(self, last, evidence):
        self.core.begin(segment_of(NOT_CLOSED))
        return self.core.on_lost(EntryId(last), evidence)

    def _wait(self):
        return self.core.on_wait()

    def _end(self, last):
        segment = segment_of(last)
        self.core.begin(segment)
        return self.core.on_segment_end(segment)


def segment_of(last):
    """The segment of the ledger, completed at `last` unless that is NOT_CLOSED."""
    segment = Segment(number=1, ledger=LEDGER, first_txid=0, start_sequence_id=0)
    if last == NOT_CLOSED:
        return segment
    return segment.complete(
        record_count=last + 1,
        last_txid=last,
        last_entry=EntryId(last),
        last_slot=0,
        completion_ms=0,
    )


class World:
    """Successors and checks, for `search`.

    `faults` are mistakes: of the bookies ("an old directory denies", "limbo denies"), of the reader
    ("the LAC is ignored", "silence is a denial", "enough denials are a loss", "an accepted range is
    forgotten") and of the operator ("the range begins one too early").
    """

    def __init__(self, bounds, faults=frozenset(), reader=Reader):
        self.bounds = bounds
        self.faults = faults
        self.names = tuple(f"b{number}" for number in range(bounds.ensemble_size))
        self._numbers = Interner()
        self._readers = []
        self._outcomes = {}
        self._first = reader

    def pack(self, state):
        return state

    def canonical(self, state):
        return state._replace(columns=tuple(sorted(state.columns)))

    def initial(self):
        bounds = self.bounds
        yield State(
            columns=(Column(),) * bounds.ensemble_size,
            sent=0,
            acked=-1,
            last=NOT_CLOSED,
            reader=self._number(self._first()),
            known_lac=-1,
            knows_close=0,
            accepted=(),
            knows_accepted=0,
            crashes=bounds.crashes,
            losses=bounds.losses,
            acceptances=bounds.acceptances,
        )

    def _number(self, reader):
        number = self._numbers.number(freeze(reader))
        if number == len(self._readers):
            self._readers.append(reader)
        return number

    def _next(self, state):
        """The first entry that the reader has not covered."""
        position = self._readers[state.reader].core.next
        return position.entry if position.segment == 1 else ENTRY_MAX

    # -- what may happen next ----------------------------------------------------------------------

    def successors(self, state):
        found = [*self._of_writer(state), *self._of_reader(state), *self._of_operator(state)]
        for number, column in enumerate(state.columns):
            found += self._of_bookie(state, number, column)
        if all(self.canonical(after) == state for _, after in found):
            self._check_over(state)
        return found

    def _of_writer(self, state):
        if state.last != NOT_CLOSED:
            return
        # The writer closes it, or a recovery, which cuts off what is pending.
        yield "the ledger is closed", state._replace(last=state.acked)
        if state.acked == state.sent - 1 and state.sent < self.bounds.entries:
            columns = tuple(column._replace(acked=0) for column in state.columns)
            yield "the writer sends", state._replace(sent=state.sent + 1, columns=columns)

    def _of_bookie(self, state, number, column):
        if column.arrived < state.sent:
            yield f"an add reaches b{number}", self._arrive(state, number, column)
        if not column.up:
            yield f"b{number} returns", _with(state, number, column._replace(up=1))
            return
        if state.crashes:
            after = state._replace(crashes=state.crashes - 1)
            yield f"b{number} crashes", _with(after, number, column._replace(up=0))
        if state.losses and not column.lost:
            yield from self._lose(state, number, column)
        if column.limbo and state.last != NOT_CLOSED and self._is_mendable(state):
            share = (1 << (state.last + 1)) - 1
            mended = column._replace(held=column.held | share, limbo=0, lost=0)
            yield f"b{number} is repaired", _asking_anew(_with(state, number, mended))

    def _arrive(self, state, number, column):
        """The next add is stored; or lost, if the bookie is down or, in limbo, refuses it."""
        entry, after = column.arrived, column._replace(arrived=column.arrived + 1)
        if column.up and not column.limbo:
            pending = entry == state.sent - 1
            after = after._replace(
                held=column.held | 1 << entry, lac=max(column.lac, entry - 1), acked=int(pending)
            )
        state = _with(state, number, after)
        if sum(one.acked for one in state.columns) >= self.bounds.ack_quorum:
            state = state._replace(acked=state.sent - 1)
        return state

    def _lose(self, state, number, column):
        left = state._replace(losses=state.losses - 1)
        limbo = int("an old directory denies" not in self.faults)
        for kept in range(state.sent):
            held = column.held & ((1 << kept) - 1)
            if held != column.held:
                lac = min(column.lac, kept - 2)
                gone = column._replace(held=held, lac=max(lac, -1), limbo=limbo, lost=1)
                yield f"b{number} keeps {kept} entries", _with(left, number, gone)

    def _is_mendable(self, state):
        """Every entry is on some bookie that is up."""
        held = 0
        for column in state.columns:
            held |= column.held if column.up else 0
        return held & ((1 << (state.last + 1)) - 1) == (1 << (state.last + 1)) - 1

    # -- the operator ------------------------------------------------------------------------------

    def _of_operator(self, state):
        """Accept a run of entries that is proved lost, if bookies that are down are given up."""
        if not state.acceptances or state.last == NOT_CLOSED:
            return
        for first in range(state.last + 1):
            for last in range(first, state.last + 1):
                if not self._is_lost(state, last):
                    break
                early = "the range begins one too early" in self.faults and first > 0
                accepted = (first - early, last)
                self._check_accepted(state, accepted)
                after = state._replace(accepted=accepted, acceptances=state.acceptances - 1)
                yield f"{first} to {last} are accepted", after

    def _is_lost(self, state, entry):
        copies = []
        for name, column in zip(self.names, state.columns, strict=True):
            copy_ = state_of(name, self._answer(column, entry))
            if not column.up:
                copy_ = CopyState(name, CopyAnswer.UNKNOWN, AuthoritativeStatus.UNDERREPLICATION)
            copies.append(copy_)
        return judge(copies, self.bounds.ack_quorum).lost

    def _losses(self, state):
        """The accepted ranges as the reader knows them."""
        if not state.accepted or not state.knows_accepted:
            return ()
        if "an accepted range is forgotten" in self.faults:
            return ()
        first, last = state.accepted
        evidence = Evidence(LEDGER, Verdict.NON_AUTHORITATIVE, (), 0, Acceptance(1, "operator"))
        lost = LostRange(1, EntryId(first), EntryId(last), OffsetRange(first, last), evidence)
        return StreamLosses().with_range(lost).of_segment(1)

    # -- the reader --------------------------------------------------------------------------------

    def _of_reader(self, state):
        following = self._next(state)
        if following == ENTRY_MAX:
            return
        yield from self._of_knowledge(state)
        if following > self._readable(state):
            yield from self._at_end(state)
            return
        for lost in self._losses(state):
            if lost.first <= following <= lost.last:
                yield "a loss is passed", self._on_lost(state, lost.last, lost.evidence)
                return
        for number, column in enumerate(state.columns):
            if column.answer == NO_ANSWER:
                yield f"b{number} is asked", self._asked(state, number, column, following)

    def _of_knowledge(self, state):
        """The reader hears of a change."""
        if state.last != NOT_CLOSED and not state.knows_close:
            yield "the reader learns of the close", state._replace(knows_close=1)
        if state.accepted and not state.knows_accepted:
            yield "the reader learns of the loss", _asking_anew(state._replace(knows_accepted=1))
        shown = [column.lac for column in state.columns if column.up and not column.limbo]
        lac = max(shown, default=-1)
        if lac > state.known_lac and not state.knows_close:
            yield "the reader learns the LAC", state._replace(known_lac=lac)

    def _readable(self, state):
        if state.knows_close:
            return state.last
        return state.sent - 1 if "the LAC is ignored" in self.faults else state.known_lac

    def _at_end(self, state):
        if state.knows_close:
            yield "the segment ends", self._step(state, ("end", state.last))
        else:
            yield "the reader waits", self._step(state, ("wait",))

    def _answer(self, column, entry):
        if not column.up:
            return CopyAnswer.UNKNOWN
        if column.held >> entry & 1:
            return CopyAnswer.HELD
        if column.limbo and "limbo denies" not in self.faults:
            return CopyAnswer.LOST
        return CopyAnswer.DENIED

    def _asked(self, state, number, column, entry):
        """The bookie answers at once; any other moment is another order of steps."""
        answer = self._answer(column, entry)
        if answer is CopyAnswer.HELD:
            return self._step(state, ("entry", entry))
        if "silence is a denial" in self.faults and answer is CopyAnswer.UNKNOWN:
            answer = CopyAnswer.DENIED
        state = _with(state, number, column._replace(answer=ANSWERS.index(answer)))
        if any(one.answer == NO_ANSWER for one in state.columns):
            return state
        plan = ReadPlan(self.names, self.bounds.ack_quorum)
        for name, one in zip(self.names, state.columns, strict=True):
            plan.on_answer(name, ANSWERS[one.answer])
        verdict = plan.verdict
        if "enough denials are a loss" in self.faults and verdict is Verdict.INCOMPLETE:
            verdict = Verdict.COMPLETE
        if not verdict.lost:
            return _asking_anew(self._step(state, ("wait",)))
        self._check_proof(state, entry, verdict)
        return self._on_lost(state, entry, Evidence(LEDGER, verdict, ()))

    def _on_lost(self, state, last, evidence):
        return self._step(state, ("lost", last, evidence))

    def _step(self, state, event):
        """The reader takes one step; what it delivers is checked."""
        outcome = self._outcomes.get((state.reader, event))
        if outcome is None:
            reader = copy.deepcopy(self._readers[state.reader])
            delivered = tuple(reader.step(event))
            outcome = self._outcomes[state.reader, event] = (self._number(reader), delivered)
        number, delivered = outcome
        if event[0] == "entry":
            self._check_delivered(state, event[1])
        self._check_deliveries(state, event, delivered)
        after = state._replace(reader=number)
        return after if number == state.reader else _asking_anew(after)

    # -- invariants --------------------------------------------------------------------------------

    def check(self, state):
        """What must hold in every state: what is checked at each step is all."""

    def _check_delivered(self, state, entry):
        if entry > max(state.acked, state.last):
            raise Violation(f"L7: entry {entry} is delivered, acknowledged is {state.acked}")
        first, last = state.accepted or (0, -1)
        if state.knows_accepted and first <= entry <= last:
            raise Violation(f"disagree: entry {entry} was accepted as lost, and is delivered")

    def _check_accepted(self, state, accepted):
        for entry in range(accepted[0], accepted[1] + 1):
            if any(column.up and column.held >> entry & 1 for column in state.columns):
                raise Violation(f"lost: entry {entry} is accepted, and a bookie shows it")

    def _check_proof(self, state, entry, verdict):
        """A loss that the reader proves itself: no bookie has a copy."""
        holders = sum(column.held >> entry & 1 for column in state.columns)
        if holders:
            raise Violation(f"lost: entry {entry} is lost, {holders} bookies hold it")
        denials = sum(not column.lost and column.up for column in state.columns)
        needed = len(state.columns) - self.bounds.ack_quorum + 1
        if (verdict is Verdict.COMPLETE) != (denials >= needed):
            raise Violation(f"evidence: {denials} denials count, the verdict is {verdict.value}")

    def _check_deliveries(self, state, event, delivered):
        """Gaps have exact bounds; positions rise, because `Deliveries` covers them in order."""
        for each in delivered:
            if not isinstance(each, Gap):
                continue
            if each.kind is GapKind.BRIDGE:
                self._check_bridge(state, each)
            elif each.kind is not GapKind.DATALOSS:
                raise Violation(f"kind: {each.kind.name}")
            else:
                self._check_gap(state, event, each)

    def _check_bridge(self, state, gap):
        offsets = (gap.offsets.first, gap.offsets.last)
        end = state.last + 1
        if gap.first != (1, end) or gap.last != (1, ENTRY_MAX) or offsets != (end, end - 1):
            raise Violation(f"bounds: a BRIDGE {gap} behind {state.last}")

    def _check_gap(self, state, event, gap):
        first, last = gap.first.entry, gap.last.entry
        if gap.last.segment != 1 or last > max(state.last, state.acked):
            raise Violation(f"kind: a DATALOSS {gap} behind the last entry {state.last}")
        following = {"entry": event[-1], "end": state.last + 1}.get(event[0], self._next(state))
        if last != following - 1:
            raise Violation(f"bounds: {gap} is issued before entry {following}")
        low, high = gap.offsets.first, gap.offsets.last
        right = (low, high) == (first, last) if gap.offsets.exact else low <= first <= last <= high
        if not right:
            raise Violation(f"bounds: {gap}")
        accepted = range(state.accepted[0], state.accepted[1] + 1) if state.accepted else ()
        for entry in range(first, last + 1):
            held = any(column.held >> entry & 1 for column in state.columns)
            if held and entry not in accepted and not self._came_later(state, entry):
                raise Violation(f"lost: {gap}, and a bookie holds {entry}")

    def _came_later(self, state, entry):
        """Whether an add that was late may have brought the copy after the proof."""
        return any(column.arrived == entry + 1 for column in state.columns)

    def _check_over(self, state):
        if self._next(state) != ENTRY_MAX:
            raise Violation(f"progress: the reader stays at entry {self._next(state)}")


def _with(state, number, column):
    columns = list(state.columns)
    columns[number] = column
    return state._replace(columns=tuple(columns))


def _asking_anew(state):
    columns = tuple(column._replace(answer=NO_ANSWER) for column in state.columns)
    return state._replace(columns=columns)


WORLDS = (
    Bounds(2, 2),
    Bounds(3, 2),
    Bounds(2, 2, losses=2),
)
QUICK = (Bounds(2, 2), Bounds(2, 2, losses=2), Bounds(3, 2, entries=2))

_TWO, _TWO_LOSE = Bounds(2, 2), Bounds(2, 2, losses=2)


class _BridgeIsLoss(Reader):
    """The rest of a completed segment is reported as lost."""

    def _end(self, last):
        *before, gap = super()._end(last)
        return [*before, gap._replace(kind=GapKind.DATALOSS)]


class _OffByOne(Reader):
    """A gap ends at the record behind it."""

    def step(self, event):
        return [_longer(each) for each in super().step(event)]


def _longer(each):
    if not isinstance(each, Gap) or each.kind is not GapKind.DATALOSS:
        return each
    last = each.last._replace(entry=EntryId(each.last.entry + 1))
    return each._replace(last=last, offsets=each.offsets._replace(last=each.offsets.last + 1))


def _mistake(bounds, *names):
    return lambda: World(bounds, faults=frozenset(names))


MISTAKES = {
    "silence counts as a denial": _mistake(_TWO, "silence is a denial"),
    "Qw - Qa + 1 denials are enough for a reader": _mistake(
        _TWO, "enough denials are a loss", "an old directory denies"
    ),
    "a denial of a bookie in limbo counts in full": _mistake(_TWO_LOSE, "limbo denies"),
    "an old directory denies what it lost": _mistake(_TWO_LOSE, "an old directory denies"),
    "a reader ignores the LAC": _mistake(_TWO, "the LAC is ignored"),
    "a reader forgets an accepted range": _mistake(_TWO, "an accepted range is forgotten"),
    "an accepted range begins one entry too early": _mistake(
        _TWO, "the range begins one too early"
    ),
    "a BRIDGE is reported as a loss": lambda: World(_TWO, reader=_BridgeIsLoss),
    "a gap ends one entry too late": lambda: World(_TWO_LOSE, reader=_OffByOne),
}


def say(bounds):
    """The bounds in words."""
    e, qa, entries, crashes, losses, acceptances = bounds
    return (
        f"{e}/{e}/{qa}; {entries} entries, 1 reader, {crashes} crash, {losses} wipe"
        f"{'s' if losses > 1 else ''} or old director{'ies' if losses > 1 else 'y'}, "
        f"{acceptances} acceptance"
    )


def main():
    for bounds in WORLDS:
        began_s = time.monotonic()
        found = search(World(bounds))
        seconds = time.monotonic() - began_s
        print(f"{say(bounds)}: {found.states} states, {seconds:.0f} s", found.violation, flush=True)
        if found.violation:
            print(*search(World(bounds), trace=True).way, sep="\n")
            return 1
    for name, world in MISTAKES.items():
        found = search(world())
        print(f"{name}: {found.states} states: {found.violation}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
