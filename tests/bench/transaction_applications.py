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
from tests.peers.processes import Process, wait_until

COPIED, QUICK_COPIED = 60_000, 6_000
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
LINES, QUICK_LINES = 20_000, 1_000
PLACES = 2  # partitions of each topic
SECONDS_MAX = 120.0


def copier(stage: Stage) -> None:
    """TransactionalMessageCopier: 200 records and their offset in each transaction."""
    records = QUICK_COPIED if stage.quick else COPIED
    for topic in ("source", "copies"):
        create_topic(stage.broker, topic, 1)
    produce(stage.broker, "source", COPIED_BYTES, records)
    cpu_s = stage.broker.usage().cpu_s
    words = ["--input-topic", "source", "--input-partition", "0", "--output-topic", "copies"]
    words += ["--broker-list", stage.broker.bootstrap, "--consumer-group", "copier"]
    shown = java(f"{TOOLS}.TransactionalMessageCopier", *words, "--transactional-id", "copier")
    used = stage.broker.usage()
    found = [row for row in map(json.loads, shown.splitlines()) if row.get("stage")]
    done = [(_time_s(row["time"]), int(row["totalProcessed"])) for row in found]
    assert done[-1][1] == records, f"copied {done[-1][1]} of {records}"
    counted = [each for each in done if each[1] >= WARM_UP_SHARE * records]
    (first_s, before), (last_s, after) = counted[0], counted[-1]
    figures = {"records_per_s": (after - before) / max(last_s - first_s, 0.001)}
    figures["cpu"] = (used.cpu_s - cpu_s) / (records * COPIED_BYTES / 1e9)
    figures["memory"] = used.resident_bytes / 1e6
    stage.add("200 records", figures)


def _time_s(text: str) -> float:
    return datetime.strptime(text, _TIME).timestamp()


def words(stage: Stage) -> None:
    """Kafka Streams counts words exactly once: from the first line sent to the last count read."""
    lines = QUICK_LINES if stage.quick else LINES
    for topic in ("lines", "counts"):
        create_topic(stage.broker, topic, PLACES)
    with _counter(stage), _reader(stage) as reader:
        _count(stage, reader, max(lines // 4, 100))  # until it runs, and is compiled
        cpu_s = stage.broker.usage().cpu_s
        took_s = _count(stage, reader, lines)
        used = stage.broker.usage()
    counted = lines * WORDS_PER_LINE
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


def _count(stage: Stage, reader: Consumer, lines: int) -> float:
    """Write lines and read their committed counts. Returns the seconds that this took."""
    draw = random.Random(3)
    servers = {"bootstrap.servers": stage.broker.bootstrap, "log_level": 0}
    producer = Producer({**servers, "enable.idempotence": True, "linger.ms": 20})
    begun = time.monotonic()
    for _ in range(lines):
        producer.produce("lines", " ".join(draw.choices(WORDS, k=WORDS_PER_LINE)))
        producer.poll(0)
    if producer.flush(SECONDS_MAX):
        raise RuntimeError("some lines were not acknowledged")
    left = lines * WORDS_PER_LINE

    def all_read() -> bool:
        nonlocal left
        left -= sum(message.error() is None for message in reader.consume(10_000, 0.05))
        return left <= 0

    wait_until(all_read, "the committed counts", SECONDS_MAX)
    return time.monotonic() - begun
