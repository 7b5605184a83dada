"""The storage of a process that has it all inside, shown on loopback: `gateway dev`'s ledger port.

    port ─(first connection)─▶ metadata, read-only · one port per bookie, read-only, found by them

Nothing is loaded before somebody connects, so a port that nobody uses costs nothing but itself.
What connects is handed on to gRPC servers behind it, byte by byte: metadata are few, entries go to
the bookies' own ports. Nothing that comes in here can change anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final

from ledger.bookie.bookie import Bookie
from ledger.errors import LedgerError, NoNode
from ledger.ids import EntryId, LedgerId
from ledger.log import logger
from ledger.ports.bookies import BookieInfo
from ledger.ports.metadata import MetadataStore
from ledger.registry import service_info
from ledger.registry.layout import AVAILABLE, INSTANCE_ID, READONLY

if TYPE_CHECKING:
    from ledger.adapters.grpc.grpc_metadata_server import MetadataServer
    from ledger.bookie.grpc_server import BookieServer

_HOST: Final = "127.0.0.1"
"""Nobody proves who he is here: only this machine."""

_CONNECTIONS_MAX: Final = 256
_PIECE_BYTES: Final = 64 * 1024


class ReadPort:
    """One per process. `start` once, `stop` once."""

    def __init__(
        self,
        store: MetadataStore,
        bookies: Sequence[Bookie],
        confirmed: Callable[[LedgerId], EntryId],
        prepare: Callable[[], Awaitable[None]],
    ) -> None:
        """`confirmed`: the LAC of this process's own writer of a ledger, -1 without one.

        `prepare` is done before the first reader is served: ledgers without a writer are closed.
        """
        self._store = store
        self._bookies = bookies
        self._confirmed = confirmed
        self._prepare = prepare
        self._listening: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._opening: asyncio.Task[int] | None = None
        self._servers: list[BookieServer] = []
        self._metadata: MetadataServer | None = None
        self.port = 0

    async def start(self, port: int) -> None:
        """It listens on 127.0.0.1 at `port` (0: any free one). Raises OSError."""
        self._listening = await asyncio.start_server(self._on_connection, _HOST, port)
        self.port = self._listening.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Nobody is served any more."""
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
        task = asyncio.get_running_loop().create_task(self._hand_on(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _hand_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opening = self._opening
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception())):
            opening = self._opening = asyncio.get_running_loop().create_task(self._open())
        try:
            behind = await asyncio.shield(opening)
            inner_reader, inner_writer = await asyncio.open_connection(_HOST, behind)
        except (OSError, LedgerError) as error:
            logger().warning("readers of ledgers cannot be served", reason=str(error))
            writer.close()
            return
        pumps = [
            asyncio.ensure_future(_pump(reader, inner_writer)),
            asyncio.ensure_future(_pump(inner_reader, writer)),
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
        """The servers behind the port stand; where the metadata are. Raises OSError."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, _load)
        await self._prepare()
        from ledger.adapters.grpc.grpc_config import GrpcServerConfig
        from ledger.adapters.grpc.grpc_metadata_server import MetadataServer
        from ledger.bookie.grpc_server import BookieServer
        from ledger.bookie.read_only_view import ReadOnlyView

        shown = {AVAILABLE: b"", READONLY: b""}
        for bookie in self._bookies:
            read_only = ReadOnlyView(bookie, self._confirmed)
            server = BookieServer(read_only, GrpcServerConfig())
            self._servers.append(server)
            info = BookieInfo(_HOST, await server.start(_HOST, 0), read_only=True)
            path = f"{READONLY}/{bookie.bookie_id}"
            shown[path] = service_info.encode(bookie.bookie_id, info)
        shown |= await self._instance_id()
        self._metadata = MetadataServer(self._store, shown)
        return await self._metadata.start(_HOST, 0)

    async def _instance_id(self) -> dict[str, bytes]:
        """One machine's store holds none; who reads it as a cluster wants one."""
        try:
            await self._store.get(INSTANCE_ID)
        except NoNode:
            return {INSTANCE_ID: b"embedded"}
        return {}


def _load() -> None:
    """Beside the loop: 100 ms and more."""
    import_module("ledger.bookie.grpc_server")
    import_module("ledger.adapters.grpc.grpc_metadata_server")


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while piece := await reader.read(_PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
    except OSError:
        pass  # either end has gone
