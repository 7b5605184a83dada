"""Goal: a gateway leaves a bookie whose answers come late, and an operator sees it.

Method: `gateway serve` over three real bookies behind proxies; one proxy delays all answers. A
consumer reads old records at random offsets until the gateway reports the bookie.
"""

from __future__ import annotations

import json
import random

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.cluster.test_gateway import make_topic
from tests.cluster.world import World
from tests.gateway.admin_commands import run
from tests.peers.gateway import ClusterGateway
from tests.peers.processes import wait_until
from tests.peers.proxy import TO_CLIENT

pytestmark = pytest.mark.alone

RECORDS = 6_000
SLOWER_S = 0.2  # clear of the noise of a busy machine; a later answer counts as a failure


class Reads:
    """A consumer of one partition that seeks before each record."""

    def __init__(self, bootstrap, topic):
        self.topic = topic
        self.draw = random.Random(7)
        settings = {"group.id": "reads", "enable.auto.commit": False, "log_level": 0}
        settings |= {"bootstrap.servers": bootstrap, "fetch.message.max.bytes": 1024}
        self.consumer = Consumer(settings)
        self.consumer.assign([TopicPartition(topic, 0, 0)])
        self.next()

    def next(self):
        message = self.consumer.poll(30.0)
        assert message is not None and message.error() is None
        return message

    def some(self, count=10):
        for _ in range(count):
            offset = self.draw.randrange(RECORDS // 2)
            self.consumer.seek(TopicPartition(self.topic, 0, offset))
            while (message := self.next()).offset() != offset:
                pass
            assert message.value().startswith(b"%d " % offset)


def fill(bootstrap, topic):
    settings = {"bootstrap.servers": bootstrap, "linger.ms": 5, "batch.size": 8_000}
    producer = Producer(settings | {"enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce(topic, b"%d " % number + bytes(1_000), partition=0)
        if number % 100 == 0:
            producer.flush(30.0)
    assert producer.flush(30.0) == 0


def started(data, world):
    return ClusterGateway(data, world.zookeeper.servers, session_ms=20_000)


def status(gateway):
    code, out, errors = run("bookie", "status", "-o", "json", bootstrap=gateway.bootstrap)
    if code != 0:  # a busy gateway answered late: it is asked again
        print(errors)
        return {}
    assert errors == ""
    [row] = json.loads(out)
    assert row["detection"] == "enabled"
    return {each["bookie"]: each for each in row["bookies"] if each["reason"] == "slow"}


def test_a_late_bookie_is_greylisted_and_shown(tmp_path):
    with World(tmp_path, 3) as world:
        with started(tmp_path / "gateway", world) as gateway:
            make_topic(gateway.bootstrap, "old")
            fill(gateway.bootstrap, "old")
        with started(tmp_path / "gateway-2", world) as gateway:
            reads = Reads(gateway.bootstrap, "old")
            reads.some()
            world.proxies[0].slow(TO_CLIENT, latency_s=SLOWER_S)
            slow = world.bookies[0].id

            def found():
                reads.some()
                return status(gateway).get(slow)

            row = wait_until(found, "the late bookie to be greylisted", 180.0)
            assert "reads up to" in row["why"]
            reads.consumer.close()
