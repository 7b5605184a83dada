"""Open-loop clients of librdkafka, each in a process of its own, for any cluster.

`produce` offers records at a fixed rate, whatever the servers do. A record's latency runs from the
moment it was due, so that a delay counts for all records that wait behind it. `follow` reads at the
end of the same topic. Both take one JSON object, write the words `measuring` and `measured` when
the part that counts begins and ends, and one line of JSON.
"""

from __future__ import annotations

import json
import signal
import struct
import sys
import threading
import time
from functools import partial
from typing import Any

NS = 1_000_000_000
# When the record was due on the machine's monotonic clock, and what it is.
STAMP = struct.Struct(">qb")
WARMING, COUNTED, LAST = range(3)
FLUSH_S, IDLE_S = 30.0, 30.0
KEPT_UP_S = 1.0
TICK_S = 0.001


def milliseconds(latencies: list[float], share: float) -> float:
    """Return a percentile of latencies in seconds, as milliseconds."""
    if not latencies:
        return 0.0
    latencies.sort()
    return 1000 * latencies[min(len(latencies) - 1, int(share * len(latencies)))]


class Offer:
    """A producer that sends record number n at the time n / rate."""

    def __init__(self, asked: dict[str, Any]) -> None:
        from confluent_kafka import Producer

        settings = {"bootstrap.servers": asked["bootstrap"], "acks": "all", "log_level": 0}
        self._producer = Producer({**settings, **asked.get("settings", {})})
        self._topic = asked["topic"]
        self._partitions: int = asked["partitions"]
        self._rate: float = asked["rate"]
        self._padding = bytes(range(65, 91)) * (asked["bytes"] // 26 + 1)
        self._padding = self._padding[: asked["bytes"] - STAMP.size]
        self._latencies: list[float] = []
        self.errors = 0
        self.ended = False

    def _on_delivery(self, due_ns: int, error: Any, _: Any) -> None:
        if error is not None:
            self.errors += 1
        else:
            self._latencies.append((time.monotonic_ns() - due_ns) / NS)

    def _send(self, due_ns: int, kind: int, partition: int = -1) -> None:
        value = STAMP.pack(due_ns, kind) + self._padding
        more = {} if partition < 0 else {"partition": partition}
        if kind == COUNTED:
            more["on_delivery"] = partial(self._on_delivery, due_ns)
        while True:
            try:
                return self._producer.produce(self._topic, value, **more)
            except BufferError:
                self._producer.poll(0.01)

    def run(self, seconds: float, kind: int) -> int:
        """Offer records for so many seconds; returns how many there were."""
        began_ns, step_ns = time.monotonic_ns(), NS / self._rate
        count, sent = int(seconds * self._rate), 0
        while sent < count and not self.ended:
            due_ns = began_ns + int(sent * step_ns)
            wait_ns = due_ns - time.monotonic_ns()
            if wait_ns > 0:
                self._rest(wait_ns)
                continue
            self._send(due_ns, kind)
            sent += 1
            if not sent % 256:
                self._producer.poll(0)
        return sent

    def _rest(self, wait_ns: int) -> None:
        """Wait until a record is due; of many, until several are, which costs less CPU."""
        self._producer.poll(0)
        threading.Event().wait(max(wait_ns / NS, TICK_S if self._rate > 1 / TICK_S else 0.0))

    def end(self) -> None:
        """Mark the end in each partition, and wait until all records were acknowledged."""
        self._producer.flush(FLUSH_S)
        for partition in range(self._partitions):
            self._send(time.monotonic_ns(), LAST, partition)
        self.errors += self._producer.flush(FLUSH_S)

    def report(self, offered: int, seconds: float) -> dict[str, float]:
        return {
            "records": len(self._latencies),
            "records_per_s": len(self._latencies) / seconds,
            "offered_per_s": self._rate,
            "offered": offered,
            "errors": self.errors,
            "p50_ms": milliseconds(self._latencies, 0.5),
            "p99_ms": milliseconds(self._latencies, 0.99),
        }


def produce(asked: dict[str, Any]) -> dict[str, float]:
    offer = Offer(asked)
    signal.signal(signal.SIGTERM, lambda *_: setattr(offer, "ended", True))
    offer.run(asked["warm_s"], WARMING)
    print("measuring", flush=True)
    began_s = time.monotonic()
    offered = offer.run(asked["seconds"], COUNTED)
    seconds = time.monotonic() - began_s
    print("measured", flush=True)
    if not offer.ended:
        offer.end()
    return offer.report(offered, seconds)


def follow(asked: dict[str, Any]) -> dict[str, float]:
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": asked["bootstrap"], "log_level": 0, "group.id": "follow"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    ends = [TopicPartition(asked["topic"], at) for at in range(asked["partitions"])]
    for each in ends:
        each.offset = consumer.get_watermark_offsets(each, 10.0)[1]
    consumer.assign(ends)
    print("measuring", flush=True)
    latencies: list[float] = []
    last, deadline_s = 0, time.monotonic() + IDLE_S
    while last < asked["partitions"] and time.monotonic() < deadline_s:
        first = consumer.poll(0.1)
        now_ns = time.monotonic_ns()
        for message in [] if first is None else [first, *consumer.consume(2_000, 0)]:
            value = None if message.error() else message.value()
            if value is None:
                continue
            due_ns, kind = STAMP.unpack_from(value)
            if kind == COUNTED:
                latencies.append((now_ns - due_ns) / NS)
            last += kind == LAST
            deadline_s = time.monotonic() + IDLE_S
    print("measured", flush=True)
    consumer.close()
    in_time = sum(latency <= KEPT_UP_S for latency in latencies)
    return {
        "read": len(latencies),
        "in_time": in_time,
        "read_p50_ms": milliseconds(latencies, 0.5),
        "read_p99_ms": milliseconds(latencies, 0.99),
    }


def main() -> int:
    asked = json.loads(sys.argv[2])
    done = {"produce": produce, "follow": follow}[sys.argv[1]](asked)
    print(json.dumps(done), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
