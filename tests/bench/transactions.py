"""Transactions beside Apache Kafka 4.3: the same Java clients, the same disk, one after the other.

    make bench-transactions
    python -m tests.bench.transactions --only commits-nosync --quick --runs 1

The parts `fsync` and `nosync` run ProducerPerformance in transactions of 10 and 100 ms. The parts
`commits` and `commits-nosync` commit small transactions, with one record in each of 1, 10 and 50
partitions, of 1 and 100 producers. The part `committed` reads a topic with read_committed and with
read_uncommitted. Prints the figures of the last run as ours / Apache Kafka's = worst ratio, and one
line of JSON with the ratios.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.cells import Run, table, worst_cells, worst_of_parts
from tests.bench.sides import Round, consume, create_topic, java, new_side, produce
from tests.peers import install
from tests.peers.broker import Broker
from tests.peers.install import CACHE

SIDES = ("kafka", "gateway")
PARTS = ("fsync", "nosync", "commits", "commits-nosync", "committed")
SYNCED = ("fsync", "commits")
DURATIONS_MS = (10, 100)
SIZES = (100, 1024)
PARTITIONS = (1, 6)
# Partitions of each small transaction, and how many producers commit at once.
FANS = tuple(itertools.product((1, 10, 50), (1, 100)))
QUICK_FANS = ((1, 1), (1, 20), (10, 1))
SYNCED_SHARE = 0.5  # synced rounds are smaller: they are slower
MEGABYTES, COMMITS_S = 200, 10.0
QUICK_MEGABYTES, QUICK_COMMITS_S = 10, 1.0
COMMITTED_BYTES, COMMITTED_MS = 1024, 10
LOAD = Path(__file__).with_name("java") / "TransactionLoad.java"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Bench:
    """One run of some parts on some sides."""

    def __init__(self, parts: list[str], sides: list[str], *, quick: bool, scratch: Path) -> None:
        self.run = Run()
        self._parts = parts
        self._sides = sides
        self._megabytes = QUICK_MEGABYTES if quick else MEGABYTES
        self._commits_s = QUICK_COMMITS_S if quick else COMMITS_S
        self._fans = QUICK_FANS if quick else FANS
        self._scratch = scratch

    def measure(self) -> Run:
        for side, sync in itertools.product(self._sides, (True, False)):
            chosen = [part for part in self._parts if (part in SYNCED) is sync]
            if chosen:
                with self._started(side, sync) as broker:
                    self._measure(chosen, broker, side, sync)
        return self.run

    def _measure(self, parts: list[str], broker: Broker, side: str, sync: bool) -> None:
        for part in parts:
            self._part(part, broker, side, sync)

    @contextmanager
    def _started(self, side: str, sync: bool) -> Iterator[Broker]:
        data = self._scratch / f"{side}-{sync}"
        with new_side(side, sync, data, preview=True) as broker:
            yield broker
        shutil.rmtree(data, ignore_errors=True)

    def _part(self, part: str, broker: Broker, side: str, sync: bool) -> None:
        if part in ("fsync", "nosync"):
            self._produce(part, broker, side, sync)
        elif part == "committed":
            self._read(broker, side)
        else:
            self._commit(part, broker, side)

    def _add(self, side: str, cell: str, figures: dict[str, float]) -> None:
        self.run.add(side, cell, figures)
        shown = ", ".join(f"{name} {value:.1f}" for name, value in figures.items())
        say(f"{side} {cell}: {shown}")

    def _in_transactions(
        self, broker: Broker, topic: str, size: int, records: int, duration_ms: int
    ) -> Round:
        os.sync()  # what earlier rounds left for the disk is not this one's burden
        words = ["--transactional-id", topic, "--transaction-duration-ms", str(duration_ms)]
        return produce(broker, topic, size, records, -1, *words)

    def _produce(self, part: str, broker: Broker, side: str, sync: bool) -> None:
        share = SYNCED_SHARE if sync else 1.0
        for duration_ms, size, partitions in itertools.product(DURATIONS_MS, SIZES, PARTITIONS):
            records = int(self._megabytes * share * 1e6 / size)
            topic = f"t-{duration_ms}-{size}-{partitions}"
            create_topic(broker, topic, partitions)
            for _ in range(2):
                found = self._in_transactions(broker, topic, size, records, duration_ms)
            cell = f"{part} {duration_ms} ms {size} B {partitions}"
            self._add(side, cell, _figures(found, p99_ms=found.p99_ms))

    def _read(self, broker: Broker, side: str) -> None:
        """Read one topic with both isolation levels, twice each: the first time does not count."""
        records = int(self._megabytes * 1e6 / COMMITTED_BYTES)
        create_topic(broker, "read", 1)
        self._in_transactions(broker, "read", COMMITTED_BYTES, records, COMMITTED_MS)
        found: dict[str, float] = {}
        for level in ("read_uncommitted", "read_committed") * 2:
            words = ["--command-property", f"isolation.level={level}"]
            found[level] = consume(broker, "read", COMMITTED_BYTES, records, *words).records_per_s
        slower = found["read_uncommitted"] / found["read_committed"]
        self._add(side, "committed", {"records_per_s": found["read_committed"], "time": slower})

    def _commit(self, part: str, broker: Broker, side: str) -> None:
        jars = sorted(install.kafka_jars().glob("*.jar"))
        classpath = install.compiled(LOAD, jars)
        for partitions, producers in self._fans:
            topic = f"c-{partitions}-{producers}"
            create_topic(broker, topic, partitions)
            words = [broker.bootstrap, topic, partitions, producers, self._commits_s]
            cpu_s = broker.usage().cpu_s
            lines = java(LOAD.stem, *map(str, words), classpath=classpath).splitlines()
            found = json.loads(lines[-1])
            used = broker.usage()
            figures = {name: found[name] for name in ("commits_per_s", "p50_ms", "p99_ms")}
            figures["cpu_ms"] = 1000 * (used.cpu_s - cpu_s) / found["all_commits"]
            figures["memory"] = used.resident_bytes / 1e6
            self._add(side, f"{part} {partitions} partitions {producers} producers", figures)


def _figures(found: Round, **more: float) -> dict[str, float]:
    figures = {"records_per_s": found.records_per_s, "cpu": found.cpu_s_per_gb, **more}
    return {**figures, "memory": found.resident_bytes / 1e6}


def summary(runs: list[Run], *, quick: bool) -> dict[str, object]:
    """Return the worst ratios of each part and of each cell, and our own share of reading."""
    cells = worst_cells(runs)
    line: dict[str, object] = {"bench": "transactions", "runs": len(runs), "quick": quick}
    line.update(worst_of_parts(cells))
    ours = [run.figures["gateway"].get("committed") for run in runs]
    times = [figures["time"] for figures in ours if figures]
    line["read_committed_time_of_uncommitted"] = round(max(times), 3) if times else None
    return {**line, "cells": cells}


def main() -> int:
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("--runs", type=int, default=3, help="the worst of so many is reported")
    words.add_argument("--only", choices=PARTS, action="append", help="this part (repeatable)")
    words.add_argument("--target", choices=SIDES, help="one side alone")
    words.add_argument("--quick", action="store_true", help="small rounds, to see that it works")
    asked = words.parse_args()
    runs: list[Run] = []
    CACHE.mkdir(exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="transactions-", dir=CACHE))
    sides = [asked.target] if asked.target else list(SIDES)
    try:
        for number in range(asked.runs):
            say(f"run {number + 1} of {asked.runs}")
            parts = asked.only or list(PARTS)
            runs.append(Bench(parts, sides, quick=asked.quick, scratch=scratch).measure())
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(table(runs))
    print(json.dumps(summary(runs, quick=asked.quick)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
