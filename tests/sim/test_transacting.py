"""Goal: in a whole cluster a transaction is on all its partitions and groups or on none, and ends.

Method: three real gateways (handlers, coordinators, partitions, groups) on virtual time, and
clients of both protocols; an oracle knows every decision (`tests.sim.transacting_oracle`). Known
mistakes are planted, and seeds must find each. `tests.sim.proof_transactions` runs the seeds, and
repeats one.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.core.transaction_states import TransactionMetadata, TransactionState
from tests.sim.loop import simulate
from tests.sim.transacting_mistakes import MISTAKES
from tests.sim.transacting_oracle import COMMIT, Cell, Marked, Oracle
from tests.sim.transacting_world import TransactingWorld

ROOT = Path(__file__).parents[2]
QUICK_SEEDS = 5
PROOF_FIRST, PROOF_SEEDS = 100_000, 2_000
MISTAKE_SEEDS = 2_000


def proof(*words):
    """Run the program. Its output is printed, and must end with success."""
    program = [sys.executable, "-m", "tests.sim.proof_transactions", *map(str, words)]
    done = subprocess.run(
        program,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr[-2_000:])
    assert done.returncode == 0
    return done.stdout


@pytest.mark.slow
def test_no_seed_of_a_cluster_tears_a_transaction():
    assert '"violations": 0' in proof("--seeds", QUICK_SEEDS)


@pytest.mark.proof
@pytest.mark.timeout(4 * 3600)
def test_clusters_with_transactions_over_two_thousand_seeds():
    workers = os.cpu_count() or 1
    proof("--seeds", PROOF_SEEDS, "--first", PROOF_FIRST, "--workers", workers)


@pytest.mark.proof
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_planted_mistake_of_a_cluster_is_found(mistake):
    proof("--mistakes", mistake.name, "--seeds", MISTAKE_SEEDS)


def test_what_is_reported_after_the_end_is_no_error_of_the_story():
    world = TransactingWorld(0)
    found = simulate(world.run())
    world.report("handler", "a task that began while the loop was being closed was destroyed")
    assert found == []


# -- the oracle notices each error ----------------------------------------------------------------


def prepared(producer_id, epoch, *, commit=True):
    state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
    return TransactionMetadata(
        transactional_id="pay",
        producer_id=producer_id,
        epoch=epoch,
        timeout_ms=1_000,
        state=state,
        updated_ms=0,
    )


def oracle(*, commit=True, decided=True):
    """Return an oracle with one transaction of producer 1, and that transaction."""
    found = Oracle()
    one = found.begin("pay", 1, 0)
    one.records[0, 0] = True
    one.asked = COMMIT if commit else "abort"
    if decided:
        found.on_durable(prepared(1, 0, commit=commit))
    return found, one


def names(found):
    return [each.split(":")[0] for each in found.violations]


def test_a_record_of_an_aborted_or_undecided_transaction_is_noticed():
    found, one = oracle(commit=False)
    found.sees("reader", one.number)
    other, two = oracle(decided=False)
    other.sees("reader", two.number)
    assert (names(found), names(other)) == (["K3"], ["K4"])


def test_a_committed_record_that_is_hidden_is_noticed():
    found, one = oracle()
    found.hides("reader", one.number)
    assert names(found) == ["hidden"]


def test_an_acknowledgement_against_the_decision_is_noticed():
    found, one = oracle(commit=False)
    found.on_ended(one, COMMIT)
    assert names(found) == ["decided"]


def test_a_marker_against_the_decision_and_an_open_transaction_are_noticed():
    found, one = oracle()
    found.check_log(0, [(1, one.number, 0), Marked(1, False, 3)])
    found.check_log(0, [(1, one.number, 0)])
    assert names(found) == ["torn", "never"]


def test_a_lost_and_a_doubled_record_are_noticed():
    found, one = oracle()
    found.check_log(0, [])
    found.check_log(0, [(1, one.number, 0), (1, one.number, 0), Marked(1, True, 3)])
    assert names(found) == ["lost", "doubled"]


def test_what_falls_is_noticed():
    found, one = oracle()
    found.shows(0, 5, 4, epoch=3)
    found.shows(0, 4, 5, epoch=2)
    cell = Cell("g", 0)
    found.shows_offset(cell, 2, -1, 1, stable=False)
    found.check_log(0, [(1, one.number, 0), Marked(1, True, 3), Marked(1, True, 2)])
    assert names(found) == ["fell"] * 4


def test_a_stable_offset_before_the_acknowledged_one_is_noticed():
    found, one = oracle()
    cell = Cell("g", 0)
    one.offsets[cell] = True
    found.on_ended(one, COMMIT)
    found.shows_offset(cell, -1, found.told[cell], -1, stable=True)
    assert names(found) == ["torn"]
    assert found.expected(cell) == one.number


def test_transactions_that_read_each_other_are_noticed():
    found, one = oracle()
    two = found.begin("ship", 2, 0)
    two.asked = COMMIT
    found.on_durable(prepared(2, 0))
    one.read.add(two.number)
    two.read.add(one.number)
    found.check_end()
    assert names(found) == ["K7"]


def test_a_decision_covers_only_the_transaction_that_was_open():
    found = Oracle()
    empty, one = found.begin("pay", 1, 0), found.begin("pay", 1, 1)
    found.on_durable(prepared(1, 1))
    found.on_durable(prepared(1, 1))  # loaded again
    later = found.begin("pay", 1, 1)
    assert [each.outcome for each in (empty, one, later)] == [None, COMMIT, None]
