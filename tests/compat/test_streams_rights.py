"""Goal: Kafka Streams works with exactly the rights that docs/security-acls.md lists, and needs
each of them.

Method: `WordCount`, which repartitions and has a store, logs in by SCRAM as a user with the rights
of the page. Then each right is taken away in turn: the application fails with Kafka's exception
that names the resource, and the gateway's audit log names it too. Apache Kafka passes the same
tests.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from tests.compat.committed import Committed
from tests.compat.least_rights import (
    KINDS,
    Named,
    Right,
    RightsGateway,
    RightsKafka,
    add_user,
    client_keys,
    create_topics,
    denials,
    new_broker,
    rights_on_page,
)
from tests.compat.test_java_streams import COORDINATES, SOURCE
from tests.peers import install
from tests.peers.java_tools import JVM_SHORT
from tests.peers.kafka import JVM_QUIET
from tests.peers.processes import Process, wait_until

pytestmark = [pytest.mark.compat, pytest.mark.proof, pytest.mark.timeout(400)]

APPLICATION = "word-count"
WORDS = (APPLICATION, "counts")  # names that each run has for itself
RIGHTS = rights_on_page(APPLICATION)
OF_TRANSACTIONS = [each for each in RIGHTS if each.kind == "transactional-id"]
# The log of a request that deletes records, which Streams sends again and again if it fails.
PURGES = "org.apache.kafka.streams.processor.internals.TaskManager"
PURGE_FAILED = "delete-records request has failed"
# ERROR follows, unless the threads of the application wait for each other while they end.
FAILED = "state PENDING_ERROR"
LINES = 200
SECONDS_MAX = 120
_runs = itertools.count(1)


@pytest.fixture(scope="module", params=KINDS)
def broker(request, tmp_path_factory) -> Iterator[RightsGateway | RightsKafka]:
    with new_broker(request.param, tmp_path_factory.mktemp("streams") / "data") as started:
        create_topics(started, [NewTopic("lines", 2, 1)])
        yield started
        assert "Traceback" not in started.output()


class Application:
    """One run of the application with a user, topics and a group of its own."""

    def __init__(
        self, broker: RightsGateway | RightsKafka, directory: Path, rights: Sequence[Right], **more
    ) -> None:
        self.broker = broker
        self.named = Named(f"r{next(_runs)}", WORDS)
        self.user, self.output = self.named.of(APPLICATION), self.named.of("counts")
        create_topics(broker, [NewTopic(self.output, 2, 1)])
        add_user(broker, self.user, [self.named.right(each) for each in rights])
        settings = {
            **client_keys(broker, self.user),
            "application.id": self.user,
            "output": self.output,
            "repartition.purge.interval.ms": "200",
            **more,
        }
        file = directory / "application.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        jars = install.maven_jars(f"kafka-streams-{install.KAFKA_VERSION}", COORDINATES)
        classes = install.compiled(SOURCE, sorted(jars.glob("*.jar")))
        quiet = (*JVM_QUIET, f"-Dorg.slf4j.simpleLogger.log.{PURGES}=debug")
        words = [settings["bootstrap.servers"], str(directory / "state"), str(file)]
        argv = [install.java(), *JVM_SHORT, *quiet, "-cp", classes, SOURCE.stem, *words]
        self.process = Process(argv, directory / "application.log")
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        self.written = 0

    def write(self, count: int = 1) -> None:
        """Write lines of two words each."""
        for _ in range(count):
            self._producer.produce("lines", f"a b{self.written % 5}")
            self.written += 1
        assert self._producer.flush(SECONDS_MAX) == 0

    def writes_until(self, condition, what: str) -> None:
        """Write a line again and again until the condition is true, or for too long."""

        def once():
            self.write()
            return condition()

        try:
            wait_until(once, what, SECONDS_MAX, pause_s=0.2)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.process.output()[-6000:]}") from None

    def purged(self) -> bool:
        """Return True if records of the topic for repartitioning were deleted."""
        reader = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "none"})
        try:
            topic = f"{self.user}-words-repartition"
            starts = (reader.get_watermark_offsets(TopicPartition(topic, p), 10)[0] for p in (0, 1))
            return any(starts)
        finally:
            reader.close()


@pytest.fixture
def begin(broker, tmp_path):
    """Return a function that starts a run with these rights."""
    started: list[Application] = []

    def begin(rights: Sequence[Right], **more: str) -> Application:
        started.append(Application(broker, tmp_path, rights, **more))
        return started[-1]

    yield begin
    for each in started:
        each.process.kill()


def test_the_page_has_a_list():
    assert len(RIGHTS) >= 6
    assert len(set(RIGHTS)) == len(RIGHTS)


def counts_all(broker, run: Application) -> None:
    """Check that the application counts each word that was written while it runs."""
    run.write(LINES)
    reader = Committed(broker.bootstrap, run.output, 2)
    wanted = Counter({"a": LINES}) + Counter(f"b{n % 5}" for n in range(LINES))

    def counted() -> bool:
        reader.poll()
        assert run.process.exit_code is None, run.process.output()[-6000:]
        last: dict[str, int] = {}
        for each in reader.messages:
            last[each.key().decode()] = int(each.value())
        return all(last.get(word, 0) >= count for word, count in wanted.items())

    wait_until(counted, "all words to be counted", SECONDS_MAX)
    reader.close()


def test_streams_works_with_the_listed_rights(broker, begin):
    run = begin(RIGHTS)
    counts_all(broker, run)
    run.writes_until(run.purged, "records to be deleted")
    assert PURGE_FAILED not in run.process.output()
    if isinstance(broker, RightsGateway):
        assert list(denials(broker, run.user)) == []
    run.process.stop()


def test_at_least_once_needs_no_transactional_id(broker, begin):
    assert OF_TRANSACTIONS
    rights = [each for each in RIGHTS if each not in OF_TRANSACTIONS]
    run = begin(rights, **{"processing.guarantee": "at_least_once", "commit.interval.ms": "200"})
    counts_all(broker, run)
    run.process.stop()


@pytest.mark.parametrize("right", RIGHTS, ids=str)
def test_streams_fails_without_a_right(broker, begin, right):
    run = begin([each for each in RIGHTS if each != right])
    missing = run.named.right(right)
    if right.operation == "delete":
        # It goes on, and its topics for repartitioning grow.
        run.writes_until(lambda: PURGE_FAILED in run.process.output(), "a failed deletion")
        assert not run.purged()
        assert run.process.exit_code is None
    else:
        run.writes_until(lambda: FAILED in run.process.output(), "the application to fail")
        assert missing.refusal().search(run.process.output()), run.process.output()[-6000:]
    if isinstance(broker, RightsGateway):
        refused = {resource for _, resource in denials(broker, run.user)}
        assert refused, run.process.output()[-4000:]
        assert all(map(missing.matches, refused)), refused
