"""The services of a compose file as processes of this machine, with the commands it has.

Only what a container would give is replaced: service names and 0.0.0.0 become 127.0.0.1, the
listeners of a gateway one listener on a free port, other ports free ones, /data a directory for
each service, `python` the run environment's; and a bookie's disk is one that it shares with
everything else here. The commands of the file are read without a library for YAML, because the
benches run without one.
`python -m tests.peers.compose` (`make cluster`) finds Java and ZooKeeper's jars, and becomes
`gateway cluster up --foreground`.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import Any, Self

from tests.peers import install
from tests.peers.bookie import SHARED_DISK
from tests.peers.processes import Process, free_port, ports_in_a_row, reserve
from tests.peers.zookeeper import ZooKeeper

FILE = install.ROOT / "compose" / "cluster.yaml"
START_S_MAX = 60.0
LOOPBACK = "127.0.0.1"
_SERVICE = re.compile(r"^  ([a-z0-9-]+):$", re.MULTILINE)
LISTENERS = ("--listener", "--advertise", "--inter-broker-listener-name")
_COMMAND = re.compile(r"^    command: \[([^\]]*)\]$", re.MULTILINE)


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
    words = with_one_listener(words)
    before = ["", *words]
    local = [changed.get(flag, word) for flag, word in zip(before, words, strict=False)]
    if words[1:4] == ["-m", "ledger", "serve"]:
        local += SHARED_DISK
    return [install.gateway_python() if word == "python" else word for word in local]


def with_one_listener(words: list[str]) -> list[str]:
    """Return the command with one listener, by the short form, in place of named ones.

    It listens on this machine alone, so it need not say that it is insecure.
    """
    if LISTENERS[0] not in words:
        return words
    first = words.index(LISTENERS[0])
    after = zip(["", *words], words, strict=False)
    others = [
        word
        for before, word in after
        if not {before, word}.intersection(LISTENERS) and word != "--allow-insecure"
    ]
    short = ["--host", "", "--advertised-host", "", "--peer-host", "", "--port", ""]
    return [*others[:first], *short, *others[first:]]


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

    def stop(self) -> None:
        """Gateways first, ZooKeeper last."""
        for name in reversed(list(self.commands)):
            if name in self.processes:
                self.processes.pop(name).stop()
                (self.directory / f"{name}.pid").unlink(missing_ok=True)
        if self.zookeeper.running:
            self.zookeeper.stop()


def main() -> None:
    flags = argparse.ArgumentParser(prog="make cluster", description=__doc__)
    flags.add_argument("--data", default=str(Path("data") / "cluster"))
    flags.add_argument("--port", default="9092", help="Kafka port of the first gateway")
    chosen = flags.parse_args()
    try:
        java, jars = install.java(), install.zookeeper_jars()
    except install.PeerMissing as fault:
        sys.exit(f"cluster: {fault}")
    path = os.pathsep.join([str(Path(java).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "GATEWAY_ZOOKEEPER_JARS": str(jars)}
    place = ["--data", chosen.data, "--port", chosen.port, "--foreground"]
    words = [install.gateway_python(), "-m", "gateway", "cluster", "up", *place]
    os.execve(words[0], words, environment)


if __name__ == "__main__":
    main()
