"""The clients of the bench: librdkafka's driver and Java's consumer, each a process of its own."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.bench.cluster.sides import Side
from tests.peers import install
from tests.peers.java_tools import JVM_PERF
from tests.peers.kafka import JVM_QUIET
from tests.peers.processes import Lifecycle, Process, free_port, wait_until

JAVA_READER = Path(__file__).parents[1] / "java" / "ClusterReader.java"
START_S_MAX = 30.0
MORE_S = 60.0  # after the time that a driver was asked for


class Driver(Process):
    """One run of `tests.bench.cluster.driver`."""

    def __init__(self, side: Side, what: str, log: Path, asked: dict[str, Any]) -> None:
        self._seconds = asked.get("warm_s", 0.0) + asked.get("seconds", 0.0)
        words = json.dumps({"bootstrap": side.bootstrap, **asked})
        super().__init__([sys.executable, "-m", "tests.bench.cluster.driver", what, words], log)

    def wait(self, word: str) -> None:
        """Wait until the part that counts begins (`measuring`) or ends (`measured`)."""
        self.wait_output(f"{word}\n", self._seconds + MORE_S)

    def report(self) -> dict[str, float]:
        """Wait until it ends; return its figures. Raises RuntimeError if it fails."""
        code = self.wait_exit(self._seconds + MORE_S)
        if code != 0:
            raise RuntimeError(f"the driver ended with {code}\n{self.output()[-2000:]}")
        return json.loads(self.output().splitlines()[-1])


class Read(NamedTuple):
    """One read from the start of a topic."""

    records: int
    bytes: int
    seconds: float
    ended: bool  # it came to its end in time


class JavaReader(Lifecycle):
    """Java's consumer with default settings, one process for all reads of a side."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._port = free_port()
        self._process: Process | None = None
        self._socket = socket.socket()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        jars = sorted(install.kafka_jars().glob("*.jar"))
        words = ["-cp", install.compiled(JAVA_READER, jars), JAVA_READER.stem]
        argv = [install.java(), *JVM_PERF, *JVM_QUIET, *words, str(self._port)]
        log = self._side.data / "reader.log"
        self._process = Process([*argv, self._side.bootstrap], log)
        wait_until(self._connected, "the reader to listen", START_S_MAX, pause_s=0.05)
        return self

    def _connected(self) -> bool:
        self._socket = socket.socket()
        with contextlib.suppress(ConnectionRefusedError):
            self._socket.connect(("127.0.0.1", self._port))
            return True
        self._socket.close()
        return False

    def read(
        self, topic: str, partitions: int, records: int, *, lag: int = -1, seconds_max: float = 60.0
    ) -> Read:
        """Read so many records, or until at most `lag` records are still to be read."""
        self._socket.settimeout(seconds_max + 10.0)
        line = f"{topic} {partitions} {records} {lag} {seconds_max}\n"
        self._socket.sendall(line.encode())
        with self._socket.makefile("r") as answers:
            words = answers.readline().split()
        if len(words) != 4:
            assert self._process is not None
            raise RuntimeError(f"the reader ended\n{self._process.output()[-2000:]}")
        return Read(int(words[0]), int(words[1]), float(words[2]), words[3] == "1")

    def stop(self) -> None:
        self._socket.close()
        if self._process is not None:
            self._process.kill()
