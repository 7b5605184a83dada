"""Goal: sets of entry ids in runs equal plain sets. Method: Hypothesis against Python's `set`."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ledger.core.quorum import write_set
from ledger.repair.entry_ranges import (
    as_text,
    contains,
    count,
    difference,
    each,
    intersection,
    ranges_of,
    share,
    union,
)

IDS = st.sets(st.integers(0, 40))


@given(IDS)
def test_runs_hold_the_ids_they_were_made_of_disjoint_and_rising(ids):
    runs = ranges_of(ids)
    assert list(each(runs)) == sorted(ids)
    assert count(runs) == len(ids)
    assert all(a <= b for a, b in runs)
    assert all(before[1] + 1 < after[0] for before, after in pairwise(runs))


@given(IDS, IDS, st.integers(0, 41))
def test_union_difference_and_intersection_are_those_of_sets(one, other, entry):
    a, b = ranges_of(one), ranges_of(other)
    assert union(a, b) == ranges_of(one | other)
    assert difference(a, b) == ranges_of(one - other)
    assert intersection(a, b) == ranges_of(one & other)
    assert contains(a, entry) == (entry in one)


@given(st.integers(0, 30), st.integers(-1, 30), st.integers(1, 6), st.data())
def test_an_index_should_hold_the_entries_whose_write_set_names_it(first, more, size, data):
    quorum = data.draw(st.integers(1, size))
    index = data.draw(st.integers(0, size - 1))
    ids = [e for e in range(first, first + more) if index in write_set(e, size, quorum)]
    assert share(index, first, first + more - 1, size, quorum) == ranges_of(ids)


def test_runs_are_shown_as_ranges_and_many_are_cut_short():
    assert as_text(ranges_of([0, 1, 2, 5, 7, 8])) == "0-2, 5, 7-8"
    assert as_text(ranges_of(range(0, 20, 2)), 2) == "0, 2 and 8 more ranges"
