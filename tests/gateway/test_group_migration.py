"""Goal: six members are restarted one by one, to the other protocol and back, and nothing is lost.

No partition is read by two members at once, and none is unread for longer than the session; epochs
never fall; acknowledged offsets stay. Each planted mistake is found.

Method: histories of clients of both protocols, eager and cooperative ones, with a coordinator over
simulated bookies, on virtual time, by seed. `Books` checks every step.
"""

import pytest

from tests.gateway.migration_members import SESSION_S
from tests.gateway.migration_run import MISTAKES, planted, there_and_back
from tests.sim.loop import simulate

SEEDS = 2
HUNTED = 12
LONGEST_S = 60  # of killed members: their sessions begin anew with each coordinator


@pytest.mark.parametrize(
    "seeds",
    [range(SEEDS), pytest.param(range(SEEDS, 60), marks=pytest.mark.proof)],
    ids=["commit", "proof"],
)
def test_members_that_leave_one_by_one_hand_everything_over(seeds):
    longest = [simulate(there_and_back(seed)).books.longest_s for seed in seeds]
    assert max(longest) <= SESSION_S


@pytest.mark.parametrize(
    "seeds",
    [range(SEEDS), pytest.param(range(SEEDS, 200), marks=pytest.mark.proof)],
    ids=["commit", "proof"],
)
def test_a_coordinator_may_be_killed_meanwhile(seeds):
    runs = [simulate(there_and_back(seed, kills=True)) for seed in seeds]
    assert max(run.books.longest_s for run in runs) <= LONGEST_S
    assert all(run.killed for run in runs)


@pytest.mark.parametrize(
    "seeds",
    [range(SEEDS), pytest.param(range(SEEDS, 200), marks=pytest.mark.proof)],
    ids=["commit", "proof"],
)
def test_members_that_are_killed_are_replaced_once_their_session_ends(seeds):
    runs = [simulate(there_and_back(seed, kills=True, crashes=True)) for seed in seeds]
    assert max(run.books.longest_s for run in runs) <= LONGEST_S


def found_by(mistake):
    """Return the first seed that finds a mistake, or None."""
    with planted(mistake):
        for seed in range(HUNTED):
            try:
                run = simulate(there_and_back(seed))
            except (AssertionError, BaseExceptionGroup):
                return seed
            if run.books.longest_s > SESSION_S:
                return seed
    return None


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found(mistake):
    assert found_by(mistake) is not None
