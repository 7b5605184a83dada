"""Both sides of `make bench-security` with TLS and SASL: a listener for each protocol."""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from tests.bench.sides import java
from tests.gateway.pki import Authority
from tests.gateway.secure_rig import Client
from tests.peers import java_tools
from tests.peers.broker import Broker
from tests.peers.gateway import Gateway
from tests.peers.kafka import ONE_NODE, ApacheKafka
from tests.peers.processes import ports_in_a_row

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT")
USER, PASSWORD = "bench", "bench-password"
AT_ONCE = 50


class SecureGateway(Gateway):
    """An embedded gateway with a listener for each protocol, without fsync."""

    def __init__(self, data: Path, authority: Authority, flags: Sequence[str] = ()) -> None:
        super().__init__(data, flags)
        self.authority = authority
        self.ports = dict(zip(PROTOCOLS, ports_in_a_row(len(PROTOCOLS)), strict=True))
        self.port = self.ports["PLAINTEXT"]

    def argv(self) -> list[str]:
        words = [sys.executable, "-m", "gateway", "dev", "--data", str(self.data)]
        words += ["--no-http-port", "--no-ledger-port", "--journal-sync", "never"]
        for protocol, port in self.ports.items():
            words += ["--listener", f"{protocol}=127.0.0.1:{port}"]
        words += ["--ssl-keystore-location", str(self.authority.path / "server.pem")]
        return [*words, "--sasl-enabled-mechanisms", "SCRAM-SHA-512", *self.options]


class SecureKafka(ApacheKafka):
    """Apache Kafka with a listener for each protocol."""

    def __init__(self, data: Path, authority: Authority) -> None:
        super().__init__(data, ONE_NODE, heap="1g")
        self.authority = authority
        first, *others = ports_in_a_row(len(PROTOCOLS))
        self.port = first
        self.ports = dict(zip(PROTOCOLS, (first, *others), strict=True))

    def prepare(self) -> None:
        """Write the properties, with the listeners and the certificate."""
        super().prepare()
        file = self.data / "server.properties"
        listeners = [f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()]
        listeners.append(f"CONTROLLER://127.0.0.1:{self.controller_port}")
        mapped = [f"{name}:{name}" for name in PROTOCOLS]
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        file.write_text(
            file.read_text()
            + f"listeners={','.join(listeners)}\n"
            + f"listener.security.protocol.map={','.join([*mapped, 'CONTROLLER:PLAINTEXT'])}\n"
            + "ssl.keystore.type=PEM\n"
            + f"ssl.keystore.location={self.authority.path / 'server.pem'}\n"
            + "sasl.enabled.mechanisms=SCRAM-SHA-512\n"
            + f"listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config={scram}\n"
        )


Secure = SecureGateway | SecureKafka


def new_secure(side: str, data: Path, flags: Sequence[str] = ()) -> Secure:
    """Return a side that is not started. Its certificate is beside its data."""
    authority = Authority(data.with_name(f"{data.name}-pki"))
    authority.issue("server")
    if side == "kafka":
        return SecureKafka(data, authority)
    return SecureGateway(data, authority, flags)


class At:
    """One listener of a side, as the Java tools reach it."""

    def __init__(self, broker: Secure, protocol: str) -> None:
        self._broker = broker
        self.bootstrap = f"127.0.0.1:{broker.ports[protocol]}"

    def usage(self) -> Any:
        return self._broker.usage()


def client_keys(broker: Secure, protocol: str) -> list[str]:
    """Return the properties with which a Java client reaches a listener."""
    if protocol == "PLAINTEXT":
        return []
    trusted = broker.authority.trusted
    return [
        "security.protocol=SSL",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={trusted}",
    ]


def add_user(broker: Broker, iterations: int = 4096) -> None:
    """Add a user with this number of iterations by Kafka's own tool."""
    config = f"SCRAM-SHA-512=[iterations={iterations},password={PASSWORD}]"
    place = ("--entity-type", "users", "--entity-name", USER)
    words = ("--bootstrap-server", broker.bootstrap, "--alter", *place, "--add-config", config)
    java(java_tools.CONFIGS, *words)


async def at_once(works: Sequence[Coroutine[Any, Any, Any]], count: int = AT_ONCE) -> list[Any]:
    """Run all, `count` at a time."""
    places = asyncio.Semaphore(count)

    async def one(work: Coroutine[Any, Any, Any]) -> Any:
        async with places:
            return await work

    return await asyncio.gather(*map(one, works))


async def shaken(port: int, context: ssl.SSLContext) -> None:
    """Complete a TLS handshake, and leave."""
    client = await Client.connect(port, context)
    client.close()


async def opened(port: int, context: ssl.SSLContext) -> Client:
    """Connect by TLS and ask for the versions, as a client does that stays."""
    client = await Client.connect(port, context)
    await client.ask(18, 0)
    return client


async def logged_in(port: int) -> None:
    """Log in by SCRAM-SHA-512, and leave."""
    client = await Client.connect(port)
    answer = await client.scram("SCRAM-SHA-512", USER, PASSWORD)
    assert not answer.error_code.value
    client.close()
