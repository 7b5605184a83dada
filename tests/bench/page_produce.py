"""What an open page costs a producer that sends one record at a time.

    python -m tests.bench.page_produce [--rounds 2] [--seconds 10]

A round has two phases of the same length: no page is open, and the overview and the topics are
requested every second by a process of its own. Before a phase without pages the producer goes on
until the gateway has stopped gathering figures. Phases alternate because the disk of a machine is
not equally fast for a minute; the figures are those of all records of one kind. The last line is
JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from confluent_kafka import Producer

from tests.peers.gateway import Gateway
from tests.peers.install import CACHE
from tests.peers.processes import Process

QUIET_S: Final = 12.0  # figures are gathered for 10 s after the last request
OPEN_S_MAX: Final = 60.0


def p99(values: Sequence[float]) -> float:
    return percentile(values, 99)


def percentile(values: Sequence[float], percent: int) -> float:
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]


class Phase:
    """The times of records, and the processor time of the gateway meanwhile."""

    def __init__(self) -> None:
        self.took_ms: list[float] = []
        self.cpu_s = 0.0
        self.seconds = 0.0

    @property
    def cpu_ms_per_s(self) -> float:
        return self.cpu_s / self.seconds * 1e3


class OneByOne:
    """A producer that sends each record after the one before it was acknowledged."""

    def __init__(self, gateway: Gateway, topic: str) -> None:
        self._gateway = gateway
        self._topic = topic
        settings = {"bootstrap.servers": gateway.bootstrap, "linger.ms": 0, "acks": "all"}
        self._producer = Producer(settings)

    def send(self, seconds: float, phase: Phase) -> None:
        """Send records for this time, and add theirs to the phase."""
        cpu_s = self._gateway.process.usage().cpu_s
        began_s = time.perf_counter()
        now_s = began_s
        while now_s - began_s < seconds:
            self._producer.produce(self._topic, b"x" * 100, partition=0)
            assert self._producer.flush(30.0) == 0
            last_s, now_s = now_s, time.perf_counter()
            phase.took_ms.append((now_s - last_s) * 1e3)
        phase.seconds += now_s - began_s
        phase.cpu_s += self._gateway.process.usage().cpu_s - cpu_s


def measure_produce(
    gateway: Gateway, address: str, topic: str, scratch: Path, *, rounds: int, seconds: float
) -> dict[str, float]:
    """Return the times of records while no page is open and while two are looked at each second.

    `address` is that of the page. The pages were requested before: what a first request costs once
    is not measured here.
    """
    producer = OneByOne(gateway, topic)
    closed, opened = Phase(), Phase()
    for number in range(rounds):
        producer.send(QUIET_S, Phase())
        producer.send(seconds, closed)
        words = [sys.executable, "-m", "tests.bench.page_browser", address]
        with Process(words, scratch / f"browser-{number}.log") as browser:
            browser.wait_output("open", OPEN_S_MAX)
            producer.send(seconds, opened)
            assert browser.exit_code is None, browser.output()
    return {
        "closed_ms": p99(closed.took_ms),
        "open_ms": p99(opened.took_ms),
        "ratio": p99(opened.took_ms) / p99(closed.took_ms),
        "closed_p50_ms": percentile(closed.took_ms, 50),
        "open_p50_ms": percentile(opened.took_ms, 50),
        "closed_p999_ms": sorted(closed.took_ms)[-(len(closed.took_ms) // 1000) - 1],
        "open_p999_ms": sorted(opened.took_ms)[-(len(opened.took_ms) // 1000) - 1],
        "closed_cpu_ms_per_s": closed.cpu_ms_per_s,
        "open_cpu_ms_per_s": opened.cpu_ms_per_s,
        "records": float(min(len(closed.took_ms), len(opened.took_ms))),
    }


def main() -> None:
    from tests.bench import page

    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--rounds", type=int, default=2)
    words.add_argument("--seconds", type=float, default=10.0)
    words.add_argument("--topics", type=int, default=100)
    asked = words.parse_args()
    CACHE.mkdir(exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="bench-page-", dir=CACHE))
    try:
        with page.filled(scratch / "data", asked.topics) as (gateway, site):
            for path in page.pages().values():
                site.get(path)
                site.get(path)
            found = measure_produce(
                gateway,
                site.address,
                page.topic_name(1),
                scratch,
                rounds=asked.rounds,
                seconds=asked.seconds,
            )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    rounded = {name: round(value, 3) for name, value in found.items()}
    print(json.dumps({"bench": "page produce", "topics": asked.topics, **rounded}))


if __name__ == "__main__":
    main()
