"""Goal: stock transactional producers commit, abort and are fenced, also across kill -9.

Method: librdkafka and aiokafka against an embedded gateway.
Consumers read committed records only.
"""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import ProducerFenced
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode

from gateway.wire.messages import decode_response, encode_request
from tests.compat.differential.connection import Connection
from tests.peers.gateway import Gateway
from tests.peers.processes import wait_until

pytestmark = pytest.mark.compat

OPTIONS: list[str] = []
END, DESCRIBE = 26, 65
KILLS = 2
PARTITIONS = 8
SECONDS_MAX = 60


def servers(gateway):
    return {"bootstrap.servers": f"127.0.0.1:{gateway.port}"}


def made(gateway, topic, partitions=1):
    admin = AdminClient(servers(gateway))
    for each in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        each.result(SECONDS_MAX)
    return topic


def producer(gateway, name, **settings):
    found = Producer({**servers(gateway), "transactional.id": name, **settings})
    found.init_transactions(SECONDS_MAX)
    return found


def written(writer, topic, values, partitions=1):
    """One transaction is open, and its records are stored."""
    writer.begin_transaction()
    for value in values:
        for partition in range(partitions):
            writer.produce(topic, value, partition=partition)
    assert writer.flush(SECONDS_MAX) == 0


def committed(gateway, topic, count, partition=0):
    """Return the values that a reader of committed records gets, once there are `count`."""
    settings = {"group.id": "reader", "isolation.level": "read_committed"}
    consumer = Consumer({**servers(gateway), **settings, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0)])
    values = []

    def enough():
        found = consumer.poll(1.0)
        if found is not None and found.error() is None:
            values.append(found.value())
        return len(values) >= count

    try:
        wait_until(enough, f"{count} committed records", SECONDS_MAX)
        return values
    finally:
        consumer.close()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory):
    with Gateway(tmp_path_factory.mktemp("data"), OPTIONS) as broker:
        yield broker


def test_committed_records_are_read_and_aborted_ones_are_not(gateway):
    topic = made(gateway, "orders")
    writer = producer(gateway, "orders")
    written(writer, topic, [b"first"])
    writer.commit_transaction(SECONDS_MAX)
    written(writer, topic, [b"aborted"])
    writer.abort_transaction(SECONDS_MAX)
    written(writer, topic, [b"second"])
    writer.commit_transaction(SECONDS_MAX)
    assert committed(gateway, topic, 2) == [b"first", b"second"]


def test_a_second_producer_of_an_id_fences_the_first_and_aborts_its_transaction(gateway):
    topic = made(gateway, "fenced")
    first = producer(gateway, "fenced")
    written(first, topic, [b"of the first"])
    second = producer(gateway, "fenced")
    written(second, topic, [b"of the second"])
    second.commit_transaction(SECONDS_MAX)
    with pytest.raises(KafkaException) as refused:
        first.commit_transaction(SECONDS_MAX)
    assert refused.value.args[0].fatal()
    assert committed(gateway, topic, 1) == [b"of the second"]


def test_a_transaction_that_times_out_is_aborted(gateway):
    topic = made(gateway, "late")
    late = producer(gateway, "late", **{"transaction.timeout.ms": 1_000})
    written(late, topic, [b"late"])
    other = producer(gateway, "in time")
    written(other, topic, [b"in time"])
    other.commit_transaction(SECONDS_MAX)
    assert committed(gateway, topic, 1) == [b"in time"]  # once the other one is aborted
    with pytest.raises(KafkaException):
        late.commit_transaction(SECONDS_MAX)


def test_aiokafka_commits_aborts_and_is_fenced(gateway):
    topic = made(gateway, "aiokafka")

    async def work():
        settings = {"bootstrap_servers": servers(gateway)["bootstrap.servers"]}
        first = AIOKafkaProducer(**settings, transactional_id="aiokafka")
        second = AIOKafkaProducer(**settings, transactional_id="aiokafka")
        await first.start()
        try:
            async with first.transaction():
                await first.send_and_wait(topic, b"first")
            await first.begin_transaction()
            await first.send_and_wait(topic, b"aborted")
            await first.abort_transaction()
            await second.start()
            async with second.transaction():
                await second.send_and_wait(topic, b"second")
            with pytest.raises(ProducerFenced):
                async with first.transaction():
                    await first.send_and_wait(topic, b"fenced")
        finally:
            await first.stop()
            await second.stop()

    asyncio.run(work())
    assert committed(gateway, topic, 2) == [b"first", b"second"]


def ended_and_killed(gateway, name, producer_id, epoch):
    """Send EndTxn, and kill the gateway the moment that the outcome is acknowledged."""
    connection = Connection(("127.0.0.1", gateway.port))
    fields = {"transactional_id": name, "producer_id": producer_id, "producer_epoch": epoch}
    connection.send(encode_request(END, 4, 7, None, {**fields, "committed": True}))
    answer = connection.receive()
    gateway.kill()
    connection.close()
    assert decode_response(END, 4, answer).body.error_code is ErrorCode.none


def described(gateway, name):
    connection = Connection(("127.0.0.1", gateway.port))
    connection.send(encode_request(DESCRIBE, 0, 7, None, {"transactional_ids": [name]}))
    (row,) = decode_response(DESCRIBE, 0, connection.receive()).body.transaction_states
    connection.close()
    return row


def test_an_acknowledged_commit_survives_kill_9_before_its_markers(tmp_path):
    with Gateway(tmp_path / "data", OPTIONS) as gateway:
        topic = made(gateway, "kept", PARTITIONS)
        expected = []
        for number in range(KILLS):
            name, value = f"kept-{number}", b"%d" % number
            writer = producer(gateway, name)
            written(writer, topic, [value], PARTITIONS)
            row = described(gateway, name)
            ended_and_killed(gateway, name, row.producer_id, row.producer_epoch)
            gateway.start()
            expected.append(value)
            for partition in range(PARTITIONS):
                assert committed(gateway, topic, len(expected), partition) == expected
            del writer


def test_an_open_transaction_survives_kill_9_and_can_be_committed(tmp_path):
    with Gateway(tmp_path / "data", OPTIONS) as gateway:
        topic = made(gateway, "open")
        writer = producer(gateway, "open")
        written(writer, topic, [b"open"])
        gateway.kill()
        gateway.start()
        writer.commit_transaction(SECONDS_MAX)
        assert committed(gateway, topic, 1) == [b"open"]
