"""Stories by seed: run the story of one seed, or repeat several on the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from tests.sim.loop import simulate


class World(Protocol):
    """A simulated world: its story returns the errors found."""

    def run(self) -> Coroutine[Any, Any, list[str]]: ...


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
