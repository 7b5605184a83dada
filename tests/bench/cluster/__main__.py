"""The whole cluster beside three brokers of Apache Kafka 4.3, in turn, on new clusters.

    make bench-cluster                                     all parts, worst of three runs
    python -m tests.bench.cluster --only written --runs 2  one part
    python -m tests.bench.cluster --before DIR             also the servers of another tree
    python -m tests.bench.cluster --only far --keep FILE   in pieces: figures are added to FILE

Ours are the services of `make cluster`: ZooKeeper, four bookies, an auditor, three gateways. Three
pairs are compared: both synced, neither, and ours synced beside Kafka's default. CPU and memory are
those of all servers. Ratios are ours / Kafka's of the same run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from tests.bench.cluster.loads import PARTS
from tests.bench.cluster.page import write_page
from tests.bench.cluster.report import Run, keep_runs, read_runs, summary, table
from tests.bench.cluster.sides import BEFORE, SIDES, new_side
from tests.bench.cluster.stage import Stage, say
from tests.peers import install
from tests.peers.processes import TookTooLong

_FAILURES = (RuntimeError, AssertionError, OSError, ValueError, TookTooLong)


class Bench:
    """Some runs of some parts on some sides."""

    def __init__(
        self, parts: Sequence[str], before: Path | None, scratch: Path, *, quick: bool
    ) -> None:
        self.failed: list[str] = []
        self._parts = parts
        self._before = before
        self._scratch = scratch
        self._quick = quick
        self._under_way = ""  # the part that a side is at

    def run(self, sides: Sequence[str]) -> Run:
        """Run all parts once, one side after the other."""
        found: Run = {}
        for side in sides:
            found[side] = {}
            parts = [name for name in self._parts if side in PARTS[name].sides]
            if parts:
                self._one_side(side, parts, found)
        return found

    def _one_side(self, name: str, parts: Sequence[str], found: Run) -> None:
        """A side that fails, or takes too long, is killed; its other parts do not run."""
        began_s, data = time.monotonic(), self._scratch / name
        self._under_way = "start"
        try:
            with (
                new_side(name, data, self._before) as side,
                closing(Stage(side, found[name], quick=self._quick)) as stage,
            ):
                stage.warm()
                for self._under_way in parts:
                    PARTS[self._under_way].run(stage)
        except _FAILURES as error:
            shown, part = str(error).splitlines() or [repr(error)], self._under_way
            say(f"{name} {part} failed: {error}")
            self.failed.append(f"{name} {part}: {shown[0][:300]}")
        finally:
            shutil.rmtree(data, ignore_errors=True)
        say(f"{name}: {time.monotonic() - began_s:.0f} s")


def _asked() -> argparse.Namespace:
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("--only", choices=PARTS, action="append", help="this part (repeatable)")
    words.add_argument("--runs", type=int, default=3, help="runs, of which the worst counts [3]")
    words.add_argument("--quick", action="store_true", help="one run of small loads")
    words.add_argument("--before", type=Path, help="also the servers of this source tree")
    words.add_argument("--side", choices=SIDES, action="append", help="this side (repeatable)")
    words.add_argument("--keep", type=Path, help="add the runs to this file, and report all of it")
    words.add_argument("--write", action="store_true", help="write docs/benchmarks-cluster.md")
    asked = words.parse_args()
    if asked.before is None and BEFORE in (asked.side or ()):
        words.error("--side before needs --before DIR")
    return asked


def main() -> int:
    """Run, print the table and one line of JSON. Returns 1 if a side failed."""
    asked = _asked()
    sides = asked.side or [side for side in SIDES if side != BEFORE or asked.before]
    install.CACHE.mkdir(exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="bench-cluster-", dir=install.CACHE))
    bench = Bench(asked.only or list(PARTS), asked.before, scratch, quick=asked.quick)
    runs: list[Run] = []
    try:
        for number in range(1 if asked.quick else asked.runs):
            say(f"run {number + 1}")
            runs.append(bench.run(sides[:: -1 if number % 2 else 1]))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if asked.keep:
        keep_runs(asked.keep, runs)
        runs = read_runs(asked.keep)
    print(table(runs))
    if asked.write:
        write_page(install.ROOT / "docs" / "benchmarks-cluster.md", runs)
    print(json.dumps(summary(runs, bench.failed)))
    return int(bool(bench.failed))


if __name__ == "__main__":
    sys.exit(main())
