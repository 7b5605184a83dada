"""Goal: over kills and takeovers no partition is read by two members, no epoch falls, and no
acknowledged commit is lost; each of seven planted mistakes is found.

Method: histories of three members and a coordinator that is killed, on virtual time, by seed.
"""

import pytest

from tests.gateway.consumer_takeovers import MISTAKES, history, planted
from tests.sim.first_seeds import found
from tests.sim.loop import simulate

SEEDS = 10
HUNTED = 1_500


@pytest.mark.parametrize(
    "seeds",
    [
        range(SEEDS),
        pytest.param(
            range(SEEDS, 10_000), marks=[pytest.mark.proof, pytest.mark.timeout(3 * 3600)]
        ),
    ],
    ids=["commit", "proof"],
)
def test_histories_keep_what_they_must(seeds):
    kills = sum(simulate(history(seed)).kills for seed in seeds)
    assert kills > len(seeds)


def finds(seed):
    """Return whether the history of a seed shows a mistake."""
    try:
        simulate(history(seed, 20))
    except (AssertionError, BaseExceptionGroup):
        return True
    return False


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found(mistake):
    with planted(mistake):
        assert found("takeovers", mistake, finds, HUNTED)
