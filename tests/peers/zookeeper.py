"""Apache ZooKeeper, one standalone server in a process of its own, on a loopback port.

Its ticks are short (100 ms unless told otherwise), so sessions may be as short as 200 ms; it does
not sync its log to disk unless asked: what it acknowledged outlives `kill -9` of the process, not
of the machine.
A test session shares one server (the fixture `zookeeper`); each test uses a chroot of its own.
"""

from __future__ import annotations

import itertools
import os
import socket
from pathlib import Path

from tests.peers import install
from tests.peers.processes import ServerProcess

MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"
JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
PROPERTIES = {
    "org.slf4j.simpleLogger.defaultLogLevel": "warn",
    "zookeeper.admin.enableServer": "false",
    "zookeeper.preAllocSize": "1024",  # KiB; the default of 64 MiB is for real disks
    "zookeeper.skipACL": "yes",
    "java.awt.headless": "true",
}
SESSION_MS_MAX = 60_000


class ZooKeeper(ServerProcess):
    """One server; its port and data outlive stop, kill and restart.

    Sessions are as short as `session_ms_min`, two ticks if it is not given; they end at a tick.
    """

    name = "ZooKeeper"
    start_s_max = 30.0

    def __init__(
        self,
        data: Path,
        *,
        tick_ms: int = 100,
        session_ms_min: int | None = None,
        heap_mb: int = 256,
        synced: bool = False,
    ) -> None:
        super().__init__(data)
        self.log = data / "zookeeper.log"
        self.tick_ms = tick_ms
        self.session_ms_min = 2 * tick_ms if session_ms_min is None else session_ms_min
        self.heap_mb = heap_mb
        self.synced = synced
        self._chroots = itertools.count(1)

    @property
    def servers(self) -> str:
        """What clients connect to."""
        return f"127.0.0.1:{self.port}"

    def unused_chroot(self) -> str:
        """A root that nobody has used; it does not exist yet."""
        return f"/test-{os.getpid()}-{next(self._chroots)}"

    def prepare(self) -> None:
        """Write its configuration."""
        self.data.mkdir(parents=True, exist_ok=True)
        self._config.write_text(
            f"tickTime={self.tick_ms}\n"
            f"dataDir={self.data / 'tree'}\n"
            f"clientPortAddress=127.0.0.1\nclientPort={self.port}\n"
            f"minSessionTimeout={self.session_ms_min}\n"
            f"maxSessionTimeout={SESSION_MS_MAX}\n"
            "maxClientCnxns=0\n"
            "4lw.commands.whitelist=srvr,ruok,cons,wchs,wchp\n"
        )

    def argv(self) -> list[str]:
        properties = {**PROPERTIES, "zookeeper.forceSync": "yes" if self.synced else "no"}
        words = [f"-D{key}={value}" for key, value in properties.items()]
        classpath = ("-cp", f"{install.zookeeper_jars()}/*")
        main = (MAIN, str(self._config))
        return [install.java(), f"-Xmx{self.heap_mb}m", *JVM, *words, *classpath, *main]

    @property
    def _config(self) -> Path:
        return self.data / "zoo.cfg"

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

    def kill(self) -> None:
        """Kill -9. Sessions outlive it: a restarted server expires those whose client is gone."""
        super().kill()
