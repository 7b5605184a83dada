"""Goal: a client logs in by a token that an authorization server grants, and shows no secret.

Method: an https server of this process that grants tokens as RFC 6749 says, and our port, which
checks them; keys as Kafka's client.properties has them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import ssl
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from aiokafka.errors import KafkaConnectionError, SaslAuthenticationFailed

from gateway.admin.client_settings import ClientSettings, raise_token_fault
from gateway.admin.input_chunks import STDIN
from gateway.admin.produce import Plan, _started, _Topic
from gateway.admin.record_input import Defaults, InputFormat
from gateway.admin.requests import fix_after
from gateway.config import OAuthConfig, SaslConfig, TlsConfig
from gateway.security import token_sources
from gateway.security.bearer_keys import BearerKeys
from gateway.security.client_keys import ClientFault, link_security
from gateway.security.link_security import FetchedToken
from gateway.security.login_token import KEPT_MAX, forget_token, login_token
from gateway.security.token_keys import (
    CLIENT_ID,
    CLIENT_SECRET,
    ENCODED,
    HANDLERS,
    JAAS,
    MODULE,
    RETRIEVER,
    URL,
    VALIDATOR,
)
from gateway.security.token_provider import TokenProvider
from gateway.security.token_sources import (
    ANSWER_BYTES_MAX,
    GrantedToken,
    TokenOfFile,
)
from gateway.wire.client_link import AdminError, Link, NoToken, Refused, Unreachable
from ledger.adapters.system.clock import SystemClock
from ledger.command_line.secret_values import SecretFault
from tests.gateway.issuer import AUDIENCE, ISSUER, Issuer
from tests.gateway.pki import Authority
from tests.gateway.secure_rig import secure_port

pytestmark = pytest.mark.real_loop
SECRET = 'marked="secret"; \\7Qz'
HANDLER = "sasl.login.callback.handler.class"
TOKEN = "a.b.c"
DRIP_S = 0.05


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    made = Authority(tmp_path_factory.mktemp("pki") / "ca")
    made.issue("server")
    return made


class _Granting(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.asked.append((dict(self.headers), parse_qs(body)))
        code, answer = self.server.answers.get(self.path, (404, b""))
        if self.server.drips:
            self._drip(answer)
        else:
            self._answer(code, answer)

    def _answer(self, code, answer):
        self.send_response(code)
        if code == 302:
            self.send_header("Location", "/token")
        self.end_headers()
        self.wfile.write(answer)

    def _drip(self, answer):
        """Send the end of the answer, beginning at `drips`, byte by byte for 3 s and more."""
        whole = b"HTTP/1.0 200 OK\r\nX-Padding: " + b"x" * 60 + b"\r\n\r\n" + answer
        at = whole.index(self.server.drips)
        try:
            self.wfile.write(whole[:at])
            for byte in whole[at:]:
                self.wfile.write(bytes([byte]))
                self.server.drained.wait(DRIP_S)
        except OSError:  # the client has left
            pass

    def log_message(self, *_):
        pass


@pytest.fixture
def granting(authority, monkeypatch):
    """A server whose certificate this process trusts. `/token` grants what `answers` has."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.trusted))
    server = HTTPServer(("127.0.0.1", 0), _Granting)
    server.asked, server.answers = [], {"/token": (200, granted(TOKEN))}
    server.drips, server.drained = b"", threading.Event()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.path / "server.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.url = f"https://127.0.0.1:{server.server_port}/token"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.drained.set()
    server.shutdown()
    thread.join()
    server.server_close()


def granted(token, **more):
    return json.dumps({"access_token": token, "token_type": "Bearer", **more}).encode()


def keys_of(url, **more):
    """Return client keys in Kafka 4's form. `more` has _ for dots."""
    keys = {
        "sasl.mechanism": "OAUTHBEARER",
        URL: url,
        CLIENT_ID: "spark",
        CLIENT_SECRET: SECRET,
    }
    return keys | {key.replace("_", "."): value for key, value in more.items()}


def options_of(written):
    """Return a `sasl.jaas.config` with these options."""
    return {JAAS: f"{MODULE} required {written};"}


def source_of(keys):
    return link_security("SASL_SSL", keys).login.token


def who(headers):
    return base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode()


# -- what a server is asked ------------------------------------------------------------------------


def test_a_server_is_asked_as_kafkas_clients_ask(granting):
    source = source_of(keys_of(granting.url, sasl_oauthbearer_scope="read write"))
    assert granting.asked == []  # nothing is sent before a login
    assert source.fetch().text == TOKEN
    ((headers, form),) = granting.asked
    assert form == {"grant_type": ["client_credentials"], "scope": ["read write"]}
    assert who(headers) == f"spark:{SECRET}"
    assert headers["Accept"] == "application/json"
    assert headers["Content-Type"] == "application/x-www-form-urlencoded"


def test_without_a_scope_none_is_asked_for(granting):
    source_of(keys_of(granting.url)).fetch()
    assert granting.asked[0][1] == {"grant_type": ["client_credentials"]}


@pytest.mark.parametrize("quote", ['"', "'"])
def test_the_client_may_be_in_the_jaas_config_of_kafka_3(granting, quote):
    keys = keys_of(granting.url)
    del keys[CLIENT_ID], keys[CLIENT_SECRET]
    secret = SECRET.replace("\\", "\\\\").replace(quote, f"\\{quote}")
    written = f"clientSecret={quote}{secret}{quote} scope={quote}s{quote}"
    keys["sasl.jaas.config"] = f"{MODULE} required clientId=spark {written};"
    source_of(keys).fetch()
    headers, form = granting.asked[0]
    assert (who(headers), form["scope"]) == (f"spark:{SECRET}", ["s"])


def test_the_secret_may_be_a_reference(granting, tmp_path):
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o600)
    keys = keys_of(granting.url) | {CLIENT_SECRET: f"file:{file}"}
    source_of(keys).fetch()
    assert who(granting.asked[0][0]) == f"spark:{SECRET}"


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ("true", "a%3Ab+%7E*-_.%C3%A9:7%3A%2B%25+%2F"),
        (" TRUE ", "a%3Ab+%7E*-_.%C3%A9:7%3A%2B%25+%2F"),
        ("false", "a:b ~*-_.é:7:+% /"),
        ("", "a:b ~*-_.é:7:+% /"),
    ],
)
def test_the_client_is_encoded_as_kafkas_clients_encode_it(granting, value, sent):
    keys = keys_of(granting.url) | {ENCODED: value, CLIENT_ID: "a:b ~*-_.é"}
    source_of(keys | {CLIENT_SECRET: "7:+% /"}).fetch()
    assert who(granting.asked[0][0]) == sent


@pytest.mark.parametrize(
    ("code", "answer", "reason"),
    [
        (401, b'{"error": "invalid_client"}', "answers 401"),
        (302, b"", "answers 302"),
        (500, b"", "answers 500"),
        (200, b"", "is not JSON"),
        (200, b"[" * 20_000, "is not JSON"),
        (200, b"\xff", "is not JSON"),
        (200, b"[]", "has no access_token"),
        (200, b'{"access_token": 7}', "has no access_token"),
        (200, b'{"access_token": ""}', "has no access_token"),
        (200, b'{"access_token": "a b"}', "has no access_token"),
        (200, b'{"access_token": "a\\u0001b"}', "has no access_token"),
        (200, b" " * (ANSWER_BYTES_MAX + 1), "longer than 64 KiB"),
    ],
)
def test_another_answer_is_one_line_without_the_secret(granting, code, answer, reason):
    granting.answers["/token"] = (code, answer)
    with pytest.raises(SecretFault, match=reason) as refused:
        source_of(keys_of(granting.url)).fetch()
    assert "7Qz" not in str(refused.value)
    assert len(granting.asked) == 1


@pytest.mark.parametrize("drips", [b"HTTP", b"Padding", b'{"access'])
def test_an_answer_that_drips_is_given_up_in_time(granting, monkeypatch, drips):
    monkeypatch.setattr(token_sources, "FETCH_S_MAX", 0.6)  # each byte comes in time
    granting.answers["/token"] = (200, granted(TOKEN, padding="x" * 60))
    granting.drips = drips
    with pytest.raises(SecretFault, match="is not whole after"):
        source_of(keys_of(granting.url)).fetch()
    assert len(granting.asked) == 1


def test_the_certificate_of_the_server_is_checked(granting, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(SecretFault, match="certificate verify failed"):
        source_of(keys_of(granting.url)).fetch()
    assert granting.asked == []


def test_a_server_that_is_not_there_is_one_line():
    with pytest.raises(SecretFault, match="refused"):
        source_of(keys_of("https://127.0.0.1:1/token")).fetch()


@pytest.mark.parametrize(
    ("code", "away", "fix"),
    [
        (408, True, "try again later"),
        (429, True, "try again later"),
        (500, True, "try again later"),
        (503, True, "try again later"),
        (302, False, "set the URL that it leads to"),
        (400, False, f"check {CLIENT_ID}, {CLIENT_SECRET} and sasl.oauthbearer.scope"),
        (401, False, f"check {CLIENT_ID} and {CLIENT_SECRET}"),
        (404, False, "check the URL"),
    ],
)
async def test_only_an_answer_that_passes_is_no_refusal(granting, code, away, fix):
    granting.answers["/token"] = (code, b"")
    with pytest.raises(NoToken if away else Refused) as refused:
        await login_token(source_of(keys_of(granting.url)))
    line = str(refused.value)
    assert line.startswith(f"{URL}: https://127.0.0.1:") and line.endswith(fix)
    assert "/token" not in line


async def test_a_server_that_is_not_reached_may_be_reached_later(granting, monkeypatch):
    with pytest.raises(NoToken, match=r"refused; check host and port of the URL"):
        await login_token(source_of(keys_of("https://127.0.0.1:1/token")))
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(NoToken, match=r"certificate verify failed.*in SSL_CERT_FILE"):
        await login_token(source_of(keys_of(granting.url)))


# -- the time of a login, and kept tokens ----------------------------------------------------------


class _Silent:
    """A source that does not answer until it is released."""

    place = f"{URL}: https://h"

    def __init__(self):
        self.released = threading.Event()
        self.threads = []

    def fetch(self):
        self.threads.append(threading.current_thread())
        self.released.wait(60)
        return FetchedToken(TOKEN)


def test_a_slow_server_holds_neither_the_loop_nor_the_process():
    source = _Silent()
    with pytest.raises(NoToken, match=r"https://h: gives no token within 0\.05 s"):
        asyncio.run(login_token(source, 0.05))  # waits for no thread at its end
    assert not source.released.is_set()
    assert [(each.is_alive(), each.daemon) for each in source.threads] == [(True, True)]
    source.released.set()
    source.threads[0].join()


def test_ctrl_c_ends_the_wait_for_a_token_at_once():
    source = _Silent()

    async def interrupted():
        loop = asyncio.get_running_loop()
        loop.call_later(0.05, os.kill, os.getpid(), signal.SIGINT)
        await login_token(source)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(interrupted())
    finally:
        signal.signal(signal.SIGINT, before)
    assert source.threads[0].is_alive() and not source.released.is_set()
    source.released.set()
    source.threads[0].join()


@pytest.mark.parametrize(
    ("expires_in", "keep_s"),
    [
        (100, 80.0),
        (0.5, 0.4),
        (10**9, 69_120.0),
        pytest.param(10**400, 69_120.0, id="huge"),
        (0, 0),
        (-1, 0),
        (True, 0),
        ("100", 0),
        (None, 0),
        (float("nan"), 0),
    ],
)
def test_a_token_is_kept_for_less_than_its_lifetime(granting, expires_in, keep_s):
    granting.answers["/token"] = (200, granted(TOKEN, expires_in=expires_in))
    assert source_of(keys_of(granting.url)).fetch() == (TOKEN, pytest.approx(keep_s))


async def test_logins_show_a_kept_token_until_a_server_refuses_it(granting):
    granting.answers["/token"] = (200, granted(TOKEN, expires_in=100))
    for _ in range(3):  # the keys are read anew for each connection
        assert await login_token(source_of(keys_of(granting.url))) == TOKEN
    assert len(granting.asked) == 1
    for other in ({CLIENT_ID: "b"}, {CLIENT_SECRET: "b"}, {"sasl.oauthbearer.scope": "b"}):
        await login_token(source_of(keys_of(granting.url) | other))
    assert len(granting.asked) == 4
    forget_token(source_of(keys_of(granting.url)))
    granting.answers["/token"] = (200, granted("d.e.f"))
    for _ in range(2):  # without a lifetime it is not kept
        assert await login_token(source_of(keys_of(granting.url))) == "d.e.f"
    assert len(granting.asked) == 6


async def test_the_oldest_of_too_many_tokens_makes_way():
    class Counted:
        place = ""
        asked = 0

        def fetch(self):
            self.asked += 1
            return FetchedToken(TOKEN, 100.0)

    first, *others = [Counted() for _ in range(KEPT_MAX + 1)]
    for each in (first, *others, others[-1]):
        await login_token(each)
    assert (first.asked, others[-1].asked) == (1, 1)
    await login_token(first)
    assert first.asked == 2
    for each in (first, *others):
        forget_token(each)


async def test_aiokafka_gets_errors_that_it_knows(granting):
    for code, kind, ours in (
        (503, KafkaConnectionError, NoToken),
        (401, SaslAuthenticationFailed, Refused),
    ):
        granting.answers["/token"] = (code, b"")
        provider = TokenProvider(source_of(keys_of(granting.url)))
        with pytest.raises(kind, match=f"answers {code}"):
            await provider.token()
        assert type(provider.fault) is ours
        granting.answers["/token"] = (200, granted(TOKEN))
        assert await provider.token() == TOKEN
        assert provider.fault is None


# -- keys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({URL: "http://127.0.0.1/token"}, "or an https URL"),
        ({URL: ""}, "or an https URL"),
        ({URL: "https://a:7Qz@h/token"}, "no user and no password in the URL"),
        ({CLIENT_ID: ""}, "a client is missing"),
        ({CLIENT_SECRET: ""}, "a client is missing"),
        ({ENCODED: "yes"}, "must be true or false"),
        ({"sasl.jaas.config": "org.x.ScramLoginModule required;"}, "OAuthBearerLoginModule"),
        ({"sasl.jaas.config": "nonsense"}, "OAuthBearerLoginModule"),
        (
            {"sasl.jaas.config": f'{MODULE} required unsecuredLoginStringClaim_sub="7Qz";'},
            "unsecured tokens are not supported",
        ),
        (
            {"sasl.jaas.config": f'{MODULE} required extension_tenant="7Qz";'},
            "extensions are not supported",
        ),
        ({URL: "http://alice:7Qz@h/t"}, "or an https URL"),
        ({URL: "alice:7Qz@h/t"}, "or an https URL"),
        ({URL: "HTTPS://alice:7Qz@h/t"}, "no user and no password in the URL"),
        ({URL: " https://alice:7Qz@h/t"}, "no user and no password in the URL"),
        ({URL: "https:///t?7Qz"}, "must have a host"),
        ({URL: "https://h:/t?7Qz"}, "must have a host, and a port"),
        ({URL: "https://h:99999/t?7Qz"}, "port of the URL is not valid"),
        ({URL: "https://h:7Qz/t"}, "port of the URL is not valid"),
        ({URL: "https://[7Qz/t"}, "host or port of the URL is not valid"),
        ({URL: "https://h/a 7Qz"}, "no spaces and no control characters"),
        ({URL: "file:/a\0b"}, "is no path"),
        ({URL: "file:/no/such/token"}, "token.endpoint.url: /no/such/token: No such file"),
        (options_of("ssl.truststore.location=/ca.pem"), "in SSL_CERT_FILE, and for jobs on Spark"),
        (options_of("clientid=a"), "clientid: is not known; the options are clientId"),
        (options_of('clientSecret="7Qz" b7=c'), "an option: is not known"),
        (options_of('clientId=a clientSecret=7Qz"c'), "option 2 must be name="),
        (options_of('clientSecret="a"7Qz'), "option 1 must be name="),
        (options_of("clientSecret 7Qz"), "option 1 must be name="),
        (options_of('clientSecret="7Qz\\n"'), "may have only quotes"),
        ({JAAS: f"{MODULE} required clientId=a"}, "OAuthBearerLoginModule"),
        ({"sasl.login.class": "org.x.Login"}, "no classes are loaded; leave it out"),
        ({"sasl.client.callback.handler.class": "org.x.Handler"}, "no classes are loaded"),
        ({VALIDATOR: "org.x.Validator"}, "no classes are loaded"),
        ({HANDLER: "org.x.Handler"}, "no classes are loaded"),
        ({RETRIEVER: f"{MODULE.rpartition('.')[0]}.JwtBearerJwtRetriever"}, "no classes"),
        ({RETRIEVER: f"{MODULE.rpartition('.')[0]}.FileJwtRetriever"}, "no classes"),
    ],
)
def test_keys_that_kafkas_clients_would_read_otherwise_are_refused(more, reason):
    with pytest.raises(ClientFault, match=reason) as refused:
        link_security("SASL_SSL", keys_of("https://h/token") | more)
    assert "7Qz" not in str(refused.value)


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("https://h/token?who=a@b", "https://h"),
        ("HTTPS://h:8443/7Qz", "https://h:8443"),
        (" https://h/t ", "https://h"),
    ],
)
def test_a_url_is_shown_by_its_host_alone(place, shown):
    source = source_of(keys_of(place))
    assert source.place == f"{URL}: {shown}"
    assert source.url == place.strip().replace("HTTPS", "https")
    assert "7Qz" not in repr(source)


def test_a_token_of_a_file_is_read_at_each_login(tmp_path):
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    keys = {
        "sasl.mechanism": "OAUTHBEARER",
        URL: f"file://{file}",
        HANDLER: HANDLERS[0],
        "sasl.jaas.config": f"{MODULE} required;",
    }
    source = source_of(keys)
    assert source == TokenOfFile(Path(file))
    assert source.fetch().text == TOKEN
    file.write_text("d.e.f")
    assert source.fetch().text == "d.e.f"
    file.chmod(0o644)
    with pytest.raises(SecretFault):
        source.fetch()


def test_a_token_is_not_sent_without_tls():
    with pytest.raises(ClientFault, match="shows the token"):
        link_security("SASL_PLAINTEXT", keys_of("https://h/token"))


def test_a_client_prints_no_secret():
    source = GrantedToken("https://h/token", "spark", "7Qz")
    assert "7Qz" not in f"{source!r} {[source]}"


# -- the login -------------------------------------------------------------------------------------


async def test_a_granted_token_logs_in(granting, authority):
    issuer = Issuer()
    (authority.path / "jwks.json").write_bytes(issuer.jwks())
    config = OAuthConfig(jwks=authority.path / "jwks.json", issuer=ISSUER, audiences=(AUDIENCE,))
    bearers = BearerKeys(config, SystemClock().now_ms)
    await bearers.start()
    bearers.close()
    tls = TlsConfig(keystore=authority.path / "server.pem")
    keys = keys_of(granting.url) | {"ssl.truststore.location": str(authority.trusted)}
    security = link_security("SASL_SSL", keys)
    sasl = SaslConfig(mechanisms=("OAUTHBEARER",), failure_s=0.1)
    async with secure_port(tls, sasl, protocols=("SASL_SSL",), bearers=bearers) as port:
        for token, fault in (
            *((issuer.token(), None), (issuer.token(sub="dave"), None)),
            (issuer.token(exp=1), "invalid_token"),
        ):
            granting.answers["/token"] = (200, granted(token))
            link = Link("127.0.0.1", port.at("SASL_SSL"), 10.0, security=security)
            try:
                await link.open(10.0)
                assert fault is None
            except AdminError as refused:
                assert fault is not None and fault in str(refused)
            finally:
                await link.close()
        granting.answers["/token"] = (403, b"")
        link = Link("127.0.0.1", port.at("SASL_SSL"), 10.0, security=security)
        with pytest.raises(AdminError, match="answers 403"):
            await link.open(10.0)
        await link.close()
        granting.answers["/token"] = (200, granted(issuer.token(exp=1), expires_in=100))
        for _ in range(2):  # a token that was refused is not kept
            link = Link("127.0.0.1", port.at("SASL_SSL"), 10.0, security=security)
            with pytest.raises(AdminError, match="invalid_token"):
                await link.open(10.0)
    assert len(granting.asked) == 6


@pytest.mark.parametrize(("code", "kind"), [(503, NoToken), (401, Refused)])
async def test_a_producer_ends_with_the_reason_for_which_it_has_no_token(
    granting, authority, code, kind
):
    granting.answers["/token"] = (code, b"")
    (authority.path / "jwks.json").write_bytes(Issuer().jwks())
    config = OAuthConfig(jwks=authority.path / "jwks.json", issuer=ISSUER, audiences=(AUDIENCE,))
    tls = TlsConfig(keystore=authority.path / "server.pem")
    sasl = SaslConfig(mechanisms=("OAUTHBEARER",), failure_s=0.1)
    bearers = BearerKeys(config, SystemClock().now_ms)
    plan = Plan("t", (STDIN,), InputFormat.lines, Defaults(), None, "all", None, False, 5.0)
    async with secure_port(tls, sasl, protocols=("SASL_SSL",), bearers=bearers) as port:
        keys = keys_of(granting.url) | {"ssl.truststore.location": str(authority.trusted)}
        server = f"127.0.0.1:{port.at('SASL_SSL')}"
        settings = ClientSettings(server, keys | {"security.protocol": "SASL_SSL"})
        with pytest.raises(kind, match=f"answers {code}"):
            async with _started(settings, plan, _Topic("t", 1, 1000, True, False)):
                pass
    raise_token_fault(ClientSettings("h:1", {}).for_aiokafka())
    assert len(granting.asked) >= 1


def test_a_command_without_a_token_names_no_fix_for_a_server_that_it_reached():
    assert fix_after(NoToken("the server answers 503"), "start one") == ""
    assert fix_after(Unreachable("no server at h:1"), "start one") == "; start one"
