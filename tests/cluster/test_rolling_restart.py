"""Goal: gateways that restart one after the other, as in a StatefulSet, disturb no client.

Method: three gateways, three bookies and ZooKeeper as processes. Each gateway gets SIGTERM, has
60 s to end, starts again, and is ready before the next one. An idempotent producer of librdkafka
and the members of a group go on meanwhile; every error and every rebalance is noted.
"""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import Consumer, Producer

from tests.cluster.world import World
from tests.gateway.admin_commands import invoke
from tests.peers.gateway import Gateways
from tests.peers.processes import wait_until

GRACE_S = 60.0  # terminationGracePeriodSeconds
PARTITIONS = 6
MEMBERS = 2
MORE = 300  # records between two restarts


class Load:
    """A producer and the members of a group, each in a thread of its own, until `stop`."""

    def __init__(self, bootstrap):
        self._settings = {"bootstrap.servers": bootstrap, "log_level": 0}
        self._end = threading.Event()
        self.acknowledged, self.read = set(), set()
        self.errors, self.assigned = [], []
        works = [self._produce, *[self._consume] * MEMBERS]
        self._threads = [threading.Thread(target=work) for work in works]
        for each in self._threads:
            each.start()

    def stop(self):
        self._end.set()
        for each in self._threads:
            each.join()

    def _produce(self):
        producer = Producer({**self._settings, "enable.idempotence": True, "linger.ms": 5})
        number = 0

        def delivered(error, message):
            if error is None:
                self.acknowledged.add(int(message.value()))
            else:
                self.errors.append(f"delivery: {error}")

        while not self._end.is_set():
            producer.produce(
                "t", b"%d" % number, partition=number % PARTITIONS, on_delivery=delivered
            )
            number += 1
            producer.poll(0.005)
        if producer.flush(GRACE_S):
            self.errors.append("records are left")

    def _consume(self):
        consumer = Consumer({**self._settings, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(
            ["t"],
            on_assign=lambda _, partitions: self.assigned.append(len(partitions)),
            on_lost=lambda _, partitions: self.errors.append(f"lost {len(partitions)}"),
        )
        while not self._end.is_set():
            for message in consumer.consume(100, 0.1):
                if message.error():
                    self.errors.append(f"read: {message.error()}")
                else:
                    self.read.add(int(message.value()))
        consumer.close()


@pytest.mark.proof
def test_a_rolling_restart_fails_no_record_and_moves_no_partition_of_a_group(tmp_path):
    with World(tmp_path, 3, proxied=False) as world:
        gateways = Gateways(tmp_path, world.zookeeper.servers, 3, session_ms=10_000).start()
        load = None
        try:
            create = ("topic", "create", "t", "-p", str(PARTITIONS))
            assert invoke(*create, bootstrap=gateways.bootstrap)[0] == 0
            load = Load(gateways.bootstrap)
            wait_until(lambda: sum(load.assigned[-MEMBERS:]) == PARTITIONS, "both members", 60.0)
            before = len(load.assigned)
            for gateway in gateways:
                wait_more(load)
                assert gateway.stop() == 0  # within the grace
                gateway.begin()
                gateway.wait_started()
            wait_more(load)
            assert len(load.assigned) == before, "rebalances"
        finally:
            if load is not None:
                load.stop()
            gateways.kill()
    assert load.errors == []
    assert load.read >= load.acknowledged - set(sorted(load.acknowledged)[-1000:])
    assert len(load.acknowledged) > 4 * MORE


def wait_more(load):
    """Wait until `MORE` further records were acknowledged, and as many were read."""
    written, read = len(load.acknowledged), len(load.read)
    wait_until(lambda: len(load.acknowledged) >= written + MORE, "records", GRACE_S)
    wait_until(lambda: len(load.read) >= read + MORE, "readers", GRACE_S)
