"""Goal: no order of messages, crashes and losses makes the pure cores break an invariant.

Method: every reachable state of small worlds, each once, with the real `LedgerWriting`,
`AddPipeline`, `EnsembleChange`, `Recovery`, `Guard` and `LedgerMetadata` as the parts that move. A
commit searches the smaller worlds, `make proof-ledger` the others. Then known mistakes, which must
be found; and the reductions that keep the search small, which must lose nothing where one can do
without.
"""

from dataclasses import replace

import pytest

from tests.sim.exhaustive.columns import Column
from tests.sim.exhaustive.mistakes import MISTAKES
from tests.sim.exhaustive.search import QUICK, say, search
from tests.sim.exhaustive.world import Bounds, World


@pytest.mark.slow
@pytest.mark.parametrize("bounds", QUICK, ids=say)
def test_no_reachable_state_breaks_an_invariant(bounds):
    found = search(World(bounds))
    assert found.complete, found.violation


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reached(name):
    assert search(MISTAKES[name].world()).violation


def outcomes(bounds):
    """What is visible in the end: metadata, what was acknowledged, what the bookies hold."""
    seen = set()

    class Recording(World):
        def check(self, state):
            super().check(state)
            metadata = self.stored[state.metadata].value
            held = sorted(self.columns.values[number].held for number in state.columns)
            acked = self.machines.objects[state.hosts[0]].acked
            seen.add((metadata.state, metadata.last_entry, acked, *held))

    assert search(Recording(bounds)).complete
    return seen


@pytest.mark.slow
def test_calling_bookies_by_other_names_loses_no_outcome():
    small = Bounds(entries=1, recoverers=1)
    assert outcomes(small) == outcomes(replace(small, symmetric=False))


@pytest.mark.slow
def test_dropping_what_can_change_nothing_loses_no_outcome(monkeypatch):
    small = Bounds(entries=1, recoverers=1)
    tidied = outcomes(small)

    def keeps_all(column, gives_up):
        return column._replace(messages=tuple(sorted(set(column.messages))))

    monkeypatch.setattr(Column, "tidy", keeps_all)
    assert outcomes(small) == tidied
