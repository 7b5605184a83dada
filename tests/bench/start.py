"""How long commands take to start, beside `python -c pass`; `make bench-start`.

    python -m tests.bench.start
    python -m tests.bench.start --rounds 50 --tree /other/tree

Each round runs every command once, so that all of them meet the same load; the first round fills
the caches of bytecode and is not counted. The ratios are those of the processor time (user and
system) and of the time on the clock, the smallest of all rounds each: whatever else runs on the
machine only adds to them. Where much else runs, start it by `chrt -f 50`. `gateway dev` is measured
until it has printed that it serves. `--tree` measures the commands of another tree as well, to
compare before and after.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.house import ROOT
from tests.peers import install

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "gateway --help": ["-m", "gateway", "--help"],
    "gateway topic --help": ["-m", "gateway", "topic", "--help"],
    "gateway group seek --help": ["-m", "gateway", "group", "seek", "--help"],
    "gateway serve --help": ["-m", "gateway", "serve", "--help"],
    "bookie --help": ["-m", "ledger", "--help"],
}
DEV = "gateway dev, until it serves"
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
HELP_RATIO_MAX = 6.0  # what `gateway --help` may take of `python -c pass`


def environment() -> dict[str, str]:
    """Ours, but bytecode is cached, as it is for users."""
    return {name: value for name, value in os.environ.items() if name != NO_BYTECODE}


class Spent(NamedTuple):
    """What one start took."""

    cpu_s: float
    clock_s: float


def run_once(argv: Sequence[str], tree: Path) -> Spent:
    """Run the command to its end."""
    begun_s = time.perf_counter()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(argv, cwd=tree, env=environment(), **quiet)
    _, _, usage = os.wait4(process.pid, 0)
    return Spent(usage.ru_utime + usage.ru_stime, time.perf_counter() - begun_s)


def start_dev(python: str, tree: Path) -> Spent:
    """Start an embedded gateway; return what it took until it served."""
    with tempfile.TemporaryDirectory() as data:
        return start_gateway(python, tree, "--ledger-port", "0", "--data", f"{data}/data")


def start_gateway(python: str, tree: Path, *words: str) -> Spent:
    """Start a gateway with these words, and return what it took until it served."""
    argv = [python, "-m", "gateway", "dev", "--port", "0", *words]
    begun_s = time.perf_counter()
    with subprocess.Popen(argv, cwd=tree, env=environment(), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"gateway started")
        clock_s = time.perf_counter() - begun_s
        tasks = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
        cpu_ns = sum(int(task.read_text().split()[0]) for task in tasks)
        process.send_signal(signal.SIGTERM)
    return Spent(cpu_ns / 1e9, clock_s)


def measure(python: str, trees: Sequence[Path], rounds: int) -> dict[tuple[Path, str], Spent]:
    """The smallest of every figure, by tree and command."""
    found: dict[tuple[Path, str], list[Spent]] = {}
    for _ in range(rounds + 1):
        for tree in trees:
            for name, words in COMMANDS.items():
                found.setdefault((tree, name), []).append(run_once([python, *words], tree))
            found.setdefault((tree, DEV), []).append(start_dev(python, tree))
    return {
        key: Spent(min(one.cpu_s for one in counted), min(one.clock_s for one in counted))
        for key, (_, *counted) in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--python", default=install.gateway_python())
    parser.add_argument("--tree", type=Path, action="append", default=[])
    flags = parser.parse_args()
    trees = [ROOT, *flags.tree]
    found = measure(flags.python, trees, flags.rounds)
    for tree in trees:
        print(f"{tree}\n{'command':32}{'cpu ms':>8}{'ratio':>7}{'clock ms':>10}{'ratio':>7}")
        base = found[tree, "python -c pass"]
        for name in (*COMMANDS, DEV):
            one = found[tree, name]
            print(
                f"{name:32}{one.cpu_s * 1e3:8.1f}{one.cpu_s / base.cpu_s:7.2f}"
                f"{one.clock_s * 1e3:10.1f}{one.clock_s / base.clock_s:7.2f}"
            )
    ratio = found[ROOT, "gateway --help"].cpu_s / found[ROOT, "python -c pass"].cpu_s
    print(f"gateway --help: {ratio:.2f} of python -c pass, at most {HELP_RATIO_MAX:g}")


if __name__ == "__main__":
    main()
