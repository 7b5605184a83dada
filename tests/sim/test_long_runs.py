"""Goal: the same promises as in every commit, over many more seeds than a commit has time for.

Method: the worlds of the simulator (real code on virtual time) over seeds that a commit never
runs. `PROOF_SEEDS` sets how many thousand; a failing seed is printed as elsewhere.
"""

from __future__ import annotations

import os

import pytest

from tests.sim import (
    test_bookie_crashes,
    test_ledger,
    test_shared_streams,
    test_stream_transport,
    test_streams,
)
from tests.sim.disk_bookie import DiskBookie

THOUSANDS = int(os.environ.get("PROOF_SEEDS", "2"))
FIRST = 100_000
pytestmark = [pytest.mark.proof, pytest.mark.timeout(3600)]


def test_partitions_over_thousands_of_seeds() -> None:
    for seed in range(FIRST, FIRST + THOUSANDS * 1000):
        assert test_streams.run(seed) == [], f"repeat: python -m tests.sim.test_streams {seed}"
    print(f"partitions: {THOUSANDS * 1000} seeds, 0 violations")


def test_bookies_over_thousands_of_seeds() -> None:
    kept = 0
    for seed in range(FIRST, FIRST + THOUSANDS * 1000):
        test_bookie_crashes.run_seed(seed)  # raises, naming the seed, when a promise was broken
        kept += 1
    print(f"bookies: {kept} seeds, 0 violations")
    assert kept == THOUSANDS * 1000


def test_clusters_over_further_seeds() -> None:
    first = test_shared_streams.SEEDS
    for seed in range(first, first + THOUSANDS * 20):
        found = test_shared_streams.run(seed)
        assert found == [], f"repeat: python -m tests.sim.test_shared_streams {seed}"
    print(f"clusters: {THOUSANDS * 20} seeds, 0 violations")


def test_the_stream_transport_over_thousands_of_seeds() -> None:
    for seed in range(FIRST, FIRST + THOUSANDS * 1000):
        found = test_stream_transport.run(seed)
        assert found == [], f"repeat: python -m tests.sim.test_stream_transport {seed}"
    print(f"the stream transport: {THOUSANDS * 1000} seeds, 0 violations")


@pytest.mark.parametrize("scenario", test_ledger.SCENARIOS)
def test_ledgers_over_thousands_of_seeds(scenario: type) -> None:
    for seed in range(FIRST, FIRST + THOUSANDS * 500):
        kind = None if seed % 2 else DiskBookie
        found = test_ledger.run(seed, kind, scenario)
        assert found == [], f"repeat: python -m tests.sim.test_ledger {seed}"
    print(f"{scenario.__name__}: {THOUSANDS * 500} seeds, 0 violations")
