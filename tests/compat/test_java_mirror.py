"""Goal: MirrorMaker copies each record once, with its group's position, though it is killed.

Method: MirrorMaker copies a topic with exactly-once support from one broker to another, between the
gateway and Apache Kafka. It and both brokers get kill -9. Aborted records of the source are left
out, so its offsets differ from those of the copy. Apache Kafka as both brokers passes too.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from tests.compat.committed import Committed, read_all, read_all_ended, transacting_broker
from tests.peers import install
from tests.peers.broker import Broker
from tests.peers.connect import connect_jars
from tests.peers.java_tools import JVM_SHORT
from tests.peers.kafka import JVM_QUIET
from tests.peers.processes import Process, free_port, wait_until

pytestmark = [pytest.mark.compat, pytest.mark.proof]

MAIN = "org.apache.kafka.connect.mirror.MirrorMaker"
SETTINGS = {
    "clusters": "source, target",
    "source->target.enabled": "true",
    "topics": "orders",
    "groups": "readers",
    "tasks.max": "1",
    "dedicated.mode.enable.internal.rest": "true",
    "emit.heartbeats.enabled": "false",
    "emit.checkpoints.interval.seconds": "1",
    "sync.group.offsets.enabled": "true",
    "sync.group.offsets.interval.seconds": "1",
    "refresh.groups.interval.seconds": "1",
    "offset.lag.max": "0",
    "replication.factor": "1",
    "heartbeats.topic.replication.factor": "1",
    "checkpoints.topic.replication.factor": "1",
    "offset-syncs.topic.replication.factor": "1",
    "config.storage.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "status.storage.replication.factor": "1",
    "source.consumer.isolation.level": "read_committed",
    "source.consumer.max.poll.records": "20",
    "target.exactly.once.source.support": "enabled",
    # Below the default of a minute: after a kill, a worker begins late if a transaction is open.
    "target.producer.transaction.timeout.ms": "15000",
    "target.session.timeout.ms": "6000",
    "target.heartbeat.interval.ms": "1000",
    "target.scheduled.rebalance.max.delay.ms": "0",
    "target.plugin.discovery": "service_load",
}
PARTITIONS = 2
RETENTION_MS = "86400000123"
TRANSACTIONS = 120
RECORDS_PER_TRANSACTION = 20
# The records that the copy gains before each kill.
RECORDS_BEFORE_KILL = 200
SECONDS_MAX = 180


class Run:
    """Two brokers, MirrorMaker between them, and the committed records of both topics."""

    def __init__(self, directory: Path, source: Broker, target: Broker):
        self.brokers = {"source": source, "target": target}
        self.log = directory / "mirror.log"
        self.properties = directory / "mirror.properties"
        places = {f"{name}.bootstrap.servers": b.bootstrap for name, b in self.brokers.items()}
        rest = {"listeners": f"http://127.0.0.1:{free_port()}"}
        lines = [f"{key}={value}\n" for key, value in {**SETTINGS, **places, **rest}.items()]
        self.properties.write_text("".join(lines))
        self.jars = connect_jars()
        self.admins = {
            name: AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
            for name, broker in self.brokers.items()
        }
        new = NewTopic("orders", PARTITIONS, 1, config={"retention.ms": RETENTION_MS})
        self.admins["source"].create_topics([new])["orders"].result(SECONDS_MAX)
        # The committed records of each partition.
        self.written: list[list[str]] = [[] for _ in range(PARTITIONS)]
        self.mirror = self.begin()

    def begin(self) -> Process:
        """Start MirrorMaker."""
        jvm = [install.java(), *JVM_SHORT, *JVM_QUIET, "-cp", f"{self.jars}/*"]
        return Process([*jvm, MAIN, str(self.properties)], self.log)

    def check(self) -> None:
        """Raise if MirrorMaker has ended."""
        assert self.mirror.exit_code is None, self.mirror.output()[-4000:]

    def write(self) -> None:
        """Write a round of transactions, every third of them aborted."""
        servers = {"bootstrap.servers": self.brokers["source"].bootstrap, "log_level": 0}
        producer = Producer({**servers, "transactional.id": "orders"})
        producer.init_transactions(SECONDS_MAX)
        for number in range(TRANSACTIONS):
            aborted = number % 3 == 1
            producer.begin_transaction()
            for _ in range(RECORDS_PER_TRANSACTION):
                place = number % PARTITIONS
                value = f"{place} {'aborted' if aborted else len(self.written[place])}"
                producer.produce("orders", value, partition=place)
                if not aborted:
                    self.written[place].append(value)
            if aborted:
                producer.flush(SECONDS_MAX)
                producer.abort_transaction(SECONDS_MAX)
            else:
                producer.commit_transaction(SECONDS_MAX)

    def total(self) -> int:
        """Return the number of committed records."""
        return sum(map(len, self.written))

    def kill(self, name: str) -> None:
        """Kill and restart MirrorMaker or a broker."""
        if name == "mirror":
            self.mirror.kill()
            copied = read_all(self.brokers["target"].bootstrap, "source.orders", PARTITIONS)
            assert len(copied.messages) < self.total(), "the kill came too late"
            self.mirror = self.begin()
        else:
            self.brokers[name].restart(kill=True)

    def commit(self, offsets: list[int]) -> None:
        """Commit the group's position in each partition of the source."""
        servers = {"bootstrap.servers": self.brokers["source"].bootstrap, "log_level": 0}
        consumer = Consumer({**servers, "group.id": "readers"})
        places = [TopicPartition("orders", *each) for each in enumerate(offsets)]
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()

    def positions(self) -> list[int]:
        """Return the group's position in each partition of the copy, -1001 if it has none."""
        asked = [TopicPartition("source.orders", place) for place in range(PARTITIONS)]
        wanted = ConsumerGroupTopicPartitions("readers", asked)
        admin = self.admins["target"]
        found = admin.list_consumer_group_offsets([wanted])["readers"].result(SECONDS_MAX)
        return [each.offset for each in found.topic_partitions]


def by_place(reader: Committed) -> list[list[str]]:
    """Return the values of each partition."""
    found: list[list[str]] = [[] for _ in range(PARTITIONS)]
    for message in reader.messages:
        found[message.partition()].append(message.value().decode())
    return found


@pytest.mark.parametrize(
    ("source_kind", "target_kind"),
    [("kafka", "gateway"), ("gateway", "kafka"), ("gateway", "gateway"), ("kafka", "kafka")],
)
def test_mirrormaker_copies_each_record_once_though_it_is_killed(
    tmp_path: Path, source_kind: str, target_kind: str
):
    with (
        transacting_broker(source_kind, tmp_path / "source") as source,
        transacting_broker(target_kind, tmp_path / "target") as target,
    ):
        run = Run(tmp_path, source, target)
        run.write()
        copied = Committed(target.bootstrap, "source.orders", PARTITIONS)
        for name in ("mirror", "target", "source"):
            copied.read_until(len(copied.messages) + RECORDS_BEFORE_KILL, run.check)
            run.kill(name)
            run.write()
        copied.read_until(run.total(), run.check)

        assert by_place(copied) == run.written
        assert (
            by_place(read_all_ended(target.bootstrap, "source.orders", PARTITIONS)) == run.written
        )
        asked = ConfigResource(ResourceType.TOPIC, "source.orders")
        shown = run.admins["target"].describe_configs([asked])[asked].result(SECONDS_MAX)
        assert shown["retention.ms"].value == RETENTION_MS

        positions_are_translated(run)
        copied.close()
        run.mirror.stop()


def positions_are_translated(run: Run) -> None:
    """Check the group's positions in the copy: never too far, and exact at the end of a log."""
    originals = read_all_ended(run.brokers["source"].bootstrap, "orders", PARTITIONS).messages
    copies = read_all_ended(run.brokers["target"].bootstrap, "source.orders", PARTITIONS).messages
    last = [max(m.offset() for m in originals if m.partition() == place) for place in (0, 1)]
    earlier = [m.offset() for m in originals if m.partition() == 1][-RECORDS_PER_TRANSACTION]
    run.commit([last[0] + 1, earlier])
    wait_until(lambda: min(run.positions()) >= 0, "positions in the copy", SECONDS_MAX)
    ends = [max(m.offset() for m in copies if m.partition() == place) + 1 for place in (0, 1)]
    wait_until(lambda: run.positions()[0] == ends[0], "the end of partition 0", SECONDS_MAX)
    position = run.positions()[1]
    values = [m.value() for m in copies if m.partition() == 1 and m.offset() >= position]
    unread = [m.value() for m in originals if m.partition() == 1 and m.offset() >= earlier]
    assert values[-len(unread) :] == unread
