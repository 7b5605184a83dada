"""The two sides of the bench, the tools that load them, and what one run of a tool showed."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.peers import install
from tests.peers.broker import Broker
from tests.peers.gateway import Gateway
from tests.peers.kafka import JVM_QUIET, ONE_NODE, ApacheKafka

TOOL_TIMEOUT_S = 120.0
_PRODUCED = re.compile(r"([\d.]+) records/sec .*?(\d+) ms 50th, \d+ ms 95th, (\d+) ms 99th")


@dataclass(frozen=True, slots=True)
class Round:
    """One run of a Java tool against one broker."""

    records_per_s: float
    cpu_s_per_gb: float
    resident_bytes: int
    p50_ms: float = 0.0
    p99_ms: float = 0.0


def new_side(side: str, sync: bool, data: Path) -> Broker:
    """Return Apache Kafka (1 GiB heap) or the gateway, not started, with or without fsync."""
    if side == "kafka":
        flush = {"log.flush.interval.messages": "1"} if sync else {}
        return ApacheKafka(data, {**ONE_NODE, **flush}, heap="1g")
    return Gateway(data, () if sync else ("--journal-sync", "never"))


def _java(*words: str) -> str:
    argv = [install.java(), "-Xmx512m", *JVM_QUIET, "-cp", install.kafka_classpath(), *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S)
    if done.returncode != 0:
        raise RuntimeError(f"{words[0]} ended with {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def create_topic(broker: Broker, topic: str, partitions: int) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for created in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        created.result(30.0)


def produce(broker: Broker, topic: str, record_bytes: int, records: int, per_s: int = -1) -> Round:
    """ProducerPerformance with acks=all and default client settings."""
    before = broker.usage()
    said = _java(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(records), "--record-size", str(record_bytes)),
        *("--throughput", str(per_s), "--producer-props"),
        *(f"bootstrap.servers={broker.bootstrap}", "acks=all"),
    )
    after = broker.usage()
    last = _PRODUCED.findall(said)[-1]
    gigabytes = record_bytes * records / 1e9
    return Round(
        float(last[0]),
        (after.cpu_s - before.cpu_s) / gigabytes,
        after.resident_bytes,
        float(last[1]),
        float(last[2]),
    )


def consume(broker: Broker, topic: str, record_bytes: int, records: int) -> Round:
    """ConsumerPerformance from the beginning; its own fetch time is what counts."""
    before = broker.usage()
    said = _java(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", broker.bootstrap, "--topic", topic),
        *("--num-records", str(records), "--timeout", "30000", "--hide-header"),
    )
    after = broker.usage()
    fields = [field.strip() for field in said.strip().splitlines()[-1].split(",")]
    assert float(fields[4]) >= records, f"read {fields[4]} of {records}"
    gigabytes = record_bytes * records / 1e9
    return Round(float(fields[9]), (after.cpu_s - before.cpu_s) / gigabytes, after.resident_bytes)
