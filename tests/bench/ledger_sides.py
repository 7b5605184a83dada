"""The two ledger tiers of the bench, each with the client that loads it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from tests.bench.sides import Meter
from tests.peers import install
from tests.peers.bookie import SHARED_DISK
from tests.peers.bookkeeper import JVM_QUIET, ApacheBookKeeper
from tests.peers.processes import Lifecycle, Process, Usage
from tests.peers.release import environment_of, python_of
from tests.peers.zookeeper import ZooKeeper

BOOKIES = 3
IN_FLIGHT = 64
LOAD_S_MAX = 120.0
START_S_MAX = 30.0
JAVA_LOAD = Path(__file__).with_name("java") / "BookKeeperLoad.java"


class Side(Protocol):
    """A cluster of three bookies and a ZooKeeper; running inside `with`."""

    name: str

    def usage(self) -> Usage: ...

    def memory_bytes(self) -> int:
        """Of all its servers, ZooKeeper included; a page that n processes share counts once."""
        ...

    def zookeeper_bytes(self) -> int:
        """Memory of its ZooKeeper, 0 when that cannot be told from the bookies'."""
        ...

    def load_argv(self) -> list[str]: ...

    def environment(self) -> dict[str, str]:
        """Return the variables of its client."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Loaded:
    """What one run of a client showed, and what the servers used meanwhile."""

    said: dict[str, float]
    server_cpu_s: float
    memory_bytes: int  # of the servers, ZooKeeper included
    zookeeper_bytes: int
    others_share: float  # of the machine's CPU: neither servers nor client


def load(side: Side, entry_bytes: int, seconds: float, parts: str) -> Loaded:
    """Run the side's client once. Raises RuntimeError with its last words."""
    cpu_s, meter = side.usage().cpu_s, Meter(side)
    words = [str(entry_bytes), str(seconds), str(IN_FLIGHT), parts]
    done = subprocess.run(
        [*side.load_argv(), *words],
        cwd=install.ROOT,
        env={**os.environ, **side.environment()},
        capture_output=True,
        text=True,
        timeout=LOAD_S_MAX,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{side.name}: the client failed\n{done.stderr[-3000:]}")
    usage = side.usage()
    others = meter.round(1, 1, 0.0).others_share
    said = json.loads(done.stdout.splitlines()[-1])
    return Loaded(said, usage.cpu_s - cpu_s, side.memory_bytes(), side.zookeeper_bytes(), others)


class Ours(Lifecycle):
    """ZooKeeper and three processes of `bookie serve`, as users start them.

    Bookies and client are those of a source tree.
    """

    def __init__(self, data: Path, tree: Path = install.ROOT, name: str = "ours") -> None:
        self.name = name
        self._data = data
        self._tree = tree
        self._zookeeper = ZooKeeper(data / "zookeeper", synced=True)
        self._bookies: list[Process] = []

    def usage(self) -> Usage:
        used = [one.usage() for one in (*self._bookies, self._zookeeper)]
        return Usage(sum(one.cpu_s for one in used), sum(one.resident_bytes for one in used))

    def memory_bytes(self) -> int:
        return sum(one.memory_bytes() for one in (*self._bookies, self._zookeeper.process))

    def zookeeper_bytes(self) -> int:
        return self._zookeeper.process.memory_bytes()

    def load_argv(self) -> list[str]:
        return [python_of(self._tree), "-m", "tests.bench.ledger_load", self._zookeeper.servers]

    def environment(self) -> dict[str, str]:
        return environment_of(self._tree)

    def start(self) -> Self:
        try:
            self._zookeeper.start()
            self._bookies = [self._start_bookie(number) for number in range(BOOKIES)]
            for bookie in self._bookies:
                bookie.wait_output("started", START_S_MAX)
        except BaseException:
            self.stop()
            raise
        return self

    def _start_bookie(self, number: int) -> Process:
        place = ["--zookeeper", self._zookeeper.servers, "--data", str(self._data / f"b{number}")]
        words = [*place, *SHARED_DISK, "--port", "0"]
        argv = [python_of(self._tree), "-m", "ledger", "serve", *words]
        return Process(argv, self._data / f"b{number}.log", self.environment())

    def stop(self) -> None:
        bookies, self._bookies = self._bookies, []
        for bookie in bookies:
            bookie.stop()
        if self._zookeeper.running:
            self._zookeeper.stop()
        shutil.rmtree(self._data, ignore_errors=True)


class Apache(Lifecycle):
    """Apache BookKeeper's LocalBookKeeper: ZooKeeper and three bookies in one JVM."""

    name = "apache"

    def __init__(self, data: Path) -> None:
        self._data = data
        self._cluster = ApacheBookKeeper(data / "bookkeeper", BOOKIES)

    def usage(self) -> Usage:
        return self._cluster.usage()

    def memory_bytes(self) -> int:
        return self._cluster.process.memory_bytes()

    def zookeeper_bytes(self) -> int:
        return 0

    def load_argv(self) -> list[str]:
        # The heap and collector of Apache BookKeeper's own command-line clients.
        memory = ("-Xms256m", "-Xmx512m", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=10")
        classpath = install.bookkeeper_classes(JAVA_LOAD)
        words = ["-cp", classpath, JAVA_LOAD.stem, self._cluster.uri]
        return [install.java(), *memory, *JVM_QUIET, *words]

    def environment(self) -> dict[str, str]:
        return {}

    def start(self) -> Self:
        self._cluster.start()
        return self

    def stop(self) -> None:
        self._cluster.stop()
        shutil.rmtree(self._data, ignore_errors=True)
