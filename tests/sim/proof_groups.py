"""Seeds of whole clusters that coordinate a group with members of both protocols.

    python -m tests.sim.proof_groups FIRST LAST
    python -m tests.sim.proof_groups SEED

The order of Python's sets depends on the seed of its hashes, so the program runs itself again with
that seed fixed. It prints each seed with an error, and one line of JSON at the end: how often each
fault occurred, and each state of a member at a takeover.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter

from ledger.log import set_level
from tests.sim.groups_world import GroupsWorld
from tests.sim.seeds import repeat, run_world


def run(seed, seen):
    """Return the errors found with this seed, and add what happened to `seen`."""
    worlds = []
    found = run_world(lambda seed: worlds.append(GroupsWorld(seed)) or worlds[0], seed)
    seen.update(worlds[0].oracle.seen)
    return found


def main():
    set_level("OFF")
    began_s, seen, seeds = time.monotonic(), Counter(), Counter()

    def counted(seed):
        found = run(seed, seen)
        seeds["seeds"] += 1
        seeds["violations"] += bool(found)
        return found

    code = repeat(counted)
    seconds = round(time.monotonic() - began_s)
    line = {"groups": "whole cluster", **seeds, "seconds": seconds}
    print(json.dumps({**line, "seen": dict(sorted(seen.items()))}), flush=True)
    return code


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        words = [sys.executable, "-m", "tests.sim.proof_groups", *sys.argv[1:]]
        os.execve(sys.executable, words, environment)
    sys.exit(main())
