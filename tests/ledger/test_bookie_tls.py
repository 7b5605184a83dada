"""Goal: a bookie with TLS serves peers of its authority, and no others, over either transport.
Method: a real bookie on a port; certificates of our own making.
"""

import asyncio
import ssl
from contextlib import asynccontextmanager, suppress

import pytest

from ledger.adapters.grpc.grpc_library import aio, grpc
from ledger.adapters.links.link_config import TlsFiles
from ledger.ports.bookies import Status
from ledger.wire.tcp_frames import hello_frame
from tests.ledger.authority import Authority
from tests.ledger.remote_world import Client, Served
from tests.ledger.transports import on_transport

pytestmark = [pytest.mark.real_loop, pytest.mark.usefixtures("transport")]


@asynccontextmanager
async def served_with_tls(tmp_path):
    """A bookie with TLS and its authority. Only its owner may have logged an entry at the end."""
    authority = Authority(tmp_path / "ours", "our authority")
    async with Served(tmp_path / "bookie", tls=authority.files("bookie")) as served:
        before = served.bookie.groups
        yield served, authority
        assert served.bookie.groups == before
        async with Client(served, tls=authority.files("gateway")) as client:
            assert await client.add(served.id, 0) is Status.OK
            assert (await client.port.read(served.id, 7, 0)).status is Status.OK


async def test_peers_with_a_certificate_of_the_same_authority_are_served(tmp_path):
    async with served_with_tls(tmp_path):
        pass


async def test_a_peer_without_tls_is_refused(tmp_path):
    async with served_with_tls(tmp_path) as (served, _authority), Client(served) as client:
        assert await client.add(served.id, 0) is Status.UNREACHABLE


async def test_a_peer_without_a_certificate_is_refused(tmp_path, transport):
    async with served_with_tls(tmp_path) as (served, authority):
        if transport == "grpc":
            await refused_by_grpc(served, authority)
        else:
            context = ssl.create_default_context(cafile=authority.path / "ca.pem")
            await hung_up_on(served, hello_frame(served.id), context)


async def refused_by_grpc(served, authority):
    ca = (authority.path / "ca.pem").read_bytes()
    channel = aio.secure_channel(
        f"127.0.0.1:{served.port}", grpc.ssl_channel_credentials(root_certificates=ca)
    )
    with pytest.raises(aio.AioRpcError) as refused:
        await channel.unary_unary("/ledger.wire.Bookie/Info")(b"", timeout=60)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    await channel.close()


async def hung_up_on(served, first, context=None):
    """Send these bytes; the bookie closes the connection without an answer."""
    async with asyncio.timeout(60):
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port, ssl=context)
            writer.write(first)
            assert await reader.read() == b""
            writer.close()


async def test_plain_frames_get_no_answer_from_a_bookie_with_tls(tmp_path):
    with on_transport("tcp"):
        async with served_with_tls(tmp_path) as (served, _authority):
            await hung_up_on(served, hello_frame(served.id))


async def test_a_peer_of_another_authority_is_refused(tmp_path):
    async with served_with_tls(tmp_path) as (served, authority):
        foreign = Authority(tmp_path / "theirs", "another authority").files("gateway")
        mixed = TlsFiles(cert=foreign.cert, key=foreign.key, ca=authority.path / "ca.pem")
        for tls in (foreign, mixed):
            async with Client(served, tls=tls) as client:
                assert await client.add(served.id, 0) is Status.UNREACHABLE


async def test_a_peer_whose_certificate_has_expired_is_refused(tmp_path):
    async with served_with_tls(tmp_path) as (served, authority):
        expired = authority.files("expired", roles=["gateway"], days=-1)
        async with Client(served, tls=expired) as client:
            assert await client.add(served.id, 0) is Status.UNREACHABLE


async def test_a_bookie_whose_certificate_has_expired_is_not_trusted(tmp_path):
    authority = Authority(tmp_path / "ours", "our authority")
    expired = authority.files("bookie", days=-1)
    async with (
        Served(tmp_path / "bookie", tls=expired) as served,
        Client(served, tls=authority.files("gateway")) as client,
    ):
        assert await client.add(served.id, 0) is Status.UNREACHABLE


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_tls_1_1_is_refused(tmp_path):
    with on_transport("tcp"):
        async with served_with_tls(tmp_path) as (served, authority):
            files = authority.files("old", roles=["gateway"])
            context = ssl.create_default_context(cafile=files.ca)
            context.load_cert_chain(files.cert, files.key)
            context.set_ciphers("ALL:@SECLEVEL=0")
            context.minimum_version = ssl.TLSVersion.TLSv1
            context.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises((ssl.SSLError, ConnectionError)):  # the alert may come too late
                await asyncio.open_connection("127.0.0.1", served.port, ssl=context)


async def test_a_bookie_whose_certificate_names_another_host_is_not_trusted(tmp_path):
    authority = Authority(tmp_path / "ours", "our authority")
    elsewhere = authority.files("bookie", host="10.1.2.3")
    trusting = authority.files("gateway")
    async with (
        Served(tmp_path / "bookie", tls=elsewhere) as served,
        Client(served, tls=trusting) as client,
    ):
        assert await client.add(served.id, 0) is Status.UNREACHABLE
