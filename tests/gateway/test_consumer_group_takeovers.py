"""Goal: over kills and takeovers no partition is read by two members, no epoch falls, and no
acknowledged commit is lost; each of five planted mistakes is found.

Method: histories of three members and a coordinator that is killed, on virtual time, by seed.
"""

import pytest

from tests.gateway.consumer_takeovers import MISTAKES, history, planted
from tests.sim.loop import simulate

SEEDS = 10
HUNTED = 40


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


def found_by(mistake):
    """Return the first seed that finds a mistake, or None."""
    with planted(mistake):
        for seed in range(HUNTED):
            try:
                simulate(history(seed, 20))
            except (AssertionError, BaseExceptionGroup):
                return seed
    return None


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found(mistake):
    assert found_by(mistake) is not None
