"""Two applications of transactions, end to end: a copy of a partition, and a word count."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.bench.beside import Stage
from tests.bench.sides import create_topic, java, produce
from tests.peers import install
from tests.peers.java_tools import JVM_PERF, TOOLS
from tests.peers.kafka import JVM_QUIET
from tests.peers.processes import Process

COPIED, COPIED_FIRST = 60_000, 2_000
COPIED_BYTES = 100
WARM_UP_SHARE = 0.25  # of the copied records, in front of those that count
_TIME = "%Y/%m/%d %H:%M:%S:%f"

COUNTER = install.ROOT / "tests" / "peers" / "WordCount.java"
STREAMS = (
    ("org.apache.kafka", "kafka-streams", install.KAFKA_VERSION),
    install.LOG_COORDINATE,
)
WORDS = [f"{number}-{'x' * 20}" for number in range(400)]
WORDS_PER_LINE = 4
LINES, LINES_FIRST = 20_000, 250
PLACES = 2  # partitions of each topic
COUNTED_S, QUICK_S = 20.0, 4.0  # after this time no further counts or copies are waited for
SECONDS_MAX = 120.0


def copier(stage: Stage) -> None:
    """TransactionalMessageCopier: 200 records and their offset in each transaction."""
    for topic in ("source", "copies"):
        create_topic(stage.broker, topic, 1)
    produce(stage.broker, "source", COPIED_BYTES, COPIED)
    records = int(_copied_per_s(stage, COPIED_FIRST) * (QUICK_S if stage.quick else COUNTED_S))
    records = max(COPIED_FIRST, min(records, COPIED - COPIED_FIRST))
    cpu_s = stage.broker.usage().cpu_s
    figures = {"records_per_s": _copied_per_s(stage, records)}
    used = stage.broker.usage()
    figures["cpu"] = (used.cpu_s - cpu_s) / (records * COPIED_BYTES / 1e9)
    figures["memory"] = used.resident_bytes / 1e6
    stage.add("200 records", figures)


def _copied_per_s(stage: Stage, records: int) -> float:
    """Copy the next records. The first ones of them do not count."""
    words = ["--input-topic", "source", "--input-partition", "0", "--output-topic", "copies"]
    words += ["--broker-list", stage.broker.bootstrap, "--consumer-group", "copier"]
    words += ["--transactional-id", "copier", "--max-messages", str(records)]
    shown = java(f"{TOOLS}.TransactionalMessageCopier", *words)
    found = [row for row in map(json.loads, shown.splitlines()) if row.get("stage")]
    done = [(_time_s(row["time"]), int(row["totalProcessed"])) for row in found]
    assert done[-1][1] >= records, f"copied {done[-1][1]} of {records}"
    counted = [each for each in done if each[1] >= WARM_UP_SHARE * records]
    (first_s, before), (last_s, after) = counted[0], counted[-1]
    return (after - before) / max(last_s - first_s, 0.001)


def _time_s(text: str) -> float:
    return datetime.strptime(text, _TIME).timestamp()


def words(stage: Stage) -> None:
    """Kafka Streams counts words exactly once: from the first line sent to the last count read."""
    seconds = QUICK_S if stage.quick else COUNTED_S
    for topic in ("lines", "counts"):
        create_topic(stage.broker, topic, PLACES)
    with _counter(stage), _reader(stage) as reader:
        _count(stage, reader, LINES_FIRST, SECONDS_MAX)  # until it runs, and is compiled
        cpu_s = stage.broker.usage().cpu_s
        counted, took_s = _count(stage, reader, LINES, seconds)
        used = stage.broker.usage()
    assert counted, f"no word was counted in {took_s:.0f} s"
    figures = {"words_per_s": counted / took_s, "cpu_ms": 1000 * (used.cpu_s - cpu_s) / counted}
    figures["memory"] = used.resident_bytes / 1e6
    stage.add(f"{PLACES} partitions", figures)


@contextmanager
def _counter(stage: Stage) -> Iterator[Process]:
    jars = install.maven_jars(f"kafka-streams-{install.KAFKA_VERSION}", STREAMS)
    classpath = install.compiled(COUNTER, sorted(jars.glob("*.jar")))
    place = [stage.broker.bootstrap, str(stage.data / "streams")]
    jvm = [install.java(), *JVM_PERF, *JVM_QUIET, "-cp", classpath]
    process = Process([*jvm, COUNTER.stem, *place], stage.data / "streams.log")
    try:
        yield process
    finally:
        process.kill()


@contextmanager
def _reader(stage: Stage) -> Iterator[Consumer]:
    settings = {"bootstrap.servers": stage.broker.bootstrap, "group.id": "reader", "log_level": 0}
    settings |= {"isolation.level": "read_committed", "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition("counts", place, 0) for place in range(PLACES)])
    try:
        yield consumer
    finally:
        consumer.close()


def _count(stage: Stage, reader: Consumer, lines: int, seconds: float) -> tuple[int, float]:
    """Write lines and read their committed counts, for up to `seconds`.

    Returns how many counts were read, and the time from the first line sent to the last of them.
    """
    draw = random.Random(3)
    servers = {"bootstrap.servers": stage.broker.bootstrap, "log_level": 0}
    producer = Producer({**servers, "enable.idempotence": True, "linger.ms": 20})
    begun_s = last_s = time.monotonic()
    for _ in range(lines):
        producer.produce("lines", " ".join(draw.choices(WORDS, k=WORDS_PER_LINE)))
        producer.poll(0)
    counted = 0
    while counted < lines * WORDS_PER_LINE and time.monotonic() < begun_s + seconds:
        found = sum(message.error() is None for message in reader.consume(10_000, 0.05))
        counted, last_s = counted + found, time.monotonic() if found else last_s
    if producer.flush(SECONDS_MAX):
        raise RuntimeError("some lines were not acknowledged")
    return counted, last_s - begun_s
