"""The client's ends of the two streams to a bookie.

Both ends live exactly as long as their connection, and do not depend on its transport. The
connection takes messages out (`next_message`, or `pop` after `on_queued`), brings messages in
(`on_message`), and reports the end (`fail`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ledger.adapters.links.link_config import MESSAGE_BYTES_MAX, LinkConfig
from ledger.ids import Buffer, EntryId, LedgerId
from ledger.ports.bookies import OnAdded, Status
from ledger.wire.bookie_frames import (
    ADD_HEADER_BYTES,
    ADDS_MAX,
    FRAME_BYTES_MAX,
    REQUESTS_MAX,
    AddBatchWriter,
    BadBookieFrame,
    ReadOp,
    ReadRequest,
    ReadResponse,
    decode_add_statuses,
    decode_read_responses,
    encode_read_requests,
)

_TICKS: Final = 8  # number of checks of the pending adds during one add timeout


class AddStream:
    """Adds to one bookie, in order, each answered exactly once.

    Adds are numbered; `_pending` holds their callbacks, oldest first. One timer serves all adds.
    Each tick records the next number, and an add older than all recorded ticks is late.
    """

    __slots__ = (
        "_config",
        "_idle",
        "_loop",
        "_next",
        "_pending",
        "_queue",
        "_queue_bytes",
        "_quiet_ticks",
        "_ticks",
        "_timer",
        "_waiting",
        "entry_bytes_max",
        "on_queued",
        "over",
        "silent",
    )

    def __init__(self, config: LinkConfig) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        # The number of the next add. Each add raises it by one; answers refer to the number.
        self._next = 0
        # Callbacks of unanswered adds by number, oldest first. A callback is removed before it
        # runs.
        self._pending: dict[int, OnAdded] = {}
        # Resolved once no add is pending. Set while `settled` waits.
        self._idle: asyncio.Future[None] | None = None
        # Messages that are not sent yet; the last one still takes adds.
        self._queue: deque[AddBatchWriter] = deque()
        # Bytes in `_queue`, at most `queue_bytes_max`; beyond the limit adds are refused.
        self._queue_bytes = 0
        # Set while `next_message` waits for the first add.
        self._waiting: asyncio.Future[None] | None = None
        # Called after each add that was queued, by connections that use `pop`.
        self.on_queued: Callable[[], None] | None = None
        # The timer of the next tick. None while no add is pending.
        self._timer: asyncio.TimerHandle | None = None
        # The value of `_next` at the last `_TICKS` ticks, oldest first.
        self._ticks: deque[int] = deque()
        # Ticks in a row without a message from the bookie.
        self._quiet_ticks = 0
        # The largest entry that fits into one message; the bookie may lower the limit at the start.
        self.entry_bytes_max = MESSAGE_BYTES_MAX - FRAME_BYTES_MAX
        # Set once, by `fail`; every later add is answered at once.
        self.over = False
        self.silent: asyncio.Future[None] = self._loop.create_future()
        """Done once adds were late and no other message came during the whole timeout."""

    def add(
        self,
        ledger: LedgerId,
        entry: EntryId,
        master_key: bytes,
        body: Sequence[Buffer],
        on_added: OnAdded,
        recovery: bool,
    ) -> None:
        """Queue an entry, as `Bookies.add` does. After the end of the stream, refuse it."""
        length = sum(map(len, body))
        if length > self.entry_bytes_max or ledger < 0 or entry < 0:
            self._loop.call_soon(on_added, Status.BAD_REQUEST)
            return
        if self._queue_bytes + length > self._config.queue_bytes_max and self._queue:
            self._loop.call_soon(on_added, Status.OVERLOADED)
            return
        queue, number = self._queue, self._next
        if (
            not queue
            or queue[-1].size + ADD_HEADER_BYTES + length > self._config.message_bytes
            or queue[-1].count == ADDS_MAX
        ):
            queue.append(AddBatchWriter(number))
        queue[-1].add(ledger, entry, master_key, body, length, recovery)
        self._queue_bytes += length
        self._pending[number] = on_added
        self._next = number + 1
        self._wake()
        if self._timer is None:
            self._watch()

    async def next_message(self) -> bytes | None:
        """Wait for adds. Returns up to one full message of adds, or None at the end."""
        while not self._queue:
            if self.over:
                return None
            self._waiting = self._loop.create_future()
            await self._waiting
        adds = self.pop()
        assert adds is not None
        return adds.encode()

    def pop(self) -> AddBatchWriter | None:
        """Return up to one message of queued adds, or None if none is queued."""
        if not self._queue:
            return None
        adds = self._queue.popleft()
        self._queue_bytes -= adds.body_bytes
        return adds

    async def settled(self, timeout_s: float) -> None:
        """Wait until no add is pending, but not longer than `timeout_s`."""
        if self._pending:
            idle = self._idle = self._loop.create_future()
            await asyncio.wait([idle], timeout=timeout_s)

    def on_message(self, message: Buffer) -> None:
        """Answer the adds that a message acknowledges. Raises BadBookieFrame."""
        self._quiet_ticks = 0
        pending = self._pending
        for first, count, status in decode_add_statuses(message):
            if first + count > self._next:
                raise BadBookieFrame(f"an answer to add {first + count - 1} of {self._next}")
            begin = first
            if count > len(pending):  # none is pending before the oldest, whatever came
                begin = max(first, next(iter(pending), self._next))
            for number in range(begin, first + count):
                on_added = pending.pop(number, None)
                if on_added is not None:
                    self._tell(on_added, status)
        if self._idle is not None and not pending:
            self._end_wait(self._idle)

    def fail(self, status: Status) -> None:
        """End the stream and answer every pending add with `status`."""
        self.over = True
        self._wake()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.silent.cancel()
        self._queue.clear()
        self._queue_bytes = 0
        pending, self._pending = self._pending, {}
        for on_added in pending.values():
            self._tell(on_added, status)
        if self._idle is not None:
            self._end_wait(self._idle)

    def _end_wait(self, idle: asyncio.Future[None]) -> None:
        if not idle.done():
            idle.set_result(None)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
        if self.on_queued is not None:
            self.on_queued()

    def _tell(self, on_added: OnAdded, status: Status) -> None:
        try:
            on_added(status)
        except Exception as error:  # noqa: BLE001  one caller must not silence the others
            self._loop.call_exception_handler({"message": "on_added raised", "exception": error})

    def _watch(self) -> None:
        self._ticks.append(self._next)
        self._timer = self._loop.call_later(self._config.add_timeout_s / _TICKS, self._on_tick)

    def _on_tick(self) -> None:
        """Answer late adds: those that were already pending `_TICKS` ticks ago."""
        self._timer = None
        self._quiet_ticks += 1
        if len(self._ticks) == _TICKS:
            self._expire(self._ticks.popleft())
        if self._pending:
            self._watch()
        else:
            self._ticks.clear()
            self._quiet_ticks = 0

    def _expire(self, below: int) -> None:
        pending = self._pending
        late: list[OnAdded] = []
        while pending and (number := next(iter(pending))) < below:
            late.append(pending.pop(number))
        if late and self._quiet_ticks >= _TICKS and not self.silent.done():
            self.silent.set_result(None)
        for on_added in late:
            self._tell(on_added, Status.UNREACHABLE)


class ReadStream:
    """Read requests to one bookie. Cancelling a request forgets it here and cancels it at the
    bookie.
    """

    __slots__ = ("_loop", "_next", "_pending", "_queue", "_waiting", "on_queued", "over")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # The number of the next request. Each request raises it by one.
        self._next = 0
        # Unanswered requests by number; removed by an answer, a cancellation or `fail`.
        self._pending: dict[int, asyncio.Future[ReadResponse]] = {}
        # Requests and cancellations that are not sent yet.
        self._queue: list[ReadRequest] = []
        # Set while `next_message` waits for the first request.
        self._waiting: asyncio.Future[None] | None = None
        # Called after each request that was queued, by connections that use `pop`.
        self.on_queued: Callable[[], None] | None = None
        # Set once, by `fail`; every later request is answered at once.
        self.over = False

    async def ask(self, question: ReadRequest) -> ReadResponse:
        """Number a request and send it. Returns the answer, or UNREACHABLE."""
        if self.over:
            return ReadResponse(0, Status.UNREACHABLE)
        number = self._next
        self._next = number + 1
        answered: asyncio.Future[ReadResponse] = self._loop.create_future()
        self._pending[number] = answered
        self._send(question._replace(number=number))
        try:
            return await answered
        finally:
            if self._pending.pop(number, None) is not None and not self.over:
                self._send(ReadRequest(ReadOp.CANCEL, number))

    async def next_message(self) -> bytes | None:
        """Wait for requests. Returns a message of requests, or None at the end."""
        while not self._queue:
            if self.over:
                return None
            self._waiting = self._loop.create_future()
            await self._waiting
        return self.pop()

    @property
    def queued(self) -> bool:
        """True if `pop` would return a message."""
        return bool(self._queue)

    def pop(self) -> bytes | None:
        """Return up to one full message of the queued requests, or None if none is queued."""
        if not self._queue:
            return None
        if len(self._queue) <= REQUESTS_MAX:
            questions, self._queue = self._queue, []
        else:
            questions = self._queue[:REQUESTS_MAX]
            del self._queue[:REQUESTS_MAX]
        return encode_read_requests(questions)

    def on_message(self, message: Buffer) -> None:
        """Deliver the answers of a message. Raises BadBookieFrame.

        The bodies are views of `message`.
        """
        for answer in decode_read_responses(message):
            if answer.number >= self._next:
                raise BadBookieFrame(f"an answer to request {answer.number} of {self._next}")
            answered = self._pending.pop(answer.number, None)
            if answered is not None and not answered.done():
                answered.set_result(answer)

    def fail(self, status: Status) -> None:
        """End the stream and answer every pending request with `status`."""
        self.over = True
        self._wake()
        self._queue.clear()
        pending, self._pending = self._pending, {}
        for answered in pending.values():
            if not answered.done():
                answered.set_result(ReadResponse(0, status))

    def _send(self, question: ReadRequest) -> None:
        self._queue.append(question)
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
        if self.on_queued is not None:
            self.on_queued()
