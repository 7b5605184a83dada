"""Goal: TLS to ZooKeeper protects every byte, and a server that is not the right one is refused.

Method: a real ZooKeeper with a port of TLS beside the plain one, behind a proxy that looks at the
bytes; certificates of two authorities. Records that poll cannot see come from a server of ours.
"""

import asyncio
import contextlib
import json
import os
import socket
import ssl
import struct
import threading

import pytest

from ledger.adapters.zookeeper import zookeeper_connection
from ledger.adapters.zookeeper.close_session import Session, close_session
from ledger.adapters.zookeeper.zookeeper_access import ZooKeeperAccess
from ledger.adapters.zookeeper.zookeeper_connection import ZooKeeperHandler
from ledger.adapters.zookeeper.zookeeper_metadata import connect_zookeeper
from ledger.adapters.zookeeper.zookeeper_tls import ZooKeeperTls
from ledger.errors import MetadataUnavailable
from tests.ledger.authority import Authority
from tests.ledger.zookeeper_rig import Told, lasting, patient, refused
from tests.peers.processes import free_port, until
from tests.peers.proxy import Proxy
from tests.peers.zookeeper import ServerTls, ZooKeeper

pytestmark = [pytest.mark.real_loop, pytest.mark.zookeeper]

LARGE = os.urandom(300_000)


def keystore(files):
    """Return one file with the key and the certificate, as a keystore in PEM has them."""
    joined = files.cert.with_suffix(".both.pem")
    joined.write_bytes(files.key.read_bytes() + files.cert.read_bytes())
    joined.chmod(0o600)
    return joined


class Site:
    """A ZooKeeper with TLS, and the files of its clients."""

    def __init__(self, path):
        self.authority = Authority(path / "authority", "ours")
        self.foreign = Authority(path / "foreign", "theirs")
        self.ca = self.authority.path / "ca.pem"
        self.own = keystore(self.authority.files("gateway"))
        server = keystore(self.authority.files("zookeeper"))
        self.server = ZooKeeper(path / "data", tls=ServerTls(server, self.ca))

    def access(self, truststore=None, own=None):
        return ZooKeeperAccess(tls=ZooKeeperTls(str(truststore or self.ca), str(own or self.own)))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    made = Site(tmp_path_factory.mktemp("tls"))
    with made.server:
        yield made


async def test_requests_watches_and_large_nodes_pass_encrypted(site):
    root = site.server.unused_chroot()
    with Proxy(site.server.secure_port) as proxy:
        store = await connect_zookeeper(
            proxy.address, chroot=root, access=site.access(), connect_s=60, prove_session=True
        )
        told = Told()
        store.watch("/large", told)
        await store.create("/large", LARGE)
        assert (await store.get("/large")).data == LARGE
        await told.times(1)
        proven_s = store.confirmed_s
        await until(lambda: store.confirmed_s > proven_s, "the session to be proved again")
        proxy.cut()
        assert (await patient(lambda: store.get("/large"))).data == LARGE
        await store.set("/large", b"small", 0)
        await told.times(2)
        await store.close()
    plain = await lasting(site.server.servers, chroot=root)
    assert (await plain.get("/large")).data == b"small"
    await plain.close()


async def test_many_requests_in_flight_are_all_answered(site):
    root = site.server.unused_chroot()
    store = await lasting(site.server.secure_servers, chroot=root, access=site.access())
    await asyncio.gather(*(store.create(f"/n{each}", LARGE[:2000]) for each in range(500)))
    assert len(await store.read_tree("/")) == 500
    await store.close()


REFUSALS = {
    "a name that the certificate does not have": (
        lambda site: (f"localhost:{site.server.secure_port}", site.access()),
        "TLS with localhost: its certificate is refused: Hostname mismatch",
    ),
    "another authority": (
        lambda site: (site.server.secure_servers, site.access(site.foreign.path / "ca.pem")),
        "its certificate is refused: unable to get local issuer certificate",
    ),
    "a certificate that the server does not trust": (
        lambda site: (
            site.server.secure_servers,
            site.access(own=keystore(site.foreign.files("stranger"))),
        ),
        "no ZooKeeper within",
    ),
    "a server without TLS": (
        lambda site: (site.server.servers, site.access()),
        "TLS with 127.0.0.1: the server closed the connection",
    ),
    "a missing file": (
        lambda site: (site.server.secure_servers, site.access("/nowhere/ca.pem")),
        "/nowhere/ca.pem: No such file",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_what_is_wrong_is_refused_with_its_reason(site, case):
    make, reason = REFUSALS[case]
    servers, access = make(site)
    await refused(reason, servers, access=access)


async def test_a_client_without_tls_is_refused_by_the_port_of_tls(site):
    await refused("no ZooKeeper within", site.server.secure_servers)


async def test_nothing_readable_leaves_before_the_certificate_was_verified(site):
    """A listener that answers nothing sees a hello of TLS and no request of ZooKeeper."""
    seen = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def take():
            taken, _ = listener.accept()
            with taken:
                seen.append(taken.recv(4096))

        thread = threading.Thread(target=take)
        thread.start()
        while not seen:
            with pytest.raises(MetadataUnavailable):
                await connect_zookeeper(f"127.0.0.1:{port}", access=site.access(), connect_s=0.5)
        thread.join()
    assert seen[0].startswith(b"\x16\x03")


async def test_the_child_closes_a_session_over_tls(site):
    sessions = []
    root = site.server.unused_chroot()
    store = await lasting(
        site.server.secure_servers,
        chroot=root,
        access=site.access(),
        on_session=sessions.append,
    )
    await store.create("/mine", ephemeral=True)
    session = Session.of_line(sessions[-1].line())
    assert session == sessions[-1]
    assert json.loads(bytes.fromhex(session.tls))[0] == str(site.ca)
    assert session.servers[0] == ("127.0.0.1", site.server.secure_port)
    assert await asyncio.to_thread(close_session, session)
    plain = await lasting(site.server.servers, chroot=root)
    assert await plain.children("/") == []
    await plain.close()
    await store.close()


class OneRecord:
    """A server of TLS that sends several messages of ZooKeeper in one record, then stays silent."""

    def __init__(self, files, messages):
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(str(files.cert), str(files.key))
        self._messages = messages
        self.port = free_port()
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._listener.close()
        self._thread.join()

    def _serve(self):
        with contextlib.suppress(OSError):
            taken, _ = self._listener.accept()
            with self._context.wrap_socket(taken, server_side=True) as served:
                served.recv(1)
                served.sendall(self._messages)
                served.recv(1)


def test_bytes_inside_the_tls_layer_are_found_though_poll_sees_none(site, monkeypatch):
    tickets = 0
    message = struct.pack(">i", 3) + b"abc"
    handler = ZooKeeperHandler(lambda item: None, site.access().tls)

    class Client:
        def __init__(self):
            self.handler = handler

    files = site.authority.files("records")
    with OneRecord(files, message * 1000) as server:
        made = zookeeper_connection.ZooKeeperConnection(
            Client(), None, lambda item: None, None, site.access()
        )
        made._socket = handler.create_connection(
            ("127.0.0.1", server.port), 5.0, hostname="127.0.0.1", use_ssl=False
        )
        made._socket.setblocking(False)
        made._socket.send(b"x")
        # Much smaller reads than a record: most of it waits inside the TLS layer.
        monkeypatch.setattr(zookeeper_connection, "_READ_BYTES", 5)
        with made._socket:
            # Tickets of the session are records too: a poll reports them, and no message came.
            while not (ready := made._ready([made._socket], 5.0)):
                tickets += 1
            assert ready == [made._socket]
            taken = [made._read(7, 5.0)]
            while len(taken) < 1000:
                assert made._ready([made._socket], 5.0) == [made._socket]
                taken.append(made._read(7, 5.0))
    handler.close()
    assert taken == [message] * 1000
    assert tickets > 0
