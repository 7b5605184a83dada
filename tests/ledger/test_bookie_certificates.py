"""Goal: certificates of bookies and their clients are read again, and no connection is dropped.

Method: a real bookie behind both servers. Its files are replaced; connections that are open go on,
new ones get the new certificates, and faulty files change nothing.
"""

import asyncio
import os

import pytest

from ledger.adapters.links.link_config import TlsFiles
from ledger.adapters.links.tls_identity import TlsFault, TlsIdentity
from ledger.core.bookie_roles import Role
from ledger.ports.bookies import Status
from tests.ledger.authority import Authority
from tests.ledger.test_bookie_roles import KEPT, Rig

pytestmark = pytest.mark.real_loop
TRANSPORTS = pytest.mark.parametrize("transport", ["tcp", "grpc"])


def put(new, old):
    """Put the content of files into the place of others, as an operator does: by renaming."""
    for name in ("cert", "key", "ca"):
        source, place = getattr(new, name), getattr(old, name)
        copy = place.with_suffix(".new")
        copy.write_bytes(source.read_bytes())
        copy.chmod(0o600)
        copy.replace(place)


async def read(port, rig):
    return (await port.read(rig.bookie.bookie_id, KEPT, 0)).status


@TRANSPORTS
async def test_a_bookie_takes_new_certificates_and_keeps_its_connections(tmp_path, transport):
    async with Rig(tmp_path) as rig:
        old = rig.client(Role.READER, transport)
        assert await read(old, rig) is Status.OK
        link = old._link(rig.bookie.bookie_id)
        # Both the bookie and the client move to another authority.
        theirs = Authority(tmp_path / "next", "the next authority")
        put(theirs.files("bookie"), rig.files[Role.BOOKIE])
        assert rig.identity.reload()
        assert await read(old, rig) is Status.OK
        assert old._link(rig.bookie.bookie_id) is link
        rig.files[Role.READER] = theirs.files("reader")
        new = rig.client(Role.READER, transport)
        assert await read(new, rig) is Status.OK
        # A certificate of the old authority counts no more, although its owner trusts the new one.
        behind = rig.authority.files("behind", roles=[Role.READER])
        ca = theirs.path / "ca.pem"
        rig.files["left behind"] = TlsFiles(cert=behind.cert, key=behind.key, ca=ca)
        late = rig.client("left behind", transport)
        assert await read(late, rig) is Status.UNREACHABLE
        for port in (old, new, late):
            await port.close()


@TRANSPORTS
async def test_a_client_takes_new_certificates_for_its_next_connection(tmp_path, transport):
    async with Rig(tmp_path) as rig:
        rig.files["mine"] = rig.authority.files("mine")
        port = rig.client("mine", transport)
        assert await read(port, rig) is Status.PERMISSION_DENIED
        name = rig.bookie.bookie_id
        put(rig.authority.files("renewed", roles=[Role.READER]), rig.files["mine"])
        port._link(name).close()
        async with asyncio.timeout(60):
            while await read(port, rig) is not Status.OK:
                await asyncio.sleep(0.01)
        await port.close()


async def test_a_bookie_notices_changed_files_by_itself(tmp_path):
    async with Rig(tmp_path) as rig:
        renewed = rig.authority.files("renewed", roles=[Role.BOOKIE])
        put(renewed, rig.files[Role.BOOKIE])
        rig.tcp._refresh_at_s = 0.0
        async with asyncio.timeout(60):
            while not rig.identity.version:
                await asyncio.sleep(0.01)
        assert rig.identity.pem.cert == renewed.cert.read_bytes()
        port = rig.client(Role.READER, "tcp")
        assert await read(port, rig) is Status.OK
        await port.close()


async def test_no_client_is_refused_while_certificates_change(tmp_path):
    async with Rig(tmp_path) as rig:

        async def connects():
            port = rig.client(Role.READER, "tcp")
            try:
                return await read(port, rig)
            finally:
                await port.close()

        clients = [asyncio.ensure_future(connects()) for _ in range(5)]
        for number in range(4):
            put(rig.authority.files(f"b{number}", roles=[Role.BOOKIE]), rig.files[Role.BOOKIE])
            assert rig.identity.reload()
            clients += [asyncio.ensure_future(connects()) for _ in range(5)]
        assert await asyncio.gather(*clients) == [Status.OK] * 25


def test_files_that_do_not_belong_together_change_nothing(tmp_path):
    authority = Authority(tmp_path / "ours", "ours")
    files = authority.files("bookie")
    identity = TlsIdentity(files)
    before = identity.pem
    other = authority.files("other")
    os.replace(other.cert, files.cert)
    assert not identity.refresh()
    assert (identity.pem, identity.version) == (before, 0)
    assert not identity.refresh()  # a fault is logged once, not at each look
    os.replace(other.key, files.key)
    assert identity.refresh()
    assert identity.version == 1


def test_a_key_that_others_may_read_is_refused_and_a_link_is_followed(tmp_path):
    authority = Authority(tmp_path / "ours", "ours")
    files = authority.files("bookie")
    real = files.key.rename(tmp_path / "real.key")
    files.key.symlink_to(real)
    identity = TlsIdentity(files)
    real.chmod(0o640)
    with pytest.raises(TlsFault, match="chmod 600"):
        TlsIdentity(files)
    assert not identity.reload()
    real.chmod(0o600)
    assert TlsIdentity(files).pem == identity.pem


def test_a_pipe_or_a_directory_is_no_key(tmp_path):
    files = Authority(tmp_path / "ours", "ours").files("bookie")
    files.key.unlink()
    os.mkfifo(files.key, 0o600)
    with pytest.raises(TlsFault, match="is no file"):
        TlsIdentity(files)
