"""Goal: a listener with TLS admits, limits and names its clients from accept on.

Method: the port in this process on loopback, and clients of Python's `ssl` and of bare sockets.
The limit that counts only after the handshake is planted, and the same check finds it.
"""

from __future__ import annotations

import asyncio
import datetime
import ssl

import pytest

from gateway.config import ConnectionLimits, TlsConfig
from gateway.security.tls_contexts import TlsFault, server_context
from gateway.server.registry import Refused
from gateway.server.tls_transport import TlsTransport
from gateway.wire.messages import encode_request
from tests.gateway.pki import Authority
from tests.gateway.secure_rig import Client, client_tls, secure_port
from tests.leaping_loop import leap, leaping
from tests.peers.processes import until

pytestmark = pytest.mark.real_loop

LONG_S = 120.0  # what ends at once does not wait for a limit that is so long


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    made = Authority(tmp_path_factory.mktemp("pki") / "ca")
    made.issue("server")
    made.client, _, made.client_file = made.issue("client")
    made.other, _, made.other_file = made.issue("other")
    return made


def tls_of(authority, **options):
    options.setdefault("truststore", authority.trusted)
    return TlsConfig(keystore=authority.path / "server.pem", **options)


async def principal_of(port, context, listener="SSL"):
    client = await Client.connect(port.at(listener), context)
    await client.who()
    client.close()
    return port.principals[-1]


async def fails(port, context):
    """True if no request of this client is answered."""
    try:
        client = await Client.connect(port.at("SSL"), context)
        client.send(13, 3, group_id="g", members=[])
        return await client.is_closed()
    except (ssl.SSLError, OSError):
        return True


async def test_a_client_without_a_certificate_is_anonymous(authority):
    async with secure_port(tls_of(authority)) as port:
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = client_tls(authority, minimum_version=version, maximum_version=version)
            assert await principal_of(port, context) == "User:ANONYMOUS"


async def test_a_certificate_names_the_client_through_the_rules(authority):
    for rules, name in (("DEFAULT", "CN=client"), ("RULE:^CN=(.*)$/$1/U", "CLIENT")):
        tls = tls_of(authority, client_auth="required", principal_rules=rules)
        async with secure_port(tls) as port:
            context = client_tls(authority, authority.client_file)
            assert await principal_of(port, context) == f"User:{name}"


async def test_a_certificate_without_a_rule_is_refused(authority):
    tls = tls_of(authority, client_auth="required", principal_rules="RULE:^CN=nobody$/x/")
    async with secure_port(tls) as port:
        assert await fails(port, client_tls(authority, authority.client_file))
        assert port.registry.refusals[Refused.LOGIN] == 1
        assert port.principals == []


async def test_a_required_certificate_must_be_there_and_of_the_authority(authority, tmp_path):
    foreign = Authority(tmp_path / "foreign", "foreign")
    foreign.issue("client")
    _, _, old = authority.issue("old", ends_in=datetime.timedelta(hours=-1))
    async with secure_port(tls_of(authority, client_auth="required")) as port:
        for keystore in (None, foreign.path / "client.pem", old):
            assert await fails(port, client_tls(authority, keystore))
        assert port.registry.refusals[Refused.HANDSHAKE] == 3
        assert port.principals == []


async def test_a_requested_certificate_may_be_missing_but_not_foreign(authority, tmp_path):
    foreign = Authority(tmp_path / "foreign", "foreign")
    foreign.issue("client")
    async with secure_port(tls_of(authority, client_auth="requested")) as port:
        assert await principal_of(port, client_tls(authority)) == "User:ANONYMOUS"
        assert await fails(port, client_tls(authority, foreign.path / "client.pem"))


async def test_a_revoked_certificate_is_refused(authority):
    revoked = authority.revoke(authority.other)
    async with secure_port(tls_of(authority, client_auth="required", revoked=revoked)) as port:
        assert await principal_of(port, client_tls(authority, authority.client_file))
        assert await fails(port, client_tls(authority, authority.other_file))


async def test_old_versions_and_missing_suites_end_the_handshake(authority):
    tls = tls_of(authority, protocols=("TLSv1.2",), ciphers=("ECDHE-ECDSA-AES256-GCM-SHA384",))
    async with secure_port(tls) as port:
        old = client_tls(authority, minimum_version=ssl.TLSVersion.TLSv1_3)
        assert await fails(port, old)
        other = client_tls(authority)
        other.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
        assert await fails(port, other)
        assert await principal_of(port, client_tls(authority)) == "User:ANONYMOUS"


async def test_plain_bytes_end_at_once_with_one_hint(authority, capsys):
    async with secure_port(tls_of(authority, handshake_s_max=LONG_S)) as port:
        for _ in range(3):
            client = await Client.connect(port.at("SSL"))
            client.send(18, 0)
            async with asyncio.timeout(LONG_S / 2):
                assert await client.is_closed()
        (line,) = capsys.readouterr().err.splitlines()
        assert "this port has TLS" in line


async def test_a_tls_hello_on_a_plain_port_ends_at_once_with_one_hint(authority, capsys):
    async with secure_port(protocols=("PLAINTEXT",)) as port:
        async with asyncio.timeout(LONG_S / 2):
            with pytest.raises((ssl.SSLError, OSError)):
                await Client.connect(port.at("PLAINTEXT"), client_tls(authority))
        (line,) = capsys.readouterr().err.splitlines()
        assert "speaks TLS; this port is plaintext" in line


class CountsTooLate(TlsTransport):
    """Plants: the connection is admitted only after its handshake, as asyncio's TLS does."""

    def connection_made(self, transport):
        admit = self._connection.connection_made
        self._connection.connection_made = lambda _: None
        super().connection_made(transport)
        self._connection.connection_made = admit


async def silent_ones_are_limited(port, count):
    clients = [await Client.connect(port.at("SSL")) for _ in range(count)]
    for _ in range(100):
        if port.registry.refusals[Refused.TOO_MANY]:
            break
        await asyncio.sleep(0)
    counted = len(port.registry.connections)
    for each in clients:
        each.close()
    return counted


async def test_silent_peers_count_from_accept_on(authority):
    limits = ConnectionLimits(connections_max=20)
    async with secure_port(tls_of(authority), limits=limits) as port:
        assert await silent_ones_are_limited(port, 25) == 20
        assert port.registry.refusals[Refused.TOO_MANY] > 0


async def test_a_limit_that_counts_after_the_handshake_is_found(authority, monkeypatch):
    monkeypatch.setattr("gateway.server.secure_listeners.TlsTransport", CountsTooLate)
    monkeypatch.setattr(CountsTooLate, "__slots__", ())
    limits = ConnectionLimits(connections_max=20)
    async with secure_port(tls_of(authority), limits=limits) as port:
        assert await silent_ones_are_limited(port, 25) == 0


@leaping
async def test_handshakes_at_once_and_in_time_are_limited(authority):
    tls = tls_of(authority, handshakes_max=3, handshake_s_max=5.0)
    async with secure_port(tls) as port:
        clients = [await Client.connect(port.at("SSL")) for _ in range(4)]
        await until(lambda: port.registry.refusals[Refused.TOO_MANY], "one to be too many", 60)
        leap(tls.handshake_s_max)
        for each in clients:
            assert await each.is_closed()
        assert port.registry.refusals[Refused.TOO_MANY] == 1
        assert port.registry.refusals[Refused.TIMEOUT] == 3
        assert await principal_of(port, client_tls(authority)) == "User:ANONYMOUS"


async def test_connections_beyond_a_quota_take_no_handshake(authority):
    tls = tls_of(authority, handshakes_max=2)
    async with secure_port(tls) as port:
        port.registry.count_connection = lambda host: 60_000
        waiting = [await Client.connect(port.at("SSL")) for _ in range(4)]
        refusals = port.registry.refusals
        await until(lambda: refusals[Refused.QUOTA] == 4, "all to be refused", 60)
        port.registry.count_connection = None
        assert await principal_of(port, client_tls(authority)) == "User:ANONYMOUS"
        assert port.registry.refusals[Refused.TOO_MANY] == 0
        for each in waiting:
            each.close()


async def test_new_connections_a_second_are_limited(authority):
    limits = ConnectionLimits(connections_per_s_max=5)
    async with secure_port(tls_of(authority), limits=limits) as port:
        port.registry.loop.time = lambda: 77.0
        clients = [await Client.connect(port.at("SSL")) for _ in range(8)]
        ended = [each for each in clients[-3:] if await each.is_closed()]
        assert len(ended) == port.registry.refusals[Refused.TOO_MANY] == 3
        for each in clients:
            each.close()


async def test_new_certificates_keep_connections_open(tmp_path, capsys):
    mine = Authority(tmp_path / "mine", "mine")
    mine.issue("server")
    tls = TlsConfig(keystore=mine.path / "server.pem")
    async with secure_port(tls) as port:
        client = await Client.connect(port.at("SSL"), client_tls(mine))
        before = client.writer.get_extra_info("peercert")["serialNumber"]
        mine.issue("server")
        port.secure.reload()
        await client.who()
        again = await Client.connect(port.at("SSL"), client_tls(mine))
        await again.who()
        after = again.writer.get_extra_info("peercert")["serialNumber"]
        (mine.path / "server.pem").write_text("nonsense")
        port.secure.reload()
        assert "certificates were not reloaded" in capsys.readouterr().err
        await (await Client.connect(port.at("SSL"), client_tls(mine))).who()
    assert before != after


async def test_large_requests_and_many_replies_pass(authority):
    async with secure_port(tls_of(authority)) as port:
        client = await Client.connect(port.at("SSL"), client_tls(authority))
        members = [{"member_id": "m" * 30_000, "group_instance_id": None}] * 100
        for _ in range(3):
            client.send(13, 3, group_id="g", members=members)
        for _ in range(3):
            assert len(await client.frame()) == 14
        client.close()


async def test_a_request_in_the_record_that_ends_a_large_one_is_answered(authority):
    """The buffer of the large one is full before the record is; nothing more comes by the wire."""
    members = [{"member_id": "m" * 30_000, "group_instance_id": None}] * 40
    large = encode_request(13, 3, 1, "test", {"group_id": "g", "members": members})
    small = encode_request(13, 3, 2, "test", {"group_id": "g", "members": []})
    async with secure_port(tls_of(authority)) as port, asyncio.timeout(30):
        client = await Client.connect(port.at("SSL"), client_tls(authority))
        client.writer.write(
            b"".join(len(each).to_bytes(4, "big") + each for each in (large, small))
        )
        answered = [int.from_bytes((await client.frame())[:4], "big") for _ in range(2)]
    assert answered == [1, 2]


def test_keys_that_cannot_be_used_are_named_with_the_fix(authority, tmp_path):
    _, _, hidden = authority.issue("hidden", password=b"marked-passphrase")
    _, key, _ = authority.issue("left")
    authority.issue("right")
    chain = (authority.path / "right.pem").read_text()
    chain = chain[chain.index("-----BEGIN CERT") :]
    open_one = tmp_path / "open.pem"
    open_one.write_text(key)
    (tmp_path / "key").write_text(key)
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "password").write_text("wrong\n")
    (tmp_path / "password").chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(open_one)
    cases = [
        (TlsConfig(keystore=tmp_path / "none"), "No such file"),
        (TlsConfig(keystore=open_one), "run chmod 600"),
        (TlsConfig(keystore=link), "run chmod 600"),
        (TlsConfig(keystore=hidden), "set ssl.key.password"),
        (TlsConfig(keystore=hidden, key_password=f"file:{tmp_path}/password"), "no usable key"),
        (TlsConfig(key=f"file:{tmp_path}/key", certificates=chain), "values mismatch"),
        (TlsConfig(key="env:NO_SUCH", certificates=chain), "NO_SUCH is not set"),
        (tls_of(authority, client_auth="required", truststore=tmp_path / "key"), "key:"),
        (
            tls_of(authority, client_auth="required", revoked=authority.trusted),
            "has no list of revoked",
        ),
    ]
    for config, words in cases:
        with pytest.raises(TlsFault) as fault:
            server_context(config)
        assert words in str(fault.value)
        assert "PRIVATE" not in str(fault.value)
        assert "\n" not in str(fault.value)


def test_a_key_with_a_passphrase_and_parts_from_files_are_read(authority, tmp_path):
    _, _, hidden = authority.issue("hidden", password=b"marked-passphrase")
    (tmp_path / "password").write_text("marked-passphrase\n")
    (tmp_path / "password").chmod(0o600)
    server_context(TlsConfig(keystore=hidden, key_password=f"file:{tmp_path}/password"))
    text = hidden.read_text()
    cut = text.index("-----BEGIN CERT")
    (tmp_path / "key").write_text(text[:cut])
    (tmp_path / "key").chmod(0o600)
    config = TlsConfig(
        key=f"file:{tmp_path}/key",
        certificates=text[cut:],
        key_password=f"file:{tmp_path}/password",
    )
    assert server_context(config).verify_mode is ssl.CERT_NONE
