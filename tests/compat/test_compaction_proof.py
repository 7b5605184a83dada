"""Goal: cleaning leaves what Apache Kafka's cleaner leaves, and kill -9 loses nothing.

Method: the same records, in transactions, go to Apache Kafka 4.3 and to the gateway, with small
segments. Readers from the beginning must find the last record of each key at its offset while both
clean, and nothing else behind it. Then a gateway is killed again and again while it cleans, and its
readers are held against the answers that the producer got.

    COMPACTION_RECORDS=1000000 pytest -n 0 -s -m proof tests/compat/test_compaction_proof.py
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.test_compaction import (
    CONFIGS,
    OPTIONS,
    SECONDS_MAX,
    Writer,
    alter,
    children,
    cleaning,
    prepared,
    read,
    servers,
    wait_clean,
)
from tests.peers.gateway import Gateway
from tests.peers.kafka import FOR_TESTS, ApacheKafka
from tests.peers.processes import wait_until

pytestmark = [pytest.mark.compat, pytest.mark.proof]

RECORDS = int(os.environ.get("COMPACTION_RECORDS", "20000"))
KEYS = max(700, RECORDS // 100)
VALUE_BYTES = 500 if RECORDS <= 100_000 else 100
TRANSACTION = 500  # records, behind which lies one marker
START_MS = 1_600_000_000_000
KILLS = 10
CLEAN_S_MAX = 240


def write_all(broker):
    """Write the same records to any broker.

    Return the end of those that are compared, and the last one of each key that was committed.
    """
    last = {}
    draw = random.Random(11)
    producer = Producer({**servers(broker), "transactional.id": "writer", "linger.ms": 5})
    producer.init_transactions(SECONDS_MAX)
    for at in range(0, RECORDS, TRANSACTION):
        producer.begin_transaction()
        written = {}
        for number in range(at, at + TRANSACTION):
            key = b"key-%d" % draw.randrange(KEYS)
            value = None if draw.random() < 0.05 else draw.randbytes(VALUE_BYTES)
            headers = [("number", b"%d" % number)]
            producer.produce("t", value, key, timestamp=START_MS + number, headers=headers)
            producer.poll(0)
            offset = number + number // TRANSACTION
            written[key] = (offset, key, value, START_MS + number, headers)
        if draw.random() < 0.2:
            producer.flush(SECONDS_MAX)
            producer.abort_transaction(SECONDS_MAX)
        else:
            producer.commit_transaction(SECONDS_MAX)
            last |= written
    end = RECORDS + RECORDS // TRANSACTION
    # Enough behind them that their segments are completed and cleaned.
    tail = Producer({**servers(broker), "linger.ms": 5})
    for number in range(40):
        value = draw.randbytes(100_000)
        tail.produce("t", value, b"tail-%d" % number, timestamp=START_MS + RECORDS + number)
        tail.flush(SECONDS_MAX)
    return end, sorted(last.values())


def survivors(broker, end):
    """Return offset, key, value, time and headers of all records below `end`."""
    settings = {"group.id": "reader", "isolation.level": "read_committed"}
    consumer = Consumer({**servers(broker), **settings, "enable.auto.commit": False})
    consumer.assign([TopicPartition("t", 0, 0)])
    found = []
    while True:
        message = consumer.poll(SECONDS_MAX)
        assert message is not None, "the reader did not get to the end"
        assert message.error() is None, message.error()
        if message.offset() >= end:
            consumer.close()
            return found
        stamp = message.timestamp()[1]
        found.append((message.offset(), message.key(), message.value(), stamp, message.headers()))


def cleaned(broker, end, last):
    """Return the survivors once they are `last`, which every reader finds before too."""
    sizes = []

    def few():
        found = survivors(broker, end)
        sizes.append(len(found))
        assert newest(found) == last
        return found if len(found) <= len(last) else None

    found = wait_until(few, f"a cleaned log at {broker.name}", CLEAN_S_MAX)
    print(f"{broker.name}: readers found", *dict.fromkeys(sizes))
    return found


def newest(records):
    return sorted({record[1]: record for record in records}.values())


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_the_gateway_leaves_the_records_that_kafka_leaves(tmp_path: Path, policy: str):
    settings = {**FOR_TESTS, "log.cleaner.backoff.ms": "100"}
    with (
        ApacheKafka(tmp_path / "kafka", settings) as kafka,
        Gateway(tmp_path / "ours", OPTIONS) as ours,
    ):
        configs = {"cleanup.policy": policy, "retention.ms": "-1"}
        new = NewTopic("t", 1, 1, config={**CONFIGS, **configs})
        admin = AdminClient(servers(kafka))
        admin.create_topics([new])["t"].result(SECONDS_MAX)
        prepared(ours, **configs)
        end, last = write_all(ours)
        found = cleaned(ours, end, last)
        assert write_all(kafka) == (end, last)
        assert found == cleaned(kafka, end, last)
        assert len(found) > KEYS // 2


def test_a_gateway_that_is_killed_while_it_cleans_loses_nothing(tmp_path: Path):
    draw = random.Random(5)
    gateway = Gateway(tmp_path, OPTIONS)
    with gateway:
        prepared(gateway)
        writer = Writer(gateway)
        progress = []
        for _ in range(KILLS):
            alter(AdminClient(servers(gateway)), "log.cleaner.io.max.bytes.per.second", "1e6")
            writer.producer = Producer({**servers(gateway), "linger.ms": 5})
            writer.write(300)
            writer.flush()
            share = draw.random() * 0.6
            row = wait_until(
                lambda share=share: (
                    (row := cleaning(gateway)) and (row["progress"] or 0) > share and row
                ),
                "progress",
                CLEAN_S_MAX,
            )
            progress.append(row["progress"])
            (child,) = children(gateway)
            gateway.kill()
            wait_until(lambda child=child: not Path(f"/proc/{child}").exists(), "its end")
            gateway.start()
            gateway.wait_started()
            assert read(gateway)[0] == writer.expected()
        alter(AdminClient(servers(gateway)), "log.cleaner.io.max.bytes.per.second", "1e9")
        wait_clean(gateway)
        found, count = read(gateway)
        assert found == writer.expected()
        assert count < 600
        print("killed at", progress)
