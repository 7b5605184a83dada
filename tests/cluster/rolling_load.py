"""Clients that work while a cluster changes, and move from one listener to another.

An idempotent producer of librdkafka, one of aiokafka, a transactional one of librdkafka, and the
members of a group, each in a thread of its own. Every error that reaches a client is noted.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections import Counter

from aiokafka import AIOKafkaProducer
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from tests.peers.processes import wait_until

TOPIC, GROUP, PARTITIONS, MEMBERS = "t", "g", 6, 2
ANSWER_S_MAX, READ_S_MAX = 90.0, 60.0
TIMEOUT_MS = int(ANSWER_S_MAX * 1000)
# Beyond retries: librdkafka reports lost connections too, from which it recovers by itself.
BEYOND = (KafkaError._AUTHENTICATION, KafkaError._FATAL)


class Place:
    """Where and how clients connect: the properties of librdkafka."""

    def __init__(self, bootstrap, more=None):
        self.properties = {"bootstrap.servers": bootstrap, "log_level": 0, **(more or {})}

    def of_aiokafka(self):
        """Return the same for aiokafka."""
        found = {"bootstrap_servers": self.properties["bootstrap.servers"]}
        if "security.protocol" not in self.properties:
            return found
        context = ssl.create_default_context(cafile=self.properties["ssl.ca.location"])
        return {
            **found,
            "ssl_context": context,
            "security_protocol": self.properties["security.protocol"],
            "sasl_mechanism": self.properties["sasl.mechanism"],
            "sasl_plain_username": self.properties["sasl.username"],
            "sasl_plain_password": self.properties["sasl.password"],
        }


class Client:
    """One client, which works in a thread from `start` to `stop`, at one place after another."""

    def __init__(self, load):
        self.load = load
        self._end = threading.Event()
        self._thread = None

    def start(self, place):
        self._end.clear()
        self._thread = threading.Thread(target=self._work, args=[place])
        self._thread.start()

    def stop(self):
        self._end.set()
        self._thread.join()

    def _work(self, place):
        try:
            self.run(place)
        except Exception as error:
            self.load.errors.append(f"{type(self).__name__}: {error!r}")

    def note(self, error):
        """Take an error of the client as a whole."""
        if error.code() in BEYOND and not self._end.is_set():
            self.load.errors.append(f"{type(self).__name__}: {error}")

    @property
    def ended(self):
        return self._end.is_set()


class Writer(Client):
    """A producer that numbers its records."""

    kind = ""

    def __init__(self, load):
        super().__init__(load)
        self.acknowledged = set()
        self._number = 0

    def next(self):
        """Return the next value, and its partition."""
        number, self._number = self._number, self._number + 1
        return f"{self.kind}-{number}".encode(), number % PARTITIONS


class Idempotent(Writer):
    kind = "idempotent"

    def run(self, place):
        settings = {"enable.idempotence": True, "linger.ms": 5, "error_cb": self.note}
        producer = Producer({**place.properties, **settings})

        def delivered(error, message):
            if error is None:
                self.acknowledged.add(message.value())
            else:
                self.load.errors.append(f"delivery: {error}")

        while not self.ended:
            value, partition = self.next()
            producer.produce(TOPIC, value, partition=partition, on_delivery=delivered)
            producer.poll(0.005)
        if producer.flush(ANSWER_S_MAX):
            self.load.errors.append("records are left")


class Transactional(Writer):
    """Each transaction has a record for every partition, so most need other gateways to end."""

    kind = "transactional"

    def run(self, place):
        settings = {"transactional.id": "rolling", "error_cb": self.note}
        settings["transaction.timeout.ms"] = TIMEOUT_MS
        producer = Producer({**place.properties, **settings})
        producer.init_transactions(ANSWER_S_MAX)
        while not self.ended:
            producer.begin_transaction()
            values = set()
            for _ in range(PARTITIONS):
                value, partition = self.next()
                producer.produce(TOPIC, value, partition=partition)
                values.add(value)
            producer.commit_transaction(ANSWER_S_MAX)
            self.acknowledged |= values


class Asynchronous(Writer):
    kind = "asynchronous"

    def run(self, place):
        asyncio.run(self._run(place.of_aiokafka()))

    async def _run(self, settings):
        async with AIOKafkaProducer(
            enable_idempotence=True, request_timeout_ms=TIMEOUT_MS, **settings
        ) as producer:
            while not self.ended:
                value, partition = self.next()
                await producer.send_and_wait(TOPIC, value, partition=partition)
                self.acknowledged.add(value)


class Member(Client):
    """A member of the group, which reads committed records."""

    def __init__(self, load):
        super().__init__(load)
        self.read = set()
        self.assigned = 0

    def run(self, place):
        settings = {"group.id": GROUP, "auto.offset.reset": "earliest", "error_cb": self.note}
        consumer = Consumer({**place.properties, **settings})

        def on_assign(_, partitions):
            self.assigned = len(partitions)

        def on_lost(_, partitions):
            self.load.errors.append(f"lost {len(partitions)}")

        consumer.subscribe([TOPIC], on_assign=on_assign, on_lost=on_lost)
        while not self.ended:
            for message in consumer.consume(100, 0.1):
                if message.error():
                    self.load.errors.append(f"read: {message.error()}")
                else:
                    self.read.add(message.value())
        self.assigned = 0
        consumer.close()


class Load:
    """All clients. `errors` are those that reached one of them, beyond its own retries."""

    def __init__(self):
        self.errors = []
        self.writers = [Idempotent(self), Transactional(self), Asynchronous(self)]
        self.members = [Member(self) for _ in range(MEMBERS)]

    @property
    def clients(self):
        return (*self.members, *self.writers)

    def start(self, place):
        for each in self.clients:
            each.start(place)

    def move(self, place, between):
        """Let one client after the other go on at another place; call `between` after each."""
        for each in self.clients:
            each.stop()
            each.start(place)
            between()

    def finish(self):
        """Stop the writers, let the members read what was acknowledged, and stop them too."""
        for each in self.writers:
            each.stop()
        written = self.acknowledged

        def has_read():
            return self.errors or written <= self.read

        wait_until(has_read, "the last records", READ_S_MAX, pause_s=0.1)
        self.stop()

    def stop(self):
        for each in self.clients:
            each.stop()

    @property
    def acknowledged(self):
        return set().union(*(each.acknowledged for each in self.writers))

    @property
    def read(self):
        return set().union(*(each.read for each in self.members))

    def is_whole(self):
        """Return whether the members have all partitions."""
        return sum(each.assigned for each in self.members) == PARTITIONS


def stored(place):
    """Return how often each committed value is in the topic, read by a client of its own."""
    consumer = Consumer({**place.properties, "group.id": GROUP, "enable.auto.commit": False})
    try:
        return _read_all(consumer)
    finally:
        consumer.close()


def _read_all(consumer):
    found = Counter()
    places = [TopicPartition(TOPIC, index, OFFSET_BEGINNING) for index in range(PARTITIONS)]
    ends = {each.partition: consumer.get_watermark_offsets(each)[1] for each in places}
    consumer.assign(places)
    left = places
    while left:
        for message in consumer.consume(1000, 1.0):
            assert not message.error(), message.error()
            found[message.value()] += 1
        left = [each for each in consumer.position(left) if each.offset < ends[each.partition]]
    return found
