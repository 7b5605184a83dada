"""Goal: Flink's KafkaSink writes each record exactly once, though its processes are killed.

Method: `FlinkNumbers` writes numbers by KafkaSink with EXACTLY_ONCE on a local cluster of Flink.
That cluster and the broker get kill -9. Flink begins again from its last checkpoint, and commits
the transactions that the checkpoint names. Apache Kafka passes the same test.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.committed import Committed, read_all, read_all_ended, transacting_broker
from tests.peers import install
from tests.peers.broker import Broker
from tests.peers.kafka import JVM_QUIET
from tests.peers.processes import Process

pytestmark = [pytest.mark.compat, pytest.mark.proof]

SOURCE = install.ROOT / "tests" / "peers" / "FlinkNumbers.java"
FLINK_VERSION = "2.0.1"
COORDINATES = (
    ("org.apache.flink", "flink-connector-kafka", "4.0.1-2.0"),
    ("org.apache.flink", "flink-clients", FLINK_VERSION),
    ("org.apache.flink", "flink-connector-base", FLINK_VERSION),
    ("org.apache.flink", "flink-connector-datagen", FLINK_VERSION),
    install.LOG_COORDINATE,
)
JVM = (
    *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m"),
    *("--add-opens", "java.base/java.util=ALL-UNNAMED"),
    *("--add-opens", "java.base/java.lang=ALL-UNNAMED"),
)
PARTITIONS = 2
NUMBERS = 12_000
NUMBERS_PER_S = 1_000
# The committed numbers at which processes are killed, and which.
KILLS = {1_000: ("job",), 3_500: ("broker",), 6_000: ("job", "broker"), 8_500: ("job",)}
SECONDS_MAX = 120


class Run:
    """A broker, a Flink job, and the committed numbers of its topic."""

    def __init__(self, directory: Path, broker: Broker, naming: str):
        self.broker = broker
        self.naming = naming
        self.log = directory / "flink.log"
        self.checkpoints = directory / "checkpoints"
        jars = install.maven_jars(f"flink-{FLINK_VERSION}", COORDINATES)
        self.classpath = install.compiled(SOURCE, sorted(jars.glob("*.jar")))
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        new = NewTopic("numbers", PARTITIONS, 1)
        admin.create_topics([new])["numbers"].result(SECONDS_MAX)
        self.committed = Committed(broker.bootstrap, "numbers", PARTITIONS)
        self.job = self.begin()

    def begin(self) -> Process:
        """Start the job from its newest checkpoint, if there is one."""
        found = list(self.checkpoints.glob("*/chk-*/_metadata"))
        newest = max(found, key=lambda path: path.stat().st_mtime_ns, default=None)
        first = "none" if newest is None else newest.parent.as_uri()
        jvm = [install.java(), *JVM, *JVM_QUIET, "-cp", self.classpath, SOURCE.stem]
        words = [self.broker.bootstrap, self.naming, str(self.checkpoints), first]
        return Process([*jvm, *words, str(NUMBERS), str(NUMBERS_PER_S)], self.log)

    def check(self) -> None:
        """Raise if the job has failed."""
        assert self.job.exit_code in (None, 0), self.job.output()[-4000:]

    def kill(self, names: tuple[str, ...]) -> None:
        """Kill and restart the processes of these names."""
        assert self.job.exit_code is None, self.job.output()[-4000:]
        if "job" in names:
            self.job.kill()
            committed = read_all(self.broker.bootstrap, "numbers", PARTITIONS)
            assert len(committed.messages) < NUMBERS, "the kill came too late"
        if "broker" in names:
            self.broker.restart(kill=True)
        if "job" in names:
            self.job = self.begin()


@pytest.mark.parametrize("naming", ["INCREMENTING", "POOLING"])
@pytest.mark.parametrize("kind", ["gateway", "kafka"])
def test_flink_writes_each_number_once_though_processes_are_killed(
    tmp_path: Path, kind: str, naming: str
):
    with transacting_broker(kind, tmp_path / "broker") as broker:
        run = Run(tmp_path, broker, naming)
        for total, killed in KILLS.items():
            run.committed.read_until(total, run.check)
            run.kill(killed)
        assert run.job.wait_exit(SECONDS_MAX) == 0
        run.committed.read_until(NUMBERS, run.check)

        every = [str(number) for number in range(NUMBERS)]
        found = read_all_ended(broker.bootstrap, "numbers", PARTITIONS)
        assert sorted(found.values, key=int) == every
        assert sorted(run.committed.values, key=int) == every
        run.committed.close()
