"""One connection to one bookie, from the first attempt until it breaks.

Adds and requests wait until the bookie has sent its identity. When the attempt fails or the
connection breaks, all adds and requests are answered UNREACHABLE at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from ledger.adapters.grpc.grpc_channel import SERVICE, open_channel
from ledger.adapters.grpc.grpc_config import GrpcClientConfig
from ledger.adapters.grpc.grpc_credentials import NoBookie, channel_credentials
from ledger.adapters.grpc.grpc_library import aio, grpc
from ledger.adapters.links.client_streams import AddStream, ReadStream
from ledger.adapters.links.link import Endpoint
from ledger.adapters.links.server_role import log_no_bookie
from ledger.adapters.links.tls_identity import TlsIdentity
from ledger.ids import BookieId
from ledger.ports.bookies import Status
from ledger.wire.bookie_frames import BadBookieFrame, decode_welcome, encode_hello

_GOODBYE_S: Final = 0.5  # wait until the bookie ends the streams that this side has ended
_BROKEN: Final = (aio.AioRpcError, asyncio.InvalidStateError, aio.UsageError, BadBookieFrame)
_Call = aio.StreamStreamCall[bytes, bytes]


class BookieConnection:
    """A connection to one bookie. `run` keeps it; other callers use only `adds`, `reads` and
    `call`.
    """

    def __init__(
        self,
        bookie: BookieId,
        endpoint: Endpoint,
        config: GrpcClientConfig,
        tls: TlsIdentity | None,
    ) -> None:
        self.bookie = bookie
        self.endpoint = endpoint
        self.adds = AddStream(config)
        self.reads = ReadStream()
        self.opened: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """A future: True once the bookie has confirmed its identity, False if it was
        not reached.
        """
        self._config = config
        self._tls = tls
        # The channel to the bookie, from the start of `run` until its end.
        self._channel: aio.Channel | None = None
        # Done once `close` was called.
        self._closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Control calls that the bookie answered with UNIMPLEMENTED: its release has none of them.
        self._lacking: set[str] = set()
        self.refusal = Status.UNREACHABLE
        """The status of all requests that the bookie did not answer."""

    @property
    def is_open(self) -> bool:
        """True if the bookie has confirmed its identity and the connection is intact."""
        return self.was_open and not self.adds.over

    @property
    def fences_many(self) -> bool:
        """See `Link`. gRPC has no such call."""
        return False

    def lacks(self, method: str) -> bool:
        """See `Link`."""
        return method in self._lacking

    @property
    def was_open(self) -> bool:
        return self.opened.done() and self.opened.result()

    async def run(self, on_opened: Callable[[], None]) -> None:
        """Connect and serve. Returns after the connection failed or broke and all requests are
        answered.
        """
        channel: aio.Channel | None = None
        try:
            async with asyncio.timeout(self._config.connect_timeout_s):
                channel = self._channel = await self._new_channel()
                adds = await self._open(channel, "Adds")
                reads = await self._open(channel, "Reads")
            self.opened.set_result(True)
            on_opened()
            await self._serve(adds, reads)
        except NoBookie:
            log_no_bookie(self.bookie, self.endpoint)
        except (*_BROKEN, OSError, ValueError):  # TimeoutError is an OSError
            pass
        finally:
            self._fail()
            if channel is not None:
                await channel.close()

    async def _new_channel(self) -> aio.Channel:
        """Check the server's certificate, with TLS. Raises NoBookie, OSError, ValueError."""
        _, host, port = self.endpoint
        if self._tls is None:
            return open_channel(host, port, self._config, None)
        credentials = await channel_credentials(self._tls, self.endpoint)
        return open_channel(host, port, self._config, credentials)

    def close(self) -> None:
        """Make `run` answer all pending requests and return soon."""
        if not self._closing.done():
            self._closing.set_result(None)
        self._fail()

    async def call(self, method: str, request: bytes) -> bytes | None:
        """Send a control call. Returns the answer, or None if no answer came."""
        if not await asyncio.shield(self.opened) or self._channel is None or self.lacks(method):
            return None
        call: aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(
            f"/{SERVICE}/{method}"
        )
        try:
            return await call(request, timeout=self._config.control_timeout_s)
        except aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                self._lacking.add(method)
            return None
        except aio.UsageError:
            return None
        except asyncio.CancelledError:
            # A closed channel cancels its calls, but not their callers.
            if _is_cancelled_itself():
                raise
            return None

    async def _open(self, channel: aio.Channel, stream: str) -> _Call:
        """Open a stream and check the bookie's identity.

        Raises AioRpcError, BadFrame, InvalidStateError.
        """
        streams: aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            f"/{SERVICE}/{stream}"
        )
        call = streams()
        await call.write(encode_hello(self.bookie))
        message = await _read(call)
        status, entry_bytes_max = decode_welcome(message)
        if status is not Status.OK:
            self.refusal = status
            raise BadBookieFrame(f"{self.endpoint} is not {self.bookie}: {status.name}")
        self.adds.entry_bytes_max = min(entry_bytes_max, self.adds.entry_bytes_max)
        return call

    async def _serve(self, adds: _Call, reads: _Call) -> None:
        """Pass messages both ways until something fails or `close` is called."""
        loops: list[Coroutine[Any, Any, None]] = [
            _send(adds, self.adds.next_message),
            _receive(adds, self.adds.on_message),
            _send(reads, self.reads.next_message),
            _receive(reads, self.reads.on_message),
        ]
        tasks = [asyncio.create_task(one) for one in loops]
        ends: list[asyncio.Future[None]] = [*tasks, self.adds.silent, self._closing]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            self._fail()
            await asyncio.wait(tasks, timeout=_GOODBYE_S)
        finally:
            self._fail()
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                self._report(ended)

    def _report(self, ended: BaseException | None) -> None:
        """Record why a loop ended: the bookie ended the stream, or this side has a defect."""
        if ended is not None and not isinstance(ended, (*_BROKEN, asyncio.CancelledError)):
            loop = asyncio.get_running_loop()
            loop.call_exception_handler({"message": "a bookie's stream", "exception": ended})

    def _fail(self) -> None:
        self.adds.fail(self.refusal)
        self.reads.fail(self.refusal)
        if not self.opened.done():
            self.opened.set_result(False)


def _is_cancelled_itself() -> bool:
    """True if this task itself was cancelled."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def _send(call: _Call, next_message: Callable[[], Coroutine[Any, Any, bytes | None]]) -> None:
    while (message := await next_message()) is not None:
        await call.write(message)
    await call.done_writing()


async def _receive(call: _Call, on_message: Callable[[bytes], None]) -> None:
    while True:
        on_message(await _read(call))


async def _read(call: _Call) -> bytes:
    """Read the next message. Raises AioRpcError, and BadFrame at the end of the stream."""
    message = await call.read()
    if not isinstance(message, bytes):
        raise BadBookieFrame("the bookie ended the stream")
    return message
