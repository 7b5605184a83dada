"""Goal: write sets and coverage are right for every E >= Qw >= Qa.

Method: the tables of the protocol's text, and Hypothesis against the rule counted out slowly.
"""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.quorum import Coverage, coverage_size, write_set, write_sets

SHAPES = [(e, qw, qa) for e in range(1, 6) for qw in range(1, e + 1) for qa in range(1, qw + 1)]
shapes = st.sampled_from(SHAPES)


def test_the_write_quorums_of_the_published_example():
    bookies = ["B1", "B2", "B3", "B4"]
    shown = [[bookies[i] for i in write_set(entry, 4, 3)] for entry in range(6)]
    assert shown == [
        ["B1", "B2", "B3"],
        ["B2", "B3", "B4"],
        ["B3", "B4", "B1"],
        ["B4", "B1", "B2"],
        ["B1", "B2", "B3"],
        ["B2", "B3", "B4"],
    ]


@given(shapes, st.integers(0, 2**63 - 1))
def test_a_write_set_is_qw_bookies_from_the_entry_modulo_e_on(shape, entry):
    e, qw, _ = shape
    expected = [(entry + i) % e for i in range(qw)]
    assert list(write_set(entry, e, qw)) == expected


@pytest.mark.parametrize("shape", SHAPES)
def test_striping_disappears_exactly_when_every_bookie_is_in_every_write_set(shape):
    e, qw, _ = shape
    distinct = {frozenset(one) for one in write_sets(e, qw)}
    assert len(distinct) == (1 if qw == e else e)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_covering_set_leaves_no_qa_bookies_unheard(shape):
    """Dumb twin: try every set of answers and every Qa bookies that might have acknowledged."""
    e, qw, qa = shape
    for size in range(e + 1):
        for heard in combinations(range(e), size):
            coverage = Coverage(write_sets(e, qw), qa)
            for index in heard:
                coverage.on_known(index)
            hidden = any(
                set(ackers).isdisjoint(heard)
                for one in write_sets(e, qw)
                for ackers in combinations(one, qa)
            )
            assert coverage.reached == (not hidden)


@given(shapes, st.data())
def test_coverage_is_lost_when_even_all_others_would_not_do(shape, data):
    e, qw, qa = shape
    failed = data.draw(st.sets(st.integers(0, e - 1)))
    coverage, best = Coverage(write_sets(e, qw), qa), Coverage(write_sets(e, qw), qa)
    for index in range(e):
        if index in failed:
            coverage.on_unknown(index)
        else:
            best.on_known(index)
    assert coverage.lost == (not best.reached)


def test_an_answer_after_a_failure_counts():
    coverage = Coverage(write_sets(1, 1), 1)
    coverage.on_unknown(0)
    assert coverage.lost
    coverage.on_known(0)
    coverage.on_unknown(0)
    assert coverage.reached and not coverage.lost


@pytest.mark.parametrize(
    ("qw", "qa", "size"), [(1, 1, 1), (3, 2, 2), (3, 3, 1), (3, 1, 3), (5, 3, 3)]
)
def test_the_coverage_of_common_shapes(qw, qa, size):
    assert coverage_size(qw, qa) == size


@pytest.mark.parametrize(("e", "qw"), [(1, 2), (3, 4), (3, 0)])
def test_other_shapes_are_refused(e, qw):
    with pytest.raises(AssertionError):
        write_sets(e, qw)
