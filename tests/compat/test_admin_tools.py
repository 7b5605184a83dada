"""Goal: the administrator's tools of Apache Kafka 4.3 print the same on the gateway and on Kafka.

Method: the same commands on both, one after the other; what they print is compared. Node ids,
addresses, directories, times and the numbers of KRaft's log are left out. Other files have tests of
kafka-features and of brokers' configs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.committed import transacting_broker
from tests.peers import java_tools
from tests.peers.broker import Broker
from tests.peers.java_tools import TOOLS, ToolFailed, run

pytestmark = [pytest.mark.compat, pytest.mark.proof]

ACLS = f"{TOOLS}.AclCommand"
CLIENT_METRICS = f"{TOOLS}.ClientMetricsCommand"
CONFIGS = java_tools.CONFIGS
ELECTION = f"{TOOLS}.LeaderElectionCommand"
LOG_DIRS = f"{TOOLS}.LogDirsCommand"
QUORUM = f"{TOOLS}.MetadataQuorumCommand"
REASSIGN = f"{TOOLS}.reassign.ReassignPartitionsCommand"
TRANSACTIONS = f"{TOOLS}.TransactionsCommand"
NODES = {"kafka": 1, "gateway": 0}
TOPIC = "orders"
SECONDS_MAX = 60
# Settings of topics that Kafka does not have.
OWN_SETTINGS = re.compile(r"^  (control\.record|gateway)\..*\n", re.MULTILINE)
# Kafka sets this default for all brokers itself, for its eligible leader replicas.
OF_KAFKA = "DYNAMIC_DEFAULT_BROKER_CONFIG:min.insync.replicas=1, "


@pytest.fixture(scope="module", name="brokers")
def two_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Broker]]:
    """Apache Kafka and the gateway, each with a topic and an open transaction in partition 1."""
    directory = tmp_path_factory.mktemp("brokers")
    with (
        transacting_broker("kafka", directory / "kafka") as kafka,
        transacting_broker("gateway", directory / "gateway") as gateway,
    ):
        found = {"kafka": kafka, "gateway": gateway}
        producers = [begin_transaction(each) for each in found.values()]
        yield found
        del producers


def begin_transaction(broker: Broker) -> Producer:
    """Create the topic, and write one record in a transaction that stays open."""
    servers = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
    admin = AdminClient(servers)
    admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(SECONDS_MAX)
    settings = {"transactional.id": "payments", "transaction.timeout.ms": 900_000}
    producer = Producer({**servers, **settings})
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    producer.produce(TOPIC, "one", partition=1)
    assert producer.flush(SECONDS_MAX) == 0
    return producer


def printed(broker: Broker, node: int, main: str, *words: str) -> str:
    """Return what the tool prints, without what must differ."""
    named = [word.replace("NODE", str(node)) for word in words]
    try:
        text = run(main, "--bootstrap-server", broker.bootstrap, *named)
    except ToolFailed as failed:
        text = re.sub(r"\n\tat .*", "", str(failed))
    text = text.replace(broker.bootstrap, "ADDRESS")
    text = re.sub(rf'{re.escape(str(broker.data))}[^"]*', "DIRECTORY", text)
    ids = (
        r"[Bb]rokers?:? |brokers from |existent brokers: |\"broker\":|\"replicas\":\[|^payments\s+"
    )
    text = re.sub(rf"({ids}){node}\b", r"\1NODE", text, flags=re.MULTILINE)
    text = re.sub(rf"^{node}(?=\s+\tpayments)", "NODE", text, flags=re.MULTILINE)
    return OWN_SETTINGS.sub("", text).replace(OF_KAFKA, "")


def is_equal(brokers: dict[str, Broker], main: str, *words: str) -> str:
    """Check that the tool prints the same on both brokers; return what it prints."""
    theirs, ours = (printed(brokers[name], node, main, *words) for name, node in NODES.items())
    assert ours == theirs, f"{main} {' '.join(words)}"
    return ours


ALTER, DESCRIBE, ADD, DELETE = "--alter", "--describe", "--add-config", "--delete-config"
ALICE = ("--entity-name", "alice")
COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "kafka-leader-election": (
        (ELECTION, "--election-type", "preferred", "--topic", TOPIC, "--partition", "0"),
        (ELECTION, "--election-type", "unclean", "--topic", TOPIC, "--partition", "1"),
        (ELECTION, "--election-type", "preferred", "--all-topic-partitions"),
        (ELECTION, "--election-type", "preferred", "--topic", "unknown", "--partition", "0"),
    ),
    "kafka-log-dirs": ((LOG_DIRS, DESCRIBE, "--broker-list", "9", "--topic-list", TOPIC),),
    "kafka-metadata-quorum": ((QUORUM, "add-controller"),),
    "kafka-client-metrics": (
        (CLIENT_METRICS, ALTER, "--name", "m", "--interval", "60000", "--match", "client_id=a"),
        (CLIENT_METRICS, ALTER, "--name", "m", "--metrics", "org.apache.kafka.producer."),
        (CLIENT_METRICS, DESCRIBE, "--name", "m"),
        (CLIENT_METRICS, DESCRIBE),
        (CLIENT_METRICS, "--list"),
        (CLIENT_METRICS, ALTER, "--name", "m", "--interval", "1"),
        (CLIENT_METRICS, "--delete", "--name", "m"),
        (CLIENT_METRICS, "--list"),
        (CLIENT_METRICS, "--delete", "--name", "m"),
    ),
    "kafka-acls": (
        (ACLS, "--list"),
        (ACLS, "--add", "--allow-principal", "User:a", "--operation", "Read", "--topic", TOPIC),
    ),
    "kafka-get-offsets": (
        (java_tools.OFFSETS, "--topic-partitions", f"{TOPIC}:0,{TOPIC}:1-2"),
        (java_tools.OFFSETS, "--topic", TOPIC, "--time", "earliest-local"),
        (java_tools.OFFSETS, "--topic", TOPIC, "--time", "latest-tiered"),
        (java_tools.OFFSETS, "--topic", TOPIC, "--time", "nonsense"),
        (java_tools.OFFSETS, "--topic", "unknown"),
    ),
    "kafka-configs of topics": (
        (CONFIGS, "--entity-type", "topics", *("--entity-name", TOPIC), DESCRIBE, "--all"),
        (CONFIGS, "--entity-type", "topics", *("--entity-name", TOPIC), ALTER, ADD, "nonsense=1"),
        (
            *(CONFIGS, "--entity-type", "topics", "--entity-name", TOPIC),
            *(ALTER, ADD, "retention.ms=nonsense"),
        ),
        (CONFIGS, "--entity-type", "topics", "--entity-name", "unknown", DESCRIBE),
        (
            *(CONFIGS, "--entity-type", "topics", "--entity-name", "unknown"),
            *(ALTER, ADD, "retention.ms=1"),
        ),
    ),
    "kafka-configs of users and clients": (
        (CONFIGS, "--entity-type", "users", *ALICE, ALTER, ADD, "producer_byte_rate=1000"),
        (
            *(CONFIGS, "--entity-type", "users", *ALICE, ALTER),
            *(ADD, "SCRAM-SHA-256=[iterations=8192,password=x]"),
        ),
        (CONFIGS, "--entity-type", "users", "--entity-default", ALTER, ADD, "request_percentage=7"),
        (
            *(CONFIGS, "--entity-type", "users", *ALICE, "--entity-type", "clients"),
            *("--entity-name", "c", ALTER, ADD, "request_percentage=50"),
        ),
        (CONFIGS, "--entity-type", "users", *ALICE, DESCRIBE),
        (CONFIGS, "--entity-type", "users", DESCRIBE),
        (CONFIGS, "--entity-type", "users", "--entity-type", "clients", DESCRIBE),
        (CONFIGS, "--entity-type", "clients", "--entity-name", "c", ALTER, ADD, "nonsense=50"),
        (CONFIGS, "--entity-type", "users", *ALICE, ALTER, DELETE, "producer_byte_rate"),
        (CONFIGS, "--entity-type", "users", *ALICE, ALTER, DELETE, "SCRAM-SHA-256"),
        (CONFIGS, "--entity-type", "users", DESCRIBE),
    ),
    "kafka-configs of other entities": (
        (
            *(CONFIGS, "--entity-type", "ips", "--entity-name", "127.0.0.9"),
            *(ALTER, ADD, "connection_creation_rate=10"),
        ),
        (CONFIGS, "--entity-type", "ips", DESCRIBE),
        (
            *(CONFIGS, "--entity-type", "groups", "--entity-name", "g"),
            *(ALTER, ADD, "consumer.session.timeout.ms=50000"),
        ),
        (CONFIGS, "--entity-type", "groups", DESCRIBE),
        (
            *(CONFIGS, "--entity-type", "groups", "--entity-name", "g"),
            *(ALTER, ADD, "consumer.session.timeout.ms=1"),
        ),
        (
            *(CONFIGS, "--entity-type", "client-metrics", "--entity-name", "m"),
            *(ALTER, ADD, "interval.ms=1000"),
        ),
        (CONFIGS, "--entity-type", "client-metrics", DESCRIBE),
    ),
    "kafka-transactions": (
        (TRANSACTIONS, "list"),
        (TRANSACTIONS, "describe", "--transactional-id", "unknown"),
        (TRANSACTIONS, "describe-producers", "--topic", TOPIC, "--partition", "0"),
        (TRANSACTIONS, "find-hanging", "--broker-id", "NODE"),
        (TRANSACTIONS, "abort", "--topic", TOPIC, "--partition", "0", "--start-offset", "0"),
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_tool_prints_the_same_as_on_kafka(brokers: dict[str, Broker], name: str):
    for main, *words in COMMANDS[name]:
        is_equal(brokers, main, *words)


def test_log_dirs_and_reassignments_print_the_same_as_on_kafka(
    brokers: dict[str, Broker], tmp_path: Path
):
    def write(name: str, content: dict[str, object]) -> str:
        path = tmp_path / name
        path.write_text(json.dumps({"version": 1, **content}))
        return str(path)

    place = {"topic": TOPIC, "partition": 0, "log_dirs": ["any"]}
    for node in NODES.values():
        write(f"same-{node}.json", {"partitions": [{**place, "replicas": [node]}]})
    same = ("--reassignment-json-file", str(tmp_path / "same-NODE.json"))
    other = write("other.json", {"partitions": [{**place, "replicas": [7]}]})
    topics = write("topics.json", {"topics": [{"topic": TOPIC}]})
    generate = ("--topics-to-move-json-file", topics, "--broker-list", "NODE")
    assert "DIRECTORY" in is_equal(brokers, REASSIGN, "--generate", *generate)
    assert "Successfully started" in is_equal(brokers, REASSIGN, "--execute", *same)
    assert "is completed" in is_equal(brokers, REASSIGN, "--verify", *same)
    is_equal(brokers, REASSIGN, "--execute", "--reassignment-json-file", other)
    is_equal(brokers, REASSIGN, "--cancel", *same)
    is_equal(brokers, REASSIGN, "--list")
    theirs, ours = (log_dirs(brokers[name], node) for name, node in NODES.items())
    assert ours == theirs


def log_dirs(broker: Broker, node: int) -> object:
    """Return what kafka-log-dirs prints of the topic, without sizes, which the formats decide."""
    words = ("--describe", "--broker-list", "NODE", "--topic-list", TOPIC)
    *titles, line = printed(broker, node, LOG_DIRS, *words).splitlines()
    shown = json.loads(line.replace('"broker":NODE', '"broker":"NODE"'))
    for each in shown["brokers"][0]["logDirs"]:
        each["partitions"] = sorted(
            [*{**row, "size": row["size"] > 0}.items()] for row in each["partitions"]
        )
    return titles, shown


def test_the_quorum_has_the_same_lines_as_on_kafka(brokers: dict[str, Broker]):
    """Their numbers are those of KRaft's log in Kafka only."""
    status, replication = [], []
    for name, node in NODES.items():
        text = printed(brokers[name], node, QUORUM, "describe", "--status")
        status.append([line.split(":")[0] for line in text.splitlines()])
        text = printed(brokers[name], node, QUORUM, "describe", "--replication")
        replication.append([text.splitlines()[0], text.count("\n"), "Leader" in text])
    assert status[0] == status[1]
    assert replication[0] == replication[1]


def test_an_open_transaction_is_described_and_aborted_as_on_kafka(brokers: dict[str, Broker]):
    shown = []
    for name, node in NODES.items():
        words = ("describe", "--transactional-id", "payments")
        text = printed(brokers[name], node, TRANSACTIONS, *words)
        shown.append(re.sub(r"\t\d{13}\s+\t\d+\s+\t", "\tSTART\tDURATION\t", text))
    assert shown[0] == shown[1]
    assert "Ongoing" in shown[0]
    place = ("--topic", TOPIC, "--partition", "1")
    is_equal(brokers, TRANSACTIONS, "abort", *place, "--start-offset", "0")
    is_equal(brokers, TRANSACTIONS, "abort", *place, "--start-offset", "0")
    is_equal(brokers, TRANSACTIONS, "forceTerminateTransaction", "--transactionalId", "payments")
    is_equal(brokers, TRANSACTIONS, "list")
