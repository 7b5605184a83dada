"""Goal: Kafka's tools read our records of the transaction log, and we read Kafka's.

Method: our records are written to a topic, and Kafka's own TransactionLogMessageFormatter prints
them. A transaction on Apache Kafka leaves its records in `__transaction_state`; ours are equal,
byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place

from gateway.core.transaction_log import decode_key, decode_value, encode_key, encode_value
from gateway.core.transaction_states import TopicPartition, TransactionMetadata, TransactionState
from tests.peers import java_tools
from tests.peers.broker import Broker
from tests.peers.kafka import ApacheKafka

pytestmark = [pytest.mark.compat, pytest.mark.proof]

Unused = Callable[[], str]
FORMATTER = "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter"
STATE = "__transaction_state"


def states() -> list[TransactionMetadata]:
    """One record for each state, the last with all tagged fields and one that Kafka skips."""
    return [
        TransactionMetadata(
            transactional_id=f"pay-{state.kafka_name}-é",
            producer_id=1_000 + state,
            epoch=32_766,
            previous_producer_id=999,
            next_producer_id=2_000,
            timeout_ms=60_000,
            state=state,
            partitions=frozenset(
                TopicPartition(topic, at) for topic in ("orders", "stock") for at in (0, 3)
            )
            if state is not TransactionState.EMPTY
            else frozenset(),
            started_ms=1_700_000_000_000,
            updated_ms=1_700_000_000_001,
            version=2,
            tagged=((77, b"of a later release"),),
        )
        for state in TransactionState
    ]


@pytest.mark.parametrize("version", [0, 1])
def test_kafkas_formatter_prints_our_records(broker: Broker, unused: Unused, version: int):
    topic = unused()
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    stored = states()
    for metadata in stored:
        key, value = encode_key(metadata.transactional_id), encode_value(metadata, version)
        producer.produce(topic, value, key, partition=0)
    assert producer.flush(60) == 0
    at = ("--bootstrap-server", broker.bootstrap, "--topic", topic, "--partition", "0")
    words = ("--from-beginning", "--max-messages", str(len(stored)), "--timeout-ms", "30000")
    printed = java_tools.run(java_tools.CONSOLE_CONSUMER, *at, *words, "--formatter", FORMATTER)
    for metadata in stored:
        shown, end = json.JSONDecoder().raw_decode(printed)  # the tool writes no line breaks
        printed = printed[end:].strip()
        assert shown["key"]["data"] == {"transactionalId": metadata.transactional_id}
        assert shown["value"]["version"] == version
        check(shown["value"]["data"], metadata, version)
    assert not printed


def check(shown: dict, metadata: TransactionMetadata, version: int) -> None:
    """Compare what the formatter prints with what was stored."""
    assert shown["producerId"] == metadata.producer_id
    assert shown["producerEpoch"] == metadata.epoch
    assert shown["transactionTimeoutMs"] == metadata.timeout_ms
    assert shown["transactionStatus"] == metadata.state
    assert shown["transactionStartTimestampMs"] == metadata.started_ms
    assert shown["transactionLastUpdateTimestampMs"] == metadata.updated_ms
    found = {
        TopicPartition(topic["topic"], number)
        for topic in shown["transactionPartitions"] or ()
        for number in topic["partitionIds"]
    }
    assert found == metadata.partitions
    if version:
        assert shown["previousProducerId"] == metadata.previous_producer_id
        assert shown["nextProducerId"] == metadata.next_producer_id
        assert shown["clientTransactionVersion"] == metadata.version


def records_of_kafka(kafka: Broker, least: int) -> list[tuple[bytes, bytes]]:
    """Return the records of the only partition of Kafka's transaction log."""
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": "log", "check.crcs": True}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.assign([Place(STATE, 0, 0)])
    found: list[tuple[bytes, bytes]] = []
    while len(found) < least:
        message = consumer.poll(30)
        assert message is not None, f"{len(found)} records, {least} expected"
        assert message.error() is None, message.error()
        found.append((message.key(), message.value()))
    consumer.close()
    return found


def test_our_records_are_kafkas_byte_for_byte(tmp_path):
    with ApacheKafka(tmp_path / "data") as kafka:
        settings = {"bootstrap.servers": kafka.bootstrap, "transactional.id": "pay"}
        producer = Producer(settings)
        producer.init_transactions(60)
        for commit in (True, False):
            producer.begin_transaction()
            producer.produce("orders", b"one", partition=0)
            producer.flush(60)
            (producer.commit_transaction if commit else producer.abort_transaction)(60)
        records = records_of_kafka(kafka, 7)
    seen = []
    for key, value in records:
        metadata = decode_value(decode_key(key), value)
        assert encode_key(metadata.transactional_id) == key
        assert encode_value(metadata, int.from_bytes(value[:2], "big")) == value
        seen.append(metadata.state.kafka_name)
    first = ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]
    assert seen[:7] == [*first, "Ongoing", "PrepareAbort", "CompleteAbort"]
