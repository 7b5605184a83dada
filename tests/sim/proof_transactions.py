"""Seeds of whole clusters with transactions, and the hunt of planted mistakes.

    python -m tests.sim.proof_transactions --seeds 2000 [--first 0]
    python -m tests.sim.proof_transactions --replay SEED [--mistake PART_OF_A_NAME]
    python -m tests.sim.proof_transactions --mistakes [PART_OF_A_NAME] [--seeds 500]

With --compacted the topic is compacted while the seeds run. Mistakes of the cleaner imply it.
The order of Python's sets depends on the seed of its hashes, so the program runs itself again with
that seed fixed. It prints each seed with an error, and one line of JSON at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from ledger.log import set_level
from tests.sim import compacting_mistakes, transacting_mistakes
from tests.sim.compacting_world import CompactingWorld
from tests.sim.seeds import run_world
from tests.sim.transacting_world import TransactingWorld

COMMAND = "python -m tests.sim.proof_transactions"
MISTAKES = (*transacting_mistakes.MISTAKES, *compacting_mistakes.MISTAKES)
SEEDS = 2_000
MISTAKE_SEEDS = 1_000


def run(seed, mistake="", world=TransactingWorld):
    """Return the errors found with this seed. `mistake` is the name of a planted one, or ""."""
    set_level("OFF")
    planted = next((one for one in MISTAKES if one.name == mistake), None)
    if planted is None:
        return run_world(world, seed)
    with planted.plant(None):
        return run_world(planted.world, seed)


def run_counted(seed, kind):
    """Return the errors found with this seed, and how often the world did what."""
    set_level("OFF")
    made = []
    found = run_world(lambda seed: made.append(kind(seed)) or made[0], seed)
    if kind is not CompactingWorld or not made:
        return found, Counter()
    listed = made[0].listed
    return found, Counter(made[0].counts, swaps=listed.swaps, deleted=listed.deleted)


def run_seeds(first, seeds, workers, world):
    """Run the seeds and print those with an error. Returns the number of these."""
    began_s, wrong, counts = time.monotonic(), 0, Counter()
    numbers = range(first, first + seeds)
    words = COMMAND + " --compacted" * (world is CompactingWorld)
    with ProcessPoolExecutor(workers) as pool:
        results = pool.map(partial(run_counted, kind=world), numbers, chunksize=4)
        for seed, (found, counted) in zip(numbers, results, strict=True):
            wrong += bool(found)
            counts.update(counted)
            if found:
                print(f"seed {seed}: {found[:5]}\n    repeat: {words} --replay {seed}", flush=True)
    seconds = round(time.monotonic() - began_s)
    line = {"transactions": "whole cluster", "seeds": seeds, "first": first}
    if world is CompactingWorld:
        line["transactions"] = "whole cluster, compacted"
        line |= {did: counts[did] for did in ("swaps", "deleted", "audits", "strikes")}
    print(json.dumps({**line, "violations": wrong, "seconds": seconds}), flush=True)
    return wrong


def hunt(mistake, seeds, first=0):
    """Return the seed that found the mistake, or None, and what it found."""
    for seed in range(first, first + seeds):
        found = run(seed, mistake.name)
        if found:
            return seed, found
    return None, []


def run_mistakes(part, seeds, first):
    """Print after how many seeds each mistake was found. Returns the number of missed ones."""
    missed = 0
    for mistake in MISTAKES:
        if part not in mistake.name:
            continue
        seed, found = hunt(mistake, seeds, first)
        missed += seed is None
        count = "missed" if seed is None else seed - first + 1
        print(f"{mistake.trap:4} {mistake.name:55} {count:>6} {found[:1]}", flush=True)
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--compacted", action="store_true")
    parser.add_argument("--replay", type=int)
    parser.add_argument("--mistake", default="")
    parser.add_argument("--mistakes", nargs="?", const="")
    asked = parser.parse_args()
    world = CompactingWorld if asked.compacted else TransactingWorld
    if asked.replay is not None:
        name = next((m.name for m in MISTAKES if asked.mistake and asked.mistake in m.name), "")
        found = run(asked.replay, name, world)
        print(f"seed {asked.replay} {name}:", *(found or ["no error"]), sep="\n    ")
        return int(bool(found))
    if asked.mistakes is not None:
        return int(run_mistakes(asked.mistakes, asked.seeds or MISTAKE_SEEDS, asked.first) > 0)
    return int(run_seeds(asked.first, asked.seeds or SEEDS, asked.workers, world) > 0)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        words = [sys.executable, "-m", "tests.sim.proof_transactions", *sys.argv[1:]]
        os.execve(sys.executable, words, environment)
    sys.exit(main())
