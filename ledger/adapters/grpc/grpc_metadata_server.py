"""A server that exports a metadata store over gRPC, read-only: no request can change the store.

Readers see it as `ShownMetadata` does: with the nodes of `shown`, and without those of `hidden`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, cast

from google.protobuf.message import DecodeError

from ledger.adapters.grpc.grpc_library import aio, grpc, keep_running
from ledger.adapters.grpc.grpc_metadata import SERVICE
from ledger.adapters.links.shown_metadata import ShownMetadata
from ledger.errors import MetadataError, NoNode
from ledger.ports.metadata import MetadataStore, Node, Unwatch
from ledger.tasks import start_once
from ledger.wire import metadata_pb2 as pb

_CALLS_MAX: Final = 1_024
_REQUEST_BYTES_MAX: Final = 64 * 1024
_REPLY_BYTES_MAX: Final = 16 * 1024 * 1024
_NODES_BYTES: Final = 1024 * 1024  # size of one message of a tree
_WATCHES_MAX: Final = 100_000  # watches that one client may set
# Unread events of one client: one change and one armed watch for each path
_NEWS_MAX: Final = 2 * _WATCHES_MAX
_Context = aio.ServicerContext[bytes, bytes]


class MetadataServer:
    """A server of one store on one port. `stop` does not close the store."""

    def __init__(
        self,
        store: MetadataStore,
        shown: Mapping[str, bytes] | None = None,
        hidden: Sequence[str] = (),
    ) -> None:
        keep_running()
        self._view = ShownMetadata(store, shown or {}, hidden)
        self._server: aio.Server | None = None

    @property
    def shown(self) -> ShownMetadata:
        """The store as readers see it."""
        return self._view

    async def start(self, host: str, port: int) -> int:
        """Listen, on any free port if `port` is 0. Returns the port number. Raises OSError."""
        server = aio.server(
            options=[
                ("grpc.max_receive_message_length", _REQUEST_BYTES_MAX),
                ("grpc.max_send_message_length", _REPLY_BYTES_MAX),
                ("grpc.so_reuseport", 0),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 4_000),
                ("grpc.http2.max_ping_strikes", 0),  # a page keeps its connection and pings
            ],
            maximum_concurrent_rpcs=_CALLS_MAX,
        )
        server.add_generic_rpc_handlers((self._handlers(),))
        try:
            bound = server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise OSError(f"cannot listen on {host}:{port}: {error}") from error
        await server.start()
        self._server = server
        return bound

    async def stop(self) -> None:
        """Stop serving."""
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    def _handlers(self) -> grpc.GenericRpcHandler:
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Get": grpc.unary_unary_rpc_method_handler(_guarded(self._get)),
            "Children": grpc.unary_unary_rpc_method_handler(_guarded(self._children)),
            "Tree": grpc.unary_stream_rpc_method_handler(self._tree),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch),
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def _get(self, request: pb.PathRequest) -> bytes:
        try:
            node = await self._view.get(request.path)
        except NoNode:
            return pb.NodesReply().SerializeToString()
        return _nodes({request.path: node}, request.without_data)

    async def _children(self, request: pb.PathRequest) -> bytes:
        try:
            names = await self._view.children(request.path)
        except NoNode:
            return pb.ChildrenReply().SerializeToString()
        return pb.ChildrenReply(found=True, names=names).SerializeToString()

    async def _tree(self, data: bytes, context: _Context) -> AsyncGenerator[bytes]:
        try:
            request = pb.PathRequest.FromString(data)
            nodes = await self._view.read_tree(request.path)
        except (MetadataError, DecodeError, ValueError) as error:
            await context.abort(*_refusal(error))
        part: dict[str, Node] = {}
        size = 0
        for path, node in nodes.items():
            part[path] = node
            size += len(path) + len(node.data)
            if size >= _NODES_BYTES:
                yield _nodes(part, request.without_data)
                part, size = {}, 0
        if part:
            yield _nodes(part, request.without_data)

    async def _watch(self, _: object, context: _Context) -> None:
        watches = _Watches(self._view.watch)
        stream = asyncio.current_task()
        assert stream is not None
        writer = start_once(
            "the news to a client", watches.write(context), lambda _: stream.cancel()
        )
        try:
            while isinstance(message := cast(object, await context.read()), bytes):
                if not watches.heed(pb.WatchRequest.FromString(message)):
                    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many watches")
        except DecodeError as error:
            await context.abort(*_refusal(error))
        finally:
            writer.cancel()
            watches.close()
            await asyncio.gather(writer, return_exceptions=True)


class _Watches:
    """The watches of one client. Several unsent changes of a path are sent as one."""

    def __init__(self, watch: Callable[[str, Callable[[], None]], Unwatch]) -> None:
        self._watch = watch
        self._unwatch: dict[str, Unwatch] = {}
        self._news: dict[tuple[str, int], None] = {}
        self._waiting = asyncio.Event()

    def heed(self, request: pb.WatchRequest) -> bool:
        """Add or remove a watch. Returns False if there are too many watches or unread events."""
        path = request.path
        if len(self._news) >= _NEWS_MAX:
            return False
        if request.stop:
            unwatch = self._unwatch.pop(path, None)
            if unwatch is not None:
                unwatch()
            return True
        if path not in self._unwatch:
            if len(self._unwatch) >= _WATCHES_MAX:
                return False
            self._unwatch[path] = self._watch(path, partial(self._tell, path, 0))
        self._tell(path, request.number)
        return True

    def close(self) -> None:
        """Remove all watches."""
        for unwatch in self._unwatch.values():
            unwatch()
        self._unwatch.clear()

    def _tell(self, path: str, armed: int) -> None:
        """Queue an event: the path changed, or the watch of request `armed` is set."""
        self._news[path, armed] = None
        self._waiting.set()

    async def write(self, context: _Context) -> None:
        """Send events to the client as they occur."""
        while True:
            await self._waiting.wait()
            self._waiting.clear()
            while self._news:
                path, armed = next(iter(self._news))
                del self._news[path, armed]
                await context.write(pb.WatchNews(path=path, armed=armed).SerializeToString())


def _nodes(nodes: Mapping[str, Node], without_data: bool) -> bytes:
    reply = pb.NodesReply()
    for path, node in nodes.items():
        data = b"" if without_data else node.data
        reply.nodes.add(path=path, data=data, version=node.version)
    return reply.SerializeToString()


def _guarded(
    call: Callable[[pb.PathRequest], Awaitable[bytes]],
) -> Callable[[bytes, _Context], Awaitable[bytes]]:
    """Run the call, and turn its errors into gRPC statuses."""

    async def handle(data: bytes, context: _Context) -> bytes:
        try:
            return await call(pb.PathRequest.FromString(data))
        except (MetadataError, DecodeError, ValueError) as error:
            await context.abort(*_refusal(error))

    return handle


def _refusal(error: Exception) -> tuple[grpc.StatusCode, str]:
    known = isinstance(error, MetadataError)
    code = grpc.StatusCode.UNAVAILABLE if known else grpc.StatusCode.INVALID_ARGUMENT
    return code, str(error)
