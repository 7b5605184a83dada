"""The hunt for planted mistakes begins with the seed that found each of them the last time.

`first_seeds.json` has these seeds. They only save time: a seed that finds nothing any more, because
schedules have changed, is followed by all the others. To write the file anew:

    NOTE_FIRST_SEEDS=1 python -m pytest -m "not proof" -k "mistake" tests/sim
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
    noted: dict[str, int] = json.loads(FILE.read_text())
    first = [noted[name]] if name in noted else []
    for seed in chain(first, range(seeds_max)):
        if shown := finds(seed):
            if NOTE in os.environ:
                _note(name, seed)
            return shown
    return None


def _note(name: str, seed: int) -> None:
    """Write the seed down. Other tests may do the same at the same time."""
    with FILE.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        noted: dict[str, int] = json.load(file)
        noted[name] = seed
        file.seek(0)
        file.truncate()
        file.write(json.dumps(noted, indent=0, sort_keys=True) + "\n")
