"""What ten times the records cost the jobs in Java heap: archive, replay, audit.

    make bench-spark-memory                               2.5 million records of 100 B, and a tenth
    python -m tests.bench.spark_growth --records 10000000

The figure is the smallest heap in which a job ends. It is searched in steps of 5 %, first over a
topic of a tenth of the records, then over one with all of them. Tasks and chunks have up to 250,000
offsets, so a tenth has one chunk of that size, and the whole has ten. Looks at what is alive in the
heap cannot give this figure: Parquet's writer and Spark's sort hold the most for some milliseconds
per chunk, and ten chunks are seen at that moment more often than one.

Spark keeps 300 MB of any heap for itself, which would hide the difference, and takes as much of
the rest as it finds before it spills. Here it keeps 16 MB, so that the heap can be small. There is
one core, so one task at a time. Prints one line of JSON: the ratio of the smallest heaps, by job,
and the heaps in MB. Exits with 1 if a ratio is above `--at-most`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from tests.bench.sides import create_topic, produce
from tests.peers.gateway import Gateway
from tests.peers.install import CACHE, ROOT
from tests.peers.spark import conf_words, environment

JOBS = ("archive", "replay", "audit")
RECORD_BYTES = 100
_AMPLE_MB = 1024
_LEAST_MB = 64
_STEP = 1.05
_TIMEOUT_S = 900.0
_OWN_BYTES = 16 * 1024 * 1024  # of the heap, that Spark keeps for itself


class HeapSearch:
    """Runs jobs over the topics of one gateway, each in a JVM whose heap has a given size."""

    def __init__(self, gateway: Gateway, scratch: Path) -> None:
        self._gateway = gateway
        self._scratch = scratch
        self._numbers = count(1)

    def archive(self, topic: str) -> None:
        """Make the archive that replay and audit of this topic read. Raises RuntimeError."""
        took_s = self.seconds("archive", topic, _AMPLE_MB, self._archive_of(topic))
        if took_s is None:
            raise RuntimeError(f"archive of {topic} does not end in {_AMPLE_MB} MB")

    def _archive_of(self, topic: str) -> Path:
        return self._scratch / f"archived-{topic}"

    def seconds(self, job: str, topic: str, heap_mb: int, to: Path | None = None) -> float | None:
        """Return how long the job takes in a heap of this size, or None if it does not end."""
        number = next(self._numbers)
        work = self._scratch / f"run-{number}"
        work.mkdir()
        conf = conf_words(work / "spark")
        conf += ["--conf", f"spark.driver.memory={heap_mb}m"]
        conf += ["--conf", f"spark.testing.reservedMemory={_OWN_BYTES}"]
        words = self._words(job, topic, to or work / "archive", number)
        began_s = time.monotonic()
        try:
            ended = subprocess.run(
                [sys.executable, "-m", "gateway", "job", *words, "--master", "local[1]", *conf],
                env={**os.environ, **environment(work / "spark")},
                capture_output=True,
                cwd=ROOT,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None
        finally:
            shutil.rmtree(work, ignore_errors=True)
        took_s = time.monotonic() - began_s
        fits = ended.returncode == 0
        print(f"{job} {topic}, {heap_mb} MB: {fits}, {took_s:.0f} s", file=sys.stderr, flush=True)
        return took_s if fits else None

    def _words(self, job: str, topic: str, to: Path, number: int) -> list[str]:
        served = ["--bootstrap", self._gateway.bootstrap]
        archive = str(self._archive_of(topic))
        replayed = ["--from", archive, "--topic", topic, "--create"]
        return {
            "archive": ["archive", topic, "--to", str(to), *served],
            "replay": ["replay", *replayed, "--to-topic", f"{topic}-again-{number}", *served],
            "audit": ["audit", f"topic:{topic}", f"archive:{archive}", *served],
        }[job]

    def smallest(self, job: str, topic: str) -> int:
        """Return the smallest heap in MB in which the job ends, by bisection."""
        sizes = list(_sizes())
        low, high = -1, len(sizes) - 1  # ends in the higher one, and not in the lower one
        while high - low > 1:
            middle = (low + high) // 2
            if self.seconds(job, topic, sizes[middle]) is None:
                low = middle
            else:
                high = middle
        return sizes[high]

    def smallest_from(self, job: str, topic: str, heap_mb: int) -> int:
        """Return the smallest heap of at least `heap_mb` in which the job ends."""
        for size in _sizes():
            if size >= heap_mb and self.seconds(job, topic, size) is not None:
                return size
        raise RuntimeError(f"{job} of {topic} does not end in {_AMPLE_MB} MB")


def _sizes() -> Iterator[int]:
    size = float(_LEAST_MB)
    while size < _AMPLE_MB:
        yield round(size)
        size *= _STEP
    yield _AMPLE_MB


def run(asked: argparse.Namespace, scratch: Path) -> dict[str, object]:
    heap_mb: dict[str, tuple[int, int]] = {}
    with Gateway(scratch / "gateway", ("--journal-sync", "never")) as gateway:
        search = HeapSearch(gateway, scratch)
        for topic, records in (("tenth", asked.records // 10), ("whole", asked.records)):
            create_topic(gateway, topic, 1)
            produce(gateway, topic, RECORD_BYTES, records)
            search.archive(topic)
        for job in asked.jobs.split(","):
            tenth = search.smallest(job, "tenth")
            heap_mb[job] = (tenth, search.smallest_from(job, "whole", tenth))
    ratios = {job: round(whole / tenth, 2) for job, (tenth, whole) in heap_mb.items()}
    return {
        "bench": "spark_growth",
        "heap_ratio": ratios,
        "heap_mb": heap_mb,
        "records": asked.records,
        "passed": max(ratios.values()) <= asked.at_most,
    }


def main() -> int:
    """Run, and print one line of JSON."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--records", type=int, default=2_500_000)
    words.add_argument("--jobs", default=",".join(JOBS))
    words.add_argument("--at-most", type=float, default=1.1)
    asked = words.parse_args()
    CACHE.mkdir(exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="bench-spark-", dir=CACHE))
    try:
        result = run(asked, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(json.dumps(result))
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
