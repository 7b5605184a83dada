"""Goal: a Kafka Streams application counts each word exactly once, though its processes are killed.

Method: `WordCount` runs Kafka Streams with exactly_once_v2, a state store and its compacted
changelog, while the application and the broker get kill -9. The committed records must be the
counts 1, 2, 3, ... of each word, in this order. Apache Kafka passes the same test.
"""

from __future__ import annotations

import random
import re
import shutil
import struct
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.committed import transacting_broker
from tests.compat.test_compaction import alter_broker
from tests.peers import install
from tests.peers.broker import Broker
from tests.peers.java_tools import JVM_SHORT
from tests.peers.kafka import JVM_QUIET
from tests.peers.processes import Process, wait_until

pytestmark = [pytest.mark.compat, pytest.mark.proof]

SOURCE = install.ROOT / "tests" / "peers" / "WordCount.java"
COORDINATES = (
    ("org.apache.kafka", "kafka-streams", install.KAFKA_VERSION),
    install.LOG_COORDINATE,
)
CHANGELOG = "word-count-words-changelog"
PARTITIONS = 2
# Long words fill a few segments of the changelog with few records.
WORDS = [f"{number}-{'x' * 200}" for number in range(400)]
LINES = 3_000
WORDS_PER_LINE = 4
# The share of a round's counts that are committed before the kill.
SHARE_BEFORE_KILL = 0.1
SECONDS_MAX = 180


class Run:
    """A broker, the application, the counts that it has committed, and those it should commit."""

    def __init__(self, directory: Path, broker: Broker):
        self.broker = broker
        self.state = directory / "state"
        self.log = directory / "application.log"
        jars = install.maven_jars(f"kafka-streams-{install.KAFKA_VERSION}", COORDINATES)
        self.classpath = install.compiled(SOURCE, sorted(jars.glob("*.jar")))
        self.servers = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
        admin = AdminClient(self.servers)
        new = [NewTopic(name, PARTITIONS, 1) for name in ("lines", "counts")]
        for done in admin.create_topics(new).values():
            done.result(SECONDS_MAX)
        (node,) = admin.list_topics(timeout=SECONDS_MAX).brokers
        alter_broker(admin, node, "log.cleaner.backoff.ms", "50")
        self.draw = random.Random(3)
        self.expected: Counter[str] = Counter()
        self.found: defaultdict[str, list[int]] = defaultdict(list)
        self.counts = self.reader("counts")
        self.application = self.begin()

    def begin(self) -> Process:
        """Start the application."""
        jvm = [install.java(), *JVM_SHORT, *JVM_QUIET, "-cp", self.classpath]
        return Process([*jvm, SOURCE.stem, self.broker.bootstrap, str(self.state)], self.log)

    def reader(self, topic: str) -> Consumer:
        """Return a read_committed consumer at the start of `topic`."""
        settings = {"group.id": "reader", "isolation.level": "read_committed"}
        consumer = Consumer({**self.servers, **settings, "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, place, 0) for place in range(PARTITIONS)])
        return consumer

    def write(self) -> None:
        """Write the lines of a round."""
        producer = Producer({**self.servers, "enable.idempotence": True, "linger.ms": 20})
        for _ in range(LINES):
            words = self.draw.choices(WORDS, k=WORDS_PER_LINE)
            self.expected.update(words)
            producer.produce("lines", " ".join(words))
            producer.poll(0)
        assert producer.flush(SECONDS_MAX) == 0

    def poll(self) -> None:
        """Read the next committed counts."""
        assert self.application.exit_code is None, self.application.output()[-4000:]
        for message in self.counts.consume(1_000, 0.2):
            assert message.error() is None, message.error()
            self.found[message.key().decode()].append(int(message.value()))

    def read_until(self, total: int) -> None:
        """Read until there are `total` committed counts."""

        def enough() -> bool:
            self.poll()
            return sum(map(len, self.found.values())) >= total

        wait_until(enough, f"{total} counts", SECONDS_MAX)

    def write_and_read_some(self) -> None:
        """Write the lines of a round, and read the first counts of them."""
        before = self.expected.total()
        self.write()
        self.read_until(before + int(LINES * WORDS_PER_LINE * SHARE_BEFORE_KILL))

    def changelog(self) -> list[tuple[str, int]]:
        """Return all committed records of the changelog, in the order of their partitions."""
        consumer = self.reader(CHANGELOG)
        found: list[tuple[str, int]] = []
        for place in range(PARTITIONS):
            start, end = consumer.get_watermark_offsets(TopicPartition(CHANGELOG, place))
            consumer.assign([TopicPartition(CHANGELOG, place, start)])
            while consumer.position([TopicPartition(CHANGELOG, place)])[0].offset < end:
                for message in consumer.consume(1_000, 0.2):
                    assert message.error() is None, message.error()
                    found.append((message.key().decode(), *struct.unpack(">q", message.value())))
        consumer.close()
        return found

    def restored(self) -> int:
        """Return the number of records that this run of the application restored."""
        return sum(map(int, re.findall(r"restored \d+ (\d+)", self.application.output())))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["gateway", "kafka"])
def test_words_are_counted_exactly_once_though_processes_are_killed(tmp_path: Path, kind: str):
    with transacting_broker(kind, tmp_path / "broker") as broker:
        run = Run(tmp_path, broker)
        run.write_and_read_some()
        run.application.kill()
        run.application = run.begin()
        run.write_and_read_some()
        broker.restart(kill=True)
        run.write_and_read_some()
        run.application.kill()
        broker.restart(kill=True)
        run.application = run.begin()
        run.read_until(run.expected.total())
        run.application.kill()

        total = run.expected.total()
        wait_until(lambda: len(run.changelog()) < total // 2, "a clean changelog", SECONDS_MAX)
        kept = len(run.changelog())
        shutil.rmtree(run.state)
        run.application = run.begin()
        run.write()
        run.read_until(run.expected.total())

        assert len(WORDS) <= run.restored() <= kept
        assert run.found == {word: list(range(1, n + 1)) for word, n in run.expected.items()}
        assert dict(run.changelog()) == run.expected
        run.counts.close()
        run.application.stop()
