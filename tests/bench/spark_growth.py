"""What ten times the records cost the jobs in Java heap: archive, replay, audit.

    make bench-spark-memory                               2.5 million records of 100 B, and a tenth
    python -m tests.bench.spark_growth --records 10000000

Each job runs in a Spark of its own, first over a topic of a tenth of the records, then over one of
all. Tasks and chunks have up to 250,000 offsets, so that a tenth has at least one of that size.
Prints one line of JSON: the ratio of what is alive in the heap at most, by job, and the peaks
in MB. Exits with 1 if a ratio is above `--at-most`. How the peak is measured is told in
tests/bench/spark_memory.py. The smaller run is looked at more often, because it is shorter: the
most of few looks is less than the most of many, also where nothing grows.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from tests.bench.sides import create_topic, produce
from tests.bench.spark_memory import Bench, measure
from tests.peers.gateway import Gateway
from tests.peers.install import CACHE

JOBS = {"archive": "archive", "replay": "replay", "audit": "audit_of_archive"}
"""In an order in which each finds what it needs."""
RECORD_BYTES = 100


def run(asked: argparse.Namespace, scratch: Path) -> dict[str, object]:
    heap_mb: dict[str, list[float]] = {job: [] for job in JOBS}
    with Gateway(scratch / "gateway", ("--journal-sync", "never")) as gateway:
        bench = Bench(gateway.bootstrap, gateway.ledgers, scratch, asked.heap)
        runs = (("tenth", asked.records // 10, 0.1), ("whole", asked.records, 0.5))
        for topic, count, pause_s in runs:
            create_topic(gateway, topic, 1)
            produce(gateway, topic, RECORD_BYTES, count)
            for job, way in JOBS.items():
                heap_mb[job].append(measure(bench, way, topic, pause_s).heap)
                print(f"{job} of {count:,}: {heap_mb[job][-1]:.0f} MB", file=sys.stderr, flush=True)
    ratios = {job: round(large / small, 2) for job, (small, large) in heap_mb.items()}
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
    words.add_argument("--heap", default="1g", help="of the JVM whose memory is measured")
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
