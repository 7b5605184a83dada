"""Goal: the ZooKeeper store connects, closes and outlives its servers in bounded time.

Method: servers that the test kills, pauses and restarts; a proxy that nobody answers behind.
"""

import asyncio
import contextlib
import socket
import socketserver
import struct
import sys
import threading
import time

import pytest

from ledger.adapters.zookeeper import zookeeper_bridge
from ledger.adapters.zookeeper.zookeeper_bridge import IN_FLIGHT_MAX
from ledger.adapters.zookeeper.zookeeper_metadata import connect_zookeeper
from ledger.errors import MetadataUnavailable
from ledger.ports.metadata import ANY_VERSION, Node
from tests.ledger.zookeeper_rig import (
    LASTING_MS,
    SHORT_MS,
    Told,
    connected,
    in_some_try,
    no_thread_is_left,
    patient,
    refused,
    waits,
)
from tests.peers.processes import Process, until
from tests.peers.proxy import TO_SERVER, Proxy
from tests.peers.zookeeper import ZooKeeper

pytestmark = pytest.mark.real_loop

LONG_S = 20.0  # what a test sets what nobody may wait for to


@pytest.fixture
def own_server(tmp_path):
    """A server that the test may kill, pause and restart."""
    with ZooKeeper(tmp_path / "zookeeper") as server:
        yield server


# Where to connect


@contextlib.contextmanager
def unreachable_servers(count):
    """Addresses whose packets are dropped, as those of machines that are off.

    The kernel drops what a full queue of a listener cannot take.
    """
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            for _ in range(3):
                filler = stack.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(listener.getsockname())
        yield ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each in listeners)


async def test_a_server_that_is_off_costs_a_share_of_the_session_if_there_are_others():
    """Else it costs all of it: a gateway that tries it first loses its session."""
    with unreachable_servers(3) as servers:
        await refused(r"no answer from .* within 1\.5 s", servers, session_ms=60_000)


async def test_a_server_that_is_off_costs_a_third_of_a_short_session_of_three_servers():
    with unreachable_servers(3) as servers:
        await refused(r"no answer from .* within 1\.0 s", servers, session_ms=3_000)


async def test_the_only_server_may_take_a_whole_session():
    with unreachable_servers(1) as servers:
        await refused(r"no answer from .* within 2\.0 s", servers, session_ms=2_000)


async def test_stores_on_different_roots_do_not_see_each_other(zookeeper):
    one, other = zookeeper.unused_chroot() + "/deep/er", zookeeper.unused_chroot()
    async with (
        connected(zookeeper.servers, one) as first,
        connected(zookeeper.servers + other, "") as second,
        connected(zookeeper.servers, "") as whole,
    ):
        made = await first.create("/a-", sequential=True)
        assert await second.children("/") == []
        await second.create("/b")
        assert await first.children("/") == [made[1:]]
        assert await whole.exists(one + made)
        assert await whole.exists(other + "/b")
        with pytest.raises(AssertionError):
            await first.get("/../x")


async def test_of_several_servers_one_that_answers_is_found(zookeeper):
    with Proxy(zookeeper.port) as proxy:
        proxy.refuse()
        servers = f"{proxy.address},{zookeeper.servers}"
        async with connected(servers, zookeeper.unused_chroot()) as store:
            assert store.negotiated_session_ms == LASTING_MS


@pytest.mark.parametrize("how", ["refuse", "freeze"])
async def test_without_a_server_connecting_fails_in_time_and_leaves_nothing(
    zookeeper, how, monkeypatch
):
    monkeypatch.setattr(zookeeper_bridge, "CLOSE_S_MAX", LONG_S)
    began_s = time.monotonic()
    with Proxy(zookeeper.port) as proxy:
        getattr(proxy, how)()
        with pytest.raises(MetadataUnavailable):
            await connect_zookeeper(proxy.address, connect_s=0.2)
    assert time.monotonic() - began_s < LONG_S  # there is nobody to say farewell to
    assert no_thread_is_left()


class Nonsense(socketserver.BaseRequestHandler):
    """Grants a session as ZooKeeper does, then answers what nobody asked."""

    def handle(self):
        if not self.request.recv(4096):
            return
        session = struct.pack(">iiqi16sb", 0, 10_000, 7, 16, bytes(16), 0)
        self.request.sendall(struct.pack(">i", len(session)) + session)
        while self.request.recv(4096):
            self.request.sendall(struct.pack(">iiqi", 16, 999, 1, 0))


@pytest.fixture
def nonsense():
    """The address of a server that answers nonsense."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Nonsense) as server:
        server.daemon_threads = True
        serving = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        serving.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        serving.join()


async def test_a_server_that_answers_nonsense_is_no_server(nonsense):
    async with connected(nonsense, "") as store:
        for _ in range(3):
            with pytest.raises(MetadataUnavailable):
                await store.get("/")
    assert no_thread_is_left()


async def test_a_connect_that_is_cancelled_leaves_nothing(zookeeper):
    with Proxy(zookeeper.port) as proxy:
        proxy.freeze()
        connecting = asyncio.ensure_future(connect_zookeeper(proxy.address))
        assert await waits(connecting)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        assert await asyncio.to_thread(no_thread_is_left)


# Servers that die


async def test_a_server_that_takes_a_connection_and_says_nothing_is_asked_again(zookeeper):
    """As a starting ZooKeeper does; a session of 20 s must not be lost by waiting for it."""
    root = zookeeper.unused_chroot()
    with Proxy(zookeeper.port) as proxy:
        async with connected(proxy.address, root, session_ms=20_000) as store:
            proxy.drop(TO_SERVER)
            proxy.cut()
            await until(lambda: proxy.lost_bytes(TO_SERVER) > 0, "words to be lost")
            proxy.heal()  # for the next connection: what was lost stays lost
            async with asyncio.timeout(15):
                assert await store.exists("/")


async def test_a_killed_server_that_comes_back_finds_its_clients_again(own_server, caplog):
    async with connected(own_server.servers, "/t", session_ms=20_000) as store:
        told, renewed = Told(), Told()
        store.watch_session(renewed)
        await store.create("/a", b"x")
        await store.create("/live", ephemeral=True)
        store.watch("/a", told)
        await store.get("/a")
        await asyncio.to_thread(own_server.restart, kill=True)
        async with connected(own_server.servers, "/t") as other:
            await other.set("/a", b"y", 0)
            await told.times(1)
            assert await store.get("/a") == Node(b"y", 1)
            assert await other.exists("/live")
            assert renewed.count == 0
    assert "socket connection error: " in caplog.text
    assert "error: None" not in caplog.text


async def test_a_store_outlives_a_pause_longer_than_its_session(own_server):
    async with (
        connected(own_server.servers, "/t") as other,
        connected(own_server.servers, "/t", session_ms=SHORT_MS) as store,
    ):
        told = Told()
        await other.create("/a")
        store.watch("/a", told)
        await patient(lambda: store.get("/a"))
        own_server.pause()
        with pytest.raises(MetadataUnavailable):  # the connection is given up
            await store.get("/a")
        with pytest.raises(MetadataUnavailable):  # and no other is to be had in a session
            await store.get("/a")
        own_server.resume()
        await patient(lambda: other.set("/a", b"new", ANY_VERSION))
        await told.times(1)
        assert (await patient(lambda: store.get("/a"))).data == b"new"


async def test_ephemeral_nodes_of_a_killed_process_go_after_its_session(zookeeper, tmp_path):
    root = zookeeper.unused_chroot()
    argv = [sys.executable, "-m", "tests.ledger.zookeeper_child", zookeeper.servers, root]

    async def gone_after_it_lived():
        told = Told()
        with Process(argv, tmp_path / "child.log") as child:
            unwatch = store.watch("/live", told)
            await told.times(1)
            lived = await store.exists("/live")
            child.kill()
            await told.times(2)
            unwatch()
        return lived and not await store.exists("/live")

    async with connected(zookeeper.servers, root) as store:
        assert await in_some_try(gone_after_it_lived, zookeeper)


# Closing


async def test_close_ends_the_session_and_its_ephemeral_nodes(zookeeper):
    root = zookeeper.unused_chroot()
    async with connected(zookeeper.servers, root) as other:
        async with connected(zookeeper.servers, root) as store:
            await store.create("/live", ephemeral=True)
            unanswered = asyncio.ensure_future(store.get("/"))
            await asyncio.sleep(0)
        assert not await other.exists("/live")
        assert (await unanswered) == Node(b"", 0)


@pytest.mark.parametrize("how", ["refuse", "freeze"])
async def test_close_is_bounded_when_no_server_answers(zookeeper, how, monkeypatch):
    """Else it lasts until a silent connection is given up, after two thirds of the session."""
    monkeypatch.setattr(zookeeper_bridge, "CLOSE_S_MAX", 0.5)
    with Proxy(zookeeper.port) as proxy:
        root, session_ms = zookeeper.unused_chroot(), round(3000 * LONG_S / 2)
        store = await connect_zookeeper(proxy.address, chroot=root, session_ms=session_ms)
        getattr(proxy, how)()
        asked = [asyncio.ensure_future(store.get("/")) for _ in range(IN_FLIGHT_MAX + 10)]
        await asyncio.sleep(0)
        began_s = time.monotonic()
        await store.close()
        assert time.monotonic() - began_s < LONG_S
        for result in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(result, MetadataUnavailable)
    assert no_thread_is_left()
