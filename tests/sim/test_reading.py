"""Goal: whatever became of the copies of an entry, a reader makes of it what all answers prove.

Method: `reading_families`, where an oracle knows every copy. Each mistake planted by
`reading_mistakes` is found, so the oracle would notice it.
"""

import pytest

from tests.sim.loop import simulate
from tests.sim.mutations import hunt
from tests.sim.reading_families import Copies
from tests.sim.reading_mistakes import MUTATIONS
from tests.sim.swarm import order_of

SEEDS = 500


@pytest.mark.slow
def test_every_entry_is_delivered_lost_or_waited_for_as_its_copies_prove():
    """Rows seed 002 L17 to L22 and L24, drawn."""
    found = {seed: simulate(Copies(seed).run(), order_of(seed)) for seed in range(SEEDS)}
    assert {seed: what for seed, what in found.items() if what} == {}


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_planted_mistake_is_found(mutation):
    assert hunt(mutation, SEEDS).how
