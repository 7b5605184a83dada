"""The hunt for planted mistakes begins with the seed that found each of them the last time.

`first_seeds.json` has these seeds. They only save time: if schedules have changed, and such a seed
finds nothing any more, all the others follow. To rewrite the file:

    NOTE_FIRST_SEEDS=1 python -m pytest -m "not proof" -k mistake tests/{sim,ledger,gateway}
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import TypeVar

FILE = Path(__file__).with_suffix(".json")
NOTE = "NOTE_FIRST_SEEDS"

T = TypeVar("T")


def found(world: str, mistake: str, finds: Callable[[int], T], seeds_max: int) -> T | None:
    """Return what the first seed that finds a mistake shows, or None if none below the limit does.

    `finds` returns something false for a seed that shows nothing.
    """
    name = f"{world}: {mistake}"
    noted = _noted().get(name, seeds_max)
    first = [noted] if noted < seeds_max else []
    for seed in chain(first, range(seeds_max)):
        if shown := finds(seed):
            if NOTE in os.environ:
                _note(name, seed)
            return shown
    return None


def _noted() -> dict[str, int]:
    noted: dict[str, int] = json.loads(FILE.read_text())
    return noted


def _note(name: str, seed: int) -> None:
    """Write the seed down. Other tests may do the same at the same time."""
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        noted = json.dumps(_noted() | {name: seed}, indent=0, sort_keys=True)
        new = FILE.with_suffix(".new")
        new.write_text(noted + "\n")
        new.replace(FILE)
