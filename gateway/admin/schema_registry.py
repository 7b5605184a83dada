"""A client of schema registries that have Confluent's HTTP API."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from base64 import b64encode
from collections import OrderedDict
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final, NamedTuple, cast
from urllib.parse import SplitResult, quote, unquote, urlsplit

from gateway.admin.avro_schema import InvalidSchema, Schema
from gateway.admin.bad_input import BadInput
from ledger.command_line.exit_codes import EXIT_FAILED, EXIT_REFUSED, EXIT_UNREACHABLE

MAGIC: Final = b"\0"
HEAD_BYTES: Final = 5
"""The bytes before a datum: the magic byte, and the id of its schema."""
_RESPONSE_BYTES_MAX: Final = 2**20
_CACHED_MAX: Final = 100
_TIMEOUT_S: Final = 10.0
_FAILURE_S: Final = 5.0
"""How long an id is not asked for again that the registry does not have."""
_REASON_MAX: Final = 200  # characters
_KIND: Final = "application/vnd.schemaregistry.v1+json"
_NOT_FOUND, _REFUSED, _REDIRECTS, _FAULTS = 404, (401, 403), range(300, 400), range(500, 600)


class Registered(NamedTuple):
    """A schema and its id."""

    id: int
    schema: Schema

    @property
    def head(self) -> bytes:
        """The bytes before each datum."""
        return MAGIC + self.id.to_bytes(4, "big")


class Registry:
    """A registry at an address. Every method raises BadInput, with the exit code."""

    def __init__(
        self, url: str, timeout_s: float = _TIMEOUT_S, failure_s: float = _FAILURE_S
    ) -> None:
        """Read the address, and connect to nothing yet. Raises ValueError, never with a secret."""
        parts, self._host, port = _split(url)
        self._secure = parts.scheme == "https"
        self._port = port or (443 if self._secure else 8081)
        self._path = parts.path.rstrip("/")
        self._timeout_s = timeout_s
        self._failure_s = failure_s
        host = f"[{self._host}]" if ":" in self._host else self._host
        # The address without user and password, for messages.
        self.shown = f"{parts.scheme}://{host}:{self._port}{self._path}"
        self._headers = {"Accept": _KIND, "Content-Type": _KIND, "Connection": "close"}
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {b64encode(user.encode()).decode()}"
        # The schemas that were used last, or the errors of ids that the registry does not have,
        # each with the time until which it is kept.
        self._cached: OrderedDict[int, Schema | tuple[BadInput, float]] = OrderedDict()

    async def by_id(self, number: int) -> Schema:
        """Return the schema of an id."""
        found = self._cached.pop(number, None)
        if found is None or (isinstance(found, tuple) and found[1] <= time.monotonic()):
            try:
                found = self._schema(await self._ask("GET", f"/schemas/ids/{number}"))
            except BadInput as error:
                if error.exit_code != EXIT_FAILED:
                    raise
                found = error, time.monotonic() + self._failure_s
        self._cached[number] = found
        if len(self._cached) > _CACHED_MAX:
            self._cached.popitem(last=False)
        if isinstance(found, tuple):
            error, _ = found
            raise BadInput(str(error), error.code, error.exit_code)
        return found

    async def latest(self, subject: str) -> Registered:
        """Return the latest schema of a subject."""
        answer = await self._ask("GET", f"/subjects/{quote(subject, safe='')}/versions/latest")
        return Registered(self._id(answer), self._schema(answer))

    async def register(self, subject: str, schema: Schema) -> Registered:
        """Return the schema with its id. The registry adds it unless the subject has it."""
        body = {"schema": schema.text}
        path = f"/subjects/{quote(subject, safe='')}/versions"
        return Registered(self._id(await self._ask("POST", path, body)), schema)

    def _id(self, answer: dict[str, Any]) -> int:
        number = answer.get("id")
        if not isinstance(number, int) or not 0 <= number < 2**32:
            raise self._failed(f"has answered with no id: {answer!r:.100}")
        return number

    def _schema(self, answer: dict[str, Any]) -> Schema:
        kind = answer.get("schemaType", "AVRO")
        if kind != "AVRO":
            raise self._failed(f"has a schema of the type {kind!r:.20}, and only AVRO is supported")
        if answer.get("references"):
            raise self._failed("has a schema that refers to others, which is not supported")
        text = answer.get("schema")
        if not isinstance(text, str):
            raise self._failed(f"has answered with no schema: {answer!r:.100}")
        try:
            return Schema(text)
        except InvalidSchema as error:
            raise self._failed(f"has a schema that cannot be used: {error}") from None

    def _failed(self, reason: str) -> BadInput:
        return BadInput(f"{self.shown} {reason}", "SCHEMA_REGISTRY", EXIT_FAILED)

    def _down(self, reason: object) -> BadInput:
        message = f"no schema registry at {self.shown}: {reason}"
        return BadInput(message, "UNREACHABLE", EXIT_UNREACHABLE)

    # HTTP

    async def _ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Return the JSON of a response. Waits in a thread, and ends that if it is cancelled."""
        connection = self._connection()
        data = None if body is None else json.dumps(body).encode()
        try:
            async with asyncio.timeout(self._timeout_s):
                asked = (connection, method, self._path + path, data)
                status, answer = await asyncio.to_thread(self._exchange, *asked)
        except TimeoutError:
            raise self._down(f"no response in {self._timeout_s:g} s") from None
        except (OSError, HTTPException, ValueError) as error:
            raise self._down(getattr(error, "strerror", None) or error) from None
        finally:
            _end(connection)
        return self._checked(status, answer, path)

    def _connection(self) -> HTTPConnection:
        if not self._secure:
            return HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        context = ssl.create_default_context()
        return HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=context)

    def _exchange(
        self, connection: HTTPConnection, method: str, path: str, body: bytes | None
    ) -> tuple[int, bytes]:
        connection.request(method, path, body, self._headers)
        response = connection.getresponse()
        return response.status, response.read(_RESPONSE_BYTES_MAX + 1)

    def _checked(self, status: int, data: bytes, path: str) -> dict[str, Any]:
        if status in _REDIRECTS:
            raise self._failed(f"redirects to another address ({status}), which is not followed")
        if len(data) > _RESPONSE_BYTES_MAX:
            raise self._failed(f"has answered with more than {_RESPONSE_BYTES_MAX // 2**20} MiB")
        answer: Any = None
        with suppress(ValueError, RecursionError):
            answer = json.loads(data)
        found = cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}
        if status < _REDIRECTS.start and found:
            return found
        reason = f"{status} {found.get('message', '')!s:.{_REASON_MAX}}".strip()
        if status in _REFUSED:
            message = f"{self.shown} refuses {path}: {reason}; pass user:password@ in the address"
            raise BadInput(message, "SCHEMA_REGISTRY_AUTHORIZATION_FAILED", EXIT_REFUSED)
        if status in _FAULTS:
            raise self._down(reason)
        if status == _NOT_FOUND:
            raise self._failed(f"has no {path}: {reason}")
        raise self._failed(f"does not answer as a schema registry to {path}: {reason}")


def _split(url: str) -> tuple[SplitResult, str, int | None]:
    """Return the parts of an address, its host and its port.

    Raises ValueError with a text of our own: those of the library may have a part of a password.
    """
    form = "must be http://host:port or https://host:port"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
        parts, port = SplitResult("", "", "", "", ""), None
    if "@" in f"{parts.path}{parts.query}{parts.fragment}" or (host is None and "@" in url):
        raise ValueError(f"{form}; write / ? # @ in a user or password as %2F %3F %23 %40")
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError(form)
    if parts.query or parts.fragment:
        raise ValueError("must have no query and no fragment")
    return parts, host, port


def _end(connection: HTTPConnection) -> None:
    """End the connection, also if a thread waits for it."""
    found = cast("socket.socket | None", connection.sock)
    if found is not None:
        with suppress(OSError):
            found.shutdown(socket.SHUT_RDWR)
    connection.close()
