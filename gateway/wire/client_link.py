"""Connects a client of this project to a broker, in Kafka's protocol, one request at a time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from gateway.wire import private_request
from gateway.wire.messages import MalformedMessage, decode_response, encode_request
from gateway.wire.schema import API_VERSIONS, SASL_HANDSHAKE, NoSuchSchema, request_class
from ledger.command_line.version import __version__

if TYPE_CHECKING:
    import ssl

CLIENT_ID = "gateway-admin"
NOT_A_GATEWAY = "NOT_A_LEDGER_GATEWAY"
"""The code of the error of a private request to a server of another kind."""

T = TypeVar("T")
FRAME_BYTES_MAX = 256 * 1024 * 1024
SESSION_SHARE = 0.8
"""The part of the lifetime of a session after which a connection is replaced by a new one."""

VERSION_MAX = 32_767
_BEFORE_LOGIN = frozenset({API_VERSIONS, SASL_HANDSHAKE})
"""Requests that a listener answers before it knows the login."""
_OUR_FEATURE = "gateway.version"  # no other server has it


class AdminError(Exception):
    """An error that the broker returned. `code` is Kafka's name for the error."""

    def __init__(self, message: str, code: str = "UNKNOWN_SERVER_ERROR") -> None:
        super().__init__(message)
        self.code = code


def is_refusal(code: str) -> bool:
    """Return whether this code, Kafka's name for an error, denies a login or a right."""
    return code.endswith(("_AUTHORIZATION_FAILED", "_AUTHENTICATION_FAILED"))


class Unreachable(Exception):
    """The error that no broker was reached, or none replied in time in Kafka's protocol."""

    fix = ""
    """The fix, if it follows from the class of the error."""


class Closed(Unreachable):
    """The error that a server ended the connection, as a listener of another protocol does."""

    fix = "set security.protocol with --command-config FILE, or choose a profile that has it"


class Dropped(Unreachable):
    """The error that a server ended a connection on which it had answered."""

    fix = "try again, and look into its log"


class NoToken(Unreachable):
    """The error that no token for the login was got for now: no broker was asked for the login."""


class Refused(AdminError):
    """The error that a broker refused the login, or that its certificate is not trusted."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "SASL_AUTHENTICATION_FAILED")


class Security(Protocol):
    """The TLS and the login of a connection."""

    @property
    def context(self) -> ssl.SSLContext | None:
        """The TLS, or None for plain text."""
        ...

    async def log_in(self, ask: Callable[[int, dict[str, Any], int], Awaitable[Any]]) -> float:
        """Authenticate. Returns the seconds that the session lasts, or 0.

        Raises Refused and NoToken.
        """
        ...

    def of_aiokafka(self) -> dict[str, Any]:
        """Return the arguments with which a client of aiokafka connects in the same way."""
        ...


_MEANINGS = {  # of errors that brokers return without a message
    "INVALID_TOPIC_EXCEPTION": "is no name of a topic: use ASCII letters, digits, '.', '_' and '-'",
    "TRANSACTIONAL_ID_NOT_FOUND": "this transactional id does not exist",
}


def raise_for(code: Any, message: str | None, about: str) -> None:
    """Raise AdminError unless `code`, an error code of kio, is none."""
    if code.value:
        name = code.name.upper()
        raise AdminError(message or f"{about}: {_MEANINGS.get(name, name)}", name)


class Served:
    """The APIs and versions that a broker serves."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        # The lowest and highest version by API key. Empty before `learn`.
        self._bounds: dict[int, tuple[int, int]] = {}

    def learn(self, answer: Any) -> None:
        """Take the APIs and versions from the reply to ApiVersions. Raises AdminError."""
        raise_for(answer.error_code, None, "ApiVersions")
        self._bounds = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}

    def version(self, key: int, version_max: int = VERSION_MAX) -> int:
        """Return the highest common version of an API. Raises AdminError."""
        low, high = self._bounds.get(key, (0, -1))
        for version in range(min(high, version_max), low - 1, -1):
            try:
                request_class(key, version)
            except NoSuchSchema:
                continue
            return version
        raise AdminError(f"{self._peer} does not serve API key {key}", "UNSUPPORTED_VERSION")


class Link:
    """A connection to the broker at `host`:`port`. Every method may raise Unreachable."""

    def __init__(
        self,
        host: str,
        port: int,
        answer_s_max: float,
        client_id: str = CLIENT_ID,
        security: Security | None = None,
    ) -> None:
        self.peer = f"{host}:{port}"
        self._security = security
        # When the session of the login ends, on the loop's clock. Set by `open`; None: never.
        self.expires_s: float | None = None
        self._host = host
        self._port = port
        self._answer_s_max = answer_s_max
        self._client_id = client_id
        self._served = Served(self.peer)
        self._correlation_id = 0
        # Whether the server is a gateway of this project. None until someone asks.
        self._is_gateway: bool | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        # Held from a request to the end of its answer, so that several tasks may use the link.
        self._exchanging = asyncio.Lock()
        self.cut_short = False
        """True once a task was cancelled while it waited: its answer may still come."""
        self.answered = False
        """True once the server answered what it answers only in the right security protocol."""

    async def open(self, connect_s_max: float) -> None:
        """Connect, and read the versions that the broker serves."""
        try:
            async with asyncio.timeout(connect_s_max):
                self._reader, self._writer = await connect(self._host, self._port, self._security)
        except (ValueError, OverflowError):  # a broker may give any text as its host, and any port
            raise Unreachable(f"no server at {self.peer}: that is not host:port") from None
        except (OSError, TimeoutError) as error:
            if self._is_plain_text(error):
                raise self._closed() from None
            why = "no connection in time" if isinstance(error, TimeoutError) else _plain(error)
            raise Unreachable(f"no server at {self.peer}: {why}") from None
        try:
            self._served.learn(await self._ask(API_VERSIONS, 0, {}))
            if self._security is not None:
                session_s = await self._security.log_in(self.send)
                if session_s:
                    now_s = asyncio.get_running_loop().time()
                    self.expires_s = now_s + session_s * SESSION_SHARE
        except BaseException:
            await self.close()
            raise

    def _is_plain_text(self, error: Exception) -> bool:
        """Return whether the server ended the handshake of TLS as one without TLS does."""
        if self._security is None or self._security.context is None:
            return False
        from ssl import SSLEOFError

        wrong = getattr(error, "reason", None) == "WRONG_VERSION_NUMBER"
        return wrong or isinstance(error, (ConnectionResetError, SSLEOFError))

    def _closed(self) -> Unreachable:
        text = f"{self.peer} closed the connection"
        return Dropped(text) if self.answered else Closed(f"{text}; it may speak another protocol")

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()

    def take_streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the streams of an open connection, which belong to the caller from now on."""
        reader, writer = self._reader, self._writer
        assert reader is not None and writer is not None
        self._reader = self._writer = None
        return reader, writer

    @property
    def is_over(self) -> bool:
        """True if no further request can be answered: the server closed it, as after 10 min."""
        reader, writer = self._reader, self._writer
        if self.expires_s is not None and asyncio.get_running_loop().time() > self.expires_s:
            return True
        closed = reader is not None and reader.at_eof()
        return self.cut_short or closed or (writer is not None and writer.is_closing())

    def version(self, key: int, version_max: int = VERSION_MAX) -> int:
        """Return the highest common version of an API. Raises AdminError."""
        return self._served.version(key, version_max)

    async def send(self, key: int, fields: dict[str, Any], version_max: int = VERSION_MAX) -> Any:
        """Send a request in the highest common version; return kio's entity of the reply."""
        return await self._ask(key, self.version(key, version_max), fields)

    async def ask_privately(self, body: dict[str, Any]) -> dict[str, Any]:
        """Send a private request; return the answer. Raises AdminError if it was refused.

        Nothing is sent to a server that is no gateway of this project.
        """
        await self.require_gateway()
        number = self._next_number()
        request = private_request.encode_request(number, self._client_id, body)
        try:
            answered, answer = await self._exchange(request, private_request.decode_answer)
        except Unreachable as error:
            if isinstance(error.__cause__, asyncio.IncompleteReadError):
                text = f"{self.peer} closed the connection; it may be of an earlier release"
                raise Unreachable(text) from None
            raise
        if answered != number:
            raise Unreachable(f"{self.peer} does not answer private requests")
        self.answered = True
        if "error" in answer:
            raise AdminError(str(answer.get("message")), str(answer["error"]))
        return answer

    async def is_gateway(self) -> bool:
        """Return whether the server is a gateway of this project, as ApiVersions tells."""
        if self._is_gateway is None:
            fields = {"client_software_name": CLIENT_ID, "client_software_version": __version__}
            served = await self.send(API_VERSIONS, fields)
            features = getattr(served, "supported_features", ())
            self._is_gateway = any(each.name == _OUR_FEATURE for each in features)
        return self._is_gateway

    async def require_gateway(self) -> None:
        """Raise AdminError unless the server is a gateway of this project."""
        if not await self.is_gateway():
            raise AdminError(f"{self.peer} is not a ledger gateway", NOT_A_GATEWAY)

    def _next_number(self) -> int:
        self._correlation_id += 1
        return self._correlation_id

    async def _ask(self, key: int, version: int, fields: dict[str, Any]) -> Any:
        number = self._next_number()
        try:
            body = encode_request(key, version, number, self._client_id, fields)
        except (struct.error, UnicodeError) as error:  # an argument of the command
            raise AdminError(
                f"a value does not fit the request: {error}", "INVALID_REQUEST"
            ) from None
        answer = await self._exchange(body, lambda data: decode_response(key, version, data))
        if answer.correlation_id != number:
            raise Unreachable(f"{self.peer} does not speak Kafka's protocol")
        self.answered = self.answered or key not in _BEFORE_LOGIN
        return answer.body

    async def _exchange(self, body: bytes, decode: Callable[[bytes], T]) -> T:
        async with self._exchanging:
            try:
                return await self._exchange_now(body, decode)
            except asyncio.CancelledError:
                self.cut_short = True
                raise

    async def _read(self, reader: asyncio.StreamReader, size: int) -> bytes:
        try:
            return await reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            raise Dropped(f"{self.peer} closed the connection") from error

    async def _exchange_now(self, body: bytes, decode: Callable[[bytes], T]) -> T:
        reader, writer = self._reader, self._writer
        assert reader is not None and writer is not None
        if self.cut_short:
            raise Unreachable(f"{self.peer}: an earlier request was cut short")
        try:
            async with asyncio.timeout(self._answer_s_max):
                writer.write(len(body).to_bytes(4, "big") + body)
                await writer.drain()
                size = int.from_bytes(await reader.readexactly(4), "big")
                if size > FRAME_BYTES_MAX:
                    raise Unreachable(f"{self.peer} does not speak Kafka's protocol")
                return decode(await self._read(reader, size))
        except TimeoutError:
            raise Unreachable(
                f"{self.peer} did not answer within {self._answer_s_max:g} s"
            ) from None
        except (asyncio.IncompleteReadError, ConnectionResetError) as error:
            raise self._closed() from error
        except OSError as error:
            raise Unreachable(f"{self.peer}: {_plain(error)}") from None
        except MalformedMessage:
            raise Unreachable(f"{self.peer} does not speak Kafka's protocol") from None


async def connect(
    host: str, port: int, security: Security | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect, by TLS if `security` asks for it. Raises OSError, TimeoutError."""
    context = None if security is None else security.context
    if context is None:
        return await asyncio.open_connection(host, port)
    return await asyncio.open_connection(host, port, ssl=context, server_hostname=host)


def _plain(error: OSError) -> str:
    reason = getattr(error, "verify_message", None) or getattr(error, "reason", None)
    if reason:  # of TLS
        return f"TLS failed: {str(reason).lower().replace('_', ' ')}"
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__
