"""Apache ZooKeeper, one standalone server in a process of its own, on a loopback port.

Its ticks are short (100 ms unless told otherwise), so sessions may be as short as 200 ms; it does
not sync its log to disk unless asked: what it acknowledged outlives `kill -9` of the process, not
of the machine.
A test session shares one server (the fixture `zookeeper`); each test uses a chroot of its own.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.peers import install
from tests.peers.processes import Process, Usage, free_port, wait_until

MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"
JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
PROPERTIES = {
    "org.slf4j.simpleLogger.defaultLogLevel": "warn",
    "zookeeper.admin.enableServer": "false",
    "zookeeper.preAllocSize": "1024",  # KiB; the default of 64 MiB is for real disks
    "zookeeper.skipACL": "yes",
    "java.awt.headless": "true",
}
START_S_MAX = 30.0
SESSION_MS_MAX = 60_000


def stands_still(pid: int) -> bool:
    """Every thread of the process stands still: a signal takes a while to reach them all."""
    states = [
        (task / "stat").read_text().rpartition(")")[2].split()[0]
        for task in Path(f"/proc/{pid}/task").iterdir()
    ]
    return set(states) == {"T"}


class ZooKeeper:
    """One server; its port and data outlive stop, kill and restart.

    Sessions are as short as `session_ms_min`, two ticks if it is not given; they end at a tick.
    """

    def __init__(
        self,
        data: Path,
        *,
        tick_ms: int = 100,
        session_ms_min: int | None = None,
        heap_mb: int = 256,
        synced: bool = False,
    ) -> None:
        self.data = data
        self.tick_ms = tick_ms
        self.session_ms_min = 2 * tick_ms if session_ms_min is None else session_ms_min
        self.heap_mb = heap_mb
        self.synced = synced
        self.port = free_port()
        self.start_s = 0.0
        self._process: Process | None = None
        self._chroots = itertools.count(1)

    @property
    def servers(self) -> str:
        """What clients connect to."""
        return f"127.0.0.1:{self.port}"

    def unused_chroot(self) -> str:
        """A root that nobody has used; it does not exist yet."""
        return f"/test-{os.getpid()}-{next(self._chroots)}"

    @property
    def process(self) -> Process:
        assert self._process is not None, "not started"
        return self._process

    @property
    def running(self) -> bool:
        return self._process is not None

    def start(self) -> Self:
        """Start it; returns when it serves. `start_s` is that time."""
        assert self._process is None, "already started"
        self.data.mkdir(parents=True, exist_ok=True)
        config = self.data / "zoo.cfg"
        config.write_text(
            f"tickTime={self.tick_ms}\n"
            f"dataDir={self.data / 'tree'}\n"
            f"clientPortAddress=127.0.0.1\nclientPort={self.port}\n"
            f"minSessionTimeout={self.session_ms_min}\n"
            f"maxSessionTimeout={SESSION_MS_MAX}\n"
            "maxClientCnxns=0\n"
            "4lw.commands.whitelist=srvr,ruok,cons,wchs,wchp\n"
        )
        properties = {**PROPERTIES, "zookeeper.forceSync": "yes" if self.synced else "no"}
        words = [f"-D{key}={value}" for key, value in properties.items()]
        classpath = ("-cp", f"{install.zookeeper_jars()}/*")
        argv = [install.java(), f"-Xmx{self.heap_mb}m", *JVM, *words, *classpath, MAIN, str(config)]
        self._process = Process(argv, self.data / "zookeeper.log")
        try:
            self._process.wait_for(self.serves, "ZooKeeper to start", START_S_MAX)
        except BaseException:
            self.kill()
            raise
        self.start_s = time.monotonic() - self._process.started_at_s
        return self

    def serves(self) -> bool:
        return "Mode: standalone" in self.ask("srvr", timeout_s=0.5)

    def ask(self, word: str, timeout_s: float = 5.0) -> str:
        """The answer to a four-letter word (`srvr`, `cons`, `wchs`); empty when there is none."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout_s) as connection:
                connection.sendall(word.encode())
                return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        except OSError:
            return ""

    def stop(self) -> int:
        """End it politely; returns its exit code."""
        process, self._process = self.process, None
        self._signal(process, signal.SIGCONT)
        return process.stop()

    def kill(self) -> None:
        """Kill -9. Sessions live on: they end when a restarted server has not heard of them."""
        process, self._process = self.process, None
        process.kill()

    def restart(self, *, kill: bool = False) -> Self:
        """Stop (or kill -9) and start again, on the same data and port."""
        if kill:
            self.kill()
        else:
            self.stop()
        return self.start()

    def pause(self) -> None:
        """It neither reads nor answers; connections stay open."""
        self._signal(self.process, signal.SIGSTOP)
        wait_until(lambda: stands_still(self.process.pid), "ZooKeeper to stand still")

    def resume(self) -> None:
        self._signal(self.process, signal.SIGCONT)

    def usage(self) -> Usage:
        return self.process.usage()

    @staticmethod
    def _signal(process: Process, number: signal.Signals) -> None:
        if process.exit_code is None:
            os.kill(process.pid, number)

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
