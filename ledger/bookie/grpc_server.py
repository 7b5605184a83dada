"""A bookie's gRPC server: two streams per client, and control calls.

A bookie's answers are in the message bodies. A gRPC error status means that the peer broke the
protocol, or that the outcome is unknown. It never means that an entry or a ledger does not exist.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from ledger.adapters.grpc.grpc_config import GrpcServerConfig
from ledger.adapters.grpc.grpc_credentials import server_credentials
from ledger.adapters.grpc.grpc_library import aio, grpc, keep_running
from ledger.adapters.links.link_config import MESSAGE_BYTES_MAX, WINDOW_BYTES, TlsFiles
from ledger.adapters.links.tls_identity import TlsIdentity, identity_of
from ledger.adapters.system.memory import keep_freed_memory
from ledger.bookie.config import ENTRY_BYTES_MAX
from ledger.bookie.served_bookie import ServedBookie
from ledger.bookie.server_peers import ServedPeer, ServerPeers
from ledger.bookie.server_rooms import ServerRooms
from ledger.bookie.server_streams import (
    ServerAddStream,
    ServerReadStream,
    check_hello,
)
from ledger.ids import Buffer
from ledger.ports.bookies import Status
from ledger.tasks import start_once
from ledger.wire.bookie_frames import BadBookieFrame, encode_welcome

SERVICE = "ledger.wire.Bookie"
_CERTIFICATE: Final = "x509_pem_cert"  # gRPC's name of the verified certificate of a peer
_Context = aio.ServicerContext[bytes, bytes]
_Handler = Callable[[bytes, _Context], Awaitable[bytes]]


class BookieServer:
    """The server of one bookie. The bookie's owner starts and stops it."""

    def __init__(
        self,
        bookie: ServedBookie,
        config: GrpcServerConfig,
        tls: TlsFiles | TlsIdentity | None = None,
        rooms: ServerRooms | None = None,
    ) -> None:
        """`rooms` are shared with another server of this bookie, or None for rooms of its own.

        Reads the TLS files, if there are any. Raises TlsFault.
        """
        self._bookie = bookie
        self._config = config
        self._tls = identity_of(tls)
        self._peers = ServerPeers(bookie)
        keep_running()
        keep_freed_memory()
        rooms = ServerRooms.of(config) if rooms is None else rooms
        # Bytes of adds that are not durable yet, of all streams together.
        self._window = rooms.adds
        # Bytes of answers to reads that are not written yet, of all streams together.
        self._room = rooms.answers
        # The gRPC server. None before `start` and after `stop`.
        self._server: aio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Serve, and return the port (0 picks a free one). Raises OSError."""
        server = aio.server(
            options=_options(self._config), maximum_concurrent_rpcs=self._config.calls_max
        )
        server.add_generic_rpc_handlers((self._handlers(),))
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if self._tls is None:
                bound = server.add_insecure_port(address)
            else:
                bound = server.add_secure_port(address, server_credentials(self._tls))
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from error
        await server.start()
        self._server = server
        return bound

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, and end streams after the grace period with an unknown outcome."""
        if self._server is not None:
            await self._server.stop(grace_s)
            self._server = None

    def _handlers(self) -> grpc.GenericRpcHandler:
        streams = {"Adds": self._adds, "Reads": self._reads}
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {}
        for name, stream in streams.items():
            handlers[name] = grpc.stream_stream_rpc_method_handler(stream)
        for name in self._peers.of(None).calls:
            handlers[name] = grpc.unary_unary_rpc_method_handler(self._bounded(name))
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _served(self, context: _Context) -> ServedPeer:
        """Return the bookie as the peer may use it, by the roles of its certificate."""
        roles = None
        if self._tls is not None and self._tls.checks_roles:
            shown = context.auth_context().get(_CERTIFICATE, ())
            pem = next(iter(shown), b"").decode("ascii")
            roles = self._tls.roles_of(ssl.PEM_cert_to_DER_cert(pem) if pem else None)
            if not roles:
                self._peers.log_without_role(context.peer().rpartition(":")[0])
        return self._peers.of(roles)

    # -- streams -------------------------------------------------------------------------------

    async def _adds(self, _: object, context: _Context) -> None:
        end = ServerAddStream(self._served(context).bookie, self._window)
        await self._serve(context, end.on_message, end.next_message)

    async def _reads(self, _: object, context: _Context) -> None:
        end = ServerReadStream(self._served(context).bookie, self._config, self._room)
        try:
            await self._serve(context, end.on_message, end.next_message)
        finally:
            end.close()

    async def _serve(
        self,
        context: _Context,
        on_message: Callable[[Buffer], Awaitable[None]],
        next_message: Callable[[], Awaitable[bytes]],
    ) -> None:
        """Receive messages and send responses until either side ends the stream."""
        writer: asyncio.Task[None] | None = None
        stream = asyncio.current_task()
        assert stream is not None
        try:
            if not await self._welcome(context):
                return
            # Without its writer the stream would take requests and answer none.
            writer = start_once(
                "the answers to a client",
                self._write(context, next_message, stream),
                lambda _: stream.cancel(),
            )
            while (message := await _read(context)) is not None:
                await on_message(message)
        except BadBookieFrame as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            if writer is not None:
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)

    async def _write(
        self,
        context: _Context,
        next_message: Callable[[], Awaitable[bytes]],
        stream: asyncio.Task[Any],
    ) -> None:
        """Write messages. End the stream of a client that takes none: it holds room of others."""
        while True:
            message = await next_message()
            try:
                async with asyncio.timeout(self._config.write_timeout_s):
                    await context.write(message)
            except TimeoutError:
                stream.cancel()
                return

    async def _welcome(self, context: _Context) -> bool:
        """True if the client addresses this bookie instance. Raises BadBookieFrame."""
        try:
            async with asyncio.timeout(self._config.hello_timeout_s):
                message = await _read(context)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no HELLO within the time limit")
        if message is None:
            return False
        status = check_hello(message, self._bookie.bookie_id)
        await context.write(encode_welcome(status, ENTRY_BYTES_MAX))
        return status is Status.OK

    # -- control calls -------------------------------------------------------------------------

    def _bounded(self, name: str) -> _Handler:
        """Wrap a handler with a time limit and a refusal of requests that do not parse."""

        async def handle(request: bytes, context: _Context) -> bytes:
            try:
                async with asyncio.timeout(self._config.control_timeout_s):
                    return await self._served(context).calls[name](request)
            except TimeoutError:
                await context.abort(
                    grpc.StatusCode.DEADLINE_EXCEEDED, "the call exceeded the bookie's time limit"
                )
            except BadBookieFrame as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

        return handle


async def _read(context: _Context) -> bytes | None:
    """Return the next message, or None at the end of the stream."""
    message = cast(object, await context.read())
    return message if isinstance(message, bytes) else None


def _options(config: GrpcServerConfig) -> list[tuple[str, Any]]:
    return [
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
        ("grpc.server_handshake_timeout_ms", int(config.hello_timeout_s * 1000)),
        ("grpc.max_concurrent_streams", config.streams_per_connection_max),
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        (
            "grpc.http2.min_ping_interval_without_data_ms",
            int(config.ping_interval_s_min * 1000),
        ),
        (
            "grpc.http2.min_recv_ping_interval_without_data_ms",
            int(config.ping_interval_s_min * 1000),
        ),
        ("grpc.http2.max_ping_strikes", config.ping_strikes_max),
    ]
