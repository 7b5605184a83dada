"""Goal: bookies are replaced while a ledger is written, and no entry ever counts a copy on a bookie
that its fragment does not name.

Method: the pure machine. Hypothesis draws failures, spares, answers in any order and what others
do to the metadata; a dumb twin recounts after each step from all that was ever said. Then tables
of what is proposed for what is stored, and one fact per test.
"""

import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.core.add_pipeline import AddPipeline
from ledger.core.ensemble_change import EnsembleChange, Proposal
from ledger.core.ledger_metadata import Fragment, LedgerMetadata
from ledger.core.quorum import write_set
from ledger.errors import AddFailed, Fenced, LedgerClosed

SHAPES = [(e, qw, qa) for e in range(1, 5) for qw in range(1, e + 1) for qa in range(1, qw + 1)]
PAUSE_S = 10.0


def opened(e=3, qw=3, qa=2, fragments=None):
    return LedgerMetadata(
        ledger=1,
        ensemble_size=e,
        write_quorum=qw,
        ack_quorum=qa,
        fragments=fragments or (Fragment(0, tuple(f"b{n}" for n in range(e))),),
    )


def machine(metadata=None):
    metadata = metadata or opened()
    adds = AddPipeline(
        ensemble_size=metadata.ensemble_size,
        write_quorum=metadata.write_quorum,
        ack_quorum=metadata.ack_quorum,
        entries_max=100,
        bytes_max=10_000,
    )
    return adds, EnsembleChange(metadata, adds, pause_s=PAUSE_S)


@dataclass
class Walk:
    """A writer's shell by chance, and its dumb twin."""

    shape: tuple
    draw: random.Random
    stored: LedgerMetadata = None
    sends: list = field(default_factory=list)  # (slot, entry), not answered
    said: set = field(default_factory=set)  # (bookie, index, which time it sits there, entry)
    sits: dict = field(default_factory=dict)  # by index: (bookie, index, which time)
    confirmed: list = field(default_factory=list)
    expected: int = 0  # how many the twin has confirmed
    bookies: int = 0  # named so far

    def __post_init__(self):
        self.stored = opened(*self.shape)
        self.adds, self.change = machine(self.stored)
        self.bookies = self.shape[0]
        self.sits = {n: (f"b{n}", n, 0) for n in range(self.shape[0])}

    def step(self):
        steps = [self.add, self.answer, self.answer, self.answer]
        steps.append(self.settle if self.change.proposal else self.begin)
        self.draw.choice(steps)()
        self.compare()

    def add(self):
        if self.adds.error is not None or self.adds.full:
            return
        entry = self.adds.add(1, self.adds.lap + 1)
        for slot in self.change.sets[entry % self.shape[0]]:
            self.send(slot, entry)

    def send(self, slot, entry):
        assert not slot.replaced
        self.sends.append((slot, self.sits[slot.index], entry))

    def answer(self, ok=None):
        if not self.sends:
            return
        slot, sits, entry = self.sends.pop(self.draw.randrange(len(self.sends)))
        if ok or (ok is None and self.draw.random() < 0.7):
            self.said.add((*sits, entry))
            if not slot.replaced:
                self.confirmed += self.adds.on_added(slot.index, entry)
        elif not slot.replaced:
            self.change.on_failed(slot, 0.0)
            self.adds.on_refused(slot.index, entry)

    def begin(self):
        failed = self.change.failed
        if self.draw.random() < 0.2:
            gone = self.draw.sample(failed, self.draw.randint(0, len(failed)))
            live = [slot.bookie for slot in self.change.sets[0] if slot not in gone]
            for slot, entry, item in self.change.retry_failed(live):
                assert item == entry
                self.send(slot, entry)
        elif failed:
            mended = self.draw.sample(failed, self.draw.randint(1, len(failed)))
            self.change.propose({slot.index: self.spare() for slot in mended})

    def spare(self):
        """A new one, or one that sat here before."""
        before = {one[0] for one in self.said} - {one[0] for one in self.sits.values()}
        if before and self.draw.random() < 0.3:
            return self.draw.choice(sorted(before))
        self.bookies += 1
        return f"b{self.bookies}"

    def settle(self):
        spares = list(self.change.proposal.spares.values())
        if len(set(spares)) < len(spares):
            return
        wanted = self.change.proposal.apply(self.stored)
        assert wanted.last_fragment.first == len(self.confirmed)
        self.stored = wanted
        for index, bookie in enumerate(wanted.last_fragment.ensemble):
            name, _, time = self.sits[index]
            if name != bookie:
                self.sits[index] = (bookie, index, time + 1)
        for slot, entry, item in self.change.on_committed(wanted):
            assert item == entry
            self.send(slot, entry)
        self.confirmed += self.adds.release()

    def compare(self):
        e, qw, qa = self.shape
        while not self.change.proposal and self.expected <= self.adds.lap:
            members = [self.sits[index] for index in write_set(self.expected, e, qw)]
            if sum((*member, self.expected) in self.said for member in members) < qa:
                break
            holders = {one[0] for one in self.said if one[-1] == self.expected}
            assert len(holders & set(self.stored.bookies_of(self.expected))) >= qa
            self.expected += 1
        assert self.confirmed == list(range(self.expected))


@pytest.mark.slow
@settings(max_examples=300)
@given(st.sampled_from(SHAPES), st.integers(0, 2**32), st.integers(1, 120))
def test_what_is_confirmed_agrees_with_a_recount_after_every_step(shape, seed, steps):
    walk = Walk(shape, random.Random(seed))
    for _ in range(steps):
        walk.step()


@given(st.sampled_from(SHAPES), st.integers(0, 2**32), st.integers(1, 80))
def test_once_all_bookies_answer_everything_is_confirmed_on_the_bookies_that_metadata_name(
    shape, seed, steps
):
    walk = Walk(shape, random.Random(seed))
    for _ in range(steps):
        walk.step()
    if walk.change.proposal:
        spares = walk.change.proposal.spares
        if len(set(spares.values())) < len(spares):
            return
        walk.settle()
    live = walk.stored.last_fragment.ensemble
    while walk.sends or walk.change.failed:
        for slot, entry, _ in walk.change.retry_failed(live):
            walk.send(slot, entry)
        while walk.sends:
            walk.answer(ok=True)
            walk.compare()
    assert walk.confirmed == list(range(walk.adds.lap + 1))
    held = {(one[0], one[-1]) for one in walk.said}
    last = walk.stored.last_fragment
    for entry in range(max(last.first, 0), walk.adds.lap + 1):
        on = [name for name in walk.stored.bookies_of(entry) if (name, entry) in held]
        assert len(on) >= walk.shape[2]


# What is proposed for what is stored

CHANGE = Proposal(first=5, failed={1: "b1"}, spares={1: "b9"})
EARLIER = (Fragment(0, ("a0", "a1", "a2")), Fragment(3, ("b0", "b1", "b2")))


@pytest.mark.parametrize(
    ("stored", "fragments"),
    [
        (opened(), (Fragment(0, ("b0", "b1", "b2")), Fragment(5, ("b0", "b9", "b2")))),
        (opened(fragments=EARLIER), (*EARLIER, Fragment(5, ("b0", "b9", "b2")))),
        (
            opened(fragments=(EARLIER[0], Fragment(5, ("b0", "b1", "b2")))),
            (EARLIER[0], Fragment(5, ("b0", "b9", "b2"))),
        ),
    ],
    ids=["first change", "later change", "nothing was confirmed since the last change"],
)
def test_a_change_adds_a_fragment_or_replaces_the_last_one_if_it_begins_there(stored, fragments):
    assert CHANGE.apply(stored).fragments == fragments


def test_fragments_that_re_replication_changed_meanwhile_are_kept():
    repaired = (Fragment(0, ("a0", "r1", "a2")), EARLIER[1])
    assert CHANGE.apply(opened(fragments=repaired)).fragments[0] == repaired[0]


def test_ones_own_change_whose_reply_was_lost_is_recognised():
    assert CHANGE.apply(CHANGE.apply(opened())) is None


def test_of_two_failed_bookies_only_the_one_still_there_is_replaced():
    both = Proposal(first=5, failed={0: "b0", 1: "b1"}, spares={0: "b8", 1: "b9"})
    other = opened(fragments=(Fragment(0, ("x0", "b1", "b2")),))
    assert both.apply(other).last_fragment == Fragment(5, ("x0", "b9", "b2"))


def test_a_spare_that_sits_in_the_ensemble_already_is_not_put_there_twice():
    other = opened(fragments=(Fragment(0, ("b9", "b1", "b2")),))
    assert CHANGE.apply(other) is None


@pytest.mark.parametrize(
    ("stored", "error"),
    [
        (opened().in_recovery(), Fenced),
        (opened().close(4, 9), LedgerClosed),
        (
            opened(fragments=(Fragment(0, ("b0", "b1", "b2")), Fragment(6, ("b3", "b1", "b4")))),
            Fenced,
        ),
    ],
    ids=["in recovery", "closed", "another writer's fragment"],
)
def test_a_writer_that_has_lost_its_ledger_withdraws(stored, error):
    with pytest.raises(error):
        CHANGE.apply(stored)


# One change


def acked(adds, change, *places):
    """The bookies at these (index, entry) places say that they hold the entry."""
    return [item for index, entry in places for item in adds.on_added(index, entry)]


def changed(adds, change, spares):
    change.propose(spares)
    return change.on_committed(change.proposal.apply(change.metadata))


def fail(adds, change, index, entry):
    change.on_failed(change.sets[0][index], 0.0)
    return adds.on_refused(index, entry)


def test_nothing_is_confirmed_while_a_change_is_in_flight_and_all_in_order_after_it():
    adds, change = machine()
    adds.add(1, "a")
    adds.add(1, "b")
    fail(adds, change, 1, 0)
    change.propose({1: "b9"})
    assert acked(adds, change, (0, 1), (2, 1), (0, 0), (2, 0)) == []
    change.on_committed(change.proposal.apply(change.metadata))
    assert adds.release() == ["a", "b"]


def test_what_a_replaced_bookie_acknowledged_is_void_and_sent_again():
    adds, change = machine()
    adds.add(1, "a")
    acked(adds, change, (1, 0))
    change.on_failed(change.sets[0][1], 0.0)
    resends = changed(adds, change, {1: "b9"})
    assert [(one.slot.bookie, one.entry, one.item) for one in resends] == [("b9", 0, "a")]
    assert adds.release() == []
    assert acked(adds, change, (0, 0)) == []
    assert acked(adds, change, (1, 0)) == ["a"]


def test_entries_that_are_confirmed_by_the_others_go_to_the_new_bookie_too():
    adds, change = machine()
    adds.add(1, "a")
    fail(adds, change, 1, 0)
    change.propose({1: "b9"})
    acked(adds, change, (0, 0), (2, 0))
    resends = change.on_committed(change.proposal.apply(change.metadata))
    assert [one.entry for one in resends] == [0]


def test_only_the_write_set_is_sent_to():
    adds, change = machine(opened(4, 2, 2))
    for item in "abcdef":
        adds.add(1, item)
    change.on_failed(change.sets[1][0], 0.0)
    resends = changed(adds, change, {1: "b9"})
    assert [one.entry for one in resends] == [0, 1, 4, 5]


def test_a_slot_that_was_taken_by_another_is_dead():
    adds, change = machine()
    old = change.sets[0][1]
    change.on_failed(old, 0.0)
    changed(adds, change, {1: "b9"})
    new = next(slot for slot in change.sets[0] if slot.index == 1)
    assert (old.replaced, new.replaced, new.bookie) == (True, False, "b9")
    change.on_failed(old, 0.0)
    assert change.failed == []


def test_a_bookie_that_comes_back_to_its_place_begins_anew():
    adds, change = machine()
    adds.add(1, "a")
    acked(adds, change, (1, 0))
    change.on_failed(change.sets[0][1], 0.0)
    changed(adds, change, {1: "b9"})
    adds.release()
    change.on_failed(change.sets[0][1], 0.0)
    resends = changed(adds, change, {1: "b1"})
    assert [one.slot.bookie for one in resends] == ["b1"]
    assert adds.release() == acked(adds, change, (0, 0)) == []


def test_what_changed_is_found_by_comparing_place_by_place():
    """Whoever else put a bookie in: entries go to it; the failed one stays to be replaced."""
    adds, change = machine()
    adds.add(1, "a")
    fail(adds, change, 1, 0)
    change.propose({1: "b9"})
    stored = replace(change.metadata, fragments=(Fragment(0, ("b9", "b1", "b2")),))
    resends = change.on_committed(stored)
    assert [(one.slot.index, one.slot.bookie) for one in resends] == [(0, "b9")]
    assert [slot.bookie for slot in change.failed] == ["b1"]


def test_bookies_that_fail_meanwhile_are_left_for_the_next_change():
    adds, change = machine()
    fail(adds, change, 1, 0)
    change.propose({1: "b9"})
    change.on_failed(change.sets[0][2], 0.0)
    change.on_committed(change.proposal.apply(change.metadata))
    assert [slot.bookie for slot in change.failed] == ["b2"]
    with pytest.raises(AssertionError):
        change.propose({})


def test_there_is_one_change_at_a_time():
    adds, change = machine()
    fail(adds, change, 1, 0)
    change.propose({1: "b9"})
    with pytest.raises(AssertionError):
        change.propose({2: "b8"})


def test_a_bookie_that_failed_is_no_spare_for_a_while():
    _, change = machine()
    change.on_failed(change.sets[0][1], 100.0)
    assert set(change.paused(109.9)) == {"b1"}
    assert set(change.paused(110.1)) == set()


# For want of spares


def test_without_spares_entries_need_qa_of_the_others():
    adds, change = machine()
    adds.add(1, "a")
    assert not fail(adds, change, 1, 0)
    adds.fail_out_of_reach(AddFailed())
    assert adds.error is None
    assert acked(adds, change, (0, 0), (2, 0)) == ["a"]


def test_an_entry_that_too_many_refused_waits_for_the_change():
    adds, change = machine()
    adds.add(1, "a")
    fail(adds, change, 1, 0)
    assert fail(adds, change, 2, 0)
    assert adds.out_of_reach and adds.error is None
    changed(adds, change, {1: "b9"})
    assert not adds.out_of_reach
    adds.release()
    assert acked(adds, change, (0, 0), (1, 0)) == ["a"]


def test_an_entry_out_of_reach_fails_with_all_after_it_and_none_before():
    adds, change = machine()
    for item in "abc":
        adds.add(1, item)
    for index in (1, 2):
        fail(adds, change, index, 1)
    adds.fail_out_of_reach(AddFailed())
    assert adds.take_failed() == []
    assert acked(adds, change, (0, 0), (1, 0)) == ["a"]
    assert adds.take_failed() == ["b", "c"]


def test_a_bookie_that_answers_again_is_asked_again_for_what_it_had_refused():
    adds, change = machine()
    for item in "abc":
        adds.add(1, item)
    acked(adds, change, (1, 0))
    fail(adds, change, 1, 1)
    fail(adds, change, 2, 0)
    resends = change.retry_failed({"b1"})
    assert [(one.slot.bookie, one.entry, one.item) for one in resends] == [("b1", 1, "b")]
    assert [slot.bookie for slot in change.failed] == ["b2"]
    assert acked(adds, change, (0, 0), (0, 1), (1, 1)) == ["a", "b"]
