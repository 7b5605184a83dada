"""A blocking connection to one server, for Spark tasks. Each task has its own thread."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import Any, NamedTuple

from gateway.wire.client_link import (
    FRAME_BYTES_MAX,
    VERSION_MAX,
    Security,
    Served,
    Unreachable,
)
from gateway.wire.messages import MalformedMessage, decode_response, encode_request
from gateway.wire.schema import API_VERSIONS

CLIENT_ID = "gateway-replay"


class _Posted(NamedTuple):
    key: int
    version: int
    correlation_id: int


class BlockingConnection:
    """A connection to one server, which answers requests in order. Several may be in flight.

    Any call may raise Unreachable. Then the connection is unusable and must be closed. A login that
    the server refuses raises AdminError.
    """

    def __init__(
        self, host: str, port: int, answer_s_max: float, security: Security | None = None
    ) -> None:
        self.peer = f"{host}:{port}"
        self._correlation_id = 0
        # Requests in flight, oldest first. The server answers requests in this order.
        self._posted: deque[_Posted] = deque()
        self._served = Served(self.peer)
        try:
            self._socket = socket.create_connection((host, port), answer_s_max)
        except OSError as error:
            raise Unreachable(f"no server at {self.peer}: {error}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._encrypt(host, security)
            self._post(API_VERSIONS, 0, {})
            self._served.learn(self.take())
            if security is not None:
                asyncio.run(security.log_in(self._ask_for_login))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def _encrypt(self, host: str, security: Security | None) -> None:
        context = None if security is None else security.context
        if context is None:
            return
        try:
            self._socket = context.wrap_socket(self._socket, server_hostname=host)
        except OSError as error:
            raise Unreachable(f"no server at {self.peer}: {error}") from None

    async def _ask_for_login(self, key: int, fields: dict[str, Any], version_max: int) -> Any:
        """Ask as `ask` does. A login is written as a coroutine, for connections of event loops."""
        return self.ask(key, fields, version_max)

    def ask(self, key: int, fields: dict[str, Any], version_max: int = VERSION_MAX) -> Any:
        """Send a request and return kio's reply. No other request may be in flight."""
        assert not self._posted, "a reply has not been taken"
        self.post(key, fields, version_max)
        return self.take()

    def post(self, key: int, fields: dict[str, Any], version_max: int = VERSION_MAX) -> None:
        """Send a request in the highest common version. `take` returns the replies in order."""
        self._post(key, self._served.version(key, version_max), fields)

    def take(self) -> Any:
        """Return kio's reply to the oldest request in flight."""
        posted = self._posted.popleft()
        try:
            size = int.from_bytes(self._receive(4), "big")
            if size > FRAME_BYTES_MAX:
                raise Unreachable(f"{self.peer} does not speak Kafka's protocol")
            answer = decode_response(posted.key, posted.version, self._receive(size))
        except TimeoutError:
            raise Unreachable(f"{self.peer} did not answer in time") from None
        except OSError as error:
            raise Unreachable(f"{self.peer}: {error}") from None
        except MalformedMessage:
            raise Unreachable(f"{self.peer} does not speak Kafka's protocol") from None
        if answer.correlation_id != posted.correlation_id:
            raise Unreachable(f"{self.peer} does not speak Kafka's protocol")
        return answer.body

    def _post(self, key: int, version: int, fields: dict[str, Any]) -> None:
        self._correlation_id += 1
        body = encode_request(key, version, self._correlation_id, CLIENT_ID, fields)
        try:
            self._socket.sendall(len(body).to_bytes(4, "big"))
            self._socket.sendall(body)
        except OSError as error:
            raise Unreachable(f"{self.peer}: {error}") from None
        self._posted.append(_Posted(key, version, self._correlation_id))

    def _receive(self, size: int) -> bytes:
        data = bytearray(size)
        view, at = memoryview(data), 0
        while at < size:
            got = self._socket.recv_into(view[at:])
            if not got:
                raise Unreachable(f"{self.peer} closed the connection")
            at += got
        return bytes(data)
