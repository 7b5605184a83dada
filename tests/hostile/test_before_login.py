"""Goal: no bytes before a login end the process, leave a traceback, or take memory for long.

Method: the port in this process with TLS and SASL; frames drawn from a seed, cut, grown, with
other lengths, keys and versions, tokens of every mechanism, and bytes of other protocols. A commit
sends thousands of them, `make proof` a million, and reads the memory of the process. A client that
has logged in goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import os
import struct

import pytest

from gateway.config import ConnectionLimits, OAuthConfig, SaslConfig, TlsConfig
from gateway.security.bearer_keys import BearerKeys
from gateway.wire.messages import encode_request
from ledger.adapters.system.clock import SystemClock
from tests.gateway.issuer import AUDIENCE, ISSUER, Issuer
from tests.gateway.pki import Authority
from tests.gateway.secure_rig import Client, client_tls, secure_port
from tests.hostile.login_frames import MECHANISMS, Drawn

pytestmark = pytest.mark.real_loop
MIB = 1024 * 1024
SEED = 18
IN_A_COMMIT = 1_500
AT_ONCE = 150
RSS_BYTES_MAX = 64 * MIB


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    made = Authority(tmp_path_factory.mktemp("pki") / "ca")
    made.issue("server")
    (made.path / "jwks.json").write_bytes(Issuer().jwks())
    return made


def port_of(authority, **limits):
    keys = BearerKeys(
        OAuthConfig(jwks=authority.path / "jwks.json", issuer=ISSUER, audiences=(AUDIENCE,)),
        SystemClock().now_ms,
    )
    keys.load()
    sasl = SaslConfig(mechanisms=MECHANISMS, failure_s=0.1, checks_waiting_max=16)
    tls = TlsConfig(keystore=authority.path / "server.pem")
    protocols = ("SASL_SSL", "SASL_PLAINTEXT", "PLAINTEXT")
    found = ConnectionLimits(**limits)
    return secure_port(tls, sasl, limits=found, protocols=protocols, bearers=keys)


def rss_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def sent(port, drawn, tls, count):
    """Send `count` frames at least, over many connections. Returns how many were sent."""
    done = 0

    async def one():
        nonlocal done
        script = drawn.script()
        encrypted = drawn.draw.random() < 0.1
        at = port.at("SASL_SSL" if encrypted else "SASL_PLAINTEXT")
        client = await Client.connect(at, tls if encrypted else None)
        try:
            for each in script:
                client.writer.write(each)
                done += 1
            await client.writer.drain()
            async with asyncio.timeout(0.15):
                await client.reader.read(1 << 16)
        except (OSError, TimeoutError):
            pass
        finally:
            client.close()
            Client.opened.remove(client)

    while done < count:
        await asyncio.gather(*(one() for _ in range(AT_ONCE)))
    return done


async def attacked(authority, count, capsys):
    """Attack a port while a client that has logged in goes on. Returns how much memory it took."""
    async with port_of(authority) as port:
        tls = client_tls(authority)
        known = await Client.connect(port.at("SASL_SSL"), tls)
        assert (await known.scram()).error_code.value == 0
        Client.opened.remove(known)
        drawn = Drawn(SEED)
        await sent(
            port, drawn, tls, min(count // 5, 20_000)
        )  # what stays of the first ones is no growth
        gc.collect()
        before, most = rss_bytes(), 0
        done, step = 0, max(500, count // 50)
        while done < count:
            done += await sent(port, drawn, tls, step)
            await known.who()
            most = max(most, rss_bytes() - before)
        async with asyncio.timeout(10.0):
            while len(port.registry.connections) > 1:
                await asyncio.sleep(0)
        assert port.registry.login_memory.used_bytes == 0
        again = await Client.connect(port.at("SASL_SSL"), tls)
        assert (await again.scram()).error_code.value == 0
        assert set(port.principals) == {"User:alice"}
        known.close()
    text = capsys.readouterr().err
    assert "Traceback" not in text
    assert "our fault" not in text
    return most, done


async def test_hostile_frames_leave_no_traceback_and_little_memory(authority, capsys):
    most, done = await attacked(authority, IN_A_COMMIT, capsys)
    assert done >= IN_A_COMMIT
    assert most < RSS_BYTES_MAX


@pytest.mark.proof
async def test_a_million_hostile_frames_leave_no_traceback_and_little_memory(authority, capsys):
    most, done = await attacked(authority, int(os.environ.get("FRAMES", "1000000")), capsys)
    with capsys.disabled():
        print(f"{done} frames before a login: RSS grew by {most / MIB:.1f} MiB at most")
    assert most < RSS_BYTES_MAX


# -- memory ----------------------------------------------------------------------------------------


async def test_clients_without_a_login_share_a_part_of_the_memory_and_stop_no_others(authority):
    """400 clients announce a frame of 500 KiB each and send most of it: 200 MB in all."""
    async with port_of(authority) as port:
        registry = port.registry
        known = await Client.connect(port.at("SASL_PLAINTEXT"))
        assert (await known.scram()).error_code.value == 0
        size = 500 * 1024
        clients = [await Client.connect(port.at("SASL_PLAINTEXT")) for _ in range(400)]
        for each in clients:
            each.writer.write(size.to_bytes(4, "big") + bytes(size - 1_000))
        for _ in range(300):
            await asyncio.sleep(0)
        assert registry.login_memory.used_bytes > 16 * MIB
        assert registry.login_memory.used_bytes <= 64 * MIB
        assert registry.memory.used_bytes < MIB
        members = [{"member_id": "m" * 30_000, "group_instance_id": None}] * 100
        async with asyncio.timeout(10.0):
            assert (await known.ask(13, 3, group_id="g", members=members)).error_code.value == 0
        for each in clients:
            each.close()
        Client.opened.clear()
        known.close()
        async with asyncio.timeout(10.0):
            while registry.connections:
                await asyncio.sleep(0)
        assert registry.login_memory.used_bytes == registry.memory.used_bytes == 0


async def test_a_login_moves_what_a_client_has_sent_to_the_memory_of_all(authority):
    """The request behind the login is large, and arrives in parts around it."""
    async with port_of(authority) as port:
        registry = port.registry
        client = await Client.connect(port.at("SASL_SSL"), client_tls(authority))
        await client.handshake("PLAIN")
        frame = encode_request(36, 2, 2, "c", {"auth_bytes": "\0alice\0pa,ss=wörd".encode()})
        members = [{"member_id": "m" * 30_000, "group_instance_id": None}] * 15
        large = encode_request(13, 3, 3, "c", {"group_id": "g", "members": members})
        whole = b"".join(struct.pack(">i", len(each)) + each for each in (frame, large))
        client.writer.write(whole[:-200_000])  # while the password is checked
        assert len(await client.frame()) > 0
        client.writer.write(whole[-200_000:])
        assert len(await client.frame()) > 0
        assert port.principals == ["User:alice"]
        assert registry.login_memory.used_bytes == registry.memory.used_bytes == 0
        client.close()


async def test_a_port_without_sasl_reserves_no_memory_for_logins():
    async with secure_port(protocols=("PLAINTEXT",)) as port:
        assert port.registry.login_memory is port.registry.memory


async def test_a_large_frame_after_the_login_is_taken_in_a_small_memory(authority):
    limits = {"memory_bytes_max": 200 * MIB, "frame_bytes_max": 100 * MIB}
    async with port_of(authority, **limits) as port:
        client = await Client.connect(port.at("SASL_PLAINTEXT"))
        assert (await client.scram()).error_code.value == 0
        members = [{"member_id": "m" * 32_000, "group_instance_id": None}] * 900
        assert (await client.ask(13, 3, group_id="g", members=members)).error_code.value == 0
