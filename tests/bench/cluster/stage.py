"""A side that has started, its clients, and where its figures go."""

from __future__ import annotations

import os
import sys
from typing import Any

from tests.bench.cluster.filler import BATCH_BYTES, fill
from tests.bench.cluster.meter import Figures, Meter
from tests.bench.cluster.sides import Side, leaders
from tests.bench.cluster.tools import Driver, JavaReader, Read
from tests.bench.sides import create_topic, step_ns
from tests.peers.processes import wait_until

REPLICAS = 3
WARM_TOPIC, WARM_RECORDS, WARM_BYTES, WARM_PARTITIONS = "warm", 600_000, 100, 6
WARM_READS = 2
LEADERS_S_MAX = 30.0
Cells = dict[str, Figures]
"""The figures of one side in one run, by cell."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Stage:
    """One side in one run. Parts that follow each other share its topics."""

    def __init__(self, side: Side, cells: Cells, *, quick: bool) -> None:
        self.side = side
        self.cells = cells
        self.quick = quick
        # Records that can be read from each topic that was filled whole.
        self.filled: dict[str, int] = {}
        # Starts with the first read.
        self._reader: JavaReader | None = None
        self._drivers = 0

    def close(self) -> None:
        if self._reader is not None:
            self._reader.stop()

    def add(self, cell: str, figures: Figures) -> None:
        self.cells[cell] = figures = {**figures, "step_ns": step_ns()}
        wanted = ("records_per_s", "p50_ms", "p99_ms", "cpu_s_per_gb", "memory_mb", "others_share")
        wanted = (*wanted, "core_share", "pause_s", "step_ns")
        shown = [f"{name} {figures[name]:,.2f}" for name in wanted if name in figures]
        say(f"{self.side.name} {cell}: {', '.join(shown)}")

    def new_topic(self, topic: str, partitions: int) -> None:
        """Create it, and write a record to each partition, so that all leaders serve."""
        from confluent_kafka import Producer

        create_topic(self.side, topic, partitions, replicas=REPLICAS)
        wait_until(lambda: self._led(topic), f"the leaders of {topic}", LEADERS_S_MAX, pause_s=0.1)
        producer = Producer({"bootstrap.servers": self.side.bootstrap, "log_level": 0})
        for partition in range(partitions):
            producer.produce(topic, b"first", partition=partition)
        assert not producer.flush(LEADERS_S_MAX), f"{topic} takes no records"

    def _led(self, topic: str) -> bool:
        try:
            return bool(leaders(self.side, topic))
        except KeyError:
            return False

    def warm(self) -> None:
        """Write enough that the servers run compiled code."""
        self.fill(WARM_TOPIC, WARM_PARTITIONS, WARM_BYTES, WARM_RECORDS)

    def fill(
        self, topic: str, partitions: int, record_bytes: int, records: int, batch: int = BATCH_BYTES
    ) -> None:
        """Create a topic and write records to it at saturation."""
        self.new_topic(topic, partitions)
        self.filled[topic] = fill(self.side, topic, partitions, record_bytes, records, batch)

    def reader(self) -> JavaReader:
        """Return the reader. At first it starts and reads a topic until its code is compiled."""
        if self._reader is None:
            self._reader = reader = JavaReader(self.side).start()
            for _ in range(WARM_READS):
                reader.read(WARM_TOPIC, WARM_PARTITIONS, self.filled[WARM_TOPIC])
        return self._reader

    def read(self, topic: str, partitions: int, record_bytes: int) -> Figures:
        """Read a whole topic that `fill` wrote."""
        reader, records = self.reader(), self.filled[topic]
        meter = Meter(self.side, [reader.pid])
        return self.read_figures(meter, reader.read(topic, partitions, records), record_bytes)

    def read_figures(self, meter: Meter, read: Read, record_bytes: int) -> Figures:
        """Return what the read cost. Raises RuntimeError if it did not end in time."""
        if not read.ended:
            raise RuntimeError(f"read {read.records} records in {read.seconds:.0f} s, not all")
        figures = meter.figures(record_bytes, read.records)
        return {"records_per_s": read.records / read.seconds, "seconds": read.seconds, **figures}

    def driver(self, what: str, **asked: Any) -> Driver:
        """Start a driver on this side; stop it with `with`."""
        self._drivers += 1
        os.sync()  # what the load before left for the disk is not this one's burden
        return Driver(self.side, what, self.side.data / f"driver-{self._drivers}.log", asked)
