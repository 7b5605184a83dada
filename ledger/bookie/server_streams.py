"""The bookie's ends of a client's two streams: messages in, responses out, on any transport.

A window counts adds that are not durable, or responses that a slow reader has not taken. While it
is full, gRPC leaves further messages on the connection (`on_message` waits). Over TCP, where both
streams share a connection, no credit for adds is granted, and read requests wait in a queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from ledger.adapters.links.link_config import LinkServerConfig
from ledger.bookie.answer_room import AnswerRoom, AnswerShare
from ledger.bookie.served_bookie import ServedBookie
from ledger.ids import BookieId, Buffer
from ledger.ports.bookies import ReadManyReply, ReadReply, Status
from ledger.tasks import report
from ledger.wire.bookie_frames import (
    ADDS_MAX,
    FROM_DISK,
    BadBookieFrame,
    ReadOp,
    ReadRequest,
    ReadResponse,
    decode_add_batch,
    decode_hello,
    decode_read_requests,
    encode_add_statuses,
    read_response_parts,
    response_bytes,
)

_STATUS_RANGES_MAX: Final = 4_096  # no adds are read while more ranges wait for the client
_POPPED_MAX: Final = 16_384  # ranges in one message, which fit into one frame
ADD_BYTES: Final = 512
"""What an add in process takes in memory beside its entry, about: the window counts it too."""

_ANSWER_BYTES: Final = 512  # what a response takes in memory beside its bytes, about
_RESERVED_BYTES: Final = 1024 * 1024  # reserved for a response of unknown size
_ADDS_MAX_GRPC: Final = 32_768  # adds in one message: earlier clients fill 1 MiB with them
_REQUESTS_MAX: Final = 16_384  # requests in flight on one stream; mostly long polls


class InboundWindow:
    """A bound on the bytes in process. Waiting tasks get space first come, first served."""

    __slots__ = ("_bytes_max", "_loop", "_waiters", "used")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._loop = asyncio.get_running_loop()
        # Tasks waiting for space, oldest first. Each is removed when it is woken.
        self._waiters: deque[asyncio.Future[None]] = deque()
        # Bytes acquired and not released. May exceed the bound by one message.
        self.used = 0

    def acquire(self, size: int) -> None:
        """Count `size` bytes as in process; never waits."""
        self.used += size

    def release(self, size: int) -> None:
        """Release `size` bytes and wake a waiter if there is space."""
        self.used -= size
        if self._waiters and self.used < self._bytes_max:
            self._wake_next()

    @property
    def has_space(self) -> bool:
        """True if less than the bound is in process."""
        return self.used < self._bytes_max

    async def wait(self) -> None:
        """Wait until the window has space."""
        while self.used >= self._bytes_max:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:  # a cancelled waiter passes its turn on
                if self.used < self._bytes_max:
                    self._wake_next()

    def _wake_next(self) -> None:
        """Wake the first waiter; it wakes the next one if there is still space."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return


class WriterSignal:
    """The signal that wakes the writer of a stream when there is something to write."""

    __slots__ = ("_loop", "_waiters")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiters: asyncio.Future[None] | None = None

    def notify(self) -> None:
        """Wake the writer if it waits."""
        if self._waiters is not None and not self._waiters.done():
            self._waiters.set_result(None)
            self._waiters = None

    async def wait(self) -> None:
        self._waiters = self._loop.create_future()
        await self._waiters


class ServerAddStream:
    """One client's stream of adds."""

    def __init__(
        self, bookie: ServedBookie, window: InboundWindow, notify: Callable[[], None] | None = None
    ) -> None:
        """`notify` is called when there are statuses to `pop`; otherwise use `next_message`."""
        self._bookie = bookie
        # Shared by all streams of the bookie.
        self._window = window
        # Ranges of (first number, count, status) that the client has not taken. A status extends
        # the last range if its number follows and the status is the same. Taken by `pop`.
        self._statuses: list[list[int]] = []
        # Numbers of the adds that raised an exception and were answered for it. The bookie may
        # still answer one of them. Lives as long as the stream; such an exception is a bug.
        self._given_up: set[int] = set()
        self._signal = WriterSignal()
        self._notify = self._signal.notify if notify is None else notify
        # Set when `pop` has taken statuses. `on_message` waits for it above the bound.
        self._drained = asyncio.Event()

    async def on_message(self, message: Buffer) -> None:
        """Pass the adds to the bookie; return once there is space. Raises BadBookieFrame."""
        self.take(message, _ADDS_MAX_GRPC)
        await self.space()

    def take(self, message: Buffer, adds_max: int = ADDS_MAX) -> None:
        """Pass the adds to the bookie, whether or not there is space. Raises BadBookieFrame."""
        first, adds = decode_add_batch(message, adds_max)
        add, on_added, acquire = self._bookie.add, self._on_added, self._window.acquire
        for number, (recovery, master_key, ledger, entry, body) in enumerate(adds, first):
            size = len(body) + ADD_BYTES
            acquire(size)
            done = partial(on_added, number, size)
            try:
                add(ledger, entry, master_key, (body,), done, recovery=recovery)
            except Exception as error:  # noqa: BLE001  the window is shared by all clients
                report("an add of a client", error)
                done(Status.IO_ERROR)
                self._given_up.add(number)

    @property
    def has_space(self) -> bool:
        """True if the client may send more adds."""
        return self._window.has_space and len(self._statuses) <= _STATUS_RANGES_MAX

    async def space(self) -> None:
        """Wait until the client may send more adds."""
        await self._window.wait()
        while len(self._statuses) > _STATUS_RANGES_MAX:
            self._drained.clear()
            await self._drained.wait()

    async def next_message(self) -> bytes:
        """Return the statuses that are ready, waiting for the first."""
        while (message := self.pop()) is None:
            await self._signal.wait()
        return message

    def pop(self) -> bytes | None:
        """Return the statuses that are ready, or None if there are none.

        `notify` is called again if one message does not hold them all.
        """
        if not self._statuses:
            return None
        statuses, self._statuses = self._statuses[:_POPPED_MAX], self._statuses[_POPPED_MAX:]
        self._drained.set()
        if self._statuses:
            self._notify()
        return encode_add_statuses(statuses)

    def _on_added(self, number: int, size: int, status: Status) -> None:
        if self._given_up and number in self._given_up:
            return
        self._window.release(size)
        statuses = self._statuses
        if statuses:
            last = statuses[-1]
            if last[0] + last[1] == number and last[2] == status:
                last[1] += 1
                return
        statuses.append([number, 1, status])
        self._notify()


class ServerReadStream:
    """One client's stream of read requests."""

    def __init__(
        self,
        bookie: ServedBookie,
        config: LinkServerConfig,
        room: AnswerRoom,
        notify: Callable[[], None] | None = None,
    ) -> None:
        """`notify` is called when there are responses to `pop`; otherwise use `next_message`."""
        self._bookie = bookie
        self._config = config
        # Bounds the answers of all streams of the bookie together.
        self._room = room
        # Shares of the message that is being written. Given back by `written`.
        self._writing: list[AnswerShare] = []
        self._loop = asyncio.get_running_loop()
        # Bytes of responses that the client has not taken, plus reservations for reads in progress.
        self._window = InboundWindow(config.answer_bytes_max)
        # Responses that the client has not taken, each with its size in a message and its share.
        self._responses: deque[tuple[ReadResponse, int, AnswerShare]] = deque()
        # Tasks of the requests in flight, by number. Each task is removed when it ends.
        self._tasks: dict[int, asyncio.Task[None]] = {}
        # Requests of `take` that wait for space, by number, oldest first.
        self._asked: dict[int, ReadRequest] = {}
        self._signal = WriterSignal()
        self._notify = self._signal.notify if notify is None else notify

    async def on_message(self, message: Buffer) -> None:
        """Start all requests, waiting for space before each. Raises BadBookieFrame."""
        for request in decode_read_requests(message, None):
            if request.op is ReadOp.CANCEL:
                self._cancel(request.number)
                continue
            if request.number in self._tasks:
                raise BadBookieFrame(f"read request {request.number} is already in flight")
            if request.op is not ReadOp.FENCE_AND_READ:
                await self._window.wait()
            self._start(request)

    def take(self, message: Buffer) -> None:
        """Start the requests that have space and keep the others. Raises BadBookieFrame.

        A fence and a cancellation take effect at once, whatever waits before them.
        """
        for request in decode_read_requests(message):
            number = request.number
            if request.op is ReadOp.CANCEL:
                self._cancel(number)
            elif number in self._tasks or number in self._asked:
                raise BadBookieFrame(f"read request {number} is already in flight")
            elif request.op is ReadOp.FENCE_AND_READ:
                self._start(request)
            else:
                self._asked[number] = request
        if len(self._asked) > _REQUESTS_MAX:
            raise BadBookieFrame(f"more than {_REQUESTS_MAX} read requests wait")
        self._start_asked()

    async def next_message(self) -> bytes:
        """Return the responses that are ready, up to one message full.

        The last message has been written, so its bytes are free.
        """
        self.written()
        while (parts := self.pop()) is None:
            await self._signal.wait()
        return b"".join(parts)

    def pop(self) -> list[Buffer] | None:
        """Return a message of the responses that are ready, in parts, or None if there are none.

        Call `written` once it is written.
        """
        if not self._responses:
            return None
        responses: list[ReadResponse] = []
        size = 0
        while self._responses:
            response, response_size, share = self._responses[0]
            if responses and size + response_size > self._config.message_bytes:
                break
            self._responses.popleft()
            responses.append(response)
            self._writing.append(share)
            size += response_size
        self._window.release(size + _ANSWER_BYTES * len(responses))
        self._start_asked()
        return read_response_parts(responses)

    def close(self) -> None:
        """Cancel all requests, and drop the responses; the client has gone."""
        self._asked.clear()
        for task in self._tasks.values():
            task.cancel()
        self.written()
        while self._responses:
            self._responses.popleft()[2].give_back()

    def written(self) -> None:
        """Free the bytes of the message that `pop` returned last."""
        for share in self._writing:
            share.give_back()
        self._writing.clear()

    def _cancel(self, number: int) -> None:
        self._asked.pop(number, None)
        task = self._tasks.get(number)
        if task is not None:
            task.cancel()

    def _start_asked(self) -> None:
        while self._asked and self._window.has_space:
            number = next(iter(self._asked))
            self._start(self._asked.pop(number))

    def _start(self, request: ReadRequest) -> None:
        number = request.number
        if len(self._tasks) >= _REQUESTS_MAX:
            self._send(ReadResponse(number, Status.OVERLOADED), AnswerShare(self._room))
            return
        # Reserve the space before the task starts, so that the next request counts it. A long poll
        # reserves nothing, because it mostly waits.
        reserved = 0 if request.op is ReadOp.WAIT_LAC else _RESERVED_BYTES
        self._window.acquire(reserved)
        share = AnswerShare(self._room, fence=request.op is ReadOp.FENCE_AND_READ)
        task = self._loop.create_task(self._respond(request, share))
        self._tasks[number] = task
        task.add_done_callback(partial(self._on_done, number, reserved, share))

    def _on_done(
        self, number: int, reserved: int, share: AnswerShare, task: asyncio.Task[None]
    ) -> None:
        """Release the reservation, even if the task was cancelled before it began."""
        del self._tasks[number]
        self._window.release(reserved)
        if task.cancelled() or task.exception() is not None:  # there is no response
            share.give_back()
        self._start_asked()

    async def _respond(self, request: ReadRequest, share: AnswerShare) -> None:
        try:
            reply = await self._read(request, share)
        except Exception as error:  # noqa: BLE001  a bug; the client needs a reply
            self._loop.call_exception_handler({"message": "a read raised", "exception": error})
            reply = ReadReply(Status.IO_ERROR)
        self._send(_response_of(request.number, reply), share)

    async def _read(self, request: ReadRequest, share: AnswerShare) -> ReadReply | ReadManyReply:
        bookie, ledger, first = self._bookie, request.ledger, request.first
        if request.op is ReadOp.READ_MANY:
            words = (ledger, first, request.last, request.bound, share)
            return await bookie.read_many(*words, from_disk=request.key == FROM_DISK)
        if request.op is ReadOp.WAIT_LAC:
            return await bookie.wait_lac(ledger, first, request.bound / 1000, share)
        if request.op is ReadOp.FENCE_AND_READ:
            status = await bookie.fence(ledger, request.key)
            if status is not Status.OK:
                return ReadReply(status)
        return await bookie.read(ledger, first, share)

    def _send(self, response: ReadResponse, share: AnswerShare) -> None:
        size = response_bytes(response)
        self._window.acquire(size + _ANSWER_BYTES)
        self._responses.append((response, size, share))
        self._notify()


def _response_of(number: int, reply: ReadReply | ReadManyReply) -> ReadResponse:
    if isinstance(reply, ReadManyReply):
        return ReadResponse(number, reply.status, reply.lac, reply.bodies)
    bodies = (reply.body,) if reply.body else ()
    return ReadResponse(number, reply.status, reply.lac, bodies)


def check_hello(message: Buffer, bookie: BookieId) -> Status:
    """Return OK if the HELLO addresses this instance, else WRONG_INSTANCE.

    Raises BadBookieFrame.
    """
    return Status.OK if decode_hello(message) == bookie else Status.WRONG_INSTANCE
