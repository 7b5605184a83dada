"""The clusters that the bench compares: the services of `make cluster`, and three Kafka brokers."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from tests.peers import install
from tests.peers.compose import LocalCluster
from tests.peers.kafka import ApacheKafkaCluster
from tests.peers.processes import Lifecycle, tree_memory_bytes, tree_usage
from tests.peers.release import environment_of, python_of

OURS, UNSYNCED, BEFORE = "ours", "ours-unsynced", "before"
SYNCED_KAFKA, KAFKA = "kafka-synced", "kafka"
SIDES = (OURS, UNSYNCED, BEFORE, SYNCED_KAFKA, KAFKA)
COMPOSE = Path("compose") / "cluster.yaml"
READ_BYTES = 1024 * 1024
ROLES = {"gateway": "gateways", "bookie": "bookies", "audit": "auditor"}


class Side(Protocol):
    """A cluster of servers; running inside `with`."""

    name: str
    data: Path

    @property
    def bootstrap(self) -> str: ...

    def roles(self) -> Mapping[str, Sequence[int]]:
        """Return the process ids of the running servers by role."""
        ...

    def kill_listener(self, port: int) -> None:
        """Kill -9 of the server at which clients reach this port."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: Any) -> None: ...


def cpu_s_by_role(side: Side) -> dict[str, float]:
    """Return the CPU seconds that the servers have used so far, with all their children."""
    return {role: sum(tree_usage(pid).cpu_s for pid in pids) for role, pids in side.roles().items()}


def memory_by_role(side: Side) -> dict[str, int]:
    """Return the memory of the servers (PSS)."""
    return {role: sum(map(tree_memory_bytes, pids)) for role, pids in side.roles().items()}


class TreeCluster(LocalCluster):
    """The services of a source tree, with the code and, if it has one, the environment of it."""

    def __init__(self, directory: Path, tree: Path, bookie_options: Sequence[str] = ()) -> None:
        super().__init__(directory, file=tree / COMPOSE)
        self._tree = tree
        for name in self.bookies:
            self.commands[name] += bookie_options

    def local_command(self, name: str) -> list[str]:
        """Return the command of the service, with the interpreter of the tree."""
        _, *words = super().local_command(name)
        return [python_of(self._tree), *words]

    def environment(self) -> dict[str, str]:
        return environment_of(self._tree)


class OurCluster(Lifecycle):
    """ZooKeeper, four bookies, an auditor and three gateways of a tree."""

    def __init__(self, name: str, data: Path, tree: Path, bookie_options: Sequence[str]) -> None:
        self.name = name
        self.data = data
        self.cluster = TreeCluster(data, tree, bookie_options)

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    def roles(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for name, process in self.cluster.processes.items():
            if process.exit_code is None:
                found.setdefault(ROLES[name.split("-")[0]], []).append(process.pid)
        return {**found, "zookeeper": [self.cluster.zookeeper.process.pid]}

    def kill_listener(self, port: int) -> None:
        (name,) = (each for each in self.cluster.gateways if self.cluster.ports[each] == port)
        self.cluster.processes[name].kill()

    def start(self) -> Self:
        self.cluster.start()
        return self

    def stop(self) -> None:
        self.cluster.stop()


class KafkaSide(Lifecycle):
    """Three brokers of Apache Kafka with 1 GiB heap each; min.insync.replicas is 2."""

    def __init__(self, name: str, data: Path, settings: Mapping[str, str]) -> None:
        self.name = name
        self.data = data
        self.cluster = ApacheKafkaCluster(data, settings)

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    def roles(self) -> dict[str, list[int]]:
        return {"brokers": [each.process.pid for each in self.cluster.brokers if each.running]}

    def kill_listener(self, port: int) -> None:
        (broker,) = (each for each in self.cluster.brokers if each.port == port)
        broker.kill()

    def start(self) -> Self:
        self.cluster.start()
        return self

    def stop(self) -> None:
        self.cluster.stop()


def new_side(name: str, data: Path, before: Path | None) -> Side:
    """Return a cluster that has not started. `before` is the tree of the side of this name."""
    if name == SYNCED_KAFKA:
        return KafkaSide(name, data, {"log.flush.interval.messages": "1"})
    if name == KAFKA:
        return KafkaSide(name, data, {})
    if name == BEFORE:
        assert before is not None, "this side needs --before"
        return OurCluster(name, data, before.resolve(), ())
    options = ("--journal-sync", "never") if name == UNSYNCED else ()
    return OurCluster(name, data, install.ROOT, options)


def leaders(side: Side, topic: str) -> dict[int, int]:
    """Return the port of the leader of each partition."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": side.bootstrap, "log_level": 0})
    seen = admin.list_topics(topic, 10.0)
    partitions = seen.topics[topic].partitions.values()
    return {each.id: seen.brokers[each.leader].port for each in partitions}


_DATA_FILES = re.compile(r"^log-|\.(log|index|timeindex)$")


def _data_files(side: Side) -> list[Path]:
    """Return the files that hold records: of bookies, or of brokers."""
    found = side.data.rglob("*")
    return [path for path in found if _DATA_FILES.search(path.name) and path.is_file()]


def warm_page_cache(side: Side) -> None:
    """Read all records of the side into the page cache."""
    buffer = bytearray(READ_BYTES)
    for path in _data_files(side):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def drop_page_cache(side: Side) -> None:
    """Drop all records of the side from the page cache, and nothing else of this machine."""
    os.sync()
    for path in _data_files(side):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)
