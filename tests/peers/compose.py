"""The services of a compose file as processes of this machine, with the commands it has.

Only what a container would give is replaced: service names and 0.0.0.0 become 127.0.0.1, ports
become free ones, /data a directory for each service, `python` the run environment's; and a bookie's
disk is one that it shares with everything else here.
`python -m tests.peers.compose` (`make cluster`) runs them until it is interrupted. It needs the run
environment and Java, so it reads the commands of the file without a library for YAML.
"""

from __future__ import annotations

import argparse
import re
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

from tests.peers import install
from tests.peers.bookie import SHARED_DISK
from tests.peers.processes import Process, free_port, ports_in_a_row, reserve
from tests.peers.zookeeper import ZooKeeper

FILE = install.ROOT / "compose" / "cluster.yaml"
START_S_MAX = 60.0
LOOK_S = 0.2
AGAIN_S, AGAIN_S_MAX = 0.5, 10.0  # before a service that ended is started again
STEADY_S = 10.0  # what ran so long begins anew at the shortest wait
LOOPBACK = "127.0.0.1"
ZOOKEEPER_PORT = 2181  # unless it is taken
_SERVICE = re.compile(r"^  ([a-z0-9-]+):$", re.MULTILINE)
_COMMAND = re.compile(r"^    command: \[([^\]]*)\]$", re.MULTILINE)
_KEPT_PORT = re.compile(r"^export GATEWAY_ZOOKEEPER=127\.0\.0\.1:(\d+)$", re.MULTILINE)


def services(file: Path = FILE) -> dict[str, dict[str, Any]]:
    """What the file describes, by name, in its order."""
    from ruamel.yaml import YAML  # only in the development environment

    return dict(YAML(typ="safe").load(file)["services"])


def commands(file: Path = FILE) -> dict[str, list[str]]:
    """The command of each service that has one, by name, in the order of the file."""
    _, _, text = file.read_text().partition("\nservices:\n")
    text = re.split(r"^\S", text, maxsplit=1, flags=re.MULTILINE)[0]
    parts = _SERVICE.split(text)[1:]
    found = {
        name: _COMMAND.search(body) for name, body in zip(parts[::2], parts[1::2], strict=True)
    }
    return {
        name: [word.strip().strip('"') for word in command[1].split(",")]
        for name, command in found.items()
        if command is not None
    }


def local_command(words: list[str], zookeeper: str, data: Path, port: int) -> list[str]:
    """The command of a service as it runs here."""
    changed = {"--zookeeper": zookeeper, "--data": str(data), "--port": str(port)}
    changed |= {"--host": LOOPBACK, "--advertised-host": LOOPBACK, "--peer-host": LOOPBACK}
    before = ["", *words]
    local = [changed.get(flag, word) for flag, word in zip(before, words, strict=False)]
    if words[1:4] == ["-m", "ledger", "serve"]:
        local += SHARED_DISK
    return [install.gateway_python() if word == "python" else word for word in local]


class LocalCluster:
    """The whole cluster, ended by process id. Gateways listen from `first_port` on, 0: anywhere.

    `<name>.log` and `<name>.pid` of each service lie in `directory`.
    """

    def __init__(
        self, directory: Path, first_port: int = 0, file: Path = FILE, zookeeper_port: int = 0
    ) -> None:
        self.directory = directory
        self.commands = commands(file)
        self.gateways = [name for name in self.commands if name.startswith("gateway-")]
        self.bookies = [name for name in self.commands if name.startswith("bookie-")]
        count = len(self.gateways)
        ports = [first_port + place for place in range(count)] if first_port else None
        reserve(ports or ())  # before the first draw
        self.zookeeper = ZooKeeper(directory / "zookeeper")
        self.zookeeper.port = zookeeper_port or self.zookeeper.port
        self.processes: dict[str, Process] = {}
        self.ports = dict(zip(self.gateways, ports or ports_in_a_row(count), strict=True))
        self.ports |= {name: free_port() for name in self.commands if name not in self.ports}
        self._ends: dict[str, int] = {}  # in a row, by service
        self._due_s: dict[str, float] = {}  # when what ended is started again

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{LOOPBACK}:{self.ports[name]}" for name in self.gateways)

    def start(self) -> Self:
        """Everything serves; what was started is ended again if a part does not come up."""
        try:
            self.zookeeper.start()
            # The first bookie lays the cluster out; before it an auditor and a gateway end, and
            # Docker would start them again.
            for together in (self.bookies, ["audit", *self.gateways]):
                for name in together:
                    self.start_one(name)
                for name in together:
                    self.wait_started(name)
        except BaseException:
            self.stop()
            raise
        return self

    def write_env(self) -> Path:
        """Write the addresses for `. data/cluster/env`. The next run keeps ZooKeeper's port."""
        file = self.directory / "env"
        file.write_text(
            f"export GATEWAY_BOOTSTRAP={self.bootstrap}\n"
            f"export GATEWAY_ZOOKEEPER={self.zookeeper.servers}\n"
        )
        return file

    def local_command(self, name: str) -> list[str]:
        """The command of a service as it runs here."""
        servers, data = self.zookeeper.servers, self.directory / name
        return local_command(self.commands[name], servers, data, self.ports[name])

    def environment(self) -> dict[str, str]:
        """Variables of all services, besides those of this process."""
        return {}

    def start_one(self, name: str) -> None:
        log, command = self.directory / f"{name}.log", self.local_command(name)
        self.processes[name] = process = Process(command, log, self.environment())
        (self.directory / f"{name}.pid").write_text(f"{process.pid}\n")

    def wait_started(self, name: str) -> None:
        self.processes[name].wait_output("started", START_S_MAX)

    def restart_ended(self) -> list[str]:
        """What ended by itself is started again after a while, longer each time; a line for each.

        Not waited for. Source: Docker, `restart: unless-stopped`.
        """
        now_s = time.monotonic()
        lines: list[str] = []
        for name, process in list(self.processes.items()):
            if process.exit_code is None:
                continue
            if name not in self._due_s:
                steady = now_s - process.started_at_s > STEADY_S
                self._ends[name] = 0 if steady else self._ends.get(name, 0)
                self._due_s[name] = now_s + min(AGAIN_S_MAX, AGAIN_S * 2 ** self._ends[name])
            elif now_s >= self._due_s[name]:
                del self._due_s[name]
                self._ends[name] += 1
                self.start_one(name)
                lines.append(
                    f"{name} ended with {process.exit_code}, "
                    f"started again: pid {self.processes[name].pid}"
                )
        return lines

    def stop(self) -> None:
        """Gateways first, ZooKeeper last."""
        for name in reversed(list(self.commands)):
            if name in self.processes:
                self.processes.pop(name).stop()
                (self.directory / f"{name}.pid").unlink(missing_ok=True)
        if self.zookeeper.running:
            self.zookeeper.stop()


def zookeeper_port(directory: Path) -> int:
    """The port of the last run, else 2181, else any free one."""
    env = directory / "env"
    kept = _KEPT_PORT.search(env.read_text()) if env.exists() else None
    wanted = [int(kept[1])] if kept else []
    return next(filter(_can_listen, [*wanted, ZOOKEEPER_PORT]), 0)


def _can_listen(port: int) -> bool:
    """True unless another process listens there. Connections of an earlier run do not matter."""
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError:
        return False
    return True


def main() -> int:
    flags = argparse.ArgumentParser(prog="make cluster", description=__doc__)
    flags.add_argument("--data", type=Path, default=Path("data") / "cluster")
    flags.add_argument("--port", type=int, default=9092, help="Kafka port of the first gateway")
    chosen = flags.parse_args()
    asked = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: asked.set())
    directory = chosen.data.absolute()
    cluster = LocalCluster(directory, chosen.port, zookeeper_port=zookeeper_port(directory))
    try:
        cluster.start()
    except (RuntimeError, AssertionError, install.PeerMissing) as fault:
        print(f"cluster: {fault}", file=sys.stderr)
        return 1
    try:
        print(
            f"{'zookeeper':<14} pid {cluster.zookeeper.process.pid:<8} {cluster.zookeeper.servers}"
        )
        for name, process in cluster.processes.items():
            print(f"{name:<14} pid {process.pid:<8} log {process.log}")
        print(f"{'addresses':<14} . {cluster.write_env()}")
        print(f"cluster started: bootstrap.servers={cluster.bootstrap}", flush=True)
        while not asked.wait(LOOK_S):
            for line in cluster.restart_ended():
                print(line, flush=True)
    finally:
        cluster.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
