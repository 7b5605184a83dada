"""Goal: a client logs in by a token that an authorization server grants, and shows no secret.

Method: an https server of this process that grants tokens as RFC 6749 says, and our port, which
checks them; keys as Kafka's client.properties has them.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from gateway.config import OAuthConfig, SaslConfig, TlsConfig
from gateway.security import token_sources
from gateway.security.bearer_keys import BearerKeys
from gateway.security.client_keys import ClientFault, link_security
from gateway.security.token_keys import (
    CLIENT_ID,
    CLIENT_SECRET,
    ENCODED,
    HANDLERS,
    MODULE,
    RETRIEVER,
    URL,
)
from gateway.security.token_sources import ANSWER_BYTES_MAX, GrantedToken, TokenOfFile
from gateway.wire.client_link import AdminError, Link
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
    thread = threading.Thread(target=server.serve_forever, daemon=True)
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


def source_of(keys):
    return link_security("SASL_SSL", keys).login.token


def who(headers):
    return base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode()


# -- what a server is asked ------------------------------------------------------------------------


def test_a_server_is_asked_as_kafkas_clients_ask(granting):
    source = source_of(keys_of(granting.url, sasl_oauthbearer_scope="read write"))
    assert granting.asked == []  # nothing is sent before a login
    assert source.fetch() == TOKEN
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
        ({HANDLER: "org.x.Handler"}, "no classes are loaded"),
        ({RETRIEVER: f"{MODULE.rpartition('.')[0]}.JwtBearerJwtRetriever"}, "no classes"),
        ({RETRIEVER: f"{MODULE.rpartition('.')[0]}.FileJwtRetriever"}, "no classes"),
    ],
)
def test_keys_that_kafkas_clients_would_read_otherwise_are_refused(more, reason):
    with pytest.raises(ClientFault, match=reason) as refused:
        link_security("SASL_SSL", keys_of("https://h/token") | more)
    assert "7Qz" not in str(refused.value)


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
    assert source.fetch() == TOKEN
    file.write_text("d.e.f")
    assert source.fetch() == "d.e.f"
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
    assert len(granting.asked) == 4
