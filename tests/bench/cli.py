"""What people wait for: commands that start, a gateway for a test, records that are printed.

    make bench-cli                                  worst of three runs
    python -m tests.bench.cli --before DIR          also against `gateway dev` of a tree
    python -m tests.bench.cli --runs 1 --starts 5 --records 100000

Each run starts everything in turn, so that all meet the same load, and takes the median of each
ratio. The last line is JSON, the worst of the runs, in time on the clock: `dev_start` is after /
before (null without `--before`), `help` is `gateway --help` / `python -c pass`, `testing_start` is
`gateway.testing` until it can be used / a bare start of `gateway dev`. `consume_raw_vs_kcat` is
records per second, as `tests.bench.cli_consume` measures it. `new_modules` are those that a start
of `gateway dev` imports and that the tree before does not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from tests.bench.cli_consume import consume_ratio
from tests.bench.start import COMMANDS, environment, run_once, start_dev
from tests.house import ROOT
from tests.peers import install

WORST = {"dev_start": max, "help": max, "testing_start": max, "consume_raw_vs_kcat": min}
_USE = """
import time
from gateway.testing import Gateway
begun = time.perf_counter()
with Gateway() as gateway:
    gateway.bootstrap
    print(time.perf_counter() - begun)
"""


def start_testing(python: str) -> float:
    """Return how many seconds a test waits for its gateway."""
    done = subprocess.run(
        [python, "-c", _USE], cwd=ROOT, env=environment(), capture_output=True, check=True
    )
    return float(done.stdout)


def modules_at_start(python: str, tree: Path) -> set[str]:
    """Return the modules of a `gateway dev` that serves: what `-X importtime` names."""
    with tempfile.TemporaryDirectory() as data:
        log = Path(data) / "imports"
        words = ["-X", "importtime", "-m", "gateway", "dev", "--port", "0", "--ledger-port", "0"]
        with (
            log.open("wb") as errors,
            subprocess.Popen(
                [python, *words, "--data", f"{data}/data"],
                cwd=tree,
                env=environment(),
                stdout=subprocess.PIPE,
                stderr=errors,
            ) as process,
        ):
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"gateway started")
            process.terminate()
        lines = log.read_text().splitlines()
    return {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}


def ratios_of(python: str, before: Path | None, starts: int) -> dict[str, float | None]:
    """Return the median of each ratio over some turns."""
    bare: list[float] = []
    found: dict[str, list[float]] = {"dev_start": [], "help": [], "testing_start": []}
    for _ in range(starts):
        now_s = start_dev(python, ROOT).clock_s
        bare.append(now_s)
        if before is not None:
            found["dev_start"].append(now_s / start_dev(python, before).clock_s)
        empty = run_once([python, *COMMANDS["python -c pass"]], ROOT).clock_s
        found["help"].append(run_once([python, *COMMANDS["gateway --help"]], ROOT).clock_s / empty)
        found["testing_start"].append(start_testing(python) / now_s)
    return {name: round(median(each), 3) if each else None for name, each in found.items()}


def worst(runs: Sequence[dict[str, float | None]]) -> dict[str, float | None]:
    """Return the worst of each ratio."""
    row: dict[str, float | None] = {}
    for name, choose in WORST.items():
        known = [each[name] for each in runs if each[name] is not None]
        pick: Callable[..., float] = choose
        row[name] = pick(known) if known else None
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--before", type=Path)
    flags = parser.parse_args()
    os.environ.pop("PYTHONPROFILEIMPORTTIME", None)
    python = install.gateway_python()
    ratios_of(python, flags.before, 1)  # the first start compiles, and is not counted
    runs: list[dict[str, float | None]] = []
    for number in range(flags.runs):
        began_s = time.monotonic()
        row = ratios_of(python, flags.before, flags.starts)
        row["consume_raw_vs_kcat"] = consume_ratio(flags.records, 100, rounds=1)[0]
        runs.append(row)
        print(f"run {number + 1} in {time.monotonic() - began_s:.0f} s: {row}", file=sys.stderr)
    new = None
    if flags.before is not None:
        new = sorted(modules_at_start(python, ROOT) - modules_at_start(python, flags.before))
    print(json.dumps({"bench": "cli", **worst(runs), "new_modules": new}))


if __name__ == "__main__":
    main()
