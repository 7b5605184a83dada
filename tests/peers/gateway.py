"""The gateway as users run it: `python -m gateway` from the run environment.

`Gateway` is the embedded one; `ClusterGateway` one of a cluster; `Gateways` several of them, each
with a node id, a port and a rack of its own that outlive stop, kill and restart.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from tests.peers import install
from tests.peers.broker import Broker
from tests.peers.processes import Lifecycle, free_port, ports_in_a_row

STARTED_LINE_S_MAX = 60.0
STOOD_STILL = "this process stood still"  # why it ended a connection


class Gateway(Broker):
    """One embedded gateway process; `options` are further command-line words."""

    name = "gateway"

    def __init__(self, data: Path, options: Sequence[str] = ()) -> None:
        super().__init__(data)
        self.options = list(options)
        # The interpreter of another release, empty for this tree.
        self.python = ""
        self.ledger_port = free_port()

    @property
    def ledgers(self) -> str:
        """Where its ledgers are read, unless `options` say something else."""
        return f"grpc://127.0.0.1:{self.ledger_port}"

    def argv(self) -> list[str]:
        place = ["--port", str(self.port), "--data", str(self.data)]
        place += ["--ledger-port", str(self.ledger_port)]
        if not self.python and "--http-port" not in self.options:
            place.append("--no-http-port")  # earlier releases have no page
        return [
            self.python or install.gateway_python(),
            "-m",
            "gateway",
            "dev",
            *place,
            *self.options,
        ]

    def wait_started(self, timeout_s: float | None = None) -> Self:
        """Wait until it answers Metadata, and then until it has logged `started`."""
        super().wait_started(timeout_s)
        try:
            self.process.wait_output("started", STARTED_LINE_S_MAX)
        except BaseException:
            self.kill()
            raise
        return self


class ClusterGateway(Gateway):
    """`python -m gateway serve`: it keeps nothing on disk; `data` only names its log.

    `zookeeper` is what `--zookeeper` takes, chroot or a proxy's address included.
    """

    again_after = frozenset({os.EX_UNAVAILABLE})

    def __init__(
        self,
        data: Path,
        zookeeper: str,
        options: Sequence[str] = (),
        *,
        node_id: int = 0,
        rack: str = "",
        session_ms: int = 2_000,
        port: int = 0,
    ) -> None:
        super().__init__(data, options)
        self.zookeeper = zookeeper
        self.node_id = node_id
        self.rack = rack
        self.session_ms = session_ms
        # The flag for the session and the unit of its value; releases differ.
        self.session_flag = ("--session", "ms")
        self.port = port or ports_in_a_row(1)[0]
        self.name = f"gateway {node_id}"

    def prepare(self) -> None:
        """Nothing: it keeps nothing on disk."""

    def argv(self) -> list[str]:
        place = ["--port", str(self.port), "--zookeeper", self.zookeeper]
        flag, unit = self.session_flag
        who = ["--node-id", str(self.node_id), flag, f"{self.session_ms}{unit}"]
        who += ["--rack", self.rack] if self.rack else []
        return [
            self.python or install.gateway_python(),
            "-m",
            "gateway",
            "serve",
            *place,
            *who,
            *self.options,
        ]

    def serves(self) -> bool:
        return "started" in self.output() and super().serves()


class Gateways(Lifecycle):
    """Several gateways of one cluster: node ids from 0, racks r1, r2, ..., ports in a row."""

    def __init__(
        self,
        directory: Path,
        zookeeper: str,
        count: int = 3,
        options: Sequence[str] = (),
        *,
        session_ms: int = 1_000,
    ) -> None:
        self.all = [
            ClusterGateway(
                directory / f"gateway-{node_id}",
                zookeeper,
                options,
                node_id=node_id,
                rack=f"r{node_id + 1}",
                session_ms=session_ms,
                port=port,
            )
            for node_id, port in enumerate(ports_in_a_row(count))
        ]

    @property
    def bootstrap(self) -> str:
        """All of them, running or not."""
        return ",".join(gateway.bootstrap for gateway in self.all)

    def __getitem__(self, node_id: int) -> ClusterGateway:
        return self.all[node_id]

    def __iter__(self) -> Iterator[ClusterGateway]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    def start(self) -> Self:
        """All of them serve; none is left over if one does not come up."""
        try:
            for gateway in self.all:
                gateway.begin()
            for gateway in self.all:
                gateway.wait_started()
        except BaseException:
            self.kill()
            raise
        return self

    def stood_still(self) -> bool:
        """Return whether one of them ever ended connections because it stood still.

        The gateway logs this at most once a minute.
        """
        logs = [gateway.log for gateway in self.all if gateway.log.exists()]
        return any(STOOD_STILL in log.read_text(errors="replace") for log in logs)

    def heal(self) -> None:
        """Every one runs, and serves."""
        for gateway in self.all:
            if gateway.running:
                gateway.resume()
            else:
                gateway.begin()
        for gateway in self.all:
            gateway.wait_started()

    def stop(self) -> list[int]:
        """End all that run, politely and one after the other; their exit codes."""
        return [gateway.stop() for gateway in self.all if gateway.running]

    def kill(self) -> None:
        """Kill -9 of all that run."""
        for gateway in self.all:
            if gateway.running:
                gateway.kill()
