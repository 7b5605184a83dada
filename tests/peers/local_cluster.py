"""A cluster of this machine by `gateway cluster`, as users run it, from the run environment."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.peers import install
from tests.peers.processes import free_port, ports_in_a_row

UP_S_MAX = 120.0


class LocalCluster:
    """The commands beside the directory of one cluster."""

    def __init__(self, directory: Path, gateways: int = 2, bookies: int = 2) -> None:
        self.directory = directory
        self.port = ports_in_a_row(gateways)[0]
        self._sizes = ("--gateways", str(gateways), "--bookies", str(bookies))
        path = f"{Path(install.java()).parent}:{os.environ['PATH']}"
        self.environment = {
            "GATEWAY_CLUSTER_DATA": str(directory),
            "GATEWAY_ZOOKEEPER_JARS": str(install.zookeeper_jars()),
            "PATH": path,
        }
        directory.mkdir()
        (directory / "env").write_text(
            f"export GATEWAY_ZOOKEEPER=127.0.0.1:{free_port()}\n"  # not 2181: others take it too
        )

    def words(self, *words: str) -> list[str]:
        """Return the command line of a command of `gateway cluster`."""
        return [install.gateway_python(), "-m", "gateway", "cluster", *words]

    def run(self, *words: str) -> tuple[int, str, str]:
        """Run a command. Returns its exit code, stdout and stderr."""
        environment = {**os.environ, **self.environment}
        done = subprocess.run(
            self.words(*words), env=environment, capture_output=True, text=True, timeout=UP_S_MAX
        )
        return done.returncode, done.stdout, done.stderr

    def up(self, *words: str) -> dict[str, Any]:
        """Start what does not run. Returns what `up` prints as JSON."""
        place = ("--port", str(self.port), *self._sizes)
        code, out, errors = self.run("up", *place, *words, "-o", "json")
        assert code == 0, errors
        return dict(json.loads(out))

    def states(self) -> dict[str, str]:
        """Return the state of each process, by its name."""
        found = json.loads(self.run("status", "-o", "json")[1])
        return {row["name"]: row["state"] for row in found["processes"]}

    def pids(self) -> dict[str, int]:
        """Return the process ids that were written, by the name of the process."""
        return {each.stem: int(each.read_text()) for each in self.directory.glob("*.pid")}
