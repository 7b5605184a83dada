"""Goal: whatever becomes of the copies of its entries, all readers of a stream see one log: each
position once and in order, and a loss only where no copy can exist.

Method: `proof_reading`, where an oracle knows every copy, and every state of small worlds. Each
planted mistake is found, so the oracle would notice it.
"""

from functools import partial

import pytest

from tests.sim import first_seeds, proof_reading
from tests.sim.exhaustive import reading
from tests.sim.exhaustive.search import search
from tests.sim.mutations import finds
from tests.sim.seeds import first_at_commit

SEEDS = 500
AT_ONCE = 50
MUTATION_SEEDS_MAX = 500


@pytest.mark.slow
@pytest.mark.parametrize("first", first_at_commit(range(0, SEEDS, AT_ONCE), 1))
def test_all_readers_see_one_log_whatever_becomes_of_its_copies(first):
    """Rows seed 002 L6, L7, L16 to L22, L24, L26, L44 and D47, drawn."""
    for seed in range(first, first + AT_ONCE):
        assert proof_reading.one_seed(seed) == [], f"seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("mutation", proof_reading.MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_planted_mistake_is_found(mutation):
    found = partial(finds, mutation)
    assert first_seeds.found("reading", mutation.name, found, MUTATION_SEEDS_MAX)


@pytest.mark.slow
@pytest.mark.parametrize("bounds", reading.QUICK, ids=reading.say)
def test_no_order_of_steps_breaks_an_invariant_of_a_reader(bounds):
    found = search(reading.World(bounds))
    assert found.complete, found.violation


@pytest.mark.slow
@pytest.mark.parametrize("name", reading.MISTAKES)
def test_a_mistake_of_a_reader_is_reached(name):
    assert search(reading.MISTAKES[name]()).violation


def test_a_run_writes_its_own_parts_of_the_page_only():
    proof = proof_reading.Proof(0, ["mistakes"])
    page = "# Proof\n\n## The ledger tier\n\nkept\n\n## Later\n\nkept too\n"
    once = proof_reading.written(page, proof)
    assert proof_reading.written(once, proof) == once
    assert once.startswith(page.rstrip())
    proof.parts = ["seeds"]
    both = proof_reading.written(once.replace("## Later", "## Still later"), proof)
    order = [proof_reading.HEADING, *(proof_reading.PARTS[part] for part in ("seeds", "mistakes"))]
    assert [both.count(heading + "\n") for heading in order] == [1, 1, 1]
    assert "kept too" in both
