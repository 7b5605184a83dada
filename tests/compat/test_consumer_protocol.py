"""Goal: stock clients read by the consumer protocol (KIP-848), and share partitions.

Method: librdkafka and Apache Kafka's console consumer, unchanged, at an embedded gateway.
"""

from __future__ import annotations

import json
import subprocess

import pytest
from confluent_kafka import Consumer, Producer

from tests.gateway.admin_commands import invoke
from tests.peers import install
from tests.peers.gateway import Gateway
from tests.peers.processes import Process, wait_until

pytestmark = [pytest.mark.compat, pytest.mark.process]

PARTITIONS = 6
RECORDS = 300
WAIT_S = 60.0


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with Gateway(tmp_path_factory.mktemp("data")) as broker:
        yield f"127.0.0.1:{broker.port}"


def filled(address, topic):
    code, _, errors = invoke(
        "topic", "create", topic, "--partitions", str(PARTITIONS), bootstrap=address
    )
    assert code == 0, errors
    producer = Producer({"bootstrap.servers": address})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(WAIT_S) == 0


class Member:
    """A consumer of librdkafka, and the records that it has read."""

    def __init__(self, address, group, topic, **more):
        self.consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 200,
                **more,
            }
        )
        self.consumer.subscribe([topic])
        self.read = []

    def poll(self):
        for record in self.consumer.consume(50, 0.1):
            assert record.error() is None, record.error()
            self.read.append(int(record.value()))

    @property
    def partitions(self):
        return {each.partition for each in self.consumer.assignment()}


def settled(members):
    """Return whether the members share all partitions evenly."""
    for each in members:
        each.poll()
    owned = [each.partitions for each in members]
    share = PARTITIONS // len(members)
    return sorted(p for some in owned for p in some) == list(range(PARTITIONS)) and all(
        len(some) == share for some in owned
    )


def described(address, group, *words):
    code, out, errors = invoke("group", "describe", group, *words, "-o", "json", bootstrap=address)
    assert code == 0, errors
    return json.loads(out)


def lags(address, group):
    return [row["lag"] for row in described(address, group)]


def test_consumers_of_librdkafka_share_partitions_and_give_them_back(address):
    filled(address, "shared")
    members = [Member(address, "g", "shared") for _ in range(2)]
    wait_until(lambda: settled(members), "two members to share the partitions", WAIT_S)
    wait_until(
        lambda: settled(members) and lags(address, "g") == [0] * PARTITIONS,
        "all records to be read and committed",
        WAIT_S,
    )
    assert sorted({number for each in members for number in each.read}) == list(range(RECORDS))
    (state,) = described(address, "g", "--state")
    assert (state["state"], state["members"], state["assignment_strategy"]) == (
        "Stable",
        2,
        "uniform",
    )
    assert state["group_epoch"] == state["assignment_epoch"] >= 3
    rows = described(address, "g", "--members")
    assert [(row["partitions"], row["target_partitions"]) for row in rows] == [(3, 3), (3, 3)]
    members.pop().consumer.close()
    wait_until(lambda: settled(members), "one member to have all partitions", WAIT_S)
    members.pop().consumer.close()
    code, out, _ = invoke("group", "list", "-o", "json", bootstrap=address)
    listed = {row["group"]: (row["state"], row["type"]) for row in json.loads(out)}
    assert (code, listed["g"]) == (0, ("Empty", "consumer"))


@pytest.mark.proof
def test_a_static_consumer_of_librdkafka_comes_back_to_its_partitions(address):
    filled(address, "static")
    one = Member(address, "s", "static", **{"group.instance.id": "one"})
    two = Member(address, "s", "static", **{"group.instance.id": "two"})
    wait_until(lambda: settled([one, two]), "two members to share the partitions", WAIT_S)
    before = two.partitions
    two.consumer.close()
    again = Member(address, "s", "static", **{"group.instance.id": "two"})
    wait_until(lambda: settled([one, again]), "the member to come back", WAIT_S)
    assert again.partitions == before
    one.consumer.close()
    again.consumer.close()


@pytest.mark.proof
def test_kafkas_console_consumer_reads_a_group_to_its_end(address):
    filled(address, "console")
    words = ["--bootstrap-server", address, "--topic", "console", "--group", "java"]
    words += ["--from-beginning", "--max-messages", str(RECORDS)]
    words += ["--command-property", "group.protocol=consumer"]
    tool = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    done = subprocess.run(
        [install.java(), "-cp", install.kafka_classpath(), tool, *words],
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(map(int, done.stdout.split())) == list(range(RECORDS))
    assert lags(address, "java") == [0] * PARTITIONS


CLASSIC = {"group.protocol": "classic", "session.timeout.ms": 10_000, "heartbeat.interval.ms": 500}


def listed(address, group):
    code, out, errors = invoke("group", "list", "-o", "json", bootstrap=address)
    assert code == 0, errors
    return next(row for row in json.loads(out) if row["group"] == group)


@pytest.mark.proof  # 20 s: each consumer waits for its next heartbeat
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_changes_its_protocol_while_its_consumers_restart(address, strategy):
    group = topic = f"rolling-{strategy}"
    filled(address, topic)
    classic = CLASSIC | {"partition.assignment.strategy": strategy}
    members = [Member(address, group, topic, **classic) for _ in range(3)]
    wait_until(lambda: settled(members), "three classic members to share", WAIT_S)
    assert listed(address, group)["type"] == "classic"
    gone = []
    for kind, settings in (("consumer", {}), ("classic", classic)):
        for _ in range(3):
            gone.append(members.pop(0))
            gone[-1].consumer.close()
            members.append(Member(address, group, topic, **settings))
            wait_until(lambda: settled(members), f"members to share with a {kind} one", WAIT_S)
        wait_until(
            lambda: settled(members) and lags(address, group) == [0] * PARTITIONS,
            "all records to be read and committed",
            WAIT_S,
        )
        assert listed(address, group)["type"] == kind
    read = [number for each in (*gone, *members) for number in each.read]
    assert sorted(set(read)) == list(range(RECORDS))
    assert len(read) == RECORDS  # each member had committed what it read
    for each in members:
        each.consumer.close()


@pytest.mark.proof  # Kafka's console consumer takes seconds to start
def test_a_classic_console_consumer_shares_a_group_of_the_consumer_protocol(address, tmp_path):
    filled(address, "both")
    member = Member(address, "both", "both")
    wait_until(lambda: settled([member]), "one member to have all partitions", WAIT_S)
    words = ["--bootstrap-server", address, "--topic", "both", "--group", "both"]
    words += ["--command-property", "group.protocol=classic"]
    tool = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    log = tmp_path / "console.log"
    java = Process([install.java(), "-cp", install.kafka_classpath(), tool, *words], log)

    def shared():
        member.poll()
        rows = described(address, "both", "--members")
        return sorted(row["partitions"] for row in rows) == [3, 3] and len(member.partitions) == 3

    try:
        wait_until(shared, "the classic member to have its share", WAIT_S)
        assert listed(address, "both")["type"] == "consumer"
        member.consumer.close()
        wait_until(lambda: listed(address, "both")["type"] == "classic", "the change", WAIT_S)
        wait_until(
            lambda: [row["partitions"] for row in described(address, "both", "--members")] == [6],
            "the classic member to have all partitions",
            WAIT_S,
        )
    finally:
        java.kill()
