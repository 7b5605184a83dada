"""Goal: silence is never taken for absence, and what is missing is exactly what is missing.

Method: the pure check against a dumb twin that looks at every entry by itself.
"""

from itertools import starmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from ledger.core.loss import CopyAnswer, Verdict, judge, state_of
from ledger.ports.bookies import EntriesReply, Status
from ledger.repair.checker import (
    UNKNOWN_CONTENTS,
    LossTerms,
    ReplicaContents,
    bookies_of,
    check_ledger,
    contents_of,
    copy_state,
    fragments_of,
)
from ledger.repair.entry_ranges import each, ranges_of

NAMES = ("a", "b", "c", "d", "e")


def ledger(fragments, *, last=None, e=3, qw=2, qa=1, state=None):
    state = state or (LedgerState.OPEN if last is None else LedgerState.CLOSED)
    return LedgerMetadata(
        ledger=1,
        ensemble_size=e,
        write_quorum=qw,
        ack_quorum=qa,
        fragments=tuple(Fragment(first, tuple(names)) for first, names in fragments),
        state=state,
        last_entry=last,
    )


def held(*entries, damaged=()):
    return ReplicaContents(ranges_of(entries), complete=True, damaged=ranges_of(damaged))


LIMBO = ReplicaContents(limbo=True)


@st.composite
def worlds(draw):
    e = draw(st.integers(1, 4))
    qw = draw(st.integers(1, e))
    qa = draw(st.integers(1, qw))
    last = draw(st.integers(-1, 15))
    second = draw(st.none() | st.integers(1, max(1, last + 1)))
    ensembles = [draw(st.permutations(NAMES))[:e] for _ in range(2)]
    fragments = [(0, ensembles[0])]
    if second is not None and second <= last + 1:
        fragments.append((second, ensembles[1]))
    metadata = ledger(fragments, last=last, e=e, qw=qw, qa=qa)
    replicas = {}
    for name in NAMES:
        entries = draw(st.sets(st.integers(0, 15)))
        damaged = draw(st.sets(st.sampled_from(sorted(entries)))) if entries else ()
        kind = draw(st.sampled_from(["plain", "plain", "silent", "limbo", "unknown"]))
        if kind == "plain":
            replicas[name] = held(*entries, damaged=damaged)
        elif kind == "limbo":
            lacks = ranges_of(draw(st.sets(st.integers(0, 15))) - entries)
            replicas[name] = ReplicaContents(
                ranges_of(entries), False, ranges_of(damaged), limbo=True, lacks=lacks
            )
        elif kind == "silent":
            replicas[name] = UNKNOWN_CONTENTS
    return metadata, replicas


def says(replica, entry):
    """What one bookie says of one entry, as a reader would take it."""
    if replica is None:
        return CopyAnswer.UNKNOWN
    if entry in set(each(replica.damaged)):
        return CopyAnswer.DAMAGED
    if entry in set(each(replica.held)):
        return CopyAnswer.HELD
    if replica.complete:
        return CopyAnswer.DENIED
    return CopyAnswer.LOST if entry in set(each(replica.lacks)) else CopyAnswer.UNKNOWN


@pytest.mark.slow
@given(worlds())
def test_the_check_finds_what_a_look_at_every_entry_finds(world):
    """An entry is lost to repair exactly if it is lost to a reader with the same answers."""
    metadata, replicas = world
    missing, unreadable, lost = set(), set(), set()
    for entry in range(metadata.last_entry + 1):
        answers = {b: says(replicas.get(b), entry) for b in metadata.bookies_of(entry)}
        missing |= {(b, entry) for b, answer in answers.items() if answer is not CopyAnswer.HELD}
        verdict = judge(list(starmap(state_of, answers.items())), metadata.ack_quorum)
        if verdict is not Verdict.DELIVER:
            unreadable.add(entry)
        if verdict.lost:
            lost.add(entry)
    found = check_ledger(metadata, metadata.last_entry, replicas)
    assert {(one.bookie, e) for one in found.gaps for e in each(one.missing)} == missing
    assert set(each(found.unreadable)) == unreadable
    assert set(each(found.lost)) == lost


@pytest.mark.slow
@given(worlds(), st.booleans(), st.data())
def test_what_counts_as_lost_while_a_person_accepts_is_what_is_judged_of_each_entry(
    world, damaged, data
):
    metadata, replicas = world
    absent = sorted(bookies_of(metadata) - replicas.keys())
    given_up = data.draw(st.sets(st.sampled_from(absent))) if absent else set()
    terms = LossTerms(frozenset(given_up), damaged=damaged)
    accepted = ranges_of(data.draw(st.sets(st.integers(0, metadata.last_entry + 1))))
    lost = set()
    for entry in range(metadata.last_entry + 1):
        copies = [
            copy_state(bookie, entry, replicas.get(bookie, UNKNOWN_CONTENTS), terms)
            for bookie in metadata.bookies_of(entry)
        ]
        if judge(copies, metadata.ack_quorum).lost:
            lost.add(entry)
    lost -= set(each(accepted))
    found = check_ledger(metadata, metadata.last_entry, replicas, accepted=accepted, terms=terms)
    assert set(each(found.lost)) == lost
    assert set(each(found.unreadable)).isdisjoint(each(accepted))
    assert all(set(each(gap.missing)).isdisjoint(each(accepted)) for gap in found.gaps)


def test_an_entry_is_lost_only_when_no_bookie_can_hold_it():
    metadata = ledger([(0, "abc")], last=0, qw=3, qa=2)
    nothing = held()
    asked = ReplicaContents(limbo=True, lacks=ranges_of([0]))
    for c in (UNKNOWN_CONTENTS, LIMBO, held(0), held(0, damaged=[0])):
        assert check_ledger(metadata, 0, {"a": nothing, "b": nothing, "c": c}).lost == ()
    for c in (nothing, asked):
        found = check_ledger(metadata, 0, {"a": nothing, "b": nothing, "c": c})
        assert found.lost == ranges_of([0])


def test_a_bookie_in_limbo_that_shows_an_entry_has_it():
    metadata = ledger([(0, "abc")], last=0, qw=3, qa=2)
    shown = ReplicaContents(ranges_of([0]), limbo=True)
    assert check_ledger(metadata, 0, {"a": shown, "b": held(0), "c": held(0)}).gaps == ()


def test_an_answer_that_is_neither_a_list_nor_no_ledger_says_nothing():
    for status in Status:
        replica = contents_of(EntriesReply(status, ((0, 5),)))
        assert replica.complete == (status in (Status.OK, Status.NO_LEDGER))
        assert bool(replica.held) == (status is Status.OK)


def test_the_last_fragment_is_closed_only_with_its_ledger():
    fragments = [(0, "abc"), (5, "abd")]
    assert [(s.first, s.last, s.closed) for s in fragments_of(ledger(fragments), 6)] == [
        (0, 4, True),
        (5, 6, False),
    ]
    assert [(s.first, s.last, s.closed) for s in fragments_of(ledger(fragments, last=8), 8)] == [
        (0, 4, True),
        (5, 8, True),
    ]


def test_an_earlier_fragment_of_an_open_ledger_is_closed_once_the_lac_passed_it():
    fragments = [(0, "abc"), (5, "abd")]
    assert [s.closed for s in fragments_of(ledger(fragments), 3)] == [False, False]
    assert [s.closed for s in fragments_of(ledger(fragments), 4)] == [True, False]


def test_a_ledger_closed_below_its_last_fragment_lacks_nothing_there():
    metadata = ledger([(0, "abc"), (5, "abd")], last=4)
    assert [(s.first, s.last) for s in fragments_of(metadata, 4)] == [(0, 4), (5, 4)]
    full = held(*range(5))
    assert check_ledger(metadata, 4, {"a": full, "b": full, "c": full}).gaps == ()


def test_above_the_lac_of_an_open_ledger_only_what_another_bookie_shows_is_missing():
    metadata = ledger([(0, "abc")], qw=3, qa=2)
    replicas = {"a": held(0, 1, 2, 4), "b": held(0, 1), "c": held(0, 1, 2)}
    assert check_ledger(metadata, 1, replicas).gaps == ()
    found = check_ledger(metadata, 1, replicas, settled=4)
    assert [(one.bookie, one.missing) for one in found.gaps] == [
        ("b", ranges_of([2, 4])),
        ("c", ranges_of([4])),
    ]
    assert (found.unreadable, found.lost) == ((), ())
