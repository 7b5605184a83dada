"""Stories by seed: run the story of one seed, or repeat several on the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

import pytest

from tests.sim.loop import simulate


class World(Protocol):
    """A simulated world: its story returns the errors found."""

    def run(self) -> Coroutine[Any, Any, list[str]]: ...


def first_at_commit(values: Sequence[Any], count: int) -> list[Any]:
    """Return values of a parameter: the tests of a commit take `count`, `make proof` the others."""
    others = [pytest.param(each, marks=pytest.mark.proof) for each in values[count:]]
    return [*values[:count], *others]


def run_world(kind: Callable[[int], World], seed: int) -> list[str]:
    """Return the errors found with this seed. A hang or a crash counts as one."""
    try:
        return simulate(kind(seed).run())
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]


def repeat(run: Callable[[int], list[str]]) -> int:
    """Run the seeds from the first to the last argument; return the exit code.

    One seed is always printed, several only where an error was found.
    """
    seeds = sys.argv[1:]
    wrong = 0
    for number in range(int(seeds[0]), int(seeds[-1]) + 1):
        found = run(number)
        wrong += bool(found)
        if found or len(seeds) == 1:
            print(number, found[:5], flush=True)
    return int(wrong > 0)
