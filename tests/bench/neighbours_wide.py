"""One producer beside consumers of many partitions: the share of its own rate that it keeps.

The producer is librdkafka, and waits for each acknowledgement. Each consumer is a librdkafka
process of its own that reads all partitions from their end.
"""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

from tests.bench.sides import create_topic
from tests.peers.broker import Broker

CONSUMERS = (0, 1, 5)
WIDTHS = (100, 1_000)
WARM_S, MEASURE_S = 2.0, 6.0
READY_S_MAX = 60.0
VALUE = b"x" * 100

_CONSUMER = """
import sys
from confluent_kafka import OFFSET_END, Consumer, TopicPartition
servers, topic, width = sys.argv[1], sys.argv[2], int(sys.argv[3])
consumer = Consumer({"bootstrap.servers": servers, "group.id": "wide", "enable.auto.commit": False,
                     "log_level": 0})
consumer.assign([TopicPartition(topic, index, OFFSET_END) for index in range(width)])
read = 0
while True:
    for message in consumer.consume(500, 0.2):
        assert message.error() is None, message.error()
        read += 1
        if read == 1:
            print("reads", flush=True)
"""


class Consumers:
    """Processes that read all partitions of a topic."""

    def __init__(self, servers: str, topic: str, width: int, count: int) -> None:
        argv = [sys.executable, "-c", _CONSUMER, servers, topic, str(width)]
        self._processes = [
            subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(count)
        ]

    def wait_reading(self, sender: Sender) -> None:
        """Send until every consumer has read a record."""
        for process in self._processes:
            assert process.stdout is not None
            deadline = time.monotonic() + READY_S_MAX
            while not select.select([process.stdout], [], [], 0)[0]:
                assert time.monotonic() < deadline, "a consumer reads nothing"
                assert process.poll() is None, "a consumer ended"
                sender.send_for(0.1)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


class Sender:
    """A producer that sends one record at a time, to all partitions in turn."""

    def __init__(self, servers: str, topic: str, width: int) -> None:
        from confluent_kafka import Producer

        self._topic = topic
        self._width = width
        self._sent = 0
        self._acknowledged = 0
        self._producer = Producer(
            {"bootstrap.servers": servers, "acks": "all", "linger.ms": 0, "log_level": 0}
        )

    def _on_delivery(self, error: object, _: object) -> None:
        assert error is None, error
        self._acknowledged += 1

    def send_for(self, seconds: float) -> float:
        """Send for this time; return the records acknowledged per second."""
        first, started = self._acknowledged, time.monotonic()
        while (spent := time.monotonic() - started) < seconds:
            index = (self._sent * 7) % self._width
            self._sent += 1
            self._producer.produce(
                self._topic, VALUE, partition=index, on_delivery=self._on_delivery
            )
            while self._acknowledged < self._sent:
                self._producer.poll(1.0)
        return (self._acknowledged - first) / spent


@contextmanager
def _reading(servers: str, topic: str, width: int, count: int, sender: Sender) -> Generator[None]:
    consumers = Consumers(servers, topic, width, count)
    try:
        consumers.wait_reading(sender)
        yield
    finally:
        consumers.end()


def rates(broker: Broker, width: int) -> dict[int, float]:
    """Return the producer's records per second beside each number of consumers."""
    topic = f"wide-{width}"
    create_topic(broker, topic, width)
    found: dict[int, float] = {}
    sender = Sender(broker.bootstrap, topic, width)
    sender.send_for(WARM_S)
    for count in CONSUMERS:
        with _reading(broker.bootstrap, topic, width, count, sender):
            sender.send_for(WARM_S)
            found[count] = sender.send_for(MEASURE_S)
    return found
