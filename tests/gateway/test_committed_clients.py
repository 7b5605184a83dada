"""Goal: stock consumers of committed records get none that was aborted or is still undecided.

Method: a whole gateway in this process on real files and sockets. Transactions are written into its
partition; aiokafka and librdkafka read it at both isolation levels, before and after a restart.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as At
from kio.schema.errors import ErrorCode

from gateway.config import GatewayConfig
from gateway.process.embedded import start_embedded
from tests.batches import plain_batch
from tests.gateway.test_transaction_path import TRANSACTIONAL, Coordinator, marked, sent

pytestmark = pytest.mark.real_loop
LEVELS = {"read_uncommitted": [0, 1, 2, 4, 6], "read_committed": [1, 4]}
"""Offsets of the records: an aborted transaction, a committed one, then an open one."""


@asynccontextmanager
async def served(data):
    config = GatewayConfig(data=data, port=0, ledger_port=None)
    running = await start_embedded(config)
    running.ctx.partitions.verifier = Coordinator()
    try:
        yield running
    finally:
        await running.stop()


def part(sequence, producer):
    header = {"producer": producer, "epoch": 0, "sequence": sequence}
    return plain_batch([1000], attributes=TRANSACTIONAL, **header)


async def write(running):
    await running.ctx.catalog.create("t", 1, 1, {})
    partition = running.ctx.partitions.find("t", 0)
    for each in (part(0, 5), part(0, 6), part(1, 5)):
        assert await sent(partition, each) == [ErrorCode.none]
    assert await marked(partition, 1, producer=5, commit=False) is ErrorCode.none
    assert await sent(partition, part(1, 6)) == [ErrorCode.none]
    assert await marked(partition, 1, producer=6) is ErrorCode.none
    assert await sent(partition, part(0, 7)) == [ErrorCode.none]


async def with_aiokafka(port, level):
    consumer = AIOKafkaConsumer(
        bootstrap_servers=f"127.0.0.1:{port}", isolation_level=level, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        at = TopicPartition("t", 0)
        consumer.assign([at])
        wanted = (await consumer.end_offsets([at]))[at]
        offsets = []
        async with asyncio.timeout(60):
            while not offsets or await consumer.position(at) < wanted:
                found = await consumer.getmany(timeout_ms=100)
                offsets += [record.offset for record in found.get(at, [])]
        return offsets
    finally:
        await consumer.stop()


def with_librdkafka(port, level):
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "group.id": "g",
            "isolation.level": level,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.assign([At("t", 0, 0)])
        offsets = []
        while (message := consumer.poll(30)) is not None:
            if message.error() is not None:
                return offsets
            offsets.append(message.offset())
        raise AssertionError(f"no end after {offsets}")
    finally:
        consumer.close()


async def assert_read(running):
    for level, expected in LEVELS.items():
        assert await with_aiokafka(running.port, level) == expected
        assert await asyncio.to_thread(with_librdkafka, running.port, level) == expected


async def test_consumers_get_what_their_isolation_level_promises(tmp_path):
    async with served(tmp_path / "data") as running:
        await write(running)
        await assert_read(running)
    async with served(tmp_path / "data") as running:
        await assert_read(running)
        partition = running.ctx.partitions.find("t", 0)
        assert await marked(partition, 1, producer=7) is ErrorCode.none
        assert await with_aiokafka(running.port, "read_committed") == [1, 4, 6]
