"""Goal: recovery keeps every acknowledged entry and never takes silence for absence.

Method: the pure state machine against dictionaries for bookies; Hypothesis draws what each bookie
holds, which answers are lost and how the others are shuffled. Then one fact per test.
"""

import random
from dataclasses import dataclass, field, replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.core.ledger_metadata import Fragment, LedgerMetadata
from ledger.core.quorum import write_set
from ledger.core.recovery import (
    Abort,
    Absent,
    Close,
    Fence,
    Found,
    Highest,
    ReadEntry,
    Recovery,
    RecoveryAdd,
    Unknown,
)
from ledger.errors import AddFailed, EntryUnknown, Unauthorized

SHAPES = [(e, qw, qa) for e in range(1, 5) for qw in range(1, e + 1) for qa in range(1, qw + 1)]


def recovering(e=3, qw=3, qa=2, fragments=None):
    names = tuple(f"b{n}" for n in range(e))
    return LedgerMetadata(
        ledger=1,
        ensemble_size=e,
        write_quorum=qw,
        ack_quorum=qa,
        fragments=fragments or (Fragment(0, names),),
    ).in_recovery()


def found(entry):
    return Found(length=entry + 1, payload=b"%d" % (entry % 10))


@dataclass
class World:
    """Bookies that hold sets of entries. `silent`: (kind, bookie, entry) without a true answer."""

    holds: dict
    lacs: dict = field(default_factory=dict)
    silent: set = field(default_factory=set)
    shuffled: random.Random | None = None  # None: answers come in the order of the questions
    asked: list = field(default_factory=list)
    shows: bool = False  # bookies show their highest entry when they fence

    def run(self, recovery):
        """Answers until recovery is over; returns its last action."""
        waiting = recovery.start()
        self.asked += waiting
        while waiting:
            place = self.shuffled.randrange(len(waiting)) if self.shuffled else 0
            actions = self.answer(recovery, waiting.pop(place))
            if actions and isinstance(actions[-1], Close | Abort):
                self.asked += actions[:-1]
                return actions[-1]
            self.asked += actions
            waiting += actions
        raise AssertionError("everything was answered, and recovery is not over")

    def answer(self, recovery, action):
        index, bookie = action.index, action.bookie
        entry = getattr(action, "entry", -1)
        lost = (type(action).__name__, bookie, entry) in self.silent
        if isinstance(action, Fence):
            if lost:
                return recovery.on_fence_failed(index)
            shown = highest(max(self.holds[bookie], default=-1)) if self.shows else None
            return recovery.on_fenced(index, self.lacs.get(bookie, -1), shown)
        if isinstance(action, ReadEntry):
            if lost:
                return recovery.on_read(index, entry, Unknown())
            has_it = entry in self.holds[bookie]
            return recovery.on_read(index, entry, found(entry) if has_it else Absent())
        if lost:
            return recovery.on_add_failed(index, bookie, entry)
        self.holds.setdefault(bookie, set()).add(entry)
        return recovery.on_added(index, bookie, entry)

    def of(self, kind):
        return [action for action in self.asked if isinstance(action, kind)]


@st.composite
def worlds(draw, silence):
    """A writer was stopped anywhere: each entry is on any bookies of its write set."""
    e, qw, qa = shape = draw(st.sampled_from(SHAPES))
    names = [f"b{n}" for n in range(e)]
    holds = {name: set() for name in names}
    acked, unbroken = -1, True
    for entry in range(draw(st.integers(0, 6))):
        holders = draw(st.sets(st.sampled_from(write_set(entry, e, qw))))
        for index in holders:
            holds[names[index]].add(entry)
        unbroken = unbroken and len(holders) >= qa
        acked = entry if unbroken else acked
    # An entry's LAC was confirmed when it was sent; acknowledged is all that has Qa copies.
    lacs = {name: draw(st.integers(-1, acked)) if holds[name] else -1 for name in names}
    kinds = st.tuples(
        st.sampled_from(["Fence", "ReadEntry", "RecoveryAdd"]),
        st.sampled_from(names),
        st.integers(-1, 7),
    )
    silent = draw(st.sets(kinds, max_size=12)) if silence else set()
    return shape, acked, World(holds, lacs, silent, random.Random(draw(st.integers(0, 2**32))))


@pytest.mark.slow
@settings(max_examples=300)
@given(worlds(silence=True), st.integers(1, 4))
def test_what_was_acknowledged_is_kept_and_what_is_kept_is_written_again(drawn, window):
    (e, qw, qa), acked, world = drawn
    end = world.run(Recovery(recovering(e, qw, qa), window=window))
    if isinstance(end, Abort):
        assert world.silent
        return
    assert end.last_entry >= acked
    base = max(world.lacs.values(), default=-1)
    for entry in range(max(acked, base) + 1, end.last_entry + 1):
        holders = [n for n in write_set(entry, e, qw) if entry in world.holds[f"b{n}"]]
        assert len(holders) >= qa
    if end.length is not None:
        assert end.length == end.last_entry + 1


@given(worlds(silence=False), st.integers(1, 4))
def test_when_everybody_answers_recovery_ends_and_entries_are_on_all_their_bookies(drawn, window):
    (e, qw, qa), _, world = drawn
    recovery = Recovery(recovering(e, qw, qa), window=window)
    end = world.run(recovery)
    assert isinstance(end, Close)
    sent = {(action.bookie, action.entry) for action in world.of(RecoveryAdd)}
    everywhere = {
        (f"b{n}", entry)
        for entry in range(recovery.base + 1, end.last_entry + 1)
        for n in write_set(entry, e, qw)
    }
    assert sent == everywhere


@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_is_read_before_every_write_set_is_covered_by_fenced_bookies(shape):
    e, qw, qa = shape
    for size in range(1, e + 1):
        for heard in combinations(range(e), size):
            recovery = Recovery(recovering(*shape), window=1)
            recovery.start()
            reads = [action for index in heard for action in recovery.on_fenced(index, -1)]
            covered = all(
                len(set(write_set(entry, e, qw)) & set(heard)) >= qw - qa + 1 for entry in range(e)
            )
            assert bool(reads) == covered


def test_it_starts_after_the_highest_lac_heard():
    recovery = Recovery(recovering(), window=1)
    recovery.start()
    recovery.on_fenced(0, 4)
    reads = recovery.on_fenced(2, 7)
    assert {read.entry for read in reads} == {8}
    assert [read.bookie for read in reads] == ["b2", "b0", "b1"]


def test_it_never_starts_below_the_last_fragment():
    fragments = (Fragment(0, ("b0", "b1", "b2")), Fragment(10, ("b3", "b1", "b2")))
    world = World({"b1": set(range(10)), "b2": set(range(10)), "b3": set()})
    end = world.run(Recovery(recovering(fragments=fragments), window=1))
    assert (end.last_entry, end.length) == (9, None)
    assert {read.entry for read in world.of(ReadEntry)} == {10}


def test_too_few_fenced_bookies_end_the_attempt():
    world = World({}, silent={("Fence", "b0", -1), ("Fence", "b2", -1)})
    end = world.run(Recovery(recovering(), window=1))
    assert isinstance(end.error, EntryUnknown)
    assert world.of(ReadEntry) == []


def test_a_wrong_master_key_ends_the_attempt():
    recovery = Recovery(recovering(), window=1)
    recovery.start()
    error = Unauthorized("b0")
    assert recovery.on_fence_failed(0, error) == [Abort(error)]
    assert recovery.on_fenced(1, -1) == []


def test_one_bookie_that_lacks_an_entry_proves_nothing():
    recovery = Recovery(recovering(), window=1)
    recovery.start()
    recovery.on_fenced(0, -1)
    recovery.on_fenced(1, -1)
    assert recovery.on_read(0, 0, Absent()) == []
    assert any(isinstance(action, RecoveryAdd) for action in recovery.on_read(1, 0, found(0)))


def test_an_unknown_answer_never_counts_as_no():
    recovery = Recovery(recovering(), window=1)
    recovery.start()
    recovery.on_fenced(0, -1)
    recovery.on_fenced(1, -1)
    assert recovery.on_read(0, 0, Absent()) == []
    assert recovery.on_read(1, 0, Unknown()) == []
    [end] = recovery.on_read(2, 0, Unknown())
    assert isinstance(end.error, EntryUnknown)


def test_two_that_do_not_know_leave_the_word_to_the_third():
    recovery = Recovery(recovering(), window=1)
    recovery.start()
    recovery.on_fenced(0, -1)
    recovery.on_fenced(1, -1)
    assert recovery.on_read(0, 0, Unknown()) == recovery.on_read(1, 0, Unknown()) == []
    assert any(isinstance(action, RecoveryAdd) for action in recovery.on_read(2, 0, found(0)))


def test_a_hung_bookie_stops_nothing_that_the_others_can_decide():
    recovery = Recovery(recovering(), window=1)
    recovery.start()
    actions = recovery.on_fenced(0, -1) + recovery.on_fenced(1, -1)
    actions = recovery.on_read(0, 0, Absent()) + recovery.on_read(1, 0, Absent())
    assert actions == [Close(-1, 0, recovering())]


def test_copies_claim_no_more_than_was_confirmed_when_recovery_began():
    world = World({f"b{n}": set(range(6)) for n in range(3)}, lacs={"b0": 2})
    recovery = Recovery(recovering(), window=1)
    end = world.run(recovery)
    assert end.last_entry == 5
    assert {copy.lac for copy in world.of(RecoveryAdd)} == {2}


def test_a_spare_takes_the_place_of_a_bookie_that_refuses():
    world = World({f"b{n}": {0, 1} for n in range(3)}, silent={("RecoveryAdd", "b1", 1)})
    end = world.run(Recovery(recovering(), window=2, spares=["b1", "b9"]))
    assert end.last_entry == 1
    assert end.metadata.last_fragment.ensemble == ("b0", "b9", "b2")
    first = end.metadata.last_fragment.first
    sent = {copy.entry for copy in world.of(RecoveryAdd) if copy.bookie == "b9"}
    assert sent == set(range(first, 2)) != set()


def test_a_late_copy_on_a_replaced_bookie_does_not_count_for_its_spare():
    recovery = Recovery(recovering(qa=3), window=2, spares=["b9"])
    recovery.start()
    recovery.on_fenced(0, -1)
    for entry in (0, 1):
        recovery.on_read(0, entry, found(entry))
    recovery.on_add_failed(1, "b1", 0)
    recovery.on_added(1, "b1", 1)
    for index, bookie, entry in [
        (0, "b0", 0),
        (2, "b2", 0),
        (1, "b9", 0),
        (0, "b0", 1),
        (2, "b2", 1),
    ]:
        recovery.on_added(index, bookie, entry)
    assert recovery.on_read(0, 2, Absent()) == []
    (end,) = recovery.on_added(1, "b9", 1)
    assert isinstance(end, Close) and end.last_entry == 1


def test_a_spare_that_refuses_too_gives_way_to_the_next_and_none_is_tried_twice():
    silent = {("RecoveryAdd", "b1", 1), ("RecoveryAdd", "b9", 1)}
    world = World({f"b{n}": {0, 1} for n in range(3)}, silent=silent)
    end = world.run(Recovery(recovering(qa=3), window=2, spares=["b9", "b1", "b8"]))
    assert end.metadata.last_fragment.ensemble == ("b0", "b8", "b2")


def test_who_stands_in_is_chosen_for_the_place_that_is_empty():
    asked = []

    def choose(ensemble, index, refused):
        asked.append((ensemble, index, set(refused)))
        return "b9"

    world = World({f"b{n}": {0} for n in range(3)}, silent={("RecoveryAdd", "b2", 0)})
    end = world.run(Recovery(recovering(qa=3), window=1, choose_spare=choose))
    assert asked == [(("b0", "b1", "b2"), 2, {"b2"})]
    assert end.metadata.last_fragment.ensemble == ("b0", "b1", "b9")


def test_reads_keep_to_the_bookies_of_the_beginning():
    world = World({f"b{n}": set(range(5)) for n in range(3)}, silent={("RecoveryAdd", "b1", 0)})
    world.run(Recovery(recovering(), window=1, spares=["b9"]))
    assert {read.bookie for read in world.of(ReadEntry)} == {"b0", "b1", "b2"}


def test_without_spares_it_goes_on_while_qa_can_be_reached():
    world = World({f"b{n}": {0, 1} for n in range(3)}, silent={("RecoveryAdd", "b1", 0)})
    assert world.run(Recovery(recovering(), window=1)).last_entry == 1


def test_without_qa_copies_it_ends_the_attempt():
    silent = {("RecoveryAdd", "b1", 0), ("RecoveryAdd", "b2", 0)}
    world = World({f"b{n}": {0} for n in range(3)}, silent=silent)
    assert isinstance(world.run(Recovery(recovering(), window=1)).error, AddFailed)


def test_only_a_ledger_in_recovery_is_recovered():
    with pytest.raises(AssertionError):
        Recovery(replace(recovering().close(-1, 0)), window=1)


# -- what the answers to the fence spare -----------------------------------------------------------


def highest(entry):
    return Highest(entry, found(entry) if entry >= 0 else None)


def fenced(recovery, *answers):
    """The actions behind the answers (LAC, highest entry), in the order of the ensemble."""
    recovery.start()
    actions = []
    for index, (lac, entry) in enumerate(answers):
        actions += recovery.on_fenced(index, lac, highest(entry))
    return actions


def test_a_ledger_whose_bookies_name_the_same_entry_is_closed_without_a_read_or_an_add():
    [end] = fenced(Recovery(recovering(), window=16, patient=True), (4, 5), (4, 5), (3, 5))
    assert (end.last_entry, end.length, end.last) == (5, 6, found(5))


def test_an_empty_ledger_is_closed_without_a_read():
    [end] = fenced(Recovery(recovering(), window=16, patient=True), *[(-1, -1)] * 3)
    assert (end.last_entry, end.length, end.last) == (-1, 0, None)


def test_an_entry_that_one_bookie_lacks_is_added_again_to_all():
    actions = fenced(Recovery(recovering(), window=1, patient=True), (4, 5), (4, 5), (3, 4))
    assert sorted((type(one).__name__, one.bookie, one.entry) for one in actions) == [
        ("RecoveryAdd", f"b{n}", 5) for n in range(3)
    ]


def test_only_bookies_that_did_not_show_it_are_asked_for_an_entry():
    recovery = Recovery(recovering(), window=1, patient=True)
    actions = fenced(recovery, (3, 5), (3, 6), (3, 3))
    assert {(one.bookie, one.entry) for one in actions} == {("b0", 4), ("b1", 4)}


def test_a_bookie_that_shows_nothing_denies_nothing():
    recovery = Recovery(recovering(), window=1, patient=True)
    recovery.start()
    assert recovery.on_fenced(0, 4, highest(5)) == []
    assert recovery.on_fenced(1, -1) == []
    actions = recovery.on_fenced(2, -1)
    assert [(type(one), one.entry) for one in actions[:3]] == [(RecoveryAdd, 5)] * 3
    assert {(one.bookie, one.entry) for one in actions[3:]} == {("b1", 6), ("b2", 6)}


def test_a_patient_recovery_begins_without_a_silent_bookie_when_it_is_told_to():
    recovery = Recovery(recovering(), window=1, patient=True)
    recovery.start()
    assert recovery.on_fenced(0, 4, highest(5)) == []
    assert recovery.on_fenced(1, 4, highest(5)) == []
    assert [one.entry for one in recovery.begin()] == [5, 5, 5]


def test_a_recovery_without_patience_begins_as_soon_as_the_ledger_is_fenced():
    recovery = Recovery(recovering(), window=1, patient=True)
    recovery.start()
    assert recovery.on_fenced(0, 4, highest(5)) == []
    assert recovery.begin() == []  # one of three is no evidence
    assert [one.entry for one in recovery.on_fenced(1, 4, highest(5))] == [5, 5, 5]


def test_a_bookie_in_the_place_of_another_gets_what_the_whole_write_set_had_shown():
    recovery = Recovery(recovering(), window=2, spares=["b9"], patient=True)
    recovery.start()
    for index, entry in enumerate((5, 6, 6)):
        actions = recovery.on_fenced(index, 4, highest(entry))
    assert {(one.bookie, one.entry) for one in actions} >= {("b0", 5)}
    recovery.on_read(1, 5, found(5))
    resent = recovery.on_add_failed(0, "b0", 5)
    assert ("b9", 5) in {(one.bookie, one.entry) for one in resent}


@pytest.mark.slow
@settings(max_examples=500)
@given(worlds(silence=True), st.integers(1, 4), st.booleans())
def test_what_was_acknowledged_is_kept_also_with_the_evidence_of_fences(drawn, window, patient):
    (e, qw, qa), acked, world = drawn
    world.shows = True
    recovery = Recovery(recovering(e, qw, qa), window=window, patient=patient)
    end = world.run(recovery)
    if isinstance(end, Abort):
        assert world.silent
        return
    assert end.last_entry >= acked
    for entry in range(recovery.base + 1, end.last_entry + 1):
        holders = [n for n in write_set(entry, e, qw) if entry in world.holds[f"b{n}"]]
        assert len(holders) >= qa
