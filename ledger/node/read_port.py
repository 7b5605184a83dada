"""The ledger port of `gateway dev`: read-only access to its ledgers for other local processes.

    port ─(first connection)─▶ metadata, read-only · one port per bookie, read-only, listed in it

The servers behind the port load on the first connection, so an unused port costs almost nothing.
Connections are passed on to the metadata server byte by byte. Metadata is small, and entries are
read through the bookies' own ports. No request through the port can change anything.

The web page of this process reads the same without the port: `shown` returns what readers see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final

from ledger.bookie.bookie import Bookie
from ledger.errors import LedgerError, NoNode
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.log import logger
from ledger.ports.bookies import BookieInfo, Bookies
from ledger.ports.metadata import MetadataStore
from ledger.registry import service_info
from ledger.registry.layout import AVAILABLE, INSTANCE_ID, READONLY
from ledger.tasks import start_once

if TYPE_CHECKING:
    from ledger.adapters.grpc.grpc_metadata_server import MetadataServer
    from ledger.bookie.grpc_server import BookieServer
    from ledger.node.shown_bookies import ShownBookies

_HOST: Final = "127.0.0.1"
"""The port listens on this machine only, because it has no authentication."""

_CONNECTIONS_MAX: Final = 256
_PIECE_BYTES: Final = 64 * 1024


class ReadPort:
    """The ledger port of a process. Call `start` and `stop` once each."""

    def __init__(
        self,
        store: MetadataStore,
        bookies: Sequence[Bookie],
        confirmed: Callable[[LedgerId], EntryId],
        prepare: Callable[[], Awaitable[None]],
        hidden: Sequence[str] = (),
    ) -> None:
        """`confirmed` returns the LAC of a ledger's writer in this process, or -1 if it has none.

        `prepare` runs before the first reader is served, and closes ledgers without a writer.
        Readers see no node at or below the paths in `hidden`.
        """
        self._store = store
        self._bookies = bookies
        self._confirmed = confirmed
        self._prepare = prepare
        self._hidden = hidden
        # The public listener. None before `start`.
        self._listening: asyncio.Server | None = None
        # Tasks of the connections being passed on. A task is removed when it ends.
        self._connections: set[asyncio.Task[None]] = set()
        # The task that starts the servers behind the port and returns the metadata server's port.
        # None before the first connection; replaced if it failed.
        self._opening: asyncio.Task[int] | None = None
        # One gRPC server per bookie, started by `_open`.
        self._servers: list[BookieServer] = []
        # The metadata server, started by `_open`.
        self._metadata: MetadataServer | None = None
        # The bookies as readers see them, for this process. Set by `_open`.
        self._shown: ShownBookies | None = None
        self._stopped = False
        self.port = 0

    async def start(self, port: int) -> None:
        """Listen on 127.0.0.1 at `port` (0 picks a free one). Raises OSError."""
        self._listening = await asyncio.start_server(self._on_connection, _HOST, port)
        self.port = self._listening.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and serving."""
        self._stopped = True
        if self._listening is not None:
            self._listening.close()
        tasks: list[asyncio.Task[None]] = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._opening is not None:
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._metadata is not None:
            await self._metadata.stop()
        await asyncio.gather(*[server.stop(0.0) for server in self._servers])

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= _CONNECTIONS_MAX:
            writer.close()
            return
        task = start_once("a connection to the ledger port", self._pass_on(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def shown(self) -> tuple[MetadataStore, Bookies]:
        """Return what readers of the port see, without a connection.

        The first call opens the port, as a first reader does. Raises OSError, LedgerError.
        """
        await asyncio.shield(self._open_once())
        assert self._metadata is not None and self._shown is not None
        return self._metadata.shown, self._shown

    def _open_once(self) -> asyncio.Task[int]:
        """Return the task that starts the servers. One that failed is replaced.

        Raises ConnectionError after `stop`.
        """
        if self._stopped:
            raise ConnectionError("the ledger port has stopped")
        opening = self._opening
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception())):
            opening = self._opening = start_once(
                "the ledger port", self._open(), expected=(OSError, LedgerError)
            )
        return opening

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_port = await asyncio.shield(self._open_once())
            inner_reader, inner_writer = await asyncio.open_connection(_HOST, inner_port)
        except (OSError, LedgerError) as error:
            logger().warning("the ledger port cannot serve readers", reason=str(error))
            writer.close()
            return
        pumps = [
            start_once("a connection to the ledger port", _pump(reader, inner_writer)),
            start_once("a connection to the ledger port", _pump(inner_reader, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            writer.close()
            inner_writer.close()

    async def _open(self) -> int:
        """Start the servers behind the port; return the metadata server's port. Raises OSError."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, _import_servers)
        await self._prepare()
        from ledger.adapters.grpc.grpc_config import GrpcServerConfig
        from ledger.adapters.grpc.grpc_metadata_server import MetadataServer
        from ledger.adapters.links.link_config import ANSWERS_BYTES_MAX
        from ledger.bookie.grpc_server import BookieServer
        from ledger.bookie.read_only_view import ReadOnlyView
        from ledger.node.shown_bookies import ShownBookies

        nodes = {AVAILABLE: b"", READONLY: b""}
        # The bookies of this process share one bound.
        limits = GrpcServerConfig(answers_bytes_max=ANSWERS_BYTES_MAX // max(1, len(self._bookies)))
        infos: dict[BookieId, BookieInfo] = {}
        views = [ReadOnlyView(bookie, self._confirmed) for bookie in self._bookies]
        for view in views:
            server = BookieServer(view, limits)
            self._servers.append(server)
            info = BookieInfo(_HOST, await server.start(_HOST, 0), read_only=True)
            infos[view.bookie_id] = info
            nodes[f"{READONLY}/{view.bookie_id}"] = service_info.encode(view.bookie_id, info)
        nodes |= await self._instance_id()
        self._shown = ShownBookies(views, infos)
        self._metadata = MetadataServer(self._store, nodes, self._hidden)
        return await self._metadata.start(_HOST, 0)

    async def _instance_id(self) -> dict[str, bytes]:
        """Return an instance id for a store without one, because readers expect a cluster's id."""
        try:
            await self._store.get(INSTANCE_ID)
        except NoNode:
            return {INSTANCE_ID: b"embedded"}
        return {}


def _import_servers() -> None:
    """Import the servers. Runs in a thread because the import takes 100 ms and more."""
    import_module("ledger.bookie.grpc_server")
    import_module("ledger.adapters.grpc.grpc_metadata_server")


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while piece := await reader.read(_PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
    except OSError:
        pass  # either end closed the connection
