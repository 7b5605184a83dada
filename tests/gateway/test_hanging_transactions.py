"""Goal: an operator finds transactions that no coordinator will end, and aborts them. A forged
marker stops no other transaction.

Method: a producer leaves a transaction open in two partitions, and the coordinator then loses its
log: the topic is deleted in the metadata of a stopped gateway. The commands run in this process.
"""

from __future__ import annotations

import asyncio
import json

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from gateway.core.topic_names import TRANSACTION_STATE
from gateway.core.transaction_states import coordinator_partition
from gateway.topics.catalog import ROOT
from ledger.adapters.sqlite.sqlite_metadata import SqliteMetadata
from tests.gateway.admin_commands import invoke, to_full_disk
from tests.gateway.test_dev import ask
from tests.peers.gateway import Gateway
from tests.peers.processes import wait_until

TOPIC, ABORTED, UNWRITTEN, RECORDS = "orders", "returns", "refunds", 3
WRITE_TXN_MARKERS = 27


def transact(port, name, *places):
    """Return a producer with an open transaction of `RECORDS` records in each partition."""
    settings = {"bootstrap.servers": f"127.0.0.1:{port}", "transactional.id": name}
    producer = Producer({**settings, "transaction.timeout.ms": 900_000})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(RECORDS):
        for topic, partition in places:
            producer.produce(topic, f"{name} {number}", partition=partition)
    assert producer.flush(60) == 0
    return producer


async def lose_log(data):
    metadata = SqliteMetadata(data / "metadata.sqlite")
    name = f"{ROOT}/by-name/{TRANSACTION_STATE}"
    topic_id = (await metadata.get(name)).data.decode()
    for path in (name, f"{ROOT}/by-id/{topic_id}"):
        await metadata.delete(path)
    await metadata.close()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory):
    data = tmp_path_factory.mktemp("data")
    with Gateway(data) as broker:
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{broker.port}"})
        topics = [NewTopic(name, 4, 1) for name in (TOPIC, ABORTED, UNWRITTEN)]
        for made in admin.create_topics(topics).values():
            made.result(60)
        transact(broker.port, "lost", (TOPIC, 0), (TOPIC, 2), (ABORTED, 3), (UNWRITTEN, 0))
    asyncio.run(lose_log(data))
    # Another port, so that the producer, which lives on, does not reach it.
    with Gateway(data) as broker:
        kept = transact(broker.port, "kept", (TOPIC, 1))
        yield broker
        kept.abort_transaction(30)


@pytest.fixture
def cli(gateway):
    return lambda *words: invoke("transaction", *words, bootstrap=f"127.0.0.1:{gateway.port}")


def hanging(cli, *words):
    code, out, errors = cli("find-hanging", "--idle", "0s", *words, "-o", "json")
    assert code == 0, errors
    return [(row["topic"], row["partition"], row["start_offset"]) for row in json.loads(out)]


def committed(port, topic, partition):
    """Return the values that a read_committed consumer finds up to its end."""
    settings = {"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "readers"}
    consumer = Consumer({**settings, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    found = []
    while not (message := consumer.poll(30)).error():
        found.append(message.value().decode())
    consumer.close()
    return found


def test_a_transaction_without_a_coordinator_is_found_and_one_with_is_not(cli):
    assert {(TOPIC, 0, 0), (TOPIC, 2, 0)} <= set(hanging(cli))
    assert hanging(cli, "--topic", TOPIC) == [(TOPIC, 0, 0), (TOPIC, 2, 0)]
    assert hanging(cli, "--topic", TOPIC, "--partition", "2") == [(TOPIC, 2, 0)]
    assert hanging(cli, "--topic", TOPIC, "--partition", "1") == []
    assert json.loads(cli("find-hanging", "-o", "json")[1]) == []  # not idle for 15 minutes
    lines = cli("find-hanging", "--idle", "0s", "--topic", TOPIC)[1].splitlines()
    assert lines[0].split()[:3] == ["TOPIC", "PARTITION", "PRODUCER-ID"]
    assert [line.split()[:2] for line in lines[1:]] == [[TOPIC, "0"], [TOPIC, "2"]]


def test_a_hanging_transaction_is_aborted_and_readers_go_on(cli, gateway):
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{gateway.port}"})
    producer.produce(ABORTED, "behind", partition=3)
    assert producer.flush(60) == 0
    assert hanging(cli, "--topic", ABORTED) == [(ABORTED, 3, 0)]
    assert committed(gateway.port, ABORTED, 3) == []
    words = ("abort", ABORTED, "3", "--start-offset", "0")
    code, out, errors = cli(*words)
    assert (code, out) == (2, "")
    assert "--yes" in errors
    code, out, errors = cli(*words, "--yes", "-o", "json")
    assert code == 0, errors
    row = json.loads(out)
    assert (row["topic"], row["partition"], row["start_offset"]) == (ABORTED, 3, 0)
    assert committed(gateway.port, ABORTED, 3) == ["behind"]
    assert hanging(cli, "--topic", ABORTED) == []


def test_a_full_disk_under_the_result_of_an_abort_is_one_line(gateway):
    words = ("transaction", "abort", UNWRITTEN, "0", "--start-offset", "0", "--yes")
    code, errors = to_full_disk("gateway", *words, bootstrap=f"127.0.0.1:{gateway.port}")
    assert (code, errors.count("\n")) == (74, 1), errors


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((TOPIC, "0", "--start-offset", "1"), "no open transaction that begins at offset 1"),
        ((TOPIC, "3", "--start-offset", "0"), "no open transaction"),
        ((TOPIC, "9", "--start-offset", "0"), f"{TOPIC}-9 does not exist"),
        (("nothing", "0", "--start-offset", "0"), "nothing: UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
def test_nothing_is_aborted_where_nothing_hangs(cli, words, reason):
    code, out, errors = cli("abort", *words, "--yes")
    assert (code, out, len(errors.splitlines())) == (1, "", 1)
    assert reason in errors


def test_a_partition_needs_its_topic(cli):
    code, out, errors = cli("find-hanging", "--partition", "0")
    assert (code, out) == (2, "")
    assert "--topic" in errors


def forge(port, topic, partition, producer):
    """Write an abort marker that names a coordinator epoch above any other."""
    marker = {"producer_id": producer["producer_id"], "transaction_result": False}
    marker |= {"producer_epoch": producer["producer_epoch"], "coordinator_epoch": 2**31 - 1}
    marker["topics"] = [{"name": topic, "partition_indexes": [partition]}]
    reply = ask(port, WRITE_TXN_MARKERS, 1, {"markers": [marker]})
    assert not reply.markers[0].topics[0].partitions[0].error_code


def test_a_forged_marker_stops_only_the_transaction_that_it_names(cli, gateway):
    def described(name):
        return json.loads(cli("describe", name, "-o", "json")[1])

    partition = coordinator_partition("forged", 50)
    other = next(
        name
        for name in (f"other-{number}" for number in range(1_000))
        if coordinator_partition(name, 50) == partition
    )
    producer = transact(gateway.port, "forged", (ABORTED, 0))
    forge(gateway.port, ABORTED, 0, described("forged"))
    producer.commit_transaction(30)
    wait_until(lambda: "stays prepared" in gateway.output(), "the marker to be held")
    assert described("forged")["state"] == "PrepareCommit"
    transact(gateway.port, other, (ABORTED, 1)).commit_transaction(30)
    wait_until(lambda: described(other)["state"] == "CompleteCommit", "the other transaction")
    assert described("forged")["partitions"] == [f"{ABORTED}-0"]
