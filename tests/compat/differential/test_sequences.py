"""Goal: random sequences find a difference, make it short, and find none between equal servers.

Method: a machine plays its sequences on two embedded gateways; a player that changes a byte of one
API's answers stands for a server that differs. Recorded sequences are replayed as the cases are.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.compat.differential import servers
from tests.compat.differential.connection import Frame
from tests.compat.differential.drawn import MACHINES
from tests.compat.differential.intended import explanations
from tests.compat.differential.machine_producers import LIST_OFFSETS, Producers
from tests.compat.differential.outcome import is_compared, outcome
from tests.compat.differential.play import Player
from tests.compat.differential.recording import drawn_sequences
from tests.compat.differential.routes import OneServer
from tests.compat.differential.sequences import run
from tests.compat.differential.steps import Step
from tests.peers.gateway import Gateway

# No sequence is recorded by these seeds, because its topics would exist already.
SEED, OTHER_SEED = 1, 2
ANSWERS_MIN = 100
"""The answers of a machine that a replay compares at least."""


class Mistaken(Player):
    """A player whose server answers ListOffsets with another last byte."""

    def exchange(self, step: Step, number: int, frame: bytes) -> tuple[Frame, Any]:
        answer, entity = super().exchange(step, number, frame)
        if step.key != LIST_OFFSETS or not step.compared or answer is None:
            return answer, entity
        changed = bytes((*answer[:-3], answer[-3] ^ 1, *answer[-2:]))
        return changed, self.entity(step, changed)


@pytest.fixture(scope="module")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Gateway]]:
    place = tmp_path_factory.mktemp("sequences")
    with servers.embedded(place / "one") as one, servers.embedded(place / "other") as other:
        for each in (one, other):
            servers.warm_up(each)
        yield one, other


BY_MACHINE = pytest.mark.parametrize("name", sorted(MACHINES))


@BY_MACHINE
def test_no_sequence_differs_on_equal_servers(name: str, gateways: tuple[Gateway, Gateway]) -> None:
    one, other = (partial(servers.player, each) for each in gateways)
    found = run(MACHINES[name], one, other, SEED, examples=3)
    assert found.differences == ""
    assert found.answers > found.sequences


@pytest.mark.proof
@pytest.mark.parametrize("gateways", [False], indirect=True)
def test_a_difference_is_found_and_made_short(gateways: tuple[Gateway, Gateway]) -> None:
    one, other = gateways

    def mistaken(_: str) -> Player:
        return Mistaken(OneServer(("127.0.0.1", other.port)))

    found = run(Producers, partial(servers.player, one), mistaken, OTHER_SEED, examples=20)
    assert found.shortest is not None
    compared = [step for step in found.shortest.steps if step.compared]
    assert [step.key for step in compared] == [LIST_OFFSETS]
    assert f"(key {LIST_OFFSETS} " in found.differences


@BY_MACHINE
def test_recorded_sequences_are_answered_as_by_kafka(
    name: str, gateways: tuple[Gateway, Gateway]
) -> None:
    recorded = [each for each in drawn_sequences() if each.name.startswith(f"{name}-")]
    unexplained: list[str] = []
    compared = 0
    for sequence in recorded:
        played = servers.player(gateways[0]).play(sequence.steps)
        found = outcome(sequence, played)
        unexplained += [str(each) for each in found if not explanations(each)]
        compared += sum(is_compared(step) for step in sequence.steps)
    assert not unexplained, "\n".join(unexplained[:20])
    assert compared >= ANSWERS_MIN, f"only {compared} answers of {len(recorded)} sequences"
