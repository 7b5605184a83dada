"""Apache Kafka 4.3, KRaft, one process for broker and controller: the oracle and the rival."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.peers import install
from tests.peers.broker import Broker
from tests.peers.processes import Lifecycle, free_port

# The options that Kafka's own start script gives to its JVM.
JVM_SERVER = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
JVM_QUIET = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",)

ONE_NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
START_S_MAX = 280.0
BROKERS = 3
THREE_NODES = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
}
# Fewer internal partitions start faster; of no meaning to what the tests ask.
FOR_TESTS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    # after kill -9 the new incarnation waits for the old one's session to end
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "500",
}


class ApacheKafka(Broker):
    """Apache Kafka's own broker from the Maven jars."""

    name = "Apache Kafka"
    start_s_max = START_S_MAX

    def __init__(
        self, data: Path, settings: Mapping[str, str] | None = None, heap: str = "512m"
    ) -> None:
        super().__init__(data)
        self.heap = heap
        self.settings = {**ONE_NODE, **(FOR_TESTS if settings is None else settings)}
        self.controller_port = free_port()
        # Of all controllers. The broker is the only one unless it is told of others.
        self.voters = f"1@127.0.0.1:{self.controller_port}"

    def argv(self) -> list[str]:
        memory = (f"-Xmx{self.heap}", f"-Xms{self.heap}")
        classpath = ("-cp", install.kafka_classpath())
        main = ("kafka.Kafka", str(self.data / "server.properties"))
        return [install.java(), *JVM_SERVER, *memory, *JVM_QUIET, *classpath, *main]

    def prepare(self) -> None:
        """Write the properties; format the log directory once, by copying a formatted one."""
        super().prepare()
        logs = self.data / "logs"
        if not logs.exists():
            shutil.copytree(_formatted(), logs)
            _give_ids(logs / "meta.properties", self.settings["node.id"])
        listeners = f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{self.controller_port}"
        settings = {
            **self.settings,
            "listeners": listeners,
            "controller.quorum.voters": self.voters,
            "log.dirs": str(logs),
        }
        lines = [f"{key}={value}\n" for key, value in settings.items()]
        (self.data / "server.properties").write_text("".join(lines))


class ApacheKafkaCluster(Lifecycle):
    """Three brokers, each a controller too; every topic has three replicas unless it names less."""

    def __init__(
        self, directory: Path, settings: Mapping[str, str] | None = None, heap: str = "1g"
    ) -> None:
        self.brokers = [
            ApacheKafka(
                directory / f"broker-{node_id}",
                {**THREE_NODES, **(settings or {}), "node.id": str(node_id)},
                heap,
            )
            for node_id in range(1, BROKERS + 1)
        ]
        voters = ",".join(
            f"{one.settings['node.id']}@127.0.0.1:{one.controller_port}" for one in self.brokers
        )
        for broker in self.brokers:
            broker.name = f"Apache Kafka {broker.settings['node.id']}"
            broker.voters = voters

    @property
    def bootstrap(self) -> str:
        """All of them, running or not."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    def start(self) -> Self:
        """All of them serve; none is left over if one does not come up."""
        try:
            for broker in self.brokers:
                broker.begin()
            for broker in self.brokers:
                broker.wait_started()
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Kill -9 of all: a controller that stops waits for a majority that is gone."""
        self.kill()

    def kill(self) -> None:
        """Kill -9 of all that run."""
        for broker in self.brokers:
            if broker.running:
                broker.kill()


def _give_ids(meta: Path, node_id: str) -> None:
    """Let a copy of a formatted directory belong to this node: brokers share no directory id."""
    kept = [
        line
        for line in meta.read_text().splitlines()
        if not line.startswith(("node.id=", "directory.id="))
    ]
    meta.write_text("\n".join([*kept, f"node.id={node_id}", f"directory.id={_new_id()}", ""]))


def _new_id() -> str:
    """Return an id in Kafka's form; its tools take what begins with `-` for an option."""
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")


def _formatted() -> Path:
    """Return a log directory that StorageTool formatted, once for all starts."""
    install.kafka_jars()
    directory = install.CACHE / "peers" / f"formatted-{install.KAFKA_VERSION}"
    with (install.CACHE / "format.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if directory.exists():
            return directory
        draft = directory.with_name("formatting")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        properties = draft / "server.properties"
        settings = {
            **ONE_NODE,
            "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
            "controller.quorum.voters": "1@127.0.0.1:9093",
            "log.dirs": str(draft),
        }
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        tool = ["kafka.tools.StorageTool", "format", "-t", _new_id(), "-c", str(properties)]
        done = subprocess.run(
            [install.java(), *JVM_QUIET, "-cp", install.kafka_classpath(), *tool],
            capture_output=True,
            text=True,
            timeout=START_S_MAX,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        properties.unlink()
        draft.rename(directory)
    return directory
