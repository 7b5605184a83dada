"""What a fetch costs when one client reads a partition from its start, page cache warm.

    python -m tests.bench.fetch_cost                            the gateway beside Apache Kafka
    python -m tests.bench.fetch_cost --sides gateway --keep DIR        again over the same data

CPU seconds of the broker's process per GB of records (user and system apart), fetches per GB, and
how long a fetch takes, each the median of a few rounds taken in turn. Readers: Java's consumer and
librdkafka with their default sizes (1 MiB of a partition at once), and a bare socket with Java's
receive buffer that asks for the next MiB when it has the last one, and so sees when the first byte
comes and when the last. It thinks `--think-ms` before each fetch, as whoever uses records does.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from tests.bench.sides import create_topic, produce
from tests.peers import java_tools
from tests.peers.broker import Broker
from tests.peers.gateway import Gateway
from tests.peers.kafka import ONE_NODE, ApacheKafka

TOPIC = "records"
RECORD_BYTES = 100
PARTITION_BYTES = 1024 * 1024  # max.partition.fetch.bytes, both clients' default
RECEIVE_BYTES = 64 * 1024  # Java's receive.buffer.bytes
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SAID = re.compile(r"(fetch-latency-avg|fetch-total):\{client-id=[^,}]+\}\s*: ([\d.]+)")
_HEAD = Struct(">hhih5siiiibiiih7siiiqqiih")  # Fetch v11 of one partition of `records`
_BATCH = Struct(">qi")  # base offset, bytes that follow
_LAST_DELTA = Struct(">i")  # at byte 23 of a batch
_RECORDS_AT = 4 + 4 + 2 + 4 + 4 + 2 + len(TOPIC) + 4 + 4 + 2 + 8 + 8 + 8  # then aborted


class Read(NamedTuple):
    """One reader's account. Times are means over its fetches; 0: it does not say."""

    fetches: int
    first_byte_ms: float
    last_byte_ms: float


class Cost(NamedTuple):
    """One round. CPU is the broker's alone."""

    user_s_per_gb: float
    system_s_per_gb: float
    fetches_per_gb: float
    first_byte_ms: float
    last_byte_ms: float


def by_java(broker: Broker, records: int) -> Read:
    """ConsumerPerformance; it knows its mean fetch latency, to the last byte."""
    said = java_tools.run(
        java_tools.CONSUMER_PERFORMANCE,
        *("--bootstrap-server", broker.bootstrap, "--topic", TOPIC, "--print-metrics"),
        *("--num-records", str(records), "--timeout", "30000", "--hide-header"),
        timeout_s=300.0,
    )
    found = {name: float(value) for name, value in _SAID.findall(said)}
    return Read(round(found["fetch-total"]), 0.0, found["fetch-latency-avg"])


def by_librdkafka(broker: Broker, records: int) -> Read:
    from confluent_kafka import Consumer, TopicPartition

    fetches: list[int] = []

    def on_stats(text: str) -> None:
        brokers = json.loads(text)["brokers"].values()
        fetches.append(sum(each["req"].get("Fetch", 0) for each in brokers))

    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "fetch-cost",
            "enable.auto.commit": False,
            "statistics.interval.ms": 100,
            "stats_cb": on_stats,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    while records > 0:
        records -= len(consumer.consume(10_000, 30.0))
    consumer.close()
    return Read(fetches[-1], 0.0, 0.0)


def by_socket(broker: Broker, records: int, think_s: float = 0.0) -> Read:
    """One fetch after the other; nothing is looked at but where the batches end."""
    offset = fetches = 0
    first_s = last_s = 0.0
    answer = memoryview(bytearray(2 * PARTITION_BYTES))
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.connect(("127.0.0.1", broker.port))
        while offset < records:
            _busy(think_s)
            asked_s = time.perf_counter()
            connection.sendall(fetch_request(offset))
            size = connection.recv_into(answer)
            first_s += time.perf_counter() - asked_s
            while size < 4 or size < 4 + int.from_bytes(answer[:4], "big"):
                size += connection.recv_into(answer[size:])
            last_s += time.perf_counter() - asked_s
            offset = end_of(answer[:size])
            fetches += 1
    return Read(fetches, 1000 * first_s / fetches, 1000 * last_s / fetches)


def _busy(seconds: float) -> None:
    """Works, as a client does: sleeping would leave its core to the broker."""
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        pass


def fetch_request(offset: int, bytes_max: int = PARTITION_BYTES) -> bytes:
    head = (1, 11, 7, 5, b"bench")
    limits = (-1, 500, 1, 50 * PARTITION_BYTES, 0, 0, -1)
    topic = (1, len(TOPIC), TOPIC.encode(), 1, 0, -1, offset, -1, bytes_max, 0, 0)
    request = _HEAD.pack(*head, *limits, *topic)
    return len(request).to_bytes(4, "big") + request


def end_of(answer: memoryview) -> int:
    """The offset after the answer's last whole batch."""
    at = 4 + _RECORDS_AT
    error = int.from_bytes(answer[at - 26 : at - 24], "big")
    assert error == 0, f"error {error}"
    aborted = int.from_bytes(answer[at : at + 4], "big", signed=True)
    at += 4 + 16 * max(aborted, 0) + 4 + 4
    end = -1
    while at + _BATCH.size <= len(answer):
        base, length = _BATCH.unpack_from(answer, at)
        if at + _BATCH.size + length > len(answer):
            break
        end = base + _LAST_DELTA.unpack_from(answer, at + 23)[0] + 1
        at += _BATCH.size + length
    assert end >= 0, "no batch in the answer"
    return end


def cpu_split_s(pid: int) -> tuple[float, float]:
    """Seconds in user and in system mode so far, all threads, without children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return int(fields[11]) / _TICKS_PER_S, int(fields[12]) / _TICKS_PER_S


Reader = Callable[[Broker, int], Read]


def measured(broker: Broker, read: Reader, records: int) -> Cost:
    before = cpu_split_s(broker.process.pid)
    said = read(broker, records)
    after = cpu_split_s(broker.process.pid)
    gb = records * RECORD_BYTES / 1e9
    user_s, system_s = (now - then for now, then in zip(after, before, strict=True))
    return Cost(user_s / gb, system_s / gb, said.fetches / gb, said[1], said[2])


def median(rounds: list[Cost]) -> dict[str, float]:
    columns = zip(*rounds, strict=True)
    return {
        name: round(statistics.median(column), 3)
        for name, column in zip(Cost._fields, columns, strict=True)
    }


def started(sides: list[str], data: Path, records: int) -> Iterator[tuple[str, Broker]]:
    """Each side serves, with its topic full; what an earlier run left is taken as it is."""
    for side in sides:
        at = data / side
        there = at.exists()
        broker = (
            Gateway(at, ("--journal-sync", "never"))
            if side == "gateway"
            else ApacheKafka(at, ONE_NODE, heap="1g")
        )
        broker.start()
        if not there:
            create_topic(broker, TOPIC, 1)
            produce(broker, TOPIC, RECORD_BYTES, records)
            broker.restart()  # what is read comes from the page cache, not from a cache of newest
        yield side, broker


def costs_of(
    brokers: dict[str, Broker], read: Reader, records: int, count: int
) -> dict[str, dict[str, float]]:
    """The medians of `count` rounds, the sides one after the other in each."""
    rounds: dict[str, list[Cost]] = {side: [] for side in brokers}
    for number in range(count):
        for side in list(brokers)[:: -1 if number % 2 else 1]:
            rounds[side].append(measured(brokers[side], read, records))
    return {side: median(costs) for side, costs in rounds.items()}


def run(asked: argparse.Namespace, data: Path) -> dict[str, object]:
    readers: dict[str, Reader] = {
        "java": by_java,
        "librdkafka": by_librdkafka,
        "socket": lambda broker, records: by_socket(broker, records, asked.think_ms / 1000),
    }
    brokers: dict[str, Broker] = {}
    found: dict[str, object] = {}
    try:
        for side, broker in started(asked.sides, data, asked.records):
            brokers[side] = broker
            by_socket(broker, asked.records)  # warms the page cache, and Java's code
        for name in asked.readers:
            found[name] = costs_of(brokers, readers[name], asked.records, asked.rounds)
            print(name, found[name], file=sys.stderr, flush=True)
        return {"bench": "fetch_cost", "records": asked.records, **found}
    finally:
        for broker in brokers.values():
            broker.stop()


def main() -> int:
    """Run, and print one line of JSON."""
    words = argparse.ArgumentParser(description="What a fetch costs the broker.")
    words.add_argument("--records", type=int, default=5_000_000)
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--sides", nargs="+", default=["kafka", "gateway"])
    words.add_argument("--readers", nargs="+", default=["java", "librdkafka", "socket"])
    words.add_argument("--think-ms", type=float, default=5.0, help="of the socket's reader")
    words.add_argument("--keep", type=Path, help="a directory whose data stay for the next run")
    asked = words.parse_args()
    data: Path = asked.keep or Path(tempfile.mkdtemp(prefix="fetch-cost-"))
    try:
        print(json.dumps(run(asked, data)))
    finally:
        if asked.keep is None:
            shutil.rmtree(data, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
