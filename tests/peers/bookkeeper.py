"""Apache BookKeeper 4.17: its own LocalBookKeeper, ZooKeeper and bookies in one JVM, as a rival.

The journal is synced before each acknowledgement, as is its default; heap and collector are those
of its start script. Every port is a free one on loopback.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.peers import install
from tests.peers.processes import Process, Usage, free_port

SOURCE = Path(__file__).with_name("LocalCluster.java")
START_S_MAX = 90.0
# What bin/bookkeeper gives to its JVM.
JVM_SERVER = (
    *("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=2g", "-XX:+UseG1GC"),
    *("-XX:MaxGCPauseMillis=10", "-XX:+ParallelRefProcEnabled", "-XX:+DisableExplicitGC"),
)
LOGGING = Path(__file__).with_name("log4j2.properties")
JVM_QUIET = (f"-Dlog4j2.configurationFile={LOGGING}", "-Djava.awt.headless=true")


class ApacheBookKeeper:
    """A cluster of `bookies` in one process; what is in `data` is lost at each start."""

    def __init__(self, data: Path, bookies: int = 3) -> None:
        self.data = data
        self.bookies = bookies
        self.port = free_port()
        self.start_s = 0.0
        self._process: Process | None = None

    @property
    def zookeeper(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def uri(self) -> str:
        """Where Apache BookKeeper's clients find its metadata."""
        return f"zk+hierarchical://{self.zookeeper}/ledgers"

    @property
    def process(self) -> Process:
        assert self._process is not None, "not started"
        return self._process

    def start(self) -> Self:
        """Start it; returns when all bookies serve. `start_s` is that time."""
        assert self._process is None, "already started"
        shutil.rmtree(self.data, ignore_errors=True)
        self.data.mkdir(parents=True)
        classpath = install.bookkeeper_classes(SOURCE)
        words = [SOURCE.stem, str(self.port), str(self.bookies), str(self.data)]
        scratch = self.data / "tmp"  # its bookies write there, whatever directories they are given
        scratch.mkdir()
        jvm = [*JVM_SERVER, *JVM_QUIET, f"-Djava.io.tmpdir={scratch}"]
        argv = [install.java(), *jvm, "-cp", classpath, *words]
        self._process = Process(argv, self.data.with_name(f"{self.data.name}.log"))
        try:
            self._process.wait_for(
                lambda: "ready\n" in self.process.output(), "Apache BookKeeper", START_S_MAX
            )
        except BaseException:
            self.kill()
            raise
        self.start_s = time.monotonic() - self._process.started_at_s
        return self

    def stop(self) -> int:
        """End it politely; returns its exit code."""
        process, self._process = self.process, None
        return process.stop()

    def kill(self) -> None:
        process, self._process = self.process, None
        process.kill()

    def usage(self) -> Usage:
        return self.process.usage()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self.stop()
