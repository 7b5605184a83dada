"""Goal: a client uses the transport that each bookie serves, so clusters are upgraded bookie by
bookie, and loads gRPC only if it must. Method: a real bookie behind both servers.
"""

import asyncio
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest

from ledger.adapters.grpc.grpc_config import GrpcServerConfig
from ledger.adapters.open_bookies import open_bookies
from ledger.adapters.tcp.tcp_config import TcpServerConfig
from ledger.bookie.grpc_server import BookieServer
from ledger.bookie.in_process import open_local_bookie
from ledger.bookie.tcp_server import TcpServer
from ledger.ports.bookies import BookieInfo, BookieTransport, Status
from tests.ledger.bookie_rig import KEY
from tests.ledger.remote_world import CONFIG
from tests.peers.processes import until
from tests.sim.bookie_world import entry_buffers

pytestmark = pytest.mark.real_loop


class Cluster:
    """One bookie behind both servers; `places` is what it has registered."""

    def __init__(self, bookie):
        self.bookie = bookie
        self.places = {}
        self.grpc = self.tcp = None
        self._entry = 0

    async def start(self):
        self.tcp = TcpServer(self.bookie, TcpServerConfig())
        self.grpc = BookieServer(self.bookie, GrpcServerConfig(), rooms=self.tcp.rooms)
        ports = await self.grpc.start("127.0.0.1", 0), await self.tcp.start("127.0.0.1", 0)
        self.old = BookieInfo(port=ports[0])
        self.new = BookieInfo(port=ports[0], tcp_port=ports[1])

    async def stop(self):
        await asyncio.gather(self.grpc.stop(0), self.tcp.stop(0))

    @property
    def clients(self):
        """Connections over TCP."""
        return len(self.tcp._connections)

    async def add(self, port):
        told = asyncio.get_running_loop().create_future()
        body = entry_buffers(7, self._entry, b"x")
        port.add(self.bookie.bookie_id, 7, self._entry, KEY, body, told.set_result)
        status = await told
        self._entry += status is Status.OK
        return status


@asynccontextmanager
async def cluster(tmp_path):
    opened = await open_local_bookie(tmp_path, config=CONFIG)
    one = Cluster(opened.bookie)
    await one.start()
    async with asyncio.timeout(60):
        yield one
    await one.stop()
    await opened.close()


@pytest.mark.parametrize("transport", BookieTransport)
async def test_the_transport_that_was_asked_for_is_used(tmp_path, transport):
    async with cluster(tmp_path) as one:
        one.places[one.bookie.bookie_id] = one.new
        port = open_bookies(lambda: one.places, transport, None)
        assert await one.add(port) is Status.OK
        assert one.clients == (transport is BookieTransport.TCP)
        await port.close()


async def test_a_bookie_of_an_earlier_release_is_reached_by_grpc_with_one_line(tmp_path, capfd):
    async with cluster(tmp_path) as one:
        one.places[one.bookie.bookie_id] = one.old
        port = open_bookies(lambda: one.places, BookieTransport.TCP, None)
        for _ in range(3):
            assert await one.add(port) is Status.OK
            await one.stop()
            await one.start()
            one.places[one.bookie.bookie_id] = one.old
            while await one.add(port) is not Status.OK:
                await asyncio.sleep(0.01)
        assert one.clients == 0
        assert capfd.readouterr().err.count("it is reached by gRPC") == 1
        await port.close()


async def test_after_its_upgrade_a_bookie_is_reached_over_tcp(tmp_path):
    async with cluster(tmp_path) as one:
        one.places[one.bookie.bookie_id] = one.old
        port = open_bookies(lambda: one.places, BookieTransport.TCP, None)
        assert await one.add(port) is Status.OK
        assert one.clients == 0
        await one.stop()
        await one.start()
        one.places[one.bookie.bookie_id] = one.new
        while await one.add(port) is not Status.OK:
            await asyncio.sleep(0.01)
        assert one.clients == 1
        await port.close()
        await until(lambda: one.clients == 0, "the connection is closed")


async def test_both_servers_of_a_bookie_share_its_room_for_adds(tmp_path):
    async with cluster(tmp_path) as one:
        assert one.tcp._window is one.grpc._window
        assert one.tcp._room is one.grpc._room


def test_a_gateway_whose_bookies_serve_tcp_does_not_load_grpc():
    program = """
import asyncio, sys
import gateway.process.clustered
from ledger.adapters.open_bookies import open_bookies
from ledger.ports.bookies import BookieInfo, BookieTransport

async def main():
    places = {"b-00000000": BookieInfo(port=1, tcp_port=1)}
    port = open_bookies(lambda: places, BookieTransport.TCP, None)
    await port.read("b-00000000", 7, 0)
    await port.close()

asyncio.run(main())
assert "grpc" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
