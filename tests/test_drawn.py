"""Goal: a commit draws a share of the examples, and a proof all of them.

Method: pytest runs tests of Hypothesis that count how often they are called, and a state machine.
"""

import re

import pytest

from tests.drawn import ALL, EXAMPLES_MIN, examples_of
from tests.house import ROOT

COUNTS = """
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

counts = {}

@given(st.integers())
@settings(max_examples=90, database=None)
def test_one(number):
    counts["one"] = counts.get("one", 0) + 1

@given(st.integers())
def test_two(number):
    counts["two"] = counts.get("two", 0) + 1

class Walk(RuleBasedStateMachine):
    @rule()
    def stay(self):
        pass

TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=90, stateful_step_count=2, database=None)

def test_ran():
    counts["walk"] = TestWalk.settings.max_examples
    assert counts == {counts}
"""
OPTIONS = ("-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "tests.drawn")


@pytest.mark.parametrize(
    ("asked", "drawn"), [(3, 3), (EXAMPLES_MIN, EXAMPLES_MIN), (30, 20), (100, 33), (300, 100)]
)
def test_a_commit_draws_a_third_but_not_too_few(asked, drawn):
    assert examples_of(asked) == drawn


@pytest.mark.parametrize(
    ("examples", "counts"),
    [("", {"one": 30, "two": 33, "walk": 30}), ("all", {"one": 90, "two": 100, "walk": 90})],
)
def test_functions_and_state_machines_draw_their_share(pytester, monkeypatch, examples, counts):
    monkeypatch.setenv(ALL, examples)
    pytester.makepyfile(COUNTS.replace("{counts}", repr(counts)))
    done = pytester.runpytest_inprocess(*OPTIONS)
    assert done.parseoutcomes() == {"passed": 4}


def test_the_proofs_draw_all_examples_also_in_tests_that_no_commit_runs():
    makefile = (ROOT / "Makefile").read_text()
    (recipe,) = re.findall(r"^proof:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    runs = [line for line in recipe.splitlines() if "pytest" in line]
    assert len(runs) == 2
    assert all(line.startswith(f"\t{ALL}=all ") for line in runs), recipe
