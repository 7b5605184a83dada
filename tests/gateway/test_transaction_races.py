"""Goal: whatever order verifications, batches, markers, late copies and crashes take, each
transaction ends as its coordinator decided, and readers of committed records see that.

Method: `tests.gateway.transaction_races`, seed by seed.
"""

import pytest

from tests.gateway.transaction_races import race
from tests.sim.loop import simulate

PROOF_FIRST, PROOF_SEEDS = 100_000, 1_000


@pytest.mark.parametrize("first", range(0, 40, 10))
async def test_random_races_end_as_decided(first):
    for seed in range(first, first + 10):
        await race(seed)


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_no_race_of_a_thousand_ends_otherwise():
    for seed in range(PROOF_FIRST, PROOF_FIRST + PROOF_SEEDS):
        simulate(race(seed))
    print(f"races of transactions: {PROOF_SEEDS} seeds, 0 violations")
