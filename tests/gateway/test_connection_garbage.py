"""Goal: a connection that is gone leaves nothing to the cyclic collector.

Method: a port in this process; its collector is off, so only reference counts free an object.
Each TLS connection keeps memory of OpenSSL that the collector does not count: thousands of dead
ones would stay until it runs by chance.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter

import pytest

from gateway.config import ConnectionLimits, SaslConfig, TlsConfig
from gateway.server.connection import Connection
from gateway.server.tls_transport import TlsTransport
from tests.gateway.pki import Authority
from tests.gateway.secure_rig import LEAVE_GROUP, Client, client_tls, secure_port

pytestmark = pytest.mark.real_loop
EACH = 5
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    made = Authority(tmp_path_factory.mktemp("pki") / "ca")
    made.issue("server")
    return made


async def silent(client):
    """Send nothing."""


async def nonsense(client):
    client.writer.write(b"\xff" * 64)
    await client.reader.read()


async def half_a_frame(client):
    client.writer.write((100_000).to_bytes(4, "big") + b"\0" * 50_000)


async def wrong_password(client):
    assert (await client.scram(password="wrong")).error_code.value


async def logged_in(client):
    assert (await client.scram()).error_code.value == 0
    await client.ask(LEAVE_GROUP, 3, group_id="g", members=())


async def one_request(client):
    await client.ask(LEAVE_GROUP, 3, group_id="g", members=())


async def unanswered(client):
    client.send(LEAVE_GROUP, 3, group_id="g", members=())


ANY = (silent, nonsense, half_a_frame)
OPEN, LOGINS = (one_request, unanswered), (wrong_password, logged_in)
CASES = [
    pytest.param(protocol, behaviour, id=f"{protocol}-{behaviour.__name__}")
    for protocol in PROTOCOLS
    for behaviour in (*ANY, *(LOGINS if protocol.startswith("SASL") else OPEN))
]


@pytest.mark.parametrize(("protocol", "behaviour"), CASES)
async def test_connections_that_are_gone_are_freed_at_once(
    authority, protocol, behaviour, no_collector
):
    await visited(authority, protocol, behaviour, ConnectionLimits())


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_refused_connections_are_freed_at_once(authority, protocol, no_collector):
    await visited(authority, protocol, silent, ConnectionLimits(connections_max=1))


async def test_a_peer_without_tls_is_freed_at_once(authority, no_collector):
    await visited(authority, "SSL", nonsense, ConnectionLimits(), encrypted=False)


async def visited(authority, protocol, behaviour, limits, *, encrypted=True):
    """Let clients come and go, and compare the objects of their connections with none."""
    sasl, tls = SaslConfig(failure_s=0.1), TlsConfig(keystore=authority.path / "server.pem")
    before = alive()
    async with secure_port(tls, sasl, limits=limits, protocols=(protocol,)) as port:
        context = client_tls(authority) if protocol.endswith("SSL") and encrypted else None
        for _ in range(EACH):
            try:
                client = await Client.connect(port.at(protocol), context)
            except OSError:  # refused during the handshake
                continue
            try:
                await behaviour(client)
            except (OSError, EOFError):
                pass
            finally:
                client.close()
                Client.opened.remove(client)
        async with asyncio.timeout(60.0):
            while port.registry.connections or alive() != before:
                await asyncio.sleep(0.01)


def alive():
    return Counter(
        type(each).__name__
        for each in gc.get_objects()
        if isinstance(each, Connection | TlsTransport)
    )
