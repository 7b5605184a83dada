"""Goal: no subset of faults makes the ledger tier break an invariant, and a mistake would show.

Method: seeds of `swarm` and of its `families` on virtual time with the real client, repair and (in
some) bookies, every invariant checked at every event; then each known mistake planted, which must
be found in as many seeds as a commit has time for. `make proof-ledger` runs many more of both. A
failure is repeated by `python -m tests.sim.proof_ledger --replay SEED --trace`.
"""

import itertools
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.sim import first_seeds, mutations, proof_ledger
from tests.sim.coverage import PATHS
from tests.sim.disk import ACCIDENTS, MISDIRECTED_WRITE
from tests.sim.families import FAMILIES
from tests.sim.loop import simulate
from tests.sim.swarm import Swarm, story
from tests.sim.swarm_faults import (
    KINDS,
    LOSSES,
    REAL_KINDS,
    REAL_LOSSES,
    REAL_SURPRISES,
    REFUSALS,
    SURPRISES,
)

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 1_000
AT_ONCE = 100
# A repair replaced a bookie in one step, and asked for a spare in its place in the next one.
ONCE_WRONG = [7032]
SEEDS_OF_COMMITS = 200  # the others run with the proofs
MUTATION_SEEDS_MAX = 2_000
COVERAGE_SEEDS = 60  # of each family
STORIES = "from tests.sim.swarm import story; print([story(seed) for seed in range(20)])"


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.proof] if first >= SEEDS_OF_COMMITS else [])
        for first in range(0, SEEDS, AT_ONCE)
    ],
)
def test_no_subset_of_faults_breaks_an_invariant(first):
    for seed in range(first, first + AT_ONCE):
        assert proof_ledger.one_seed(seed) == [], f"seed {seed}"


@pytest.mark.parametrize("seed", ONCE_WRONG)
def test_a_seed_that_found_a_mistake_finds_none(seed):
    assert proof_ledger.one_seed(seed) == []


def test_every_fault_and_every_path_comes_up():
    kinds = KINDS + LOSSES + REAL_KINDS + REAL_LOSSES + SURPRISES + REAL_SURPRISES + REFUSALS
    missing = {*kinds, *PATHS, *ACCIDENTS, MISDIRECTED_WRITE}
    for seed, kind in itertools.product(range(COVERAGE_SEEDS), [Swarm, *FAMILIES]):
        world = kind(seed)
        simulate(world.run())
        missing -= world.faults.seen
        missing -= world.checks.coverage.seen.keys()
        if not missing:
            break
    assert not missing


def _case(mutation):
    """Mutations of the simulated disk itself take many times as long, and run with the proofs."""
    marks = [pytest.mark.proof] if "simulated disk" in mutation.name else []
    return pytest.param(mutation, id=f"{mutation.trap} {mutation.name}", marks=marks)


@pytest.mark.parametrize("mutation", [*map(_case, mutations.MUTATIONS)])
def test_a_planted_mistake_is_found(mutation):
    name = f"{mutation.trap} {mutation.name}"
    assert first_seeds.found("swarm", name, partial(mutations.finds, mutation), MUTATION_SEEDS_MAX)


@pytest.mark.parametrize("kind", [Swarm, *FAMILIES])
def test_one_seed_gives_one_history(kind):
    for seed in range(4):
        assert story(seed, kind) == story(seed, kind)


def test_one_seed_gives_one_history_in_every_process():
    told = {
        subprocess.run(
            [sys.executable, "-c", STORIES],
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in (1, 2, 3)
    }
    assert len(told) == 1
