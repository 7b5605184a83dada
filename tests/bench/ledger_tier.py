"""Our bookies beside Apache BookKeeper 4.17: the same load, the same disk, one after the other.

    make bench-ledger                        the whole table, worst of three rounds
    python -m tests.bench.ledger_tier --rounds 1 --seconds 2
    python -m tests.bench.ledger_tier --before DIR   also bookies and client of another tree

Both sync every add on each of three bookies before it is acknowledged. A new cluster serves each
side in each round; sides take turns at going first. Figures are ratios ours / Apache's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.bench.ledger_report import (
    READ_SIZE,
    SINGLE_SIZE,
    SIZES,
    Pair,
    SideRound,
    ratios,
    summary,
    table,
    write_page,
)
from tests.bench.ledger_sides import Apache, Loaded, Ours, Side, load
from tests.peers.install import CACHE, ROOT

SIDES = ("apache", "ours")
BEFORE = "before"
WARM_SIZE, WARM_PARTS = 16 * 1024, "adds,single"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def new_side(name: str, data: Path, before: Path | None) -> Side:
    """Return a cluster that has not started."""
    if name == "apache":
        return Apache(data)
    if name == BEFORE:
        assert before is not None, "this side needs --before"
        return Ours(data, before.resolve(), name)
    return Ours(data)


def run_side(name: str, seconds: float, scratch: Path, before: Path | None = None) -> SideRound:
    """One side's loads on a cluster of its own, which is warm before the first counts."""
    loads: SideRound = {}
    with new_side(name, scratch / name, before) as side:
        load(side, WARM_SIZE, seconds, WARM_PARTS)
        for size, entry_bytes in SIZES.items():
            parts = ["adds"]
            parts += ["single"] if size == SINGLE_SIZE else []
            parts += ["reads"] if size == READ_SIZE else []
            os.sync()  # what the load before left for the disk is not this one's burden
            loads[size] = load(side, entry_bytes, seconds, ",".join(parts))
            say(f"{name} {size}: {_shown(loads[size])}")
    return loads


def _shown(loaded: Loaded) -> str:
    said = loaded.said
    words = [f"{said['adds_per_s']:.0f} adds/s"]
    if "single_ms_mean" in said:
        words.append(f"one alone {said['single_ms_mean']:.2f} ms")
    if "reads_per_s" in said:
        words.append(f"{said['reads_per_s']:.0f} reads/s")
    words.append(f"{loaded.memory_bytes / 1e6:.0f} MB")
    return ", ".join([*words, f"others {loaded.others_share:.0%}"])


def main() -> int:
    """Run, print the table and one line of JSON."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--rounds", type=int, default=3, help="the worst of so many is reported")
    words.add_argument("--seconds", type=float, default=4.0, help="of each part")
    words.add_argument("--target", choices=SIDES, help="one side alone, for a profiler")
    words.add_argument("--before", type=Path, help="also the bookies of this source tree")
    words.add_argument("--write", action="store_true", help="write docs/benchmarks-ledger.md")
    asked = words.parse_args()
    CACHE.mkdir(exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="bench-ledger-", dir=CACHE))
    rounds: list[dict[str, SideRound]] = []
    try:
        for number in range(asked.rounds):
            every = [*SIDES, *([BEFORE] if asked.before else [])]
            names = [asked.target] if asked.target else every[:: -1 if number % 2 else 1]
            done: dict[str, SideRound] = {}
            for name in names:
                say(f"round {number + 1} of {asked.rounds}: {name}")
                done[name] = run_side(name, asked.seconds, scratch, asked.before)
            rounds.append(done)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if asked.target:
        said = {size: loaded.said for size, loaded in rounds[-1][asked.target].items()}
        print(json.dumps({"bench": "ledger", "target": asked.target, **said}))
        return 0
    pairs = [Pair(done["ours"], done["apache"]) for done in rounds]
    print(table(pairs))
    if asked.write:
        write_page(ROOT / "docs" / "benchmarks-ledger.md", pairs)
    line: dict[str, object] = {**summary(pairs)}
    if asked.before:
        pairs = [Pair(done["ours"], done[BEFORE]) for done in rounds]
        line["vs_before"] = ratios(pairs)
    print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
