"""The time of the event loop that requests take, measured only while a quota limits it.

The time of a request is that of its decoding, its handler, and the encoding of its reply. A handler
that is a coroutine is timed in its steps, not while it waits. What others do for the request, such
as a bookie or a thread, is not counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any

from gateway.handlers.api import Handle, Peer, Request
from gateway.handlers.quota_checks import spent_s
from gateway.server.dispatch import Dispatcher
from gateway.server.reply_queue import ReplyParts
from ledger.ports.clock import measured_s

OnEncoded = Callable[[Request, float], None]
"""Counts the seconds that the encoding of a reply took."""


class RequestTimes:
    """Stands between connections and a dispatcher from `begin` to `end`."""

    def __init__(self, dispatcher: Dispatcher, on_encoded: OnEncoded) -> None:
        """Create it for a dispatcher. `on_encoded` is called after a reply was encoded."""
        self._dispatcher = dispatcher
        self._on_encoded = on_encoded
        self._open, self._start = dispatcher.open, dispatcher.start
        self._encode = dispatcher.encode
        self._begun = False

    def begin(self) -> None:
        """Time requests from now on."""
        if not self._begun:
            self._begun = True
            self._dispatcher.open = self.open
            self._dispatcher.start = self.start
            self._dispatcher.encode = self.encode

    def end(self) -> None:
        """Time requests no more."""
        if self._begun:
            self._begun = False
            self._dispatcher.open, self._dispatcher.start = self._open, self._start
            self._dispatcher.encode = self._encode

    def open(
        self, frame: bytes | memoryview, peer: Peer, begun_s: float = 0.0
    ) -> tuple[Request, Handle]:
        """Decode a frame, as `Dispatcher.open` does."""
        since_s = measured_s()
        request, handle = self._open(frame, peer, begun_s)
        request.spent_s = measured_s() - since_s
        return request, handle

    def start(self, request: Request, handle: Handle) -> Any:
        """Call a handler, as `Dispatcher.start` does."""
        since_s = measured_s()
        try:
            result = self._start(request, handle)
        finally:
            _add(request, measured_s() - since_s)
        return TimedCoroutine(result, request) if asyncio.iscoroutine(result) else result

    def encode(self, request: Request, result: Any) -> ReplyParts:
        """Encode a result, as `Dispatcher.encode` does."""
        since_s = measured_s()
        try:
            return self._encode(request, result)
        finally:
            self._on_encoded(request, measured_s() - since_s)


class TimedCoroutine(Coroutine[Any, Any, Any]):
    """The coroutine of a handler, whose steps count as time of its request."""

    __slots__ = ("_coroutine", "_request")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], request: Request) -> None:
        self._coroutine = coroutine
        self._request = request

    def send(self, value: Any, /) -> Any:
        since_s = measured_s()
        try:
            return self._coroutine.send(value)
        finally:
            _add(self._request, measured_s() - since_s)

    def throw(self, typ: Any, val: Any = None, tb: TracebackType | None = None, /) -> Any:
        since_s = measured_s()
        try:
            return self._coroutine.throw(typ if val is None else val)
        finally:
            _add(self._request, measured_s() - since_s)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.send(None)


def _add(request: Request, seconds: float) -> None:
    request.spent_s = spent_s(request) + seconds
