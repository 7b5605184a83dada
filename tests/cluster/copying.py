"""The cluster of the copy jobs: processes, the input, and a lookup for each role of a gateway."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.copies import KEYS, Copy, key_of
from tests.cluster.gateway_pair import led, shown
from tests.cluster.world import World
from tests.compat.test_compaction import alter_broker, children
from tests.gateway.test_dev import ask
from tests.peers import install
from tests.peers.gateway import Gateway, Gateways
from tests.peers.java_tools import JVM_SHORT
from tests.peers.kafka import JVM_QUIET
from tests.peers.processes import Lifecycle, Process, wait_until

OPTIONS = ("--group-initial-rebalance-delay-ms", "0")
SOURCE = "source"
PARTITIONS = 6
COPIES = 3  # on bookies: one that is dead takes no record away
SESSION_MS = 4_000
WAIT_S_MAX = 120.0
GROUP, TRANSACTION = 0, 1  # types of FindCoordinator
FIND_COORDINATOR, DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 10, 61, 65, 66
ENDED_STATES = ("Empty", "CompleteCommit", "CompleteAbort", "Dead")
LOOK_S = 0.02
NEWEST_BYTES = 200
UNSENT_MAX = 10_000  # below the bound of librdkafka's queue
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.bytes": str(1024 * 1024),
    "segment.ms": "4000",
    "delete.retention.ms": "10000",
}
# A round takes seconds, so that kills meet it.
CLEANERS = {"log.cleaner.backoff.ms": "500", "log.cleaner.io.max.bytes.per.second": "100000"}
JAVA = install.ROOT / "tests" / "peers" / "Copier.java"


class Kind(NamedTuple):
    """Jobs that make one copy together."""

    client: str
    members: int

    @property
    def group(self) -> str:
        return f"copies-{self.client}"

    @property
    def target(self) -> str:
        return f"copy-{self.client}"

    @property
    def newest(self) -> str:
        """The compacted topic with the last value of each key."""
        return f"newest-{self.client}"

    def argv(self) -> list[str]:
        """Return the command of a job, without its words."""
        if self.client != "java":
            return [sys.executable, "-m", "tests.cluster.copier", self.client]
        classes = install.compiled(JAVA, sorted(install.kafka_jars().glob("*.jar")))
        return [install.java(), *JVM_SHORT, *JVM_QUIET, "-cp", classes, JAVA.stem]


KINDS = (Kind("librdkafka", 2), Kind("aiokafka", 1), Kind("java", 1))


class Embedded(Gateways):
    """One embedded gateway in place of a cluster: it leads and coordinates everything."""

    def __init__(self, directory: Path) -> None:
        self.all = [Gateway(directory / "gateway", OPTIONS)]

    def __getitem__(self, node_id: int) -> Gateway:
        return self.all[0]


class Job:
    """One transactional id, and the process that uses it now."""

    def __init__(self, kind: Kind, name: str, bootstrap: str, directory: Path, seed: int) -> None:
        self.kind, self.name = kind, name
        self._bootstrap, self._directory, self._seed = bootstrap, directory, seed
        self._runs = 0
        self._counted = 0  # bytes of the log in which `_ended` transactions end
        self._ended = 0
        self.process = self.another()

    def another(self) -> Process:
        """Start a process with this id, which has a gate of its own."""
        self._runs += 1
        self._counted = self._ended = 0
        self.gate = self._directory / f"{self.name}-{self._runs}.gate"
        kind = self.kind
        words = [self._bootstrap, self.name, str(self._runs), kind.group, SOURCE, kind.target]
        words += [kind.newest, str(PARTITIONS), str(self.gate), str(self._seed)]
        log = self.gate.with_suffix(".log")
        return Process([*kind.argv(), *words], log, errors=self.gate.with_suffix(".errors"))

    def outcomes(self) -> dict[str, str]:
        """Return the outcome of each transaction that was acknowledged, of all processes."""
        found: dict[str, str] = {}
        for log in self._directory.glob(f"{self.name}-*.log"):
            for line in log.read_text().splitlines():
                words = line.split()
                if len(words) == 4 and words[0] == "ended":
                    found[words[3]] = words[2]
        return found

    def close(self, point: str, outcome: str) -> Path:
        """Let the process wait at this point; returns the gate, which opens when it is deleted."""
        written = self.gate.with_suffix(".new")
        written.write_text(f"{point} {outcome}")
        return written.rename(self.gate)

    def stands_at(self, point: str) -> bool:
        return self.newest_lines().rstrip().endswith(f"held {point}")

    def newest_lines(self) -> str:
        """Return the end of what the process has written: all of it would be much in long runs."""
        with self.process.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - NEWEST_BYTES))
            return log.read().decode()

    @property
    def ended(self) -> tuple[int, int]:
        """How many transactions the process of a run has ended; grows with every one."""
        with self.process.log.open("rb") as log:
            log.seek(self._counted)
            for line in log:
                if not line.endswith(b"\n"):
                    break
                self._counted += len(line)
                self._ended += line.startswith(b"ended ")
        return self._runs, self._ended


class Copying(Lifecycle):
    """Everything runs between `start` and `stop`. A thread writes the source and restarts jobs."""

    def __init__(
        self, directory: Path, records: int, seconds: float, seed: int, *, embedded: bool
    ) -> None:
        self.directory, self.records, self._seconds = directory, records, seconds
        self._seed = seed
        self.embedded = embedded
        self.world = World(directory / "world", bookies=4, proxied=False)
        self.jobs: list[Job] = []
        self.restarts = 0
        self.produced_ms: list[int] = []  # when each record of the source was produced
        self.unsent = 0  # of them, without an acknowledgement
        servers = self.world.zookeeper.servers
        self.gateways = (
            Embedded(directory)
            if embedded
            else Gateways(directory, servers, 3, OPTIONS, session_ms=SESSION_MS)
        )
        for gateway in self.gateways:
            gateway.start_s_max = WAIT_S_MAX
        self._over = threading.Event()  # the source gets what it lacks at once, and ends
        self._stopped = threading.Event()
        self._tender = threading.Thread(target=self._tend, daemon=True)
        self.watched = threading.Lock()  # held while a job's process is replaced
        self.faults: list[str] = []

    def start(self) -> Self:
        if not self.embedded:
            self.world.start()
        try:
            self.gateways.start()
            self._create_topics()
            bootstrap = self.gateways.bootstrap
            for kind in KINDS:
                for member in range(kind.members):
                    name = f"{kind.target}-{member}"
                    self.jobs.append(Job(kind, name, bootstrap, self.directory, self._seed))
            self._tender.start()
        except BaseException:
            self.stop()
            raise
        return self

    def _create_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.gateways.bootstrap})
        plain = [SOURCE, *(kind.target for kind in KINDS)]
        copies = min(len(self.gateways), COPIES)
        topics = [NewTopic(name, PARTITIONS, copies) for name in plain]
        topics += [NewTopic(kind.newest, 1, copies, config=COMPACTED) for kind in KINDS]
        for made in admin.create_topics(topics).values():
            made.result(WAIT_S_MAX)
        for topic in topics:
            name = topic.topic
            wait_until(lambda it=name: led(self.gateways[0], it), f"leaders of {name}", WAIT_S_MAX)
        for node in range(len(self.gateways)):
            for name, value in CLEANERS.items():
                alter_broker(admin, node, name, value)

    def stop(self) -> None:
        self.end_jobs()
        self.gateways.kill()
        if not self.embedded:
            self.world.stop()

    def end_jobs(self) -> None:
        """Kill all jobs: a reader may never be at the end of a log that grows."""
        self._stopped.set()
        if self._tender.ident:
            self._tender.join()
        for job in self.jobs:
            job.process.kill()

    def heal(self) -> None:
        """Let every server run that a failed harm has left dead or stopped."""
        if not self.embedded:
            for bookie in self.world.bookies:
                if not bookie.running:
                    bookie.start()
        self.gateways.heal()

    # -- the input -------------------------------------------------------------------------------

    @property
    def produced(self) -> int:
        return len(self.produced_ms)

    def _tend(self) -> None:
        """Write the source evenly, as long as harms go on, and restart jobs that ended."""
        producer = Producer(
            {
                "bootstrap.servers": self.gateways.bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": 600_000,
                "linger.ms": 20,
                "log_level": 0,
            }
        )

        def on_delivery(error: KafkaError | None, _record: Any) -> None:
            if error is not None:
                self.faults.append(f"the source lost a record: {error}")

        begun_s = time.monotonic()
        while not self._stopped.wait(LOOK_S):
            due = int((time.monotonic() - begun_s) / self._seconds * self.records)
            if self._over.is_set():
                due = self.records
            while self.produced < due and len(producer) < UNSENT_MAX:
                key = key_of(self.produced, KEYS)
                value = b"%d" % self.produced
                producer.produce(SOURCE, value, b"%d" % key, key % PARTITIONS, on_delivery)
                self.produced_ms.append(time.time_ns() // 1_000_000)
                producer.poll(0)
            producer.poll(0)
            self._restart_ended_jobs()
            self.unsent = len(producer)
        producer.purge()

    def _restart_ended_jobs(self) -> None:
        with self.watched:
            for job in self.jobs:
                if job.process.exit_code is not None:
                    job.process = job.another()
                    self.restarts += 1

    def finish(self) -> None:
        """Wait until all records of the source are copied, with their offsets."""
        self._over.set()
        wait_until(
            lambda: self.produced >= self.records and not self.unsent, "the source", WAIT_S_MAX
        )
        for kind in KINDS:
            while (before := self.committed(kind)) != self.produced:
                wait_until(
                    lambda it=kind, seen=before: self.committed(it) > seen,
                    f"{kind.client} to copy more than {before} of {self.produced} records",
                    WAIT_S_MAX,
                    pause_s=0.5,
                )

    def committed(self, kind: Kind) -> int:
        """Return the sum of the offsets that a group has committed, or -1."""
        settings = {"bootstrap.servers": self.gateways.bootstrap, "group.id": kind.group}
        consumer = Consumer(settings | {"log_level": 0, "isolation.level": "read_uncommitted"})
        try:
            found = consumer.committed([TopicPartition(SOURCE, at) for at in range(PARTITIONS)], 10)
        except KafkaException:
            return -1
        finally:
            consumer.close()
        return sum(max(0, place.offset) for place in found)

    def outcomes(self, kind: Kind) -> dict[str, str]:
        """Return the acknowledged outcome of each transaction of these jobs."""
        found: dict[str, str] = {}
        for job in self.jobs:
            if job.kind is kind:
                found |= job.outcomes()
        return found

    # -- who does what ---------------------------------------------------------------------------

    def coordinator(self, kind: int, name: str) -> Gateway:
        """Return the gateway that coordinates a group or a transactional id."""
        body = {"key_type": kind, "coordinator_keys": [name]}

        def found() -> Gateway | None:
            for gateway in self.gateways:
                with contextlib.suppress(OSError):
                    (row,) = ask(gateway.port, FIND_COORDINATOR, 4, body).coordinators
                    if not row.error_code and self.gateways[row.node_id].running:
                        return self.gateways[row.node_id]
            return None

        return wait_until(found, f"the coordinator of {name}", WAIT_S_MAX, pause_s=0.1)

    def owner(self, topic: str, *, other_than: Gateway) -> Gateway:
        """Return a gateway that leads a partition, another one than this if there is any."""
        leaders = {node for node, _ in shown(other_than, topic) if node >= 0}
        others = sorted(leaders - {other_than.node_id})
        return self.gateways[others[0]] if others else other_than

    def cleaners(self) -> list[int]:
        """Return the process ids of all cleaners."""
        found: list[int] = []
        for gateway in self.gateways:
            with contextlib.suppress(OSError):  # a process ended meanwhile
                if gateway.running:
                    found += children(gateway)
        return found

    def marked(self, job: Job, gateway: Gateway, producer_id: int) -> bool:
        """True if a partition of the job at this gateway has no open transaction of a producer."""
        indexes = list(range(PARTITIONS))
        body = {"topics": [{"name": job.kind.target, "partition_indexes": indexes}]}
        try:
            (topic,) = ask(gateway.port, DESCRIBE_PRODUCERS, 0, body).topics
        except (OSError, ValueError):
            return False
        return any(
            producer.producer_id == producer_id and producer.current_txn_start_offset < 0
            for row in topic.partitions
            for producer in row.active_producers
        )

    def state(self, job: Job, *at: Gateway) -> str:
        """Return the state of the job's transaction, or "" if none of these coordinates it.

        A coordinator that returned a moment ago may get its ids back at any time, so a caller that
        waits for a state asks all gateways.
        """
        body = {"transactional_ids": [job.name]}
        for gateway in at:
            with contextlib.suppress(OSError, ValueError):
                (row,) = ask(gateway.port, DESCRIBE_TRANSACTIONS, 0, body).transaction_states
                if not row.error_code:
                    return row.transaction_state
        return ""

    def producer_id(self, job: Job, at: Gateway) -> int:
        body = {"transactional_ids": [job.name]}
        (row,) = ask(at.port, DESCRIBE_TRANSACTIONS, 0, body).transaction_states
        return row.producer_id

    def open_transactions(self) -> list[str]:
        """Return each transaction that has not ended, with its state."""
        body = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
        return [
            f"{row.transactional_id}: {row.transaction_state}"
            for gateway in self.gateways
            for row in ask(gateway.port, LIST_TRANSACTIONS, 1, body).transaction_states
            if row.transaction_state not in ENDED_STATES
        ]

    def read(self, topic: str, partitions: int, isolation: str) -> list[Copy]:
        """Return all records of a topic, each partition in the order of its log."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.gateways.bootstrap,
                "group.id": "judge",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        found: list[Copy] = []
        ended: set[int] = set()
        consumer.assign([TopicPartition(topic, at, 0) for at in range(partitions)])

        def read_to_ends() -> bool:
            record = consumer.poll(1.0)
            if record is not None:
                error = record.error()
                if error is None:
                    found.append(copy_of(record))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(record.partition() or 0)
            return len(ended) == partitions

        try:
            wait_until(read_to_ends, f"the ends of {topic}", WAIT_S_MAX, pause_s=0)
        finally:
            consumer.close()
        return found


def copy_of(record: Any) -> Copy:
    """Return a record with the transaction that its header names."""
    headers = dict(record.headers() or ())
    name = headers.get("transaction", b"no transaction").decode()
    time_ms = record.timestamp()[1]
    return Copy(int(record.value()), record.partition(), record.offset(), name, time_ms)
