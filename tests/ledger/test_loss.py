"""When an acknowledged entry counts as lost: seed 002, rows L16 to L22."""

from __future__ import annotations

import itertools
import pickle
import random

import pytest

from ledger.core.loss import (
    AuthoritativeStatus,
    CopyAnswer,
    CopyState,
    EntryLost,
    Verdict,
    judge,
    state_of,
    waited_for,
)
from ledger.ids import BookieId, EntryId, LedgerId

FULL, UNDER, EMPTY, AWAY = AuthoritativeStatus
ANSWERS_WITHOUT_COPY = [each for each in CopyAnswer if each is not CopyAnswer.HELD]
STATES = list(itertools.product(CopyAnswer, AuthoritativeStatus))
WITHOUT_COPY = list(itertools.product(ANSWERS_WITHOUT_COPY, AuthoritativeStatus))
DRAWN = 5_000


def copies_of(*states):
    return [CopyState(BookieId(f"b{n}"), *state) for n, state in enumerate(states)]


def answered(*answers):
    return [state_of(BookieId(f"b{n}"), answer) for n, answer in enumerate(answers)]


def may_hold(copy):
    """Whether some future shows this copy."""
    if copy.answer in (CopyAnswer.DENIED, CopyAnswer.LOST, CopyAnswer.EMPTY):
        return False
    return copy.answer is CopyAnswer.HELD or copy.status in (FULL, AWAY)


def by_all_acknowledgements(copies, ack_quorum):
    """Judge by every set of bookies that may once have acknowledged the entry.

    The evidence is complete if each such set has a bookie that lost nothing and says no: then no
    acknowledgement is left that the loss of data alone could explain.
    """
    if any(copy.answer is CopyAnswer.HELD for copy in copies):
        return Verdict.DELIVER
    members = [c for c in copies if CopyAnswer.EMPTY is not c.answer and c.status is not EMPTY]
    sure = {
        copy.bookie
        for copy in members
        if copy.answer is CopyAnswer.DENIED and copy.status in (FULL, AWAY)
    }
    acknowledged = itertools.combinations([copy.bookie for copy in members], ack_quorum)
    enough = all(sure.intersection(some) for some in acknowledged)
    if any(map(may_hold, copies)):
        return Verdict.INCOMPLETE if enough else Verdict.NONE
    return Verdict.COMPLETE if enough else Verdict.NON_AUTHORITATIVE


@pytest.mark.parametrize("write_quorum", [1, 2, 3])
def test_every_table_of_answers_and_statuses_is_judged_as_all_acknowledgements_would(write_quorum):
    """Rows seed 002 L18 to L22: all answers and statuses of a write set, for each ack quorum."""
    for states in itertools.combinations_with_replacement(STATES, write_quorum):
        copies = copies_of(*states)
        for ack_quorum in range(1, write_quorum + 1):
            assert judge(copies, ack_quorum) is by_all_acknowledgements(copies, ack_quorum), states


@pytest.mark.slow
@pytest.mark.parametrize("write_quorum", [4, 5])
def test_every_table_without_a_copy_of_larger_write_sets_is_judged_alike(write_quorum):
    """Rows seed 002 L18 to L22, for all shapes up to E = 5."""
    for states in itertools.combinations_with_replacement(WITHOUT_COPY, write_quorum):
        copies = copies_of(*states)
        for ack_quorum in range(1, write_quorum + 1):
            assert judge(copies, ack_quorum) is by_all_acknowledgements(copies, ack_quorum), states


@pytest.mark.parametrize("write_quorum", [4, 5])
def test_drawn_tables_of_larger_write_sets_are_judged_alike(write_quorum):
    draw = random.Random(write_quorum)
    for _ in range(DRAWN):
        copies = copies_of(*draw.choices(STATES, k=write_quorum))
        ack_quorum = draw.randint(1, write_quorum)
        assert judge(copies, ack_quorum) is by_all_acknowledgements(copies, ack_quorum), copies


@pytest.mark.parametrize(("size", "ack_quorum"), [(2, 2), (3, 2), (3, 3), (5, 3)])
def test_enough_denials_prove_nothing_while_one_bookie_is_silent(size, ack_quorum):
    """Rows seed 002 L17, L21: the silent bookie may hold the only copy."""
    copies = answered(*[CopyAnswer.DENIED] * (size - 1), CopyAnswer.UNKNOWN)
    assert judge(copies, ack_quorum) is Verdict.INCOMPLETE
    assert waited_for(copies) == (BookieId(f"b{size - 1}"),)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_once_all_have_denied_it_the_entry_is_lost(size):
    """Row seed 002 L22: nobody is left to wait for."""
    for ack_quorum in range(1, size + 1):
        assert judge(answered(*[CopyAnswer.DENIED] * size), ack_quorum) is Verdict.COMPLETE


def test_a_sound_copy_outweighs_every_denial():
    for rest in itertools.product(ANSWERS_WITHOUT_COPY, repeat=2):
        assert judge(answered(*rest, CopyAnswer.HELD), 2) is Verdict.DELIVER


def test_a_damaged_copy_is_no_denial():
    """A wrong digest proves that the entry was there."""
    copies = answered(CopyAnswer.DENIED, CopyAnswer.DENIED, CopyAnswer.DAMAGED)
    assert judge(copies, 2) is Verdict.INCOMPLETE


def test_bookies_that_lost_entries_let_readers_pass_without_complete_evidence():
    """Row seed 002 L19: they hold nothing, but their denials are worth nothing either."""
    assert judge(answered(*[CopyAnswer.LOST] * 3), 2) is Verdict.NON_AUTHORITATIVE
    two = answered(CopyAnswer.DENIED, CopyAnswer.DENIED, CopyAnswer.LOST)
    assert judge(two, 2) is Verdict.COMPLETE


def test_a_bookie_that_is_away_is_never_taken_for_one_that_lost_entries():
    """Rows seed 002 L19, L21: only an answer or an operator can say that entries were lost."""
    assert state_of(BookieId("b"), CopyAnswer.UNKNOWN).status is AWAY
    given_up = CopyState(BookieId("b"), CopyAnswer.UNKNOWN, UNDER)
    assert judge([given_up, *answered(CopyAnswer.DENIED)], 1) is Verdict.NON_AUTHORITATIVE


def test_the_evidence_outlives_the_way_to_another_process():
    copies = tuple(answered(CopyAnswer.DENIED, CopyAnswer.LOST))
    sent = pickle.loads(pickle.dumps(EntryLost("lost", LedgerId(7), EntryId(3), copies)))
    assert (str(sent), sent.ledger, sent.entry, sent.copies) == ("lost", 7, 3, copies)


def test_a_drained_bookie_does_not_count_as_a_member():
    """Row seed 002 L20: a drained bookie is not asked, and less is needed of the others."""
    copies = answered(CopyAnswer.EMPTY, CopyAnswer.DENIED, CopyAnswer.LOST)
    assert judge(copies, 2) is Verdict.COMPLETE
    assert judge(answered(*[CopyAnswer.EMPTY] * 3), 2) is Verdict.COMPLETE
