"""A cluster of two gateways, as processes: ZooKeeper, three bookies, two brokers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests.compat.differential.connection import Address
from tests.peers.bookie import BookieProcess
from tests.peers.gateway import Gateways
from tests.peers.processes import Lifecycle
from tests.peers.zookeeper import ZooKeeper

BOOKIES = 3
SESSION_MS = 20_000
"""No process ends during a comparison, so sessions may be long and outlive a busy machine."""


class TwoGateways(Lifecycle):
    """Two gateways on one metadata store; stopping it ends all processes."""

    def __init__(self, data: Path, options: Sequence[str] = ()) -> None:
        self._stack = ExitStack()
        self._zookeeper = ZooKeeper(data / "zookeeper")
        self._bookies = [
            BookieProcess(
                data / f"bookie-{number}" / "data",
                self._zookeeper.servers,
                name=f"bookie-{number}",
                rack=f"/rack-{number}",
                session=f"{SESSION_MS}ms",
            )
            for number in range(BOOKIES)
        ]
        self.gateways = Gateways(data, self._zookeeper.servers, 2, options, session_ms=SESSION_MS)
        for gateway in self.gateways:
            gateway.rack = ""  # as the servers that are compared with it

    @property
    def addresses(self) -> list[Address]:
        """Where the gateways listen, in the order of their node ids."""
        return [("127.0.0.1", gateway.port) for gateway in self.gateways]

    def start(self) -> Self:
        """Start all processes, or end those that were started."""
        with ExitStack() as stack:
            stack.enter_context(self._zookeeper)
            for bookie in self._bookies:
                bookie.data.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(bookie)
            stack.enter_context(self.gateways)
            self._stack = stack.pop_all()
        return self

    def stop(self) -> None:
        """End all processes, the gateways first."""
        self._stack.close()
