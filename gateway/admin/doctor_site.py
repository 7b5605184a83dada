"""The answers of servers that several checks of `gateway doctor` share, each asked for once.

The checks run at the same time. The first that needs an answer asks; the others wait for it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from gateway.admin.addresses import parse_bootstrap
from gateway.admin.client import AdminClient, AdminError, Broker, Unreachable
from gateway.admin.client_settings import ClientSettings
from gateway.admin.metadata_address import metadata_address
from gateway.admin.storage import LEDGER_PORT, Storage, StorageConnection
from gateway.wire.client_link import Security
from ledger.adapters.links.link_config import TlsFiles
from ledger.adapters.system.clock import SystemClock
from ledger.errors import LedgerError
from ledger.ports.bookies import BookieTransport
from ledger.tasks import start_once

T = TypeVar("T")

CONNECT_S: Final = 3.0
ANSWER_S: Final = 4.0
RETRY_S: Final = 2.0
EXPECTED: Final = (AdminError, Unreachable, LedgerError, OSError)
"""Failures of the world: a check reports them as its reason."""


class Shared(Generic[T]):
    """A value that is made once, when it is first needed. A failure is raised to each caller."""

    def __init__(self, name: str, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._name = name
        self._make = make
        # The task that makes the value; None until it is needed.
        self._task: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Return the value. A caller that is cancelled leaves the others waiting."""
        if self._task is None:
            self._task = start_once(self._name, self._make(), expected=Exception)
        return await asyncio.shield(self._task)

    async def stop(self) -> T | None:
        """End the work. Returns the value if it was made."""
        if self._task is None:
            return None
        self._task.cancel()
        (result,) = await asyncio.gather(self._task, return_exceptions=True)
        return None if isinstance(result, BaseException) else result


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster, as any of its servers describes it."""

    cluster_id: str | None
    brokers: Sequence[Broker]
    racks: dict[int, str]  # of brokers that have one
    topics: Sequence[Any]  # of kio


@dataclass(frozen=True, slots=True)
class Report:
    """The report of a broker about its process. `fields` is empty for brokers of Kafka."""

    broker: Broker
    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    ahead_ms: float | None = None  # its clock, before or after this machine's
    within_ms: float = 0.0
    fault: str | None = None
    is_gateway: bool = False  # of this project, though it may have refused to report

    @property
    def name(self) -> str:
        return f"gateway {self.broker.node_id}"


class Site:
    """The servers and places that one run of `gateway doctor` looks at."""

    def __init__(
        self,
        servers: ClientSettings | str,
        zookeeper: str | None = None,
        data: Path | None = None,
        tls: TlsFiles | None = None,
        transport: BookieTransport = BookieTransport.TCP,
    ) -> None:
        self._settings = servers if isinstance(servers, ClientSettings) else ClientSettings(servers)
        self.data = data
        self.clock = SystemClock()
        self._zookeeper = zookeeper
        self._tls = tls
        self._transport = transport
        self._connection: StorageConnection | None = None
        self.cluster = Shared("a question about the cluster", self._ask_cluster)
        self.reports = Shared("a question about processes", self._ask_reports)
        self.metadata = Shared("a question about metadata", self._ask_metadata)
        self.storage = Shared("a connection to ledgers", self._open_storage)

    @property
    def servers(self) -> list[tuple[str, int]]:
        return self._settings.servers

    def security(self) -> Security | None:
        """Return the TLS and the login of connections. Raises UnsupportedSecurity."""
        return self._settings.security()

    def client(self) -> AdminClient:
        """Return a client of the servers, which waits less than the clients of other commands."""
        return AdminClient(
            self._settings, connect_s_max=CONNECT_S, answer_s_max=ANSWER_S, retry_s_max=RETRY_S
        )

    def client_of(self, broker: Broker) -> AdminClient:
        """Return a client of one broker, with the TLS and the login of the others.

        Raises Unreachable if the broker gives no address to clients.
        """
        settings = self._settings._replace(bootstrap=address_of(broker))
        return AdminClient(settings, connect_s_max=CONNECT_S, answer_s_max=ANSWER_S)

    async def is_ours(self) -> bool:
        """Return whether a broker of this project, of any release, is among those that answer."""
        if any(report.is_gateway for report in await self.reports.get()):
            return True
        try:
            await self.metadata.get()
        except AdminError:
            return False
        return self._zookeeper is None  # a gateway named the place

    async def refusals(self) -> list[str]:
        """Return why gateways did not report, if none of them did."""
        reports = [each for each in await self.reports.get() if each.is_gateway]
        if any(each.fields for each in reports):
            return []
        return [f"{each.name}: {each.fault}" for each in reports]

    async def close(self) -> None:
        for shared in (self.cluster, self.reports, self.metadata, self.storage):
            await shared.stop()
        if self._connection is not None:
            await self._connection.close()

    async def _ask_cluster(self) -> ClusterView:
        async with self.client() as client:
            answer = await client.metadata(None)
        brokers = [Broker(each.node_id, each.host, each.port) for each in answer.brokers]
        racks = {each.node_id: each.rack for each in answer.brokers if each.rack}
        return ClusterView(answer.cluster_id, sorted(brokers), racks, answer.topics)

    async def _ask_reports(self) -> list[Report]:
        brokers = (await self.cluster.get()).brokers
        return await asyncio.gather(*map(self._report_of, brokers))

    async def _report_of(self, broker: Broker) -> Report:
        """Ask a broker for its report, on a connection of its own, so that its clock is exact."""
        ours = False
        try:
            async with self.client_of(broker) as client:
                ours = await client.reaches_gateway()
                if not ours:
                    return Report(broker)
                begun_s = self.clock.monotonic_s()
                fields = await client.ask_gateway({"ask": "process"})
                took_ms = (self.clock.monotonic_s() - begun_s) * 1000
                now_ms = self.clock.now_ms()
        except (AdminError, Unreachable) as error:
            denied = getattr(error, "code", "") == "CLUSTER_AUTHORIZATION_FAILED"
            fault = lacks("DESCRIBE") if denied else str(error)
            return Report(broker, fault=fault, is_gateway=ours)
        time_ms = fields.get("time_ms")
        if not isinstance(time_ms, int):
            return Report(broker, fields, is_gateway=True)
        ahead_ms = time_ms - (now_ms - took_ms / 2)
        return Report(broker, fields, ahead_ms, took_ms / 2, is_gateway=True)

    async def _ask_metadata(self) -> str:
        """Return where the metadata of ledgers are. Raises AdminError for servers of Kafka."""
        if self._zookeeper is not None:
            return self._zookeeper
        async with self.client() as client:
            return await metadata_address(client)

    async def _open_storage(self) -> Storage:
        self._connection = StorageConnection(await self.metadata.get(), self._tls, self._transport)
        return await self._connection.open()

    async def in_one_process(self) -> bool:
        """Return whether the metadata are those of `gateway dev`, without ZooKeeper."""
        return (await self.metadata.get()).startswith(LEDGER_PORT)


def lacks(right: str) -> str:
    return f"this user lacks the right {right} on the cluster"


def address_of(broker: Broker) -> str:
    """Return host:port of a broker. Raises Unreachable if it gives other text to clients."""
    text = f"{_bracketed(broker.host)}:{broker.port}"
    try:
        found = parse_bootstrap(text)
    except ValueError:
        found = []
    if found != [(broker.host, broker.port)]:
        raise Unreachable(f"{text!r} is not host:port")
    return text


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def hosts_of(zookeeper: str) -> list[str]:
    """Return the host names in an address of ZooKeeper or of a ledger port."""
    servers = zookeeper.removeprefix(LEDGER_PORT).partition("/")[0].split(",")
    return [re.sub(r"[\[\]]", "", each.rpartition(":")[0]) for each in servers]
