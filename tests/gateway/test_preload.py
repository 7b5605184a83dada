"""Goal: after its start a gateway loads no module for the first requests of stock clients.

A load takes 3 to 100 ms, in which every client waits; at a takeover many would come at once.
Method: a real gateway prints every import; clients of two kinds produce, join a group and commit.
"""

from __future__ import annotations

import asyncio
import re

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer

from gateway.handlers.table import rows
from tests.peers.gateway import Gateway
from tests.peers.processes import wait_until

RECORDS = 5  # in one batch: more than one record is read natively
INIT_PRODUCER_ID = 22
# The last modules that appear in the log of each of the two loading threads.
LAST_PRELOADED = {
    "structlog.twisted",
    f"kio.schema.init_producer_id.v{rows()[INIT_PRODUCER_ID].versions[-1]}.response",
}


class TellingGateway(Gateway):
    """A gateway that logs each import at its end."""

    def argv(self):
        python, *words = super().argv()
        return [python, "-X", "importtime", *words]


def imports(gateway):
    return re.findall(r"^import time: .*\| +([\w.]+)$", gateway.process.output(), re.MULTILINE)


def use_librdkafka(bootstrap):
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce("flow", b"%d" % number, key=b"k")
    assert producer.flush(30.0) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "l",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["flow"])
    found = []
    wait_until(
        lambda: found.extend(consumer.consume(RECORDS, 1.0)) or len(found) >= RECORDS, "records"
    )
    consumer.commit(asynchronous=False)
    consumer.committed(consumer.assignment(), 10.0)
    consumer.close()


async def use_aiokafka(bootstrap):
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=20) as producer:
        await asyncio.gather(
            *[await producer.send("flow", b"%d" % number) for number in range(RECORDS)]
        )
    async with AIOKafkaConsumer(
        "flow", bootstrap_servers=bootstrap, group_id="a", auto_offset_reset="earliest"
    ) as consumer:
        await consumer.getone()
        await consumer.commit()


def test_the_first_requests_of_stock_clients_load_nothing(tmp_path):
    with TellingGateway(tmp_path, ["--group-initial-rebalance-delay-ms", "0"]) as gateway:
        wait_until(
            lambda: LAST_PRELOADED.issubset(imports(gateway)), "the gateway to have preloaded"
        )
        before = set(imports(gateway))
        assert "aiokafka.record.default_records" in before
        use_librdkafka(gateway.bootstrap)
        asyncio.run(use_aiokafka(gateway.bootstrap))
        assert [each for each in imports(gateway) if each not in before] == []
