"""The two sides of the bench, the tools that load them, and what one run of a tool showed."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.peers import install, java_tools
from tests.peers.broker import Broker
from tests.peers.gateway import Gateway
from tests.peers.kafka import JVM_QUIET, ONE_NODE, ApacheKafka
from tests.peers.release import run_tree

BEFORE = "before"
TOOL_TIMEOUT_S = 120.0
_LOOPS, _LOOP_STEPS = 5, 100_000
_PRODUCED = re.compile(r"([\d.]+) records/sec .*?(\d+) ms 50th, \d+ ms 95th, (\d+) ms 99th")


@dataclass(frozen=True, slots=True)
class Round:
    """One run of a Java tool against one broker."""

    records_per_s: float
    cpu_s_per_gb: float
    resident_bytes: int
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    others_share: float = 0.0  # of the machine's CPU: neither the broker nor the tool


class Meter:
    """What a broker and the rest of the machine used since this was made."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._usage = broker.usage()
        self._machine = machine_cpu_s()
        self._tools_s = tools_cpu_s()

    def round(
        self, record_bytes: int, records: int, per_s: float, p50_ms: float = 0, p99_ms: float = 0
    ) -> Round:
        usage = self._broker.usage()
        broker_s = usage.cpu_s - self._usage.cpu_s
        cpu_s_per_gb = broker_s / (record_bytes * records / 1e9)
        share = self._others_share(broker_s)
        return Round(per_s, cpu_s_per_gb, usage.resident_bytes, p50_ms, p99_ms, share)

    def others_share(self) -> float:
        """Return the share of the machine's CPU that neither the broker nor the bench used."""
        return self._others_share(self._broker.usage().cpu_s - self._usage.cpu_s)

    def _others_share(self, broker_s: float) -> float:
        busy_s, all_s = machine_cpu_s()
        known_s = broker_s + tools_cpu_s() - self._tools_s
        others_s = max(0.0, busy_s - self._machine[0] - known_s)
        return others_s / max(0.01, all_s - self._machine[1])


def machine_cpu_s() -> tuple[float, float]:
    """Busy and all CPU seconds of the machine since it started."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    ticks = [int(word) for word in words[1:9]]
    idle = ticks[3] + ticks[4]
    hertz = os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - idle) / hertz, sum(ticks) / hertz


def step_ns() -> float:
    """Return the CPU time of a step of a fixed loop: how fast a core is at the moment.

    A virtual machine shares its cores with others. Where they slow each other down, the same work
    costs more CPU time, which no other figure shows.
    """
    return min(_loop_s() for _ in range(_LOOPS)) * 1e9 / _LOOP_STEPS


def _loop_s() -> float:
    began_s, total = time.process_time(), 0
    for step in range(_LOOP_STEPS):
        total += step * step
    return time.process_time() - began_s


def tools_cpu_s() -> float:
    """CPU seconds of this process and of all tools that have ended."""
    used = [resource.getrusage(of) for of in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def new_side(
    side: str, sync: bool, data: Path, before: Path | None = None, flags: Sequence[str] = ()
) -> Broker:
    """Return Apache Kafka (1 GiB heap) or the gateway, not started, with or without fsync.

    The side `before` is the gateway of another source tree; `flags` are those of a gateway.
    """
    if side == "kafka":
        flush = {"log.flush.interval.messages": "1"} if sync else {}
        return ApacheKafka(data, {**ONE_NODE, **flush}, heap="1g")
    gateway = Gateway(data, (*flags, *(() if sync else ("--journal-sync", "never"))))
    if side == BEFORE:
        assert before is not None, "this side needs --before"
        run_tree(gateway, before.resolve())
    return gateway


def java(*words: str, classpath: str = "") -> str:
    """Run a Java tool with Kafka's jars, or with `classpath`. Returns what it wrote to stdout.

    Raises RuntimeError if it fails, or takes longer than `TOOL_TIMEOUT_S`.
    """
    place = ["-cp", classpath or install.kafka_classpath()]
    argv = [install.java(), "-Xmx512m", *JVM_QUIET, *place, *words]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{words[0]} did not end in {TOOL_TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        raise RuntimeError(f"{words[0]} ended with {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


class Reachable(Protocol):
    """A broker, or all brokers of a cluster."""

    @property
    def bootstrap(self) -> str: ...


def create_topic(
    broker: Reachable,
    topic: str,
    partitions: int,
    config: dict[str, str] | None = None,
    replicas: int = 1,
) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for created in admin.create_topics(
        [NewTopic(topic, partitions, replicas, config=config or {})]
    ).values():
        created.result(30.0)


def produce(
    broker: Broker, topic: str, record_bytes: int, records: int, per_s: int = -1, *words: str
) -> Round:
    """ProducerPerformance with acks=all and default client settings, and further options."""
    meter = Meter(broker)
    reached, p50_ms, p99_ms = producer_performance(
        broker, topic, record_bytes, records, per_s, *words
    )
    return meter.round(record_bytes, records, reached, p50_ms, p99_ms)


def producer_performance(
    broker: Reachable, topic: str, record_bytes: int, records: int, per_s: int = -1, *words: str
) -> tuple[float, float, float]:
    """Return records/s, and the latency's p50 and p99 in ms."""
    said = java(
        java_tools.PRODUCER_PERFORMANCE,
        *("--topic", topic, "--num-records", str(records), "--record-size", str(record_bytes)),
        *("--throughput", str(per_s), "--bootstrap-server", broker.bootstrap),
        *("--command-property", "acks=all"),
        *words,
    )
    reached, p50_ms, p99_ms = map(float, _PRODUCED.findall(said)[-1])
    return reached, p50_ms, p99_ms


def consume(broker: Broker, topic: str, record_bytes: int, records: int, *words: str) -> Round:
    """ConsumerPerformance from the beginning; its own fetch time is what counts."""
    meter = Meter(broker)
    said = java(
        java_tools.CONSUMER_PERFORMANCE,
        *("--bootstrap-server", broker.bootstrap, "--topic", topic),
        *("--num-records", str(records), "--timeout", "30000", "--hide-header"),
        *words,
    )
    fields = [field.strip() for field in said.strip().splitlines()[-1].split(",")]
    assert float(fields[4]) >= records, f"read {fields[4]} of {records}"
    return meter.round(record_bytes, records, float(fields[9]))
