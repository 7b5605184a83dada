"""A bookie behind a server of either transport, in this process or in a child to stop and kill."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Self

from ledger.adapters.links.link_config import LinkConfig, LinkServerConfig, TlsFiles
from ledger.bookie.config import BookieConfig
from ledger.bookie.grpc_server import BookieServer
from ledger.bookie.in_process import LocalBookie, open_local_bookie
from ledger.bookie.tcp_server import TcpServer
from ledger.ids import BookieId
from ledger.ports.bookies import BookieInfo, Status
from tests.ledger.bookie_rig import KEY
from tests.ledger.transports import bookies_of, current, on_transport, server_of
from tests.peers.processes import ServerProcess
from tests.sim.bookie_world import entry_buffers

CONFIG = BookieConfig(file_bytes=1 << 20, preallocate_bytes=1 << 18, headroom_bytes=0)


class Served:
    """A bookie of this process on a port; it comes back as the same bookie on another one."""

    def __init__(
        self,
        path: Path,
        config: BookieConfig = CONFIG,
        server: LinkServerConfig | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        self._path = path
        self._config = config
        self._server_config = server
        self._tls = tls
        self._opened: LocalBookie | None = None
        self._server: BookieServer | TcpServer | None = None
        self.port = 0

    async def __aenter__(self) -> Self:
        self._opened = await open_local_bookie(self._path, config=self._config)
        self.bookie = self._opened.bookie
        self.id: BookieId = self.bookie.bookie_id
        self._server = server_of(self.bookie, self._tls, self._server_config)
        self.port = await self._server.start("127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        if self._opened is not None and self._server is not None:
            await self._server.stop(0)
            await self._opened.close()
            self._opened = None

    async def restart(self) -> None:
        await self.stop()
        await self.__aenter__()

    def log_bytes(self) -> bytes:
        """All that was ever logged, padding included."""
        logs = sorted(self._path.glob("log-*"))
        return b"".join(path.read_bytes() for path in logs).rstrip(b"\0")


class Client:
    """A client that finds bookies where `places` says, and remembers what it was told."""

    def __init__(
        self, *served: Served, config: LinkConfig | None = None, tls: TlsFiles | None = None
    ) -> None:
        self.places = {one.id: BookieInfo(port=one.port) for one in served}
        self.port = bookies_of(lambda: self.places, config, tls)
        self.told: list[tuple[int, Status]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.port.close()

    def move(self, served: Served) -> None:
        self.places[served.id] = BookieInfo(port=served.port)

    def add(self, bookie: BookieId, entry: int, payload: bytes = b"x", ledger: int = 7, key=KEY):
        """A future of the add's status; `told` remembers it too."""
        told = asyncio.get_running_loop().create_future()

        def on_added(status: Status) -> None:
            self.told.append((entry, status))
            told.set_result(status)  # a second call would raise

        body = entry_buffers(ledger, entry, payload)
        self.port.add(bookie, ledger, entry, key, body, on_added)
        return told

    async def add_until(self, status: Status, bookie: BookieId, entry: int) -> None:
        """Adds, again and again, until that is the answer."""
        async with asyncio.timeout(60.0):
            while await self.add(bookie, entry) is not status:
                await asyncio.sleep(0.005)


class Child(ServerProcess):
    """A bookie in a process of its own, in the directory `path`."""

    name = "a bookie behind a server"
    start_s_max = 60.0

    def argv(self) -> list[str]:
        return [sys.executable, "-m", "tests.ledger.remote_world", str(self.data), current()]

    def serves(self) -> bool:
        """Return True once its first line has come, which gives its port and id."""
        line, ended, _ = self.output().partition("\n")
        if ended:
            self.port, self.id = int(line.split()[0]), BookieId(line.split()[1])
        return bool(ended)


async def serve(path: Path) -> None:
    async with Served(path) as served:
        print(served.port, served.id, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with on_transport(sys.argv[2]):
        asyncio.run(serve(Path(sys.argv[1])))
