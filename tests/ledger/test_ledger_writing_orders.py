"""Goal: in every order of events, a writer confirms only what its ledger has, and in order.

Method: Hypothesis draws answers of bookies, of the metadata store and of timers, and a model
recounts from all that was answered. Entries are confirmed in order, by Qa members of the stored
ensemble, never while a change is in flight; an entry fails only after all before it have ended;
every entry ends once.
"""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.core.ensemble_change import Resend
from ledger.core.ledger_metadata import Versioned
from ledger.core.ledger_writing import (
    ChooseSpares,
    Closing,
    CompareAndSet,
    Confirm,
    Fail,
    OverloadRetry,
    ReadMetadata,
    Refusal,
    StartTimer,
)
from ledger.core.quorum import write_set
from ledger.errors import LedgerError
from tests.ledger.writing_rig import (
    PAUSE_S,
    opened,
    writing_of,
)

SHAPES = [(e, qw, qa) for e in range(1, 5) for qw in range(1, e + 1) for qa in range(1, qw + 1)]


@dataclass
class Model:
    """A shell by chance, and a recount of what may be confirmed."""

    shape: tuple
    draw: random.Random
    now_s: float = 0.0
    bookies: int = 100  # named so far
    sends: list = field(default_factory=list)  # adds not answered: (slot, entry, OverloadRetry)
    timers: list = field(default_factory=list)
    request: object = None  # to the metadata store, not answered
    held: set = field(default_factory=set)  # (slot, entry) acknowledged
    ended: list = field(default_factory=list)  # (entry, error) in the order of the effects

    def __post_init__(self):
        self.writing = writing_of(*self.shape)
        self.stored = Versioned(opened(*self.shape), 5)

    def step(self):
        self.now_s += self.draw.choice([0.0, 0.01, 1.0])
        steps = [self.add, self.answer, self.answer, self.answer, self.fire]
        if self.request is not None:
            steps += [self.reply, self.reply]
        self.draw.choice(steps)()

    def add(self):
        adds = self.writing.adds
        if adds.error is not None or adds.full or self.writing._closing:
            return
        entry = adds.add(1, adds.lap + 1)
        sets = self.writing.change.sets
        self.sends += [(slot, entry, None) for slot in sets[entry % len(sets)]]

    def answer(self, ok=False):
        if not self.sends:
            return
        slot, entry, retry = self.sends.pop(self.draw.randrange(len(self.sends)))
        fate = "added" if ok else self.draw.choice(["added"] * 7 + ["refused", "overloaded"])
        if fate == "added":
            self.held.add((slot, entry))
            if not slot.replaced:
                self.confirm(self.writing.adds.on_added(slot.index, entry))
                self.carry_out(self.writing.after_confirm())
        elif fate == "refused":
            refusal = self.draw.choice(REFUSALS)
            self.carry_out(self.writing.on_refused(slot, entry, refusal, refusal.name, self.now_s))
        elif retry is None:
            self.carry_out(self.writing.on_overloaded(slot, entry, entry, self.now_s))
        else:
            self.carry_out(self.writing.on_overloaded_again(retry, "OVERLOADED", self.now_s))

    def fire(self):
        if self.timers:
            at_s, retry = self.timers.pop(self.draw.randrange(len(self.timers)))
            self.now_s = max(self.now_s, at_s)
            self.carry_out(self.writing.on_timer(retry, self.now_s))

    def reply(self, ok=False):
        request, self.request = self.request, None
        fate = "done" if ok else self.draw.choice(["done"] * 4 + ["away", "lost"])
        if isinstance(request, ReadMetadata):
            if fate == "done":
                effects = self.writing.on_metadata_read(self.stored, self.now_s)
            else:
                effects = self.writing.on_metadata_unavailable(LedgerError("away"), self.now_s)
        elif fate == "away":
            effects = self.writing.on_metadata_unavailable(LedgerError("away"), self.now_s)
        else:
            changed = request.change.apply(self.stored.metadata)
            if changed is not None:
                self.stored = Versioned(changed, self.stored.version + 1)
            if fate == "lost":
                error = LedgerError("the reply was lost")
                effects = self.writing.on_metadata_unavailable(error, self.now_s)
            else:
                effects = self.writing.on_change_stored(self.stored, self.now_s)
        self.carry_out(effects)

    def carry_out(self, effects):
        for effect in effects:
            match effect:
                case Resend(slot, entry, item):
                    assert item == entry
                    self.send(slot, entry, None)
                case OverloadRetry(slot, entry, item):
                    assert item == entry
                    self.send(slot, entry, effect)
                case StartTimer(delay_s, retry):
                    assert retry or all(one is not None for _, one in self.timers)
                    self.timers.append((self.now_s + delay_s, retry))
                case ChooseSpares():
                    self.choose(effect)
                case ReadMetadata() | CompareAndSet():
                    assert self.request is None, "one exchange at a time"
                    self.request = effect
                case Confirm(items):
                    self.confirm(items)
                case Fail(error, items):
                    self.fail(error, items)

    def send(self, slot, entry, retry):
        assert not slot.replaced
        e, qw, _ = self.shape
        assert slot.index in write_set(entry, e, qw)
        self.sends.append((slot, entry, retry))

    def choose(self, request):
        ensemble = self.writing.change.metadata.last_fragment.ensemble
        assert request.ensemble == ensemble
        spares = {}
        for index in request.indexes:
            assert ensemble[index] in request.paused or self.now_s >= PAUSE_S
            if self.draw.random() < 0.5:
                self.bookies += 1
                spares[index] = f"b{self.bookies}"
        live = [name for name in ensemble if self.draw.random() < 0.5]
        self.carry_out(self.writing.on_spares_chosen(request, spares, live, self.now_s))

    def confirm(self, items):
        proposal = self.writing.change.proposal
        for entry in items:
            assert proposal is None, "nothing is confirmed while a change is in flight"
            assert entry == len(self.ended), "in order, and nothing before has failed"
            holders = {
                slot.bookie for slot, held in self.held if held == entry and not slot.replaced
            }
            named = set(self.stored.metadata.bookies_of(entry))
            assert len(holders & named) >= self.shape[2], "Qa members of the stored ensemble"
            self.ended.append((entry, None))
        if items:
            assert all(error is None for _, error in self.ended), "nothing after a failure"

    def fail(self, error, items):
        assert error is self.writing.adds.error
        for entry in items:
            assert entry == len(self.ended), "in order, each once"
            self.ended.append((entry, error))

    def drain(self):
        """Everything is answered at last, well or badly; then no entry is left."""
        for _ in range(10_000):
            if self.request is not None:
                self.reply(ok=self.draw.random() < 0.5)
            elif self.sends:
                self.answer(ok=self.draw.random() < 0.5)
            elif self.timers:
                self.fire()
            else:
                break
            self.now_s += 0.1
        assert [entry for entry, _ in self.ended] == list(range(self.writing.adds.lap + 1))


REFUSALS = [Refusal.UNHEALTHY] * 12 + [Refusal.NO_SPACE] * 4 + [Refusal.OTHER] * 3
REFUSALS += [Refusal.FENCED]


@pytest.mark.slow
@settings(max_examples=400)
@given(st.sampled_from(SHAPES), st.integers(0, 2**32), st.integers(1, 120))
def test_in_any_order_of_events_entries_end_in_order_once_and_confirmed_ones_have_qa_copies(
    shape, seed, steps
):
    model = Model(shape, random.Random(seed))
    for _ in range(steps):
        model.step()
    model.drain()


@given(st.sampled_from(SHAPES), st.integers(0, 2**32), st.integers(1, 80), st.integers(0, 80))
def test_a_writer_that_is_closed_in_the_middle_ends_every_entry_and_closes_at_the_last_confirmed(
    shape, seed, before, after
):
    model = Model(shape, random.Random(seed))
    for _ in range(before):
        model.step()
    model.writing.on_close()
    for _ in range(after):
        model.step()
    model.drain()
    confirmed = sum(error is None for _, error in model.ended)
    if model.writing.adds.error is None:
        request = model.writing.close_request()
        assert request.change == Closing(confirmed - 1, confirmed)
        assert request.known == model.stored
    else:
        with pytest.raises(type(model.writing.adds.error)):
            model.writing.close_request()
