"""An embedded gateway in a thread of this process, with HTTP ports, and raw clients."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from gateway.config import GatewayConfig, GroupLimits, HttpConfig
from gateway.http.application import Application
from gateway.http.pages import Rows
from gateway.http.server import HttpServer
from gateway.process.assemble import Running
from gateway.process.embedded import start_embedded
from ledger.adapters.system.process import loop_factory
from ledger.add_times import add_times
from ledger.tasks import in_thread

T = TypeVar("T")

ANSWER_S_MAX = 60.0
# Of a port, unless its test says otherwise: a machine may stand still for longer than the defaults.
PATIENT = {"head_s_max": 30.0, "request_s_max": 30.0}


class Answer(NamedTuple):
    """A response, with lower-case names of headers."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


class PageRig:
    """A gateway that serves from `with` on. Ports are added by `serve`."""

    running: Running

    def __init__(self, data: Path, **settings: Any) -> None:
        self._data = data
        self._settings = settings  # of the gateway
        self._thread = threading.Thread(target=self._run)
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None
        self._servers: list[tuple[asyncio.Server, HttpServer]] = []
        self.applications: dict[int, Application] = {}

    def __enter__(self) -> Self:
        add_times._newest.clear()  # tests before this one in the process had the same ledgers
        self._thread.start()
        assert self._ready.wait(ANSWER_S_MAX)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None and self._over is not None
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(ANSWER_S_MAX)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.running.port}"

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop of the gateway."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(ANSWER_S_MAX)

    def serve(
        self,
        rows: Rows | None = None,
        *,
        passwords: Any = None,
        metrics_only: bool = False,
        tls: Any = None,
        wait: threading.Event | None = None,
        **settings: Any,
    ) -> int:
        """Open one more HTTP port. Its application is ready when `wait` is set, if there is one."""
        return self.run(self._serve(rows, passwords, metrics_only, tls, wait, settings))

    async def _serve(
        self,
        rows: Rows | None,
        passwords: Any,
        metrics_only: bool,
        tls: Any,
        wait: threading.Event | None,
        settings: Mapping[str, Any],
    ) -> int:
        config = HttpConfig(port=0, **{**PATIENT, **settings})

        async def load() -> Application:
            if wait is not None:
                await in_thread(wait.wait)
            made = Application(
                self.running.ctx,
                config,
                self.bootstrap,
                passwords,
                metrics_only=metrics_only,
                rows=rows,
            )
            self.applications[port] = made
            return made

        server = HttpServer(config, load, tls)
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(server.connection, "127.0.0.1", 0)
        port: int = listener.sockets[0].getsockname()[1]
        self._servers.append((listener, server))
        return port

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        groups = GroupLimits(initial_rebalance_delay_ms=0)
        usual = {"port": 0, "ledger_port": None, "journal_sync": "never", "groups": groups}
        config = GatewayConfig(data=self._data, **(usual | self._settings))
        self.running = await start_embedded(config)
        self._ready.set()
        await self._over.wait()
        for listener, server in self._servers:
            listener.close()
            await server.stop()
        await self.running.stop()


def ask(
    port: int,
    path: str,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> Answer:
    """Send one request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S_MAX)
    try:
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, found, answer.read())
    finally:
        connection.close()


def opened(port: int) -> socket.socket:
    """Return a connection to a port."""
    return socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S_MAX)


def rest(connection: socket.socket) -> bytes:
    """Return what arrives until the peer ends the connection."""
    parts: list[bytes] = []
    try:
        while part := connection.recv(65_536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def raw(port: int, *sent: bytes) -> bytes:
    """Send bytes as they are, and return all that arrives until the connection ends."""
    with opened(port) as connection:
        try:
            for part in sent:
                connection.sendall(part)
        except ConnectionError:  # it was refused before it was sent in full
            pass
        return rest(connection)


def status_of(answer: bytes) -> int:
    """Return the status of a raw response; 0 if there is none."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0
