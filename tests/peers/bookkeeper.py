"""Apache BookKeeper 4.17: its own LocalBookKeeper, ZooKeeper and bookies in one JVM, as a rival.

The journal is synced before each acknowledgement, as is its default; heap and collector are those
of its start script. Every port is a free one on loopback.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.peers import install
from tests.peers.processes import ServerProcess

SOURCE = Path(__file__).with_name("LocalCluster.java")
# What bin/bookkeeper gives to its JVM.
JVM_SERVER = (
    *("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=2g", "-XX:+UseG1GC"),
    *("-XX:MaxGCPauseMillis=10", "-XX:+ParallelRefProcEnabled", "-XX:+DisableExplicitGC"),
)
LOGGING = Path(__file__).with_name("log4j2.properties")
JVM_QUIET = (f"-Dlog4j2.configurationFile={LOGGING}", "-Djava.awt.headless=true")


class ApacheBookKeeper(ServerProcess):
    """A cluster of `bookies` in one process; what is in `data` is lost at each start."""

    name = "Apache BookKeeper"
    start_s_max = 90.0

    def __init__(self, data: Path, bookies: int = 3) -> None:
        super().__init__(data)
        self.bookies = bookies

    @property
    def zookeeper(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def uri(self) -> str:
        """Where Apache BookKeeper's clients find its metadata."""
        return f"zk+hierarchical://{self.zookeeper}/ledgers"

    def prepare(self) -> None:
        """Clear the directory; its bookies write to `tmp`, whichever directories they are given."""
        shutil.rmtree(self.data, ignore_errors=True)
        self._scratch.mkdir(parents=True)

    def argv(self) -> list[str]:
        classpath = install.bookkeeper_classes(SOURCE)
        words = [SOURCE.stem, str(self.port), str(self.bookies), str(self.data)]
        jvm = [*JVM_SERVER, *JVM_QUIET, f"-Djava.io.tmpdir={self._scratch}"]
        return [install.java(), *jvm, "-cp", classpath, *words]

    def serves(self) -> bool:
        return "ready\n" in self.output()

    @property
    def _scratch(self) -> Path:
        return self.data / "tmp"
