"""The requests of one connection between their start and their replies.

A handler that returns a future has accepted its request, and several such requests run at once. A
handler that returns a coroutine runs in the chain: one request after another, in their order. Other
requests, except those of hot paths, wait behind the chain, as in Kafka.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Protocol, cast

from gateway.handlers.api import Handle, Request
from gateway.server.dispatch import PRODUCE, Dispatcher, RequestRefused
from gateway.server.reply_queue import ReplySlot
from ledger.ports.clock import measured_s
from ledger.tasks import start_once

FETCH, LIST_OFFSETS = 1, 2

HOT_KEYS = frozenset((PRODUCE, FETCH))
"""Requests with these keys start at once. Others wait for a slow request before them,
as in Kafka.
"""

CANCELLED_KEYS = frozenset((FETCH, LIST_OFFSETS))
"""Requests with these keys change nothing, and are cancelled when their client is gone."""

BYTES_WAITING_MAX = 256 * 1024
"""A connection reads no more while this number of bytes waits for a running cold request."""


class Answers(Protocol):
    """The connection that receives results and errors of handlers."""

    def finish(self, slot: RequestSlot, result: Any) -> None:
        """Queue the reply that the handler of `slot` returned."""
        ...

    def fail(self, slot: RequestSlot, error: BaseException) -> None:
        """Queue an error reply for the failed handler of `slot`, or end the connection."""
        ...

    def abort(self, reason: str) -> None:
        """End the connection now."""
        ...


class RequestSlot(ReplySlot):
    """The place of a reply in the reply queue, from the request until its handler has finished."""

    __slots__ = ("answers", "future", "request")

    def __init__(self, answers: Answers, request: Request, frame_bytes: int) -> None:
        # The fields of ReplySlot, without a second call for each request.
        self.frame_bytes = frame_bytes
        self.ready = self.is_last = False
        self.reply = ()
        self.waiting_bytes = 0
        self.answers = answers
        self.request = request
        # The future of the handler's result, or the task of the chain from when it runs the
        # handler's coroutine. None otherwise. A Fetch or a search is cancelled through this future.
        self.future: asyncio.Future[Any] | None = None

    def follow(self, future: asyncio.Future[Any]) -> None:
        """Reply with the result of `future`."""
        self.future = future
        future.add_done_callback(self.on_done)

    def on_client_gone(self) -> None:
        """Cancel the handler if its request changes nothing."""
        if self.request.key in CANCELLED_KEYS and self.future is not None:
            self.future.cancel()

    def on_done(self, future: asyncio.Future[Any]) -> None:
        """Pass the handler's result or error to the connection. Runs on the loop."""
        answers = self.answers
        if future.cancelled():
            answers.fail(self, RequestRefused("cancelled"))
            return
        error = future.exception()
        if error is not None:
            answers.fail(self, error)
            return
        answers.finish(self, future.result())


class RequestChain:
    """The cold requests of one connection, which run one after another."""

    __slots__ = ("_dispatcher", "_waiting", "running", "waiting_bytes")

    def __init__(self, dispatcher: Dispatcher) -> None:
        # The connection is that of each slot. A chain that had it would be a cycle with it.
        self._dispatcher = dispatcher
        # Slots of requests that wait for an earlier one. A slot has a coroutine if its handler was
        # already called. None while none waits: an empty deque takes 760 bytes.
        self._waiting: deque[tuple[RequestSlot, Handle, Any]] | None = None
        # The memory that these requests occupy.
        self.waiting_bytes = 0
        # The task that runs the requests. Set until the last one has finished, and None otherwise.
        self.running: asyncio.Task[None] | None = None

    @property
    def much_waits(self) -> bool:
        """True if BYTES_WAITING_MAX bytes wait, so that the connection should read no more."""
        return self.waiting_bytes >= BYTES_WAITING_MAX

    def add(self, slot: RequestSlot, handle: Handle, begun: Any = None) -> None:
        """Run this request after those before it. `begun` is the coroutine of its handler."""
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append((slot, handle, begun))
        self.waiting_bytes += slot.frame_bytes
        if self.running is None:
            answers = slot.answers
            self.running = start_once(
                "the requests of a connection",
                self._run(),
                lambda _: answers.abort("a request failed unexpectedly"),
            )

    def drop(self) -> None:
        """Never begin the requests that wait, because their client is gone."""
        for slot, _, begun in self._waiting or ():
            if begun is not None:
                begun.close()
            slot.ready = True
        self._waiting = None
        self.waiting_bytes = 0

    async def _run(self) -> None:
        try:
            while self._waiting:
                slot, handle, begun = self._waiting.popleft()
                self.waiting_bytes -= slot.frame_bytes
                await self._run_one(slot, handle, begun)
        finally:
            self.running = None
            if not self._waiting:
                self._waiting = None

    async def _run_one(self, slot: RequestSlot, handle: Handle, begun: Any) -> None:
        """Answer one request, or follow the future of its result."""
        slot.request.started_s = measured_s()
        try:
            result = begun
            if begun is None:
                result = self._dispatcher.start(slot.request, handle)
            if isinstance(result, asyncio.Future):
                slot.follow(cast("asyncio.Future[Any]", result))
                return
            if asyncio.iscoroutine(result):
                slot.future = self.running
                result = await result
        except asyncio.CancelledError:  # by what the handler awaits, or at the end of the process
            slot.future = None  # the task keeps this error, and with it this call and its slot
            slot.answers.fail(slot, RequestRefused("cancelled"))
            raise
        except Exception as error:  # noqa: BLE001 - last resort: a bug of ours ends no process
            slot.answers.fail(slot, error)
            return
        slot.answers.finish(slot, result)
