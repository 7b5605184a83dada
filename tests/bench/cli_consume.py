"""`gateway topic consume -o raw` beside kcat: records per second of one topic, to /dev/null.

    python -m tests.bench.cli_consume [--records 1000000] [--bytes 100] [--rounds 3]

One embedded gateway holds the topic in one partition. Both programs read all of it in turns; the
start of each program counts, and the worst round of `gateway` is compared with the best of kcat.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Producer

from tests.peers import install
from tests.peers.gateway import Gateway

TOPIC = "read"
RUN_S_MAX = 600.0


def fill(bootstrap: str, count: int, size: int) -> None:
    """Write `count` records of `size` bytes."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 2_000_000,
        }
    )
    for number in range(count):
        producer.produce(TOPIC, b"%0*d" % (size, number), partition=0)
        if number % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(RUN_S_MAX) == 0


def records_per_s(argv: Sequence[str], bootstrap: str, count: int) -> float:
    """Run a program that prints `count` records, one on each line, to /dev/null."""
    began_s = time.monotonic()
    environment = {**os.environ, "GATEWAY_BOOTSTRAP": bootstrap}
    subprocess.run(argv, env=environment, stdout=subprocess.DEVNULL, check=True, timeout=RUN_S_MAX)
    return count / (time.monotonic() - began_s)


def consume_ratio(records: int, size: int, rounds: int) -> tuple[float, float, float]:
    """Return the ratio of the worst round of ours to the best of kcat's, and both, per second."""
    ours: list[float] = []
    kcat: list[float] = []
    with (
        tempfile.TemporaryDirectory() as directory,
        Gateway(Path(directory) / "data", ["--journal-sync", "never"]) as gateway,
    ):
        fill(gateway.bootstrap, records, size)
        consume = [install.gateway_python(), "-m", "gateway", "topic", "consume", TOPIC]
        by_kcat = [install.kcat(), "-b", gateway.bootstrap, "-C", "-t", TOPIC, "-e", "-q"]
        for number in range(rounds):
            ours.append(records_per_s(consume, gateway.bootstrap, records))
            kcat.append(records_per_s(by_kcat, gateway.bootstrap, records))
            print(f"round {number + 1}: gateway {ours[-1]:,.0f}/s, kcat {kcat[-1]:,.0f}/s")
    return round(min(ours) / max(kcat), 3), min(ours), max(kcat)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    flags = parser.parse_args()
    ratio, ours, kcat = consume_ratio(flags.records, flags.bytes, flags.rounds)
    row = {
        "bench": "cli",
        "consume_raw_vs_kcat": ratio,
        "consume_raw_per_s": round(ours),
        "kcat_per_s": round(kcat),
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
