"""Goal: a slow bookie is left, a healthy one never, and a write set keeps a bookie to read from.

Method: `slow_families`, where an oracle knows the slow bookies. Each mistake planted by
`slow_mistakes` is found, so the oracle would notice it.
"""

import pytest

from tests.sim.loop import simulate
from tests.sim.mutations import hunt
from tests.sim.seeds import first_at_commit
from tests.sim.slow_families import Slowness
from tests.sim.slow_mistakes import MUTATIONS
from tests.sim.swarm import order_of

SEEDS = 200
AT_ONCE = 50


@pytest.mark.slow
@pytest.mark.parametrize("first", first_at_commit(range(0, SEEDS, AT_ONCE), 1))
def test_slow_bookies_are_left_and_no_others(first):
    """Seed 002 L45, drawn."""
    seeds = range(first, first + AT_ONCE)
    found = {seed: simulate(Slowness(seed).run(), order_of(seed)) for seed in seeds}
    assert {seed: what for seed, what in found.items() if what} == {}


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_planted_mistake_is_found(mutation):
    assert hunt(mutation, SEEDS).how
