"""Goal: a client authenticates by SASL before anything else, and a wrong login shows nothing.

Method: the port in this process on loopback, and a client that speaks to it byte by byte. The same
bytes that no client should send are sent before, within and after a login. Planted mistakes: PLAIN
without TLS, and a secret in a line of the log; the same checks find them.
"""

from __future__ import annotations

import asyncio
import base64
import io
import os
import ssl
import threading
import traceback

import pytest

from gateway.config import SaslConfig, TlsConfig
from gateway.core.scram_credentials import Mechanism
from gateway.core.scram_exchange import MECHANISMS, ScramClient
from gateway.server import logins
from gateway.server.logins import Logins
from gateway.server.registry import Refused
from tests.gateway.pki import Authority
from tests.gateway.secure_rig import (
    PASSWORD,
    Client,
    add_user,
    client_tls,
    delete_user,
    secure_port,
)

pytestmark = pytest.mark.real_loop
ALL = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
QUICK = SaslConfig(mechanisms=ALL, failure_s=0.1)
FAILED, UNSUPPORTED, ILLEGAL = 58, 33, 34
MARKED = "marked-secret-7Qz"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    made = Authority(tmp_path_factory.mktemp("pki") / "ca")
    made.issue("server")
    return made


def plain_port(sasl=QUICK, **options):
    return secure_port(sasl=sasl, protocols=("SASL_PLAINTEXT", "PLAINTEXT"), **options)


def tls_port(authority, sasl=QUICK):
    tls = TlsConfig(keystore=authority.path / "server.pem")
    return secure_port(tls=tls, sasl=sasl, protocols=("SASL_SSL",))


async def connect(port, name="SASL_PLAINTEXT", tls=None):
    return await Client.connect(port.at(name), tls)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("version", [0, 1, 2])
async def test_a_right_proof_of_scram_names_the_client(mechanism, version):
    async with plain_port() as port:
        client = await connect(port)
        await client.handshake(mechanism)
        exchange = ScramClient(MECHANISMS[mechanism], "alice", PASSWORD, "nonce")
        answer = await client.token(exchange.first(), version)
        answer = await client.token(exchange.final(bytes(answer.auth_bytes)), version)
        exchange.check(bytes(answer.auth_bytes))
        await client.who()
        assert port.principals == ["User:alice"]


async def test_tokens_are_bare_frames_after_a_handshake_of_version_0():
    async with plain_port() as port:
        client = await connect(port)
        await client.handshake("SCRAM-SHA-256", version=0)
        exchange = ScramClient(Mechanism.SHA_256, "alice", PASSWORD, "nonce")
        client.send_frame(exchange.first())
        client.send_frame(exchange.final(await client.frame()))
        exchange.check(await client.frame())
        await client.who()
        assert port.principals == ["User:alice"]


async def test_a_wrong_bare_token_gets_no_answer():
    async with plain_port() as port:
        client = await connect(port)
        await client.handshake("SCRAM-SHA-256", version=0)
        client.send_frame(b"n,,n=alice")
        assert await client.is_closed()


async def test_plain_is_offered_only_inside_tls(authority):
    async with tls_port(authority) as port:
        client = await connect(port, "SASL_SSL", client_tls(authority))
        assert (await client.plain()).error_code.value == 0
        await client.who()
        assert port.principals == ["User:alice"]
    async with plain_port() as port:
        assert await plain_is_refused(port)


async def plain_is_refused(port):
    client = await connect(port)
    answer = await client.handshake("PLAIN")
    refused = answer.error_code.value == UNSUPPORTED and "PLAIN" not in answer.mechanisms
    return refused and await client.is_closed()


async def test_plain_without_tls_is_found(monkeypatch):
    offered = Logins.mechanisms
    monkeypatch.setattr(
        Logins,
        "mechanisms",
        lambda self, enabled, encrypted: offered(self, enabled, encrypted=True),
    )
    async with plain_port() as port:
        assert not await plain_is_refused(port)


async def test_an_unknown_mechanism_gets_the_list():
    async with plain_port() as port:
        client = await connect(port)
        answer = await client.handshake("GSSAPI")
        assert answer.error_code.value == UNSUPPORTED
        assert list(answer.mechanisms) == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
        assert await client.is_closed()
        assert port.registry.refusals[Refused.LOGIN] == 1


async def failure(port, mechanism, user, password, tls=None):
    """Return all that a client learns from a failed login, without the time."""
    client = await connect(port, "SASL_SSL" if tls else "SASL_PLAINTEXT", tls)
    began_s = port.registry.loop.time()
    if mechanism == "PLAIN":
        answer = await client.plain(user, password)
    else:
        answer = await client.scram(mechanism, user, password)
    took_s = port.registry.loop.time() - began_s
    assert await client.is_closed()
    assert took_s >= QUICK.failure_s
    return answer.error_code.value, answer.error_message, bytes(answer.auth_bytes)


@pytest.mark.parametrize("mechanism", ALL)
async def test_an_unknown_user_and_a_wrong_password_look_alike(mechanism, authority):
    async with tls_port(authority) as port:
        tls = client_tls(authority)
        wrong = await failure(port, mechanism, "alice", "wrong", tls)
        assert wrong == await failure(port, mechanism, "nobody", PASSWORD, tls)
        assert wrong[0] == FAILED
        assert port.principals == []


async def test_the_salt_of_an_unknown_user_is_stable_and_its_own():
    async def salt(port, user):
        client = await connect(port)
        await client.handshake("SCRAM-SHA-512")
        first = ScramClient(Mechanism.SHA_512, user, "x", "nonce").first()
        return bytes((await client.token(first)).auth_bytes).split(b",")[1:]

    async with plain_port() as port:
        assert await salt(port, "nobody") == await salt(port, "nobody")
        assert await salt(port, "nobody") != await salt(port, "somebody")
        assert (await salt(port, "nobody"))[1] == (await salt(port, "alice"))[1] == b"i=4096"


async def test_a_request_before_the_login_ends_the_connection():
    async with plain_port() as port:
        for key, version, fields in ((13, 3, {"group_id": "g", "members": []}), (36, 2, {})):
            client = await connect(port)
            client.send(key, version, **(fields or {"auth_bytes": b"x"}))
            assert await client.is_closed()
        assert port.principals == []


async def test_the_order_of_a_login_is_enforced():
    async with plain_port() as port:
        client = await connect(port)
        await client.handshake("SCRAM-SHA-512")
        assert (await client.handshake("SCRAM-SHA-512")).error_code.value == ILLEGAL
        assert await client.is_closed()
        client = await connect(port)
        await client.scram()
        assert (await client.handshake("SCRAM-SHA-512")).error_code.value == ILLEGAL
        assert (await client.token(b"x")).error_code.value == ILLEGAL
        await client.who()
        assert port.principals == ["User:alice"]


async def test_a_plaintext_listener_answers_that_sasl_is_out_of_order():
    async with plain_port() as port:
        client = await connect(port, "PLAINTEXT")
        assert (await client.handshake("SCRAM-SHA-512", version=0)).error_code.value == ILLEGAL
        for version in (0, 1, 2):
            answer = await client.token(b"x", version)
            assert answer.error_code.value == ILLEGAL
        await client.who()
        assert port.principals == ["User:ANONYMOUS"]


async def test_frames_are_small_before_the_login_and_large_after_it():
    async with plain_port() as port:
        client = await connect(port)
        client.writer.write((512 * 1024 + 1).to_bytes(4, "big") + bytes(16))
        assert await client.is_closed()
        client = await connect(port)
        await client.scram()
        members = [{"member_id": "m" * 30_000, "group_instance_id": None}] * 30
        answer = await client.ask(13, 3, group_id="g", members=members)
        assert answer.error_code.value == 0


async def test_a_client_that_does_not_log_in_is_closed():
    async with plain_port(SaslConfig(login_s_max=0.0)) as port:
        client = await connect(port)
        assert await client.is_closed()
        assert port.registry.refusals[Refused.LOGIN] == 1


async def cut_off(port, client):
    """Let the checks of each second run. Returns True once the connection has ended."""
    for each in list(port.registry.connections):
        each.check(port.registry.loop.time())
    return await client.is_closed()


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_user_that_is_deleted_or_changed_is_cut_off(mechanism):
    async with plain_port() as port:
        for change in (
            lambda: delete_user(port.users, "bob"),
            lambda: add_user(port.users, "bob", "another"),
        ):
            await add_user(port.users, "bob")
            client, other = await connect(port), await connect(port)
            await client.scram(mechanism, "bob")
            await other.scram(mechanism, "alice")
            await change()
            assert await cut_off(port, client)
            await other.who()


async def test_one_password_is_checked_at_a_time_and_the_rest_waits_or_is_refused(
    authority, monkeypatch
):
    """Of 100 logins at once, few wait, one is checked, and another client is served meanwhile."""
    running, most, check = [], [], logins.has_password

    def counted(*arguments):
        running.append(1)
        most.append(len(running))
        try:
            return check(*arguments)
        finally:
            running.pop()

    monkeypatch.setattr(logins, "has_password", counted)
    sasl = SaslConfig(mechanisms=ALL, checks_waiting_max=20, failure_s=0.1)
    async with tls_port(authority, sasl) as port:
        tls = client_tls(authority)
        known = await connect(port, "SASL_SSL", tls)
        await known.scram()
        clients = [await connect(port, "SASL_SSL", tls) for _ in range(100)]
        answers = asyncio.gather(*(each.plain() for each in clients))
        while not answers.done():
            await known.who()
        codes = [each.error_code.value for each in answers.result()]
    assert max(most) == SaslConfig().checks_max == 1
    assert 16 <= codes.count(0) < 100
    assert set(codes) == {0, FAILED}
    assert len(port.principals) > 3


async def test_the_threads_that_check_passwords_have_the_lowest_priority(authority, monkeypatch):
    found, check = [], logins.has_password

    def noted(*arguments):
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return check(*arguments)

    monkeypatch.setattr(logins, "has_password", noted)
    before = os.getpriority(os.PRIO_PROCESS, 0)
    sasl = SaslConfig(mechanisms=ALL, failure_s=0.1, checks_max=2)
    async with tls_port(authority, sasl) as port:
        clients = [await connect(port, "SASL_SSL", client_tls(authority)) for _ in range(4)]
        answers = await asyncio.gather(*(each.plain() for each in clients))
    assert [each.error_code.value for each in answers] == [0] * 4
    assert found == [19] * 4
    assert os.getpriority(os.PRIO_PROCESS, 0) == before  # that of the event loop


async def test_a_session_ends_and_can_be_renewed_by_the_same_user_only():
    async with plain_port(SaslConfig(session_s=20.0, failure_s=0.1)) as port:
        await add_user(port.users, "bob")
        now_s, clock = 1_000.0, port.registry.loop.time
        port.registry.loop.time = lambda: clock() + now_s
        client, stale, other = [await connect(port) for _ in range(3)]
        for each in (client, stale, other):
            answer = await each.scram()
            assert answer.session_lifetime.total_seconds() == 20
        now_s += 19.0
        assert (await client.scram()).error_code.value == 0
        refused = await other.scram(user="bob")
        assert refused.error_message == (
            "Cannot change principals during re-authentication from User.alice: User.bob"
        )
        now_s += 2.0
        await client.who()
        stale.send(13, 3, group_id="g", members=[])
        assert await stale.is_closed()
        assert port.principals == ["User:alice"]


async def test_another_authentication_within_a_second_is_out_of_order():
    async with plain_port(SaslConfig(session_s=20.0)) as port:
        client = await connect(port)
        for _ in range(2):
            assert (await client.scram()).error_code.value == 0
        assert (await client.handshake("SCRAM-SHA-512")).error_code.value == ILLEGAL


async def test_the_checks_of_passwords_are_bounded_for_each_address(authority):
    sasl = SaslConfig(mechanisms=ALL, checks_per_address_max=2, failure_s=0.1)
    async with tls_port(authority, sasl) as port:
        tls = client_tls(authority)
        clients = [await connect(port, "SASL_SSL", tls) for _ in range(12)]
        answers = await asyncio.gather(*(each.plain() for each in clients))
        codes = {each.error_code.value for each in answers}
        assert codes == {0, FAILED}
        again = await connect(port, "SASL_SSL", tls)
        assert (await again.plain()).error_code.value == 0


def hostile_tokens():
    """Yield mechanisms with tokens that no client should send."""
    for mechanism in MECHANISMS:
        yield mechanism, b""
        yield mechanism, b"n,,n=" + b"u" * 65_536 + b",r=x"
        yield mechanism, b"n,,n=a\0b,r=x"
        yield mechanism, "n,,n=\u00aa,r=x".encode()
        yield mechanism, b"\xff\xfe"
        yield mechanism, b"y,,n=alice,r=x"
        yield mechanism, b"p=tls-unique,,n=alice,r=x"
        yield mechanism, b"n,,m=ext,n=alice,r=x"
        yield mechanism, b"n,a=bob,n=alice,r=x"
        yield mechanism, b"n,,n=alice,r=x,tokenauth=true"
        yield mechanism, b"c=biws,r=x,p=" + base64.b64encode(bytes(32))
        yield mechanism, b"n,,n==3,r=x"
    for token in (b"", b"\0\0", b"\0alice\0", b"\0\0x", b"alice", b"\0a\0b\0c", b"bob\0alice\0x"):
        yield "PLAIN", token
    yield "PLAIN", b"\0alice\0" + b"x" * 100_000
    yield "PLAIN", b"\0" + b"u" * 65_536 + b"\0x"
    yield "PLAIN", b"\0alice\0\xff\xfe"


async def test_hostile_tokens_get_the_code_of_a_failed_login(authority, capsys):
    async with tls_port(authority) as port:
        tls = client_tls(authority)
        for mechanism, token in hostile_tokens():
            client = await connect(port, "SASL_SSL", tls)
            await client.handshake(mechanism)
            answer = await client.token(token)
            assert answer.error_code.value == FAILED, token[:80]
            assert await client.is_closed()
        assert port.principals == []
    assert "Traceback" not in capsys.readouterr().err


async def test_a_changed_last_message_fails():
    def changed(final):
        yield final.replace(b"r=", b"r=x")
        yield final.replace(b",p=", b"0,p=")
        yield final.replace(b"c=biws", b"c=eSws")
        yield final[:-1]
        yield final[: final.index(b"p=") + 2] + base64.b64encode(bytes(64))
        yield final + b",p=AAAA"

    async with plain_port() as port:
        count = 0
        for index in range(6):
            client = await connect(port)
            await client.handshake("SCRAM-SHA-512")
            exchange = ScramClient(Mechanism.SHA_512, "alice", PASSWORD, "nonce")
            answer = await client.token(exchange.first())
            final = exchange.final(bytes(answer.auth_bytes))
            answer = await client.token(list(changed(final))[index])
            count += answer.error_code.value == FAILED
        assert count == 6
        assert port.principals == []


async def test_many_half_handshakes_hold_little(authority):
    tls = TlsConfig(keystore=authority.path / "server.pem", handshakes_max=50)
    async with secure_port(tls=tls, sasl=QUICK, protocols=("SASL_SSL",)) as port:
        hello = client_hello(client_tls(authority))
        clients = []
        for _ in range(200):
            client = await Client.connect(port.at("SASL_SSL"))
            client.writer.write(hello[: len(hello) // 2])
            clients.append(client)
        wait = port.registry.refusals
        await until_true(lambda: wait[Refused.TOO_MANY] >= 150)
        for each in clients:
            each.close()
        await until_true(lambda: not port.registry.connections)
        again = await connect(port, "SASL_SSL", client_tls(authority))
        assert (await again.scram()).error_code.value == 0


async def until_true(fact):
    async with asyncio.timeout(60.0):
        while not fact():
            await asyncio.sleep(0)


def client_hello(context):
    outgoing = ssl.MemoryBIO()
    try:
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a handshake without a peer")


async def shown_after_failures(port, authority, capsys):
    """Return all that a server shows of a login: its log, metrics, objects and tracebacks."""
    tls = client_tls(authority)
    await add_user(port.users, "marked", MARKED)
    for user, password in (("marked", MARKED), ("marked", MARKED + "x"), ("nobody", MARKED)):
        for mechanism in ALL:
            client = await connect(port, "SASL_SSL", tls)
            if mechanism == "PLAIN":
                await client.plain(user, password)
            else:
                await client.scram(mechanism, user, password)
    out = io.StringIO()
    for each in port.registry.connections:
        print(each, each._session, each._session.login, each._logins, file=out)
    print(port.users.credential("marked", Mechanism.SHA_512), port.registry.counts(), file=out)
    try:
        port.logins.is_current(None)
    except AttributeError:
        traceback.print_exc(file=out)
    captured = capsys.readouterr()
    return out.getvalue() + captured.out + captured.err


def secrets_in(text):
    return MARKED in text or base64.b64encode(MARKED.encode()).decode()[:16] in text


async def test_no_secret_is_shown(authority, capsys):
    async with tls_port(authority) as port:
        text = await shown_after_failures(port, authority, capsys)
        assert "authentication failed" in text
        assert not secrets_in(text)


async def test_a_secret_in_a_line_of_the_log_is_found(authority, capsys, monkeypatch):
    check = Logins.check

    def chatty(self, user, password, host):
        print(f"checking {user} with {password}")
        return check(self, user, password, host)

    monkeypatch.setattr(Logins, "check", chatty)
    async with tls_port(authority) as port:
        assert secrets_in(await shown_after_failures(port, authority, capsys))
