"""Goal: whatever order verifications, batches, markers, late copies and crashes take, each
transaction ends as its coordinator decided, and readers of committed records see that.

Method: `tests.gateway.transaction_races`, seed by seed.
"""

import pytest

from tests.gateway.transaction_races import race


@pytest.mark.parametrize("first", range(0, 40, 10))
async def test_random_races_end_as_decided(first):
    for seed in range(first, first + 10):
        await race(seed)
