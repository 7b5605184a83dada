"""Goal: no company of faults, however they meet, loses, moves or doubles an acknowledged entry.

Method: `tests.cluster.swarm` for a few seconds with one seed; under `make proof` with several and
for minutes each. `PROOF_SECONDS` sets how many; a failure names its seed.
"""

from __future__ import annotations

import json
import os

import pytest

from tests.cluster import swarm

pytestmark = pytest.mark.alone

SHORT_S = 10.0
LONG_S = float(os.environ.get("PROOF_SECONDS", "180"))
SEEDS = (1, 2, 3)


def run(directory, seed, seconds):
    print(f"repeat: python -m tests.cluster.swarm --seed {seed} --seconds {seconds:.0f}")
    result = swarm.run(directory, seed, seconds, 5, print)
    print(json.dumps(result))
    assert result["said"] == []
    assert result["violations"] == 0
    return result


def test_a_short_swarm_of_faults_costs_nothing_that_was_acknowledged(tmp_path):
    assert run(tmp_path, 4, SHORT_S)["faults"]


@pytest.mark.proof
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", SEEDS)
def test_minutes_of_all_faults_cost_nothing_that_was_acknowledged(tmp_path, seed):
    assert run(tmp_path, seed, LONG_S)["acknowledged"] > 0
