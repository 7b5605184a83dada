"""Spark's own master and workers as local processes, with the commands of `compose/spark.yaml`.

Only what a container would give is replaced: names become 127.0.0.1, ports free ones.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import urllib.request
from pathlib import Path
from typing import Any, Self

from ruamel.yaml import YAML

from tests.peers import install
from tests.peers.processes import Lifecycle, Process, command_line, free_port, process_tree
from tests.peers.spark import environment, settings

FILE = install.ROOT / "compose" / "spark.yaml"
START_S_MAX = 280.0
LOOPBACK = "127.0.0.1"
_EXECUTOR = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"


def services() -> dict[str, dict[str, Any]]:
    """What the file describes, by name, in its order."""
    return dict(YAML(typ="safe").load(FILE)["services"])


def spark_home() -> Path:
    found = importlib.util.find_spec("pyspark")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent


class SparkCluster(Lifecycle):
    """A master and the first worker. `master` is its address."""

    def __init__(self, work: Path) -> None:
        install.java()
        self.port, self._page = free_port(), free_port()
        self._work = work
        self._processes: list[Process] = []
        settings(work)  # the directory and its logging

    @property
    def master(self) -> str:
        return f"spark://{LOOPBACK}:{self.port}"

    def command(self, name: str) -> list[str]:
        """The command of a service as it runs here."""
        changed = {"--host": LOOPBACK, "--port": str(self.port), "--webui-port": str(self._page)}
        words: list[str] = services()[name]["command"]
        local = [changed.get(f, word) for f, word in zip(["", *words], words, strict=False)]
        local = [self.master if word.startswith("spark://") else word for word in local]
        if "worker" in name:
            local[2:2] = ["--webui-port", str(free_port()), "--work-dir", str(self._work / name)]
        return [str(spark_home() / "bin" / local[0]), *local[1:]]

    def start(self) -> Self:
        around = {
            **environment(self._work),
            "SPARK_HOME": str(spark_home()),
            "PYSPARK_PYTHON": sys.executable,
        }
        try:
            for name in ("spark-master", "spark-worker-1"):
                log = self._work / f"{name}.log"
                self._processes.append(Process(self.command(name), log, around))
            master = self._processes[0]
            master.wait_for(lambda: self.workers() == 1, "a worker to register", START_S_MAX)
        except BaseException:
            self.stop()
            raise
        return self

    def workers(self) -> int:
        """How many live ones the master knows. Its page is HTML until all of it has started."""
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{self._page}/json/", timeout=5) as page:
                return int(json.load(page)["aliveworkers"])
        except (OSError, json.JSONDecodeError):
            return 0

    def executors(self) -> list[int]:
        """Return the process ids of the executors that run now."""
        pids = [pid for each in self._processes for pid in process_tree(each.pid)]
        return [pid for pid in pids if _EXECUTOR in command_line(pid)]

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.stop()
