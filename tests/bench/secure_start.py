"""How long `gateway dev --secure` takes to start, beside a plain start; `make bench-start`.

    python -m tests.bench.secure_start
    python -m tests.bench.secure_start --rounds 20 --before /other/tree

Each round starts every kind once, so that all of them meet the same load: a plain start in a new
directory and a second one there, and the same with `--secure`; with `--before`, a plain start of
another tree too. The first round is not counted. One line of JSON has the median of the processor
time until the gateway serves, of the time on the clock, and the ratios with their bounds. A start
is measured by the processor time of the process: what else runs only adds to the clock.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.bench.start import Spent, start_gateway
from tests.house import ROOT
from tests.peers import install

FIRST_MAX, LATER_MAX, BEFORE_MAX = 2.0, 1.3, 1.02
"""Bounds of the ratios: a first start with `--secure`, a later one, and a plain one beside the tree
before."""


def start(python: str, tree: Path, data: Path, *words: str) -> Spent:
    """Start a gateway, and return what it took until it served."""
    return start_gateway(python, tree, "--no-http-port", "--data", str(data), *words)


def one_round(python: str, before: Path | None, turn: int) -> dict[str, Spent]:
    """Start each kind once. Each round begins with another pair, which finds a colder cache."""
    plain = ("--no-ledger-port",)  # as with --secure
    pairs = [(ROOT, "plain", plain), (ROOT, "secure", ("--secure",))]
    if before is not None:
        pairs.append((before, "before", plain))
    turn %= len(pairs)
    found: dict[str, Spent] = {}
    with tempfile.TemporaryDirectory() as data:
        for tree, kind, words in (*pairs[turn:], *pairs[:turn]):
            for name in (kind, f"{kind} later"):
                found[name] = start(python, tree, Path(data) / kind, *words)
    return found


def report(rounds: Sequence[dict[str, Spent]]) -> dict[str, object]:
    """Return the medians and the ratios of all rounds."""
    cpu_s = {kind: statistics.median(each[kind].cpu_s for each in rounds) for kind in rounds[0]}
    clock_s = {kind: statistics.median(each[kind].clock_s for each in rounds) for kind in rounds[0]}

    def ratios(seconds: dict[str, float]) -> dict[str, float]:
        found = {
            "first": seconds["secure"] / seconds["plain"],
            "later": seconds["secure later"] / seconds["plain later"],
        }
        if "before" in seconds:
            found["plain"] = seconds["plain later"] / seconds["before later"]
        return {name: round(value, 3) for name, value in found.items()}

    return {
        "bench": "secure start",
        "rounds": len(rounds),
        "cpu_ms": {kind: round(value * 1e3, 1) for kind, value in cpu_s.items()},
        "clock_ms": {kind: round(value * 1e3, 1) for kind, value in clock_s.items()},
        "cpu_ratio": ratios(cpu_s),
        "clock_ratio": ratios(clock_s),
        "at_most": {"first": FIRST_MAX, "later": LATER_MAX, "plain": BEFORE_MAX},
    }


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print. Returns 1 if a ratio of the processor time is above its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--python", default=install.gateway_python())
    parser.add_argument("--before", type=Path, help="tree of the commit before")
    flags = parser.parse_args(words)
    turns = range(flags.rounds + 1)
    rounds = [one_round(flags.python, flags.before, turn) for turn in turns][1:]
    found = report(rounds)
    print(json.dumps(found), flush=True)
    ratios, bounds = found["cpu_ratio"], found["at_most"]
    assert isinstance(ratios, dict) and isinstance(bounds, dict)
    return int(any(ratios[name] > bounds[name] for name in ratios))


if __name__ == "__main__":
    sys.exit(main())
