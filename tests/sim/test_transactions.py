"""Goal: a transaction is on all its partitions or on none, whatever fails, is late or takes over.

Method: the cores of coordinators and partitions with a lossy network, by seed, and every state of
small worlds. Checkers compare what read_committed readers see with what the log decided. Each
planted mistake is found, so the checkers would notice it.
"""

from functools import partial

import pytest

from tests.sim import first_seeds
from tests.sim.exhaustive import transactions
from tests.sim.exhaustive.search import search
from tests.sim.transaction_mistakes import MISTAKES
from tests.sim.transaction_world import run_seed

SEEDS = 100
AT_ONCE = 50
MISTAKE_SEEDS_MAX = 2_000
PROOF_FIRST, PROOF_SEEDS = 100_000, 20_000


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_no_seed_tears_a_transaction_or_shows_an_undecided_one(first):
    for seed in range(first, first + AT_ONCE):
        assert run_seed(seed) == "", f"seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_planted_mistake_is_found(mistake):
    found = partial(run_seed, **mistake.changes)
    assert first_seeds.found("transactions", mistake.name, found, MISTAKE_SEEDS_MAX)


@pytest.mark.proof
@pytest.mark.parametrize("name", transactions.QUICK)
def test_no_order_of_events_breaks_a_small_world(name):
    found = search(transactions.TransactionSearch(transactions.QUICK[name]))
    assert found.complete, found.violation


@pytest.mark.proof
@pytest.mark.parametrize("name", transactions.MISTAKEN)
def test_a_mistake_is_reached_in_a_small_world(name):
    assert search(transactions.TransactionSearch(transactions.MISTAKEN[name])).violation


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_transactions_over_twenty_thousand_seeds():
    for seed in range(PROOF_FIRST, PROOF_FIRST + PROOF_SEEDS):
        assert run_seed(seed) == "", f"seed {seed}"
    print(f"transactions: {PROOF_SEEDS} seeds, 0 violations")


@pytest.mark.proof
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", transactions.FULL)
def test_no_order_of_events_breaks_a_larger_world(name):
    found = search(transactions.TransactionSearch(transactions.FULL[name]))
    assert found.complete, found.violation
    print(f"transactions, {name}: {found.states} states, 0 violations")
