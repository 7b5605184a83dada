"""HTTP/1.1 of one connection: uvicorn's protocol by h11, with limits for what peers send.

h11 parses what it gets at one go. So it gets little of a head or of a chunked body at a time, and
other callbacks of the loop run between: no peer holds the loop for more than a few milliseconds.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from gateway.http.raw_answers import raw_answer

if TYPE_CHECKING:
    from uvicorn import Config
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle
    from uvicorn.server import ServerState

    from gateway.config import HttpConfig
    from gateway.http.server import Connection

_PIECE_BYTES: Final = 2_048  # of a head or of a chunked body
_BODY_PIECE_BYTES: Final = 65_536  # of a body whose length is known: h11 passes it on as it is
_BEHIND_BYTES_MAX: Final = 1024 * 1024  # of requests that wait behind the one that is answered

_silent = logging.Logger("gateway.http")  # no child of a logger that prints
_silent.setLevel(logging.CRITICAL + 1)


class _Refusal(h11.RemoteProtocolError):
    """A fault of a request that has a status of its own."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message, error_status_hint=status)
        self.code = code


_TOO_LONG: Final = {
    413: ("REQUEST_TOO_LARGE", "the body is larger than a request may have"),
    431: ("HEAD_TOO_LARGE", "the request line and headers are larger than they may be"),
}


class _Parser(h11.Connection):
    """h11's parser, which also bounds bodies."""

    def __init__(self, settings: HttpConfig, connection: Connection) -> None:
        super().__init__(h11.SERVER, settings.head_bytes_max)
        self._settings = settings
        self._connection = connection
        self._body_bytes = 0  # of this request, so far
        # The bytes of the body that are to come; None if it is chunked.
        self.body_left: int | None = 0
        # The status of what the peer did wrong, once it did.
        self.status = 400

    def next_event(self) -> Any:
        """Return the next event of h11. Raises RemoteProtocolError."""
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                self._begin(event)
            elif isinstance(event, h11.Data):
                self._take(len(event.data))
        except h11.RemoteProtocolError as error:
            self.status = error.error_status_hint or 400
            raise
        return event

    def _begin(self, request: h11.Request) -> None:
        self._connection.busy()
        self._body_bytes, self.body_left = 0, 0
        found = dict(request.headers)
        if b"transfer-encoding" in found:
            if b"content-length" in found:  # a proxy may take the other one (RFC 9112, 6.1)
                raise h11.RemoteProtocolError("the body has two lengths")
            self.body_left = None
            return
        if b"content-length" in found:
            self.body_left = int(found[b"content-length"][:20])
        if (self.body_left or 0) > self._settings.body_bytes_max:
            raise _Refusal(413, *_TOO_LONG[413])

    def _take(self, size: int) -> None:
        self._body_bytes += size
        if self.body_left is not None:
            self.body_left -= size
        if self._body_bytes > self._settings.body_bytes_max:
            raise _Refusal(413, *_TOO_LONG[413])


class BoundedProtocol(H11Protocol):
    """One connection, whose peer may send little at a time, and no more than it may."""

    def __init__(
        self, config: Config, state: ServerState, settings: HttpConfig, connection: Connection
    ) -> None:
        super().__init__(config, state, {})
        self.logger = self.access_logger = _silent
        self.access_log = False
        self._parser = _Parser(settings, connection)
        self.conn = self._parser
        self._connection = connection
        self._settings = settings
        # Bytes that arrived and that h11 has not got yet. Reading pauses while there are any.
        self._unread = bytearray()
        self._is_due = False  # a further piece is on its way to h11

    def data_received(self, data: bytes) -> None:
        """Take what arrived. Callers are transports."""
        self._unread += data
        if len(self._unread) > _BEHIND_BYTES_MAX:
            self.transport.abort()
            return
        if not self._is_due:
            self._feed()

    def on_response_complete(self) -> None:
        """Go on with the next request, unless the body of this one was not read."""
        if self.transport.is_closing():
            return
        if self.conn.our_state is not h11.DONE or self.conn.their_state is not h11.DONE:
            self.transport.close()
            return
        self.conn.start_next_cycle()
        self._connection.idle()
        self.handle_events()
        if not self._is_due:
            self._feed()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, and end the connection. `msg` is uvicorn's and is left out."""
        # uvicorn's annotation leaves out that there is none before the first request.
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.abort()
                return
        self._unread.clear()
        status = self._parser.status if self._parser.status in _TOO_LONG else 400
        code, text = _TOO_LONG.get(status, ("INVALID_REQUEST", "this is no HTTP request"))
        self._connection.refuse(raw_answer(status, code, text))

    def _next_piece(self) -> None:
        self._is_due = False
        if not self.transport.is_closing():
            self._feed()

    def _feed(self) -> None:
        """Give h11 a piece, if it can take any, and come back for the next one."""
        if self._unread and self._can_parse():
            size = self._piece_bytes()
            piece = bytes(self._unread[:size])
            del self._unread[:size]
            self.conn.receive_data(piece)
            self.handle_events()
        if self.transport.is_closing():
            return
        if not self._unread:
            self.flow.resume_reading()
            return
        self.flow.pause_reading()
        if self._can_parse():
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._next_piece)

    def _can_parse(self) -> bool:
        """Return whether h11 waits for bytes, and not for the response to what it has."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def _piece_bytes(self) -> int:
        if self.conn.their_state is h11.IDLE:
            room = self._settings.head_bytes_max - len(self.conn.trailing_data[0])
            return max(1, min(_PIECE_BYTES, room))
        if self._parser.body_left is None:
            return _PIECE_BYTES
        return max(1, min(_BODY_PIECE_BYTES, self._parser.body_left))
