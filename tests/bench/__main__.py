"""The gateway beside Apache Kafka 4.3: the same Java tools, the same disk, one after the other.

    make bench                     the whole table, worst of three runs
    python -m tests.bench --only fsync --runs 1
    python -m tests.bench --before DIR    also the gateway of another source tree

Two pairs promise the same: both sync every acknowledged record, or neither does. Each produce
configuration runs two rounds and the first is thrown away. Figures are ratios ours / Kafka's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.bench.report import Figures, one_side, summary, table, vs_before, write_page
from tests.bench.sides import BEFORE, Round, consume, create_topic, new_side, produce
from tests.peers.broker import Broker
from tests.peers.install import CACHE

SIDES = ("kafka", "gateway")
SIZES = (100, 1024)
PARTITIONS = (1, 6)
PARTS = ("fsync", "nosync", "consume", "start", "latency")
STARTS = 3
LATENCY_PER_S, LATENCY_RECORDS = 1_000, 15_000
SYNCED_SHARE = 0.5  # synced rounds are smaller: they are slower


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Bench:
    """One run: every part asked for, on both sides."""

    def __init__(
        self,
        parts: list[str],
        sides: list[str],
        megabytes: int,
        scratch: Path,
        before: Path | None = None,
    ) -> None:
        self.figures = Figures()
        self._before = before
        self._parts = parts
        self._sides = sides
        self._megabytes = megabytes
        self._scratch = scratch

    def run(self) -> Figures:
        if "start" in self._parts:
            for side in self._sides:
                self._starts(side)
        if {"fsync", "latency"} & set(self._parts):
            self._pair(sync=True)
        if {"nosync", "consume"} & set(self._parts):
            self._pair(sync=False)
        return self.figures

    def _pair(self, *, sync: bool) -> None:
        for side in self._sides:
            data = self._scratch / f"{side}-{sync}"
            with new_side(side, sync, data, self._before) as broker:
                if not sync or "fsync" in self._parts:
                    self._load(broker, side, sync)
                if sync and "latency" in self._parts:
                    self._latency(broker, side)
            shutil.rmtree(data, ignore_errors=True)

    def _starts(self, side: str) -> None:
        data = self._scratch / f"{side}-start"
        for number in range(STARTS):
            with new_side(side, True, data, self._before) as broker:
                self.figures.add(side, "start", f"{number}", Round(1 / broker.start_s, 0, 0))
                say(f"{side}: started in {broker.start_s:.2f} s")
        shutil.rmtree(data, ignore_errors=True)

    def _load(self, broker: Broker, side: str, sync: bool) -> None:
        pair, share = ("fsync", SYNCED_SHARE) if sync else ("nosync", 1.0)
        for size, partitions in itertools.product(SIZES, PARTITIONS):
            records = int(self._megabytes * share * 1e6 / size)
            topic = f"t-{size}-{partitions}"
            create_topic(broker, topic, partitions)
            for _ in range(2):
                os.sync()  # what the round before left for the disk is not this one's burden
                measured = produce(broker, topic, size, records)
            self._add(side, pair, f"{size}-{partitions}", measured)
            if not sync and "consume" in self._parts:
                for _ in range(2):
                    measured = consume(broker, topic, size, 2 * records)
                self._add(side, "consume", f"{size}-{partitions}", measured)

    def _add(self, side: str, part: str, name: str, measured: Round) -> None:
        self.figures.add(side, part, name, measured)
        say(
            f"{side} {part} {name}: {measured.records_per_s:.0f}/s, "
            f"{measured.cpu_s_per_gb:.1f} CPU s/GB, {measured.resident_bytes / 1e6:.0f} MB, "
            f"others {measured.others_share:.0%}"
        )

    def _latency(self, broker: Broker, side: str) -> None:
        create_topic(broker, "latency", 1)
        produce(broker, "latency", 1024, LATENCY_RECORDS // 3, LATENCY_PER_S)
        measured = produce(broker, "latency", 1024, LATENCY_RECORDS, LATENCY_PER_S)
        self.figures.add(side, "latency", "1024-1", measured)
        say(f"{side}: p50 {measured.p50_ms} ms, p99 {measured.p99_ms} ms")


def main() -> int:
    """Run, print the table and one line of JSON; a part left out is null in it."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--runs", type=int, default=3, help="the worst of so many is reported")
    words.add_argument("--only", choices=PARTS, action="append", help="this part (repeatable)")
    words.add_argument("--target", choices=SIDES, help="one side alone, for a profiler")
    words.add_argument("--before", type=Path, help="also the gateway of this source tree")
    words.add_argument("--records-mb", type=int, default=200, help="MB of one unsynced round")
    words.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    asked = words.parse_args()
    runs: list[Figures] = []
    CACHE.mkdir(exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="bench-", dir=CACHE))
    try:
        for number in range(asked.runs):
            say(f"run {number + 1} of {asked.runs}")
            both = [*SIDES, *([BEFORE] if asked.before else [])]
            sides = [asked.target] if asked.target else both
            parts, size = asked.only or list(PARTS), asked.records_mb
            bench = Bench(parts, sides, size, scratch, asked.before)
            runs.append(bench.run())
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if asked.target:
        print(json.dumps(one_side(runs, asked.target)))
        return 0
    page = table(runs)
    print(page)
    if asked.write:
        write_page(Path("docs/benchmarks.md"), runs)
    line = summary(runs)
    print(json.dumps({**line, **({"vs_before": vs_before(runs)} if asked.before else {})}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
