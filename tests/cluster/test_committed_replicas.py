"""Goal: readers of committed records in three racks read each committed record once, in order, and
no other, from the gateway of their rack, while leaders are killed.

Method: three gateways on racks of their own, three bookies and
ZooKeeper as processes; one transactional producer and one consumer for each rack, all librdkafka.
At the end Kafka's console consumer reads the same in each rack.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
from confluent_kafka import KafkaException, Producer

from tests.cluster.ownership_rig import OPTIONS, OwnershipRig
from tests.cluster.test_gateway import make_topic
from tests.cluster.test_replicas import PARTITIONS, TOPIC, Nearby
from tests.histories.background import Background
from tests.peers import java_tools
from tests.peers.java_tools import run
from tests.peers.processes import wait_until

pytestmark = pytest.mark.proof

SIZE = 12
CALL_S_MAX = 60.0
AGAIN_S = 0.2


class Writer:
    """A producer of transactions. `kept` has the committed values of each partition, in order."""

    def __init__(self, bootstrap):
        settings = {"bootstrap.servers": bootstrap, "transactional.id": "writer", "log_level": 0}
        settings |= {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}
        self._producer = Producer(settings)
        self._again(lambda: self._producer.init_transactions(10))
        self.kept = {partition: [] for partition in range(PARTITIONS)}
        self._count = 0

    def write(self, *, commit, meanwhile=lambda: None):
        """Write one transaction, and end it. Those that cannot be committed are aborted."""
        self._count += 1
        values = {p: [b"%d-%d" % (self._count, n) for n in range(SIZE)] for p in range(PARTITIONS)}
        self._producer.begin_transaction()
        for partition, each in values.items():
            for value in each:
                self._producer.produce(TOPIC, value, partition=partition)
        self._producer.flush(60)
        meanwhile()
        try:
            if commit:
                self._again(lambda: self._producer.commit_transaction(10))
        except KafkaException as error:
            assert error.args[0].txn_requires_abort(), error
            commit = False
        if not commit:
            self._again(lambda: self._producer.abort_transaction(10))
            return
        for partition, each in values.items():
            self.kept[partition] += each

    def _again(self, call):
        """Repeat a call until it does not fail in a retriable way."""

        def done():
            try:
                call()
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
                return False
            return True

        wait_until(done, "a call of the producer to succeed", CALL_S_MAX, pause_s=AGAIN_S)


class Stage:
    def __init__(self, directory):
        self.background = Background()
        self.rig = OwnershipRig(directory, self.background, options=OPTIONS)

    def __enter__(self):
        self.background.start()
        try:
            self.rig.start()
            self.bootstrap = self.rig.gateways.bootstrap
            make_topic(self.bootstrap, TOPIC)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.rig.stop()
        self.background.stop()


@pytest.fixture
def stage(tmp_path):
    with Stage(tmp_path) as started:
        yield started


def values(consumer):
    return {partition: [value for _, value in found] for partition, found in consumer.found.items()}


def read_by_java(bootstrap, rack, count):
    """Return the first values of partition 0 that Kafka's console consumer of a rack reads."""
    place = ("--bootstrap-server", bootstrap, "--topic", TOPIC, "--partition", "0")
    how = ("--isolation-level", "read_committed", "--command-property", f"client.rack={rack}")
    ends = ("--offset", "earliest", "--max-messages", str(count))
    return run(java_tools.CONSOLE_CONSUMER, *place, *how, *ends).encode().split()


def wait_for_all(consumers, writer):
    def there():
        for consumer in consumers:
            consumer.poll(0.05)
        return all(
            each[-1:] == writer.kept[partition][-1:]
            for consumer in consumers
            for partition, each in values(consumer).items()
        )

    wait_until(there, "consumers to read the last committed record", 90.0)


def test_each_rack_reads_what_was_committed_and_nothing_else(stage):
    writer = Writer(stage.bootstrap)
    consumers = [Nearby(stage.bootstrap, f"r{number}") for number in (1, 2, 3)]

    def poll():
        for consumer in consumers:
            consumer.poll(0.05)

    try:
        writer.write(commit=True)
        wait_for_all(consumers, writer)
        before = [Counter(consumer.fetches) for consumer in consumers]
        for number in range(20):
            writer.write(commit=number % 3 != 1, meanwhile=poll)
        writer.write(commit=True)
        wait_for_all(consumers, writer)
        for node, consumer in enumerate(consumers):
            later = {n: count - before[node][n] for n, count in consumer.fetches.items()}
            assert later[node] >= 0.9 * sum(later.values()) > 0, (node, later)
        for gateway in stage.rig.gateways:
            # The session of a machine has to expire; that of a process ends at once.
            kill = partial(stage.rig.kill, gateway, machine=gateway.node_id == 1)
            writer.write(commit=True, meanwhile=kill)
            for number in range(4):
                writer.write(commit=number % 2 == 0, meanwhile=poll)
            gateway.start()
        writer.write(commit=True)
        wait_for_all(consumers, writer)
        for consumer in consumers:
            assert values(consumer) == writer.kept
        for rack in ("r1", "r2", "r3"):
            assert read_by_java(stage.bootstrap, rack, len(writer.kept[0])) == writer.kept[0]
    finally:
        for consumer in consumers:
            consumer.close()
