"""What Apache Kafka and the gateway have in common as processes: the port and Metadata."""

from __future__ import annotations

from tests.peers.processes import ServerProcess, answers_metadata


class Broker(ServerProcess):
    """One broker process on a loopback port, which serves once it answers Metadata."""

    name = "broker"

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def prepare(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)

    def serves(self) -> bool:
        return answers_metadata(self.port)
