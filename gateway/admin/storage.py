"""The connection of an admin command to the storage tier: ZooKeeper and the bookies."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Collection
from types import TracebackType
from typing import Self

from gateway.admin.client import AdminError, Unreachable
from gateway.admin.zookeeper_access import REFUSED, command_access
from ledger.adapters.links.link_config import TlsFiles
from ledger.adapters.links.tls_identity import TlsFault
from ledger.adapters.open_bookies import open_bookies
from ledger.adapters.system.clock import SystemClock
from ledger.adapters.zookeeper.zookeeper_access import ZooKeeperAccess
from ledger.adapters.zookeeper.zookeeper_metadata import connect_zookeeper
from ledger.client.client import LedgerClient
from ledger.client.config import LedgerClientConfig
from ledger.client.update_metadata import LedgerMetadataStore
from ledger.core.ledger_metadata import LedgerMetadata
from ledger.errors import (
    AccessDenied,
    CorruptFormat,
    ForeignLayout,
    InvalidArgument,
    MetadataUnavailable,
    NoSuchLedger,
)
from ledger.ids import BookieId, LedgerId
from ledger.losses.acceptance import LossAcceptor
from ledger.losses.survey import LossSurvey
from ledger.ports.bookies import Bookies, BookieTransport
from ledger.ports.clock import Clock
from ledger.ports.metadata import MetadataStore
from ledger.registry.discovery import Discovery
from ledger.registry.layout import read_instance_id
from ledger.repair.auditor import Auditor
from ledger.repair.config import RepairConfig
from ledger.repair.entry_copier import CopyBudget, EntryCopier, RepairProgress
from ledger.repair.underreplicated_ledgers import UnderreplicatedLedgers
from ledger.tasks import start_once

_SESSION_MS = 10_000
_CONNECT_S = 4.0  # less than the time after which the line of a wait is printed
LEDGER_PORT = "grpc://"
"""An address with this prefix is the ledger port of `gateway dev`, used instead of ZooKeeper."""


class Storage:
    """Access of an admin command to ledgers, bookies and repair marks, over any ports."""

    def __init__(
        self, store: MetadataStore, bookies: Bookies, clock: Clock, owner: BookieId
    ) -> None:
        # These fields live as long as the command. `StorageConnection` closes `store` and
        # `bookies`.
        self.store = store
        self.bookies = bookies
        self.clock = clock
        self.client_config = LedgerClientConfig()
        self.config = RepairConfig()
        self.metadata = LedgerMetadataStore(store, self.client_config)
        self.client = LedgerClient(store, bookies, clock, self.client_config)
        self.underreplicated = UnderreplicatedLedgers(store, clock, owner)
        # The auditor only scans metadata here. No admin command takes part in the auditors'
        # election.
        self.auditor = Auditor(store, bookies, clock, self.underreplicated, self.config)
        # Counts the copies read by all readers that `copies` returned. The counts never fall.
        self.progress = RepairProgress()
        self.survey = LossSurvey(
            self.metadata, bookies, self.client_config, self._suspects, self.progress
        )
        self.acceptor = LossAcceptor(
            self.client, self.metadata, bookies, clock, self.client_config, self._mark
        )

    async def _suspects(self, ledger: LedgerId) -> Collection[BookieId]:
        return (await self.underreplicated.note(ledger)).suspects

    async def _mark(self, ledger: LedgerId) -> None:
        await self.underreplicated.mark(ledger, ())

    def copies(self, metadata: LedgerMetadata) -> EntryCopier:
        """Return a reader of the copies of one ledger. `progress` counts its reads."""
        budget = CopyBudget(self.config.in_flight_bytes_max, 0)
        return EntryCopier(
            metadata, self.bookies, budget, self.progress, self.config, self.client_config
        )

    async def metadata_of(self, ledger: LedgerId) -> LedgerMetadata:
        """Read the metadata of a ledger. Raises AdminError if the metadata is missing
        or corrupt.
        """
        try:
            return (await self.metadata.read_latest(ledger)).metadata
        except NoSuchLedger:
            raise AdminError(f"ledger {ledger} does not exist", "NO_SUCH_LEDGER") from None
        except CorruptFormat as error:
            raise AdminError(str(error), "CORRUPT_METADATA") from error


class StorageConnection:
    """The connection of an admin command to ZooKeeper and the bookies.

    Use as `async with StorageConnection(zookeeper, tls) as storage`, which may raise Unreachable.
    `zookeeper` may also be `grpc://127.0.0.1:3181`, the ledger port of `gateway dev`, which is
    read-only.
    """

    def __init__(
        self,
        zookeeper: str,
        tls: TlsFiles | None = None,
        transport: BookieTransport = BookieTransport.TCP,
        access: ZooKeeperAccess | None = None,
    ) -> None:
        self._zookeeper = zookeeper
        # None: that of the command that runs now.
        self._access = access
        self._tls = tls
        # The bookies behind the ledger port serve only gRPC.
        port = zookeeper.startswith(LEDGER_PORT)
        self._transport = BookieTransport.GRPC if port else transport
        # Functions that close the parts that `open` has opened so far. `close` calls the functions
        # in reverse order, also after an `open` that failed halfway.
        self._stops: list[Callable[[], Awaitable[None]]] = []

    async def open(self) -> Storage:
        port = self._zookeeper.startswith(LEDGER_PORT)
        try:
            store = await self._connect()
            self._stops.append(store.close)
            await read_instance_id(store, "" if port else self._zookeeper)
            discovery = Discovery(store)
            await discovery.start()
        except AccessDenied as error:
            raise AdminError(f"zookeeper {self._zookeeper}: {error}", REFUSED) from error
        except InvalidArgument as error:
            raise AdminError(str(error), "CONFIG") from error
        except MetadataUnavailable as error:
            what = "ledger port" if port else "ZooKeeper"
            raise Unreachable(f"no {what}: {error}") from error
        except ForeignLayout as error:
            raise AdminError(f"zookeeper {self._zookeeper}: {error}", "NO_CLUSTER") from error
        self._stops.append(discovery.stop)
        try:
            bookies = open_bookies(discovery.registered, self._transport, self._tls)
        except TlsFault as fault:
            raise AdminError(str(fault), "TLS") from fault
        self._stops.append(bookies.close)
        return storage_over(store, bookies)

    async def _connect(self) -> MetadataStore:
        if not self._zookeeper.startswith(LEDGER_PORT):
            return await connect_zookeeper(
                self._zookeeper,
                session_ms=_SESSION_MS,
                connect_s=_CONNECT_S,
                make_root=False,
                access=command_access() if self._access is None else self._access,
            )
        from ledger.adapters.grpc.grpc_metadata import GrpcMetadata

        host, _, port = self._zookeeper.removeprefix(LEDGER_PORT).rpartition(":")
        store = GrpcMetadata(host.strip("[]"), int(port))
        try:
            await store.exists("/")
        except BaseException:
            await store.close()
            raise
        return store

    async def close(self) -> None:
        while self._stops:
            await self._stops.pop()()

    async def __aenter__(self) -> Storage:
        try:
            return await self.open()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def storage_over(store: MetadataStore, bookies: Bookies) -> Storage:
    """Return access through ports that the caller closes."""
    return Storage(store, bookies, SystemClock(), _owner())


def _owner() -> BookieId:
    host = socket.gethostname().partition(".")[0] or "host"
    return BookieId(f"admin-{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}")


class Watching:
    """A context manager that calls `show` every `every_s` seconds, and once at its end."""

    def __init__(self, show: Callable[[], None] | None, every_s: float = 0.2) -> None:
        self._show = show
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._show is not None:
            self._task = start_once("the progress line", self._keep_showing(self._show))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._show is not None:
            self._show()

    async def _keep_showing(self, show: Callable[[], None]) -> None:
        while True:
            show()
            await asyncio.sleep(self._every_s)
