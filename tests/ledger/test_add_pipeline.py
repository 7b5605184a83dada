"""Goal: entries are confirmed in order at Qa, and a failure fails exactly what it must, in order.

Method: a dumb twin keeps every answer and recounts from zero after each one; Hypothesis draws the
shapes and the order of answers. Then one fact per test.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.add_pipeline import AddPipeline
from ledger.errors import AddFailed, Fenced

SHAPES = [(e, qw, qa) for e in range(1, 5) for qw in range(1, e + 1) for qa in range(1, qw + 1)]


def pipeline(e=3, qw=3, qa=2, entries_max=100, bytes_max=10_000):
    return AddPipeline(
        ensemble_size=e,
        write_quorum=qw,
        ack_quorum=qa,
        entries_max=entries_max,
        bytes_max=bytes_max,
    )


class Twin:
    """What is confirmed and failed, recounted from all answers at once."""

    def __init__(self, qw, qa, count):
        self.qw, self.qa, self.count = qw, qa, count
        self.acks = {entry: set() for entry in range(count)}
        self.noes = {entry: set() for entry in range(count)}
        self.failed_from = count

    def on_answer(self, index, entry, ok):
        (self.acks if ok else self.noes)[entry].add(index)
        out_of_reach = len(self.noes[entry]) > self.qw - self.qa
        if out_of_reach and entry >= self.confirmed():
            self.failed_from = min(self.failed_from, entry)

    def confirmed(self):
        """How many entries from 0 on are confirmed."""
        prefix = 0
        while prefix < self.failed_from and len(self.acks[prefix]) >= self.qa:
            prefix += 1
        return prefix

    def failed(self):
        """How many entries after those have been told that they failed."""
        return self.count - self.failed_from if self.confirmed() == self.failed_from else 0


@pytest.mark.slow
@given(st.sampled_from(SHAPES), st.integers(1, 12), st.data())
def test_confirmed_and_failed_agree_with_a_recount_after_every_answer(shape, count, data):
    e, qw, qa = shape
    adds, twin = pipeline(e, qw, qa), Twin(qw, qa, count)
    sends = [(i, entry) for entry in range(count) for i in adds.write_set(entry)]
    for entry in range(count):
        assert adds.add(10, entry) == entry
    told, failed = [], []
    draw = data.draw(st.randoms(use_true_random=False))
    draw.shuffle(sends)
    for index, entry in sends:
        ok = draw.random() < 0.75
        if ok:
            told += adds.on_added(index, entry)
        else:
            adds.on_failed(index, entry, AddFailed(str(entry)))
        failed += adds.take_failed()
        twin.on_answer(index, entry, ok)
        assert told == list(range(twin.confirmed()))
        assert failed == list(range(twin.confirmed(), twin.confirmed() + twin.failed()))
        assert adds.lac == len(told) - 1
        assert (adds.error is not None) == (twin.failed_from < count)


@given(st.sampled_from(SHAPES), st.data())
def test_an_entry_is_confirmed_by_any_qa_of_its_write_set(shape, data):
    e, qw, qa = shape
    adds = pipeline(e, qw, qa)
    adds.add(1, "first")
    acking = data.draw(st.permutations(adds.write_set(0)))[:qa]
    assert [adds.on_added(index, 0) for index in acking] == [[]] * (qa - 1) + [["first"]]


def test_an_entry_waits_for_the_entry_before_it():
    adds = pipeline(qa=2)
    adds.add(1, "a")
    adds.add(1, "b")
    assert adds.on_added(0, 1) == adds.on_added(1, 1) == adds.on_added(0, 0) == []
    assert adds.on_added(2, 0) == ["a", "b"]


def test_late_and_repeated_news_changes_nothing():
    adds = pipeline(qa=2)
    adds.add(1, "a")
    adds.add(1, "b")
    assert adds.on_added(0, 0) == adds.on_added(0, 0) == []
    assert adds.on_added(1, 0) == ["a"]
    assert adds.on_added(2, 0) == adds.on_added(2, 7) == []
    adds.on_failed(2, 0, AddFailed())
    assert adds.error is None


def test_one_bookie_less_is_no_failure_while_qa_can_be_reached():
    adds = pipeline()
    adds.add(1, "a")
    adds.on_failed(1, 0, AddFailed())
    assert adds.error is None
    adds.on_added(0, 0)
    assert adds.on_added(2, 0) == ["a"]


def test_entries_before_the_failed_one_may_still_be_confirmed():
    adds = pipeline(1, 1, 1)
    for item in "abc":
        adds.add(1, item)
    adds.on_failed(0, 1, AddFailed("b"))
    assert adds.take_failed() == []
    assert adds.on_added(0, 2) == []
    assert adds.on_added(0, 0) == ["a"]
    assert adds.take_failed() == ["b", "c"]
    assert (adds.lac, adds.lap, adds.empty) == (0, 2, True)


def test_the_error_told_is_the_first_one():
    adds = pipeline(1, 1, 1)
    adds.add(1, "a")
    adds.add(1, "b")
    first = AddFailed("b")
    adds.on_failed(0, 1, first)
    adds.on_failed(0, 0, AddFailed("a"))
    assert adds.error is first
    assert adds.take_failed() == ["a", "b"]


def test_a_fence_fails_everything_at_once_even_what_others_may_still_acknowledge():
    adds = pipeline()
    adds.add(1, "a")
    adds.add(1, "b")
    adds.on_added(0, 0)
    adds.fail(Fenced())
    assert adds.take_failed() == ["a", "b"]
    assert adds.on_added(1, 0) == []
    assert adds.lac == -1


def test_nothing_is_confirmed_between_a_fence_and_telling_of_it():
    adds = pipeline()
    adds.add(1, "a")
    adds.on_added(0, 0)
    adds.fail(Fenced())
    assert adds.on_added(1, 0) == []
    assert (adds.take_failed(), adds.lac) == (["a"], -1)


def test_full_counts_entries_and_bytes_but_lets_one_entry_through():
    by_entries, by_bytes = pipeline(1, 1, 1, entries_max=2), pipeline(1, 1, 1, bytes_max=10)
    assert not by_bytes.full
    by_bytes.add(11, "large")
    by_entries.add(0, "a")
    assert by_bytes.full and not by_entries.full
    by_entries.add(0, "b")
    assert by_entries.full
    by_entries.on_added(0, 0)
    by_bytes.on_added(0, 0)
    assert not by_entries.full and not by_bytes.full


def test_confirmed_bytes_make_room():
    adds = pipeline(1, 1, 1, bytes_max=10)
    for entry in range(5):
        assert not adds.full
        adds.add(9, entry)
        assert not adds.full
        adds.on_added(0, entry)
    adds.add(9, "a")
    adds.add(1, "b")
    assert adds.full


def test_lengths_add_up_to_the_last_pushed_and_to_the_last_confirmed():
    adds = pipeline(1, 1, 1)
    for size in (5, 7, 11):
        adds.add(size, size)
    adds.on_added(0, 0)
    assert (adds.length, adds.lac_length) == (23, 5)


def test_what_a_replaced_bookie_acknowledged_is_void_for_what_is_pending():
    adds = pipeline()
    adds.add(1, "a")
    adds.on_added(0, 0)
    adds.forget(0)
    assert adds.on_added(1, 0) == []
    assert adds.on_added(0, 0) == ["a"]


@pytest.mark.parametrize("wrong", [(3, 3, 0), (3, 2, 3), (2, 3, 1)])
def test_other_shapes_are_refused(wrong):
    with pytest.raises(AssertionError):
        pipeline(*wrong)


def test_nothing_is_accepted_after_a_failure():
    adds = pipeline(1, 1, 1)
    adds.add(1, "a")
    adds.on_failed(0, 0, AddFailed())
    with pytest.raises(AssertionError):
        adds.add(1, "b")
