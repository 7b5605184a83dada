"""A Kafka client for one-shot admin requests: one connection, one request at a time."""

from __future__ import annotations

import asyncio
import contextlib
import os
from types import TracebackType
from typing import Any, Self

from gateway.wire.messages import MalformedMessage, decode_response, encode_request
from gateway.wire.schema import NoSuchSchema, request_class

CLIENT_ID = "gateway-admin"
FRAME_BYTES_MAX = 256 * 1024 * 1024
_API_VERSIONS = 18


class AdminError(Exception):
    """The server answered, and the answer is no. `code` is Kafka's name of the error."""

    def __init__(self, message: str, code: str = "UNKNOWN_SERVER_ERROR") -> None:
        super().__init__(message)
        self.code = code


class Unreachable(Exception):
    """No server was reached, or it did not answer in Kafka's protocol in time."""


def parse_bootstrap(bootstrap: str) -> list[tuple[str, int]]:
    """Hosts and ports of `host:port,[v6]:port,...`. Raises ValueError that names the bad part."""
    servers: list[tuple[str, int]] = []
    for part in bootstrap.split(","):
        host, colon, port = part.strip().rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise ValueError(f"{part.strip()!r} is not host:port, for example 127.0.0.1:9092")
        servers.append((host, int(port)))
    return servers


def raise_for(code: Any, message: str | None, about: str) -> None:
    """Raises AdminError unless `code`, one of kio's, is none."""
    if code.value:
        name = code.name.upper()
        raise AdminError(message or f"{about}: {name}", name)


class AdminClient:
    """Use as `async with AdminClient(bootstrap) as client`. Raises Unreachable anywhere."""

    def __init__(
        self, bootstrap: str, *, connect_s_max: float = 5.0, answer_s_max: float = 30.0
    ) -> None:
        self._servers = parse_bootstrap(bootstrap)
        self._connect_s_max = connect_s_max
        self._answer_s_max = answer_s_max
        self._served: dict[int, tuple[int, int]] = {}
        self._correlation_id = 0
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.peer = ""  # who answers, as host:port

    async def __aenter__(self) -> Self:
        faults: list[str] = []
        for host, port in self._servers:
            self.peer = f"{host}:{port}"
            try:
                await self._connect(host, port)
                return self
            except (OSError, TimeoutError) as error:
                why = "no connection in time" if isinstance(error, TimeoutError) else _plain(error)
                faults.append(f"no server at {self.peer}: {why}")
            except Unreachable as error:
                await self._close()
                faults.append(str(error))
            except BaseException:
                await self._close()
                raise
        raise Unreachable("; ".join(faults))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()

    async def _connect(self, host: str, port: int) -> None:
        async with asyncio.timeout(self._connect_s_max):
            self._reader, self._writer = await asyncio.open_connection(host, port)
        answer = await self._ask(_API_VERSIONS, 0, {})
        raise_for(answer.error_code, None, "ApiVersions")
        self._served = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}

    def version(self, key: int, version_max: int = 32_767) -> int:
        """The highest version of `key` that both sides speak. Raises AdminError."""
        low, high = self._served.get(key, (0, -1))
        for version in range(min(high, version_max), low - 1, -1):
            try:
                request_class(key, version)
            except NoSuchSchema:
                continue
            return version
        raise AdminError(f"{self.peer} does not serve request {key}", "UNSUPPORTED_VERSION")

    async def send(self, key: int, fields: dict[str, Any], *, version_max: int = 32_767) -> Any:
        """kio's answer to one request in the highest common version."""
        return await self._ask(key, self.version(key, version_max), fields)

    async def _ask(self, key: int, version: int, fields: dict[str, Any]) -> Any:
        reader, writer = self._reader, self._writer
        assert reader is not None and writer is not None
        self._correlation_id += 1
        body = encode_request(key, version, self._correlation_id, CLIENT_ID, fields)
        try:
            async with asyncio.timeout(self._answer_s_max):
                writer.write(len(body).to_bytes(4, "big") + body)
                await writer.drain()
                size = int.from_bytes(await reader.readexactly(4), "big")
                if size > FRAME_BYTES_MAX:
                    raise Unreachable(f"{self.peer} does not speak Kafka's protocol")
                answer = decode_response(key, version, await reader.readexactly(size))
        except TimeoutError:
            raise Unreachable(
                f"{self.peer} did not answer within {self._answer_s_max:g} s"
            ) from None
        except asyncio.IncompleteReadError:
            raise Unreachable(
                f"{self.peer} closed the connection; is it a Kafka port without TLS?"
            ) from None
        except OSError as error:
            raise Unreachable(f"{self.peer}: {_plain(error)}") from None
        except MalformedMessage:
            raise Unreachable(f"{self.peer} does not speak Kafka's protocol") from None
        if answer.correlation_id != self._correlation_id:
            raise Unreachable(f"{self.peer} does not speak Kafka's protocol")
        return answer.body


def _plain(error: OSError) -> str:
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__
