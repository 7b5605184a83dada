"""The bookie's ends of a client's two streams: messages in, answers out. They know no gRPC.

A stream takes the next message only while there is room: for adds in the bookie's queue, for
reads among the answers that a slow reader has not taken yet. So a flood waits on the wire.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import Final

from ledger.adapters.grpc.grpc_config import GrpcServerConfig
from ledger.bookie.served_bookie import ServedBookie
from ledger.ids import BookieId
from ledger.ports.bookies import ReadManyReply, ReadReply, Status
from ledger.wire.bookie_frames import (
    BadBookieFrame,
    ReadOp,
    ReadRequest,
    ReadResponse,
    decode_add_batch,
    decode_hello,
    decode_read_requests,
    encode_add_statuses,
    encode_read_responses,
    response_bytes,
)

_STATUS_RANGES_MAX: Final = 4_096  # of unlike answers that a client has not taken yet
_RESERVED_BYTES: Final = 1024 * 1024  # for an answer whose size is not known yet
_REQUESTS_MAX: Final = 16_384  # of one stream under way; long polls above all


class InboundWindow:
    """Bytes that may still come in; whoever finds none waits, first come, first served."""

    __slots__ = ("_bytes_max", "_loop", "_waiting", "used")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.used = 0

    def acquire(self, size: int) -> None:
        self.used += size

    def release(self, size: int) -> None:
        self.used -= size
        if self._waiting and self.used < self._bytes_max:
            self._wake_next()

    async def wait(self) -> None:
        """There is room for something."""
        while self.used >= self._bytes_max:
            waiting: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(waiting)
            try:
                await waiting
            finally:  # one who was woken and leaves instead must not take the news along
                if self.used < self._bytes_max:
                    self._wake_next()

    def _wake_next(self) -> None:
        """One after the other: whoever was woken wakes the next if there is room still."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return


class WriterSignal:
    """Tells the writer of a stream that there is something to write."""

    __slots__ = ("_loop", "_waiting")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[None] | None = None

    def notify(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
            self._waiting = None

    async def wait(self) -> None:
        self._waiting = self._loop.create_future()
        await self._waiting


class ServerAddStream:
    """One stream of adds."""

    def __init__(self, bookie: ServedBookie, room: InboundWindow) -> None:
        self._bookie = bookie
        self._window = room  # shared by all streams of the bookie
        self._runs: list[list[int]] = []  # first number, count, status
        self._outbox = WriterSignal()
        self._drained = asyncio.Event()

    async def on_message(self, message: bytes) -> None:
        """The adds are the bookie's; returns once there is room for more. Raises BadFrame."""
        first, adds = decode_add_batch(message)
        add, on_added, acquire = self._bookie.add, self._on_added, self._window.acquire
        for number, (recovery, master_key, ledger, entry, body) in enumerate(adds, first):
            length = len(body)
            acquire(length)
            done = partial(on_added, number, length)
            add(ledger, entry, master_key, (body,), done, recovery=recovery)
        await self._window.wait()
        while len(self._runs) > _STATUS_RANGES_MAX:
            self._drained.clear()
            await self._drained.wait()

    async def next_message(self) -> bytes:
        """The answers that wait, once there are any."""
        while not self._runs:
            await self._outbox.wait()
        runs, self._runs = self._runs, []
        self._drained.set()
        return encode_add_statuses(runs)

    def _on_added(self, number: int, length: int, status: Status) -> None:
        self._window.release(length)
        runs = self._runs
        if runs:
            last = runs[-1]
            if last[0] + last[1] == number and last[2] == status:
                last[1] += 1
                return
        runs.append([number, 1, status])
        self._outbox.notify()


class ServerReadStream:
    """One stream of questions."""

    def __init__(self, bookie: ServedBookie, config: GrpcServerConfig) -> None:
        self._bookie = bookie
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._window = InboundWindow(config.answer_bytes_max)
        self._responses: deque[tuple[ReadResponse, int]] = deque()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._outbox = WriterSignal()

    async def on_message(self, message: bytes) -> None:
        """All questions are under way; waits for room before each. Raises BadFrame."""
        for request in decode_read_requests(message):
            if request.op is ReadOp.CANCEL:
                task = self._tasks.get(request.number)
                if task is not None:
                    task.cancel()
                continue
            if request.number in self._tasks:
                raise BadBookieFrame(f"question {request.number} is under way already")
            await self._window.wait()
            self._start(request)

    async def next_message(self) -> bytes:
        """The answers that wait, up to a message full."""
        while not self._responses:
            await self._outbox.wait()
        responses: list[ReadResponse] = []
        size = 0
        while self._responses:
            response, response_size = self._responses[0]
            if responses and size + response_size > self._config.message_bytes:
                break
            self._responses.popleft()
            responses.append(response)
            size += response_size
        message = encode_read_responses(responses)
        self._window.release(size)
        return message

    def close(self) -> None:
        """Nobody listens any more."""
        for task in self._tasks.values():
            task.cancel()

    def _start(self, request: ReadRequest) -> None:
        number = request.number
        if len(self._tasks) >= _REQUESTS_MAX:
            self._send(ReadResponse(number, Status.OVERLOADED))
            return
        # Reserved here, not in the task: the next question must see it. A long poll, which waits
        # most of its time, reserves nothing.
        reserved = 0 if request.op is ReadOp.WAIT_LAC else _RESERVED_BYTES
        self._window.acquire(reserved)
        task = self._loop.create_task(self._respond(request))
        self._tasks[number] = task
        task.add_done_callback(partial(self._on_done, number, reserved))

    def _on_done(self, number: int, reserved: int, _: asyncio.Task[None]) -> None:
        """Also of a task that was cancelled before it began."""
        del self._tasks[number]
        self._window.release(reserved)

    async def _respond(self, request: ReadRequest) -> None:
        try:
            reply = await self._read(request)
        except Exception as error:  # noqa: BLE001  our fault; the client must not wait for ever
            self._loop.call_exception_handler({"message": "a read raised", "exception": error})
            reply = ReadReply(Status.IO_ERROR)
        self._send(_response_of(request.number, reply))

    async def _read(self, request: ReadRequest) -> ReadReply | ReadManyReply:
        bookie, ledger, first = self._bookie, request.ledger, request.first
        if request.op is ReadOp.READ_MANY:
            return await bookie.read_many(ledger, first, request.last, request.bound)
        if request.op is ReadOp.WAIT_LAC:
            return await bookie.wait_lac(ledger, first, request.bound / 1000)
        if request.op is ReadOp.FENCE_AND_READ:
            status = await bookie.fence(ledger, request.key)
            if status is not Status.OK:
                return ReadReply(status)
        return await bookie.read(ledger, first)

    def _send(self, response: ReadResponse) -> None:
        size = response_bytes(response)
        self._window.acquire(size)
        self._responses.append((response, size))
        self._outbox.notify()


def _response_of(number: int, reply: ReadReply | ReadManyReply) -> ReadResponse:
    if isinstance(reply, ReadManyReply):
        return ReadResponse(number, reply.status, reply.lac, reply.bodies)
    bodies = (reply.body,) if reply.body else ()
    return ReadResponse(number, reply.status, reply.lac, bodies)


def check_hello(message: bytes, bookie: BookieId) -> Status:
    """Whether this very bookie is meant. Raises BadFrame."""
    return Status.OK if decode_hello(message) == bookie else Status.WRONG_INSTANCE
