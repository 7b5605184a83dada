"""The metadata store of another process on this machine, over gRPC and read-only.

`gateway dev` exports its store this way, so that other processes can read segments. Every change is
refused with `ReadOnlyStore`. Watches share one stream. A read waits until all earlier watches are
armed, so a caller that watches and then reads misses nothing. After the stream breaks, a new one is
opened; then every watch and every `watch_session` fires once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from google.protobuf.message import DecodeError, Message

from ledger.adapters.grpc.grpc_channel import open_channel
from ledger.adapters.grpc.grpc_config import GrpcClientConfig
from ledger.adapters.grpc.grpc_library import aio, keep_running
from ledger.adapters.links.refused_changes import RefusedChanges
from ledger.errors import MetadataUnavailable, NoNode
from ledger.ports.metadata import Node, Unwatch
from ledger.tasks import start_once, start_restarting
from ledger.wire import metadata_pb2 as pb

SERVICE: Final = "ledger.wire.Metadata"
_CALL_S: Final = 10.0
_RECONNECT_S: Final = 0.5  # pause between attempts; short, because the server is on this machine
_RETRY_S, _RETRY_S_MAX = 0.05, 1.0
_BROKEN: Final = (aio.AioRpcError, aio.UsageError, asyncio.InvalidStateError, DecodeError)
_Watching = aio.StreamStreamCall[bytes, bytes]


class GrpcMetadata(RefusedChanges):
    """A read-only `MetadataStore`. Connects at the first call. The caller closes it."""

    def __init__(self, host: str, port: int) -> None:
        keep_running()
        self._place = self._refusing = f"{host}:{port}"
        config = GrpcClientConfig(connect_timeout_s=_RECONNECT_S)
        self._channel = open_channel(host, port, config, None)
        # Callbacks by path, in the order in which they were set.
        self._watches: dict[str, list[Callable[[], None]]] = {}
        # Callbacks of `watch_session`.
        self._renewed: list[Callable[[], None]] = []
        # A future for each path, done once its watch is armed on the current stream.
        self._asked: dict[str, asyncio.Future[None]] = {}
        # The number of the last request for each path. An answer to an older request is ignored.
        self._numbers: dict[str, int] = {}
        # The number of the newest request; each request adds one.
        self._number = 0
        # Requests that are not sent yet, in order.
        self._to_send: list[pb.WatchRequest] = []
        # Set while `_to_send` is not empty.
        self._sending = asyncio.Event()
        # The task that keeps the stream open, from the first watch until `close`.
        self._task: asyncio.Task[None] | None = None
        # Set once, by `close`; every later call fails.
        self._closed = False

    @property
    def is_closed(self) -> bool:
        return self._closed

    # The reads of the port.

    async def get(self, path: str) -> Node:
        reply = pb.NodesReply()
        await self._call("Get", pb.PathRequest(path=path), reply)
        if not reply.nodes:
            raise NoNode(path)
        return Node(reply.nodes[0].data, reply.nodes[0].version)

    async def exists(self, path: str) -> bool:
        reply = pb.NodesReply()
        await self._call("Get", pb.PathRequest(path=path, without_data=True), reply)
        return bool(reply.nodes)

    async def children(self, path: str) -> list[str]:
        reply = pb.ChildrenReply()
        await self._call("Children", pb.PathRequest(path=path), reply)
        if not reply.found:
            raise NoNode(path)
        return list(reply.names)

    async def read_tree(self, path: str) -> dict[str, Node]:
        nodes = await self._tree(pb.PathRequest(path=path))
        return {node.path: Node(node.data, node.version) for node in nodes}

    async def paths(self, path: str) -> list[str]:
        return [
            node.path for node in await self._tree(pb.PathRequest(path=path, without_data=True))
        ]

    async def sync(self, path: str) -> None:
        """Wait until all watches are armed. The server reads only committed changes anyway."""
        await self._until_armed()

    async def _tree(self, request: pb.PathRequest) -> list[pb.StoredNode]:
        await self._until_armed()
        call: aio.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(
            f"/{SERVICE}/Tree"
        )
        found: list[pb.StoredNode] = []
        try:
            async for message in call(request.SerializeToString(), timeout=_CALL_S):
                found += pb.NodesReply.FromString(message).nodes
        except _BROKEN as error:
            raise self._unavailable(error) from error
        return found

    async def _call(self, method: str, request: pb.PathRequest, reply: Message) -> None:
        await self._until_armed()
        call: aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(
            f"/{SERVICE}/{method}"
        )
        try:
            reply.ParseFromString(await call(request.SerializeToString(), timeout=_CALL_S))
        except _BROKEN as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> MetadataUnavailable:
        said = error.details() if isinstance(error, aio.AioRpcError) else str(error)
        return MetadataUnavailable(f"{self._place}: {said}")

    # The watches of the port.

    def watch(self, path: str, on_changed: Callable[[], None]) -> Unwatch:
        watchers = self._watches.setdefault(path, [])
        watchers.append(on_changed)
        if path not in self._asked:
            self._ask(path)
        armed = True

        def unwatch() -> None:
            nonlocal armed
            if not armed:
                return
            armed = False
            watchers.remove(on_changed)
            if not watchers and self._watches.get(path) is watchers:
                del self._watches[path]
                self._forget(path)

        return unwatch

    def watch_session(self, on_renewed: Callable[[], None]) -> Unwatch:
        self._renewed.append(on_renewed)

        def unwatch() -> None:
            if on_renewed in self._renewed:
                self._renewed.remove(on_renewed)

        return unwatch

    async def close(self) -> None:
        """Close the connection."""
        self._closed = True
        self._watches.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._channel.close()

    def _ask(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        self._asked[path] = loop.create_future()
        self._send(path)
        if self._task is None:
            self._task = start_restarting("the watches of a metadata client", self._keep)

    def _forget(self, path: str) -> None:
        asked = self._asked.pop(path, None)
        if asked is not None:
            asked.cancel()
            del self._numbers[path]
            self._to_send.append(pb.WatchRequest(path=path, stop=True))
            self._sending.set()

    def _send(self, path: str) -> None:
        self._number += 1
        self._numbers[path] = self._number
        self._to_send.append(pb.WatchRequest(path=path, number=self._number))
        self._sending.set()

    async def _until_armed(self) -> None:
        """Wait until every earlier watch is armed. Raises MetadataUnavailable."""
        if self._closed:
            raise MetadataUnavailable(f"the connection to {self._place} is closed")
        waiting = [asked for asked in self._asked.values() if not asked.done()]
        if not waiting:
            return
        _, late = await asyncio.wait(waiting, timeout=_CALL_S)
        if late:
            raise MetadataUnavailable(f"{self._place} does not answer")

    async def _keep(self) -> None:
        """Keep a stream open. After a stream breaks, fire its watches."""
        wait_s = _RETRY_S
        while True:
            try:
                await self._one_stream()
            except _BROKEN:
                pass
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _RETRY_S_MAX)
            armed = [path for path, asked in self._asked.items() if asked.done()]
            for path in armed:
                self._asked[path] = asyncio.get_running_loop().create_future()
            self._to_send.clear()
            for path in self._watches:
                self._send(path)
            if armed:
                self._tell_all(armed)

    def _tell_all(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._tell(path)
        for on_renewed in tuple(self._renewed):
            on_renewed()

    async def _one_stream(self) -> None:
        """Serve one stream until it breaks."""
        call: aio.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(
            f"/{SERVICE}/Watch"
        )
        watching = call()
        writer = start_once(
            "the requests for watches",
            self._write(watching),
            lambda _: watching.cancel(),
            expected=_BROKEN,
        )
        try:
            while isinstance(message := await watching.read(), bytes):
                news = pb.WatchNews.FromString(message)
                if not news.armed:
                    self._tell(news.path)
                elif news.armed == self._numbers.get(news.path):
                    self._on_armed(self._asked[news.path])
        finally:
            writer.cancel()
            watching.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _write(self, watching: _Watching) -> None:
        while True:
            await self._sending.wait()
            self._sending.clear()
            to_send, self._to_send = self._to_send, []
            for request in to_send:
                await watching.write(request.SerializeToString())

    def _on_armed(self, asked: asyncio.Future[None]) -> None:
        if not asked.done():
            asked.set_result(None)

    def _tell(self, path: str) -> None:
        for on_changed in tuple(self._watches.get(path, ())):
            on_changed()
