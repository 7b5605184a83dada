"""The services of a compose file as processes of this machine, with the commands it has.

Only what a container would give is replaced: service names and 0.0.0.0 become 127.0.0.1, ports
become free ones, /data a directory for each service, `python` the run environment's.
`python -m tests.peers.compose` (`make cluster`) runs them until it is interrupted.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path
from typing import Any, Self

from ruamel.yaml import YAML

from tests.peers import install
from tests.peers.processes import Process, free_port
from tests.peers.zookeeper import ZooKeeper

FILE = install.ROOT / "compose" / "cluster.yaml"
START_S_MAX = 30.0
LOOPBACK = "127.0.0.1"


def services(file: Path = FILE) -> dict[str, dict[str, Any]]:
    """What the file describes, by name, in its order."""
    return dict(YAML(typ="safe").load(file)["services"])


def local_command(words: list[str], zookeeper: str, data: Path, port: int) -> list[str]:
    """The command of a service as it runs here."""
    changed = {"--zookeeper": zookeeper, "--data": str(data), "--port": str(port)}
    changed |= {"--host": LOOPBACK, "--advertised-host": LOOPBACK}
    before = ["", *words]
    local = [changed.get(flag, word) for flag, word in zip(before, words, strict=False)]
    return [install.gateway_python() if word == "python" else word for word in local]


class LocalCluster:
    """The whole cluster; `gateway_port` 0 takes a free one. Ended by process id."""

    def __init__(self, directory: Path, gateway_port: int = 0, file: Path = FILE) -> None:
        self.directory = directory
        self.services = services(file)
        self.zookeeper = ZooKeeper(directory / "zookeeper")
        self.processes: dict[str, Process] = {}
        self.gateway_port = gateway_port or free_port()
        self.ports = {name: free_port() for name in self.services}
        self.ports["gateway"] = self.gateway_port

    def start(self) -> Self:
        """Everything serves; what was started is ended again if a part does not come up."""
        try:
            self.zookeeper.start()
            # The first bookie lays the cluster out; before it an auditor ends, and Docker would
            # start it again.
            bookies = [name for name in self.services if name.startswith("bookie-")]
            for together in (bookies, ["audit"], ["gateway"]):
                for name in together:
                    self.start_one(name)
                for name in together:
                    self.wait_started(name)
        except BaseException:
            self.stop()
            raise
        return self

    def start_one(self, name: str) -> None:
        data = self.directory / name
        words = self.services[name]["command"]
        command = local_command(words, self.zookeeper.servers, data, self.ports[name])
        self.processes[name] = Process(command, self.directory / f"{name}.log")

    def wait_started(self, name: str) -> None:
        process = self.processes[name]
        process.wait_for(lambda: "started" in process.output(), f"{name} to start", START_S_MAX)

    def stop(self) -> None:
        """The gateway first, ZooKeeper last."""
        for name in reversed(list(self.processes)):
            self.processes.pop(name).stop()
        if self.zookeeper.running:
            self.zookeeper.stop()


def main() -> int:
    flags = argparse.ArgumentParser(prog="make cluster", description=__doc__)
    flags.add_argument("--data", type=Path, default=Path("data") / "cluster")
    flags.add_argument("--port", type=int, default=9092, help="Kafka port of the gateway")
    chosen = flags.parse_args()
    asked = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: asked.set())
    cluster = LocalCluster(chosen.data.absolute(), chosen.port)
    try:
        cluster.start()
    except (RuntimeError, AssertionError, install.PeerMissing) as fault:
        print(f"cluster: {fault}", file=sys.stderr)
        return 1
    try:
        print(f"zookeeper      {cluster.zookeeper.servers}")
        for name, process in cluster.processes.items():
            print(f"{name:<14} pid {process.pid:<8} log {process.log}")
        print(f"cluster started: bootstrap.servers=127.0.0.1:{chosen.port}", flush=True)
        asked.wait()
    finally:
        cluster.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
