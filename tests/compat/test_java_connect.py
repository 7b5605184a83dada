"""Goal: a source connector of Kafka Connect writes each line exactly once, though it is killed.

Method: Connect in distributed mode, with exactly-once support and its compacted topics for configs,
offsets and status, copies a file by its own FileStreamSource. The worker and the broker get kill -9
meanwhile. Apache Kafka passes the same test.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from tests.compat.committed import Committed, read_all, read_all_ended, transacting_broker
from tests.peers.broker import Broker
from tests.peers.connect import Worker
from tests.peers.processes import wait_until

pytestmark = [pytest.mark.compat, pytest.mark.proof]

WORKER = {
    "group.id": "workers",
    "config.storage.topic": "configs",
    "offset.storage.topic": "offsets",
    "status.storage.topic": "status",
    "config.storage.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "status.storage.replication.factor": "1",
    "offset.storage.partitions": "2",
    "status.storage.partitions": "2",
    "exactly.once.source.support": "enabled",
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "plugin.discovery": "service_load",
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "1000",
    "scheduled.rebalance.max.delay.ms": "0",
}
LINES_PER_ROUND = 1_500
# FileStreamSource reads 1,024 characters for each poll, and leaves further lines in its buffer
# until the file grows. So only one line fits, and each is a transaction of its own.
LINE_CHARACTERS = 600
# Each round ends when this share of its lines is committed. Then these processes are killed.
SHARE_BEFORE_KILL = 0.1
ROUNDS = (("worker",), ("broker",), ("worker", "broker"))
# Below the default of a minute: after a kill, a worker begins late if a transaction is open.
TRANSACTION_TIMEOUT_MS = 15_000
SECONDS_MAX = 180


class Run:
    """A broker, a worker of Connect, and the committed lines of its topic."""

    def __init__(self, directory: Path, broker: Broker):
        self.broker = broker
        self.file = directory / "lines.txt"
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        self.admin.create_topics([NewTopic("lines", 1, 1)])["lines"].result(SECONDS_MAX)
        # All lines of the file.
        self.lines: list[str] = []
        self.committed = Committed(broker.bootstrap, "lines", 1)
        self.worker = Worker(directory, {**WORKER, "bootstrap.servers": broker.bootstrap})

    def ask(self, path: str, body: object = None) -> Any:
        """Return the worker's answer to a REST request, or None if it is not ready."""
        self.worker.check()
        return self.worker.ask(path, body)

    def create(self) -> None:
        """Create the connector."""
        config = {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "tasks.max": "1",
            "file": str(self.file),
            "topic": "lines",
            "batch.size": "1",
            "exactly.once.support": "required",
            "transaction.boundary": "poll",
            "producer.override.transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS),
        }
        create = "/connectors/lines/config"
        wait_until(lambda: self.ask(create, config), "a connector", SECONDS_MAX, pause_s=0.5)

    def runs(self) -> bool:
        """Return True if the only task of the connector runs."""
        self.worker.check()
        return self.worker.states("lines") == ["RUNNING"]

    def kill(self, names: tuple[str, ...]) -> None:
        """Kill and restart the processes of these names."""
        if "worker" in names:
            self.worker.process.kill()
            committed = read_all(self.broker.bootstrap, "lines", 1)
            assert len(committed.messages) < len(self.lines), "the kill came too late"
        if "broker" in names:
            self.broker.restart(kill=True)
        if "worker" in names:
            self.worker.begin()

    def write(self) -> None:
        """Write the lines of a round."""
        first = len(self.lines)
        numbers = range(first, first + LINES_PER_ROUND)
        added = [f"line {number} ".ljust(LINE_CHARACTERS, "x") for number in numbers]
        self.lines += added
        with self.file.open("a") as file:
            file.writelines(f"{line}\n" for line in added)

    def policies(self) -> list[str]:
        """Return the cleanup policies of the worker's own topics."""
        names = ("configs", "offsets", "status")
        asked = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        answers = self.admin.describe_configs(asked)
        return [answers[each].result(SECONDS_MAX)["cleanup.policy"].value for each in asked]


@pytest.mark.parametrize("kind", ["gateway", "kafka"])
def test_a_source_connector_writes_each_line_once_though_it_is_killed(tmp_path: Path, kind: str):
    with transacting_broker(kind, tmp_path / "broker") as broker:
        run = Run(tmp_path, broker)
        run.create()
        for killed in ROUNDS:
            before = len(run.lines)
            run.write()
            wanted = before + int(LINES_PER_ROUND * SHARE_BEFORE_KILL)
            run.committed.read_until(wanted, run.worker.check)
            run.kill(killed)
        run.committed.read_until(len(run.lines), run.worker.check)

        assert read_all_ended(broker.bootstrap, "lines", 1).values == run.lines
        assert run.committed.values == run.lines
        wait_until(run.runs, "a running task", SECONDS_MAX, pause_s=0.5)
        assert run.policies() == ["compact"] * 3
        run.committed.close()
        run.worker.process.stop()
