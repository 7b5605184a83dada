"""The gateway as users run it: `python -m gateway dev` from the run environment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.peers import install
from tests.peers.broker import Broker


class Gateway(Broker):
    """One embedded gateway process; `options` are further command-line words."""

    name = "gateway"

    def __init__(self, data: Path, options: Sequence[str] = ()) -> None:
        super().__init__(data)
        self.options = list(options)

    def argv(self) -> list[str]:
        place = ["--port", str(self.port), "--data", str(self.data)]
        return [install.gateway_python(), "-m", "gateway", "dev", *place, *self.options]

    def start(self) -> Self:
        """Start it; returns when it answers Metadata and has said `started`."""
        super().start()
        said = "the gateway to say `started`"
        self.process.wait_for(lambda: "started" in self.process.output(), said, 10.0)
        return self


class ClusterGateway(Gateway):
    """`python -m gateway serve`: the gateway of a cluster; `data` only holds its log."""

    def __init__(self, data: Path, zookeeper: str, options: Sequence[str] = ()) -> None:
        super().__init__(data, options)
        self.zookeeper = zookeeper

    def argv(self) -> list[str]:
        place = ["--port", str(self.port), "--zookeeper", self.zookeeper, "--session-ms", "2000"]
        return [install.gateway_python(), "-m", "gateway", "serve", *place, *self.options]
