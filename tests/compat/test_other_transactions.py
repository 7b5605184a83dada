"""Goal: transactions of kafka-python, kafkajs and franz-go work as on Apache Kafka.

Method: the stock clients against an embedded gateway. Of franz-go, its own published tests run.
"""

from __future__ import annotations

import os
import subprocess

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.clients.with_kafka_python import KafkaConsumer, KafkaProducer, TopicPartition
from tests.compat.committed import wait_ended
from tests.peers import install
from tests.peers.gateway import Gateway
from tests.peers.kafka import ApacheKafka

pytestmark = pytest.mark.compat

SCRIPT = install.ROOT / "tests" / "peers" / "transactions.js"
KAFKAJS = "2.2.4"
RECORDS = 20_000
SECONDS_MAX = 60
SUITE_S_MAX = 280
OUTCOMES = ["offset: -1", "offset: 2", "late: INVALID_PRODUCER_EPOCH"]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory):
    with Gateway(tmp_path_factory.mktemp("data")) as broker:
        yield broker


def made(broker, topic):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for each in admin.create_topics([NewTopic(topic, 1, 1)]).values():
        each.result(SECONDS_MAX)
    return topic


def committed(broker, topic):
    """Return the values that kafka-python reads, once no transaction is open."""
    wait_ended(broker.bootstrap, topic, 1)
    reader = KafkaConsumer(bootstrap_servers=broker.bootstrap, isolation_level="read_committed")
    try:
        place = TopicPartition(topic, 0)
        reader.assign([place])
        reader.seek_to_beginning(place)
        end = reader.end_offsets([place])[place]
        values = []
        while reader.position(place) < end:
            values += [each.value for each in reader.poll(1000).get(place, [])]
        return values
    finally:
        reader.close()


def initialised(broker, name):
    found = KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=name)
    found.init_transactions()
    return found


def test_kafka_python_commits_aborts_and_is_fenced(gateway):
    topic = made(gateway, "kafka-python")
    first = initialised(gateway, topic)
    for value, end in ((b"first", first.commit_transaction), (b"no", first.abort_transaction)):
        first.begin_transaction()
        first.send(topic, value).get(SECONDS_MAX)
        end()
    second = initialised(gateway, topic)
    with pytest.raises(Exception, match=r"Fenced|InvalidProducerEpoch"):
        first.begin_transaction()
        first.send(topic, b"late").get(SECONDS_MAX)
        first.commit_transaction()
    second.begin_transaction()
    second.send(topic, b"second").get(SECONDS_MAX)
    second.commit_transaction()
    for each in (first, second):
        each.close(SECONDS_MAX)
    assert committed(gateway, topic) == [b"first", b"second"]


def printed_by_kafkajs(broker, topic):
    modules = install.node_module("kafkajs", KAFKAJS) / "node_modules"
    done = subprocess.run(
        ["node", str(SCRIPT), broker.bootstrap, topic],
        env={**os.environ, "NODE_PATH": str(modules), "KAFKAJS_NO_PARTITIONER_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=SUITE_S_MAX,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.proof
def test_kafkajs_commits_aborts_and_is_fenced(gateway):
    topic = made(gateway, "kafkajs")
    assert printed_by_kafkajs(gateway, topic) == OUTCOMES
    assert committed(gateway, topic) == [b"first", b"second"]


@pytest.mark.proof
def test_the_outcomes_of_kafkajs_are_those_on_kafka(tmp_path):
    with ApacheKafka(tmp_path / "kafka") as kafka:
        assert printed_by_kafkajs(kafka, made(kafka, "kafkajs")) == OUTCOMES


@pytest.mark.proof
def test_the_published_test_of_transactions_of_franz_go_passes(gateway):
    directory = install.kgo_tests()
    chosen = ["-test.run", "^TestTxnEtl$", "-test.v"]
    settings = {
        "KGO_SEEDS": gateway.bootstrap,
        "KGO_TEST_RF": "1",
        "KGO_TEST_RECORDS": str(RECORDS),
        "KGO_TEST_UNSAFE": "1",
    }
    done = subprocess.run(
        [str(directory / "kgo.test"), *chosen, "-test.timeout", f"{SUITE_S_MAX}s"],
        cwd=directory,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    for each in ("range", "cooperative-sticky", "range/848", "sticky/848", "sticky/848/static"):
        assert f"--- PASS: TestTxnEtl/{each} " in done.stdout
