"""Goal: stock consumers that check their position after a change of leaders read on without a gap.

Method: a gateway is killed while a consumer reads, so that the next leader has another epoch. The
log of the client shows the request, and its records are compared.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.compat.clients.suite import numbered, produce
from tests.compat.clients.with_aiokafka import Aiokafka
from tests.peers import java_tools
from tests.peers.gateway import Gateway
from tests.peers.processes import wait_until

pytestmark = pytest.mark.compat
TOPIC, COUNT = "t", 20
OF_JAVA = "org.slf4j.simpleLogger.log.org.apache.kafka.clients.NetworkClient"


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    with Gateway(tmp_path / "data") as started:
        yield started


def write(gateway: Gateway, begin: int) -> None:
    """Write the next `COUNT` records with a client of their own."""
    client = Aiokafka(gateway.bootstrap)
    try:
        if not begin:
            client.create_topic(TOPIC)
        produce(client, TOPIC, numbered(begin + COUNT)[begin:])
    finally:
        client.close()


def test_librdkafka_checks_its_position_and_reads_on(gateway: Gateway):
    lines: list[str] = []
    log = logging.Logger("librdkafka")
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    log.addHandler(handler)
    consumer = Consumer(
        {
            "bootstrap.servers": gateway.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "error",
            "debug": "protocol,fetch",
            "topic.metadata.refresh.interval.ms": 500,
        },
        logger=log,
    )
    found: list[bytes | None] = []

    def read_until(count: int) -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message.value())
        return len(found) >= count

    try:
        write(gateway, 0)
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        wait_until(lambda: read_until(COUNT), "the first records")
        asked = len([line for line in lines if "Sent OffsetForLeaderEpoch" in line])
        gateway.restart(kill=True)
        write(gateway, COUNT)
        wait_until(lambda: read_until(2 * COUNT), "the records of the next leader")
        sent = [line for line in lines if "Sent OffsetForLeaderEpoch" in line]
        assert len(sent) > asked, "the client did not check its position"
        assert "(v2," in sent[-1]
    finally:
        consumer.close()
    assert found == [record.value for record in numbered(2 * COUNT)]


def test_a_java_consumer_checks_its_position_and_reads_on(gateway: Gateway, tmp_path: Path):
    write(gateway, 0)
    consumer = java_tools.start(
        tmp_path / "consumer.log",
        java_tools.CONSOLE_CONSUMER,
        *("--bootstrap-server", gateway.bootstrap, "--topic", TOPIC, "--partition", "0"),
        *("--offset", "earliest", "--max-messages", str(2 * COUNT)),
        *("--command-property", "metadata.max.age.ms=500"),
        jvm=(f"-D{OF_JAVA}=debug",),
    )
    last, end = (numbered(2 * COUNT)[at].value.decode() for at in (COUNT - 1, -1))

    def printed() -> list[str]:
        return consumer.output().splitlines()

    try:
        wait_until(lambda: last in printed(), "the first records", 60)
        gateway.restart(kill=True)
        write(gateway, COUNT)
        wait_until(lambda: end in printed(), "the records of the next leader", 60)
        values = {record.value.decode() for record in numbered(2 * COUNT)}
        assert [line for line in printed() if line in values] == [
            record.value.decode() for record in numbered(2 * COUNT)
        ]
        answers = [line for line in printed() if "Received OFFSET_FOR_LEADER_EPOCH" in line]
        assert answers, "the consumer did not check its position"
        assert "apiVersion=4" in answers[-1]
        assert "errorCode=0" in answers[-1]
    finally:
        consumer.kill()
