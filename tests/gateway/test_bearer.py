"""Goal: OAUTHBEARER takes the tokens of its issuer, for this audience, in their time, and no other.

Method: the check of tokens alone with a clock of the test, and the port in this process with a
client that speaks byte by byte. Every bad token is one that attacks on JWT libraries have used.
"""

from __future__ import annotations

import base64
import hmac
import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import OAuthConfig, SaslConfig, TlsConfig
from gateway.core.bearer_token import (
    BadClaims,
    Bearer,
    ClaimRules,
    MalformedBearer,
    Subject,
    parse_bearer,
    subject_of,
)
from gateway.core.sasl_session import INVALID_TOKEN
from gateway.security import bearer_keys
from gateway.security.bearer_keys import UNNAMED, BearerKeys, JwksFault, keys_of
from gateway.server.registry import Refused
from ledger.adapters.system.clock import SystemClock
from tests.gateway.issuer import ALGORITHMS, AUDIENCE, ISSUER, Issuer, encoded, message_of
from tests.gateway.pki import Authority
from tests.gateway.secure_rig import Client, client_tls, secure_port

pytestmark = pytest.mark.real_loop
FAILED, UNSUPPORTED = 58, 33
RULES = ClaimRules(issuer=ISSUER, audiences=(AUDIENCE, "other"))


@pytest.fixture(scope="module")
def issuer():
    return Issuer()


@pytest.fixture(scope="module")
def stranger():
    return Issuer()


@pytest.fixture(scope="module")
def authority(tmp_path_factory, issuer):
    made = Authority(tmp_path_factory.mktemp("pki") / "ca")
    made.issue("server")
    (made.path / "jwks.json").write_bytes(issuer.jwks())
    return made


def config_of(authority, **options):
    return OAuthConfig(
        jwks=authority.path / "jwks.json", issuer=ISSUER, audiences=(AUDIENCE,), **options
    )


async def keys_for(authority, **options):
    keys = BearerKeys(config_of(authority, **options), SystemClock().now_ms)
    await keys.start()
    keys.close()
    return keys


def bearer_port(authority, keys, session_s=0.0):
    sasl = SaslConfig(
        mechanisms=("OAUTHBEARER", "SCRAM-SHA-512"), failure_s=0.1, session_s=session_s
    )
    tls = TlsConfig(keystore=authority.path / "server.pem")
    return secure_port(tls, sasl, protocols=("SASL_SSL", "SASL_PLAINTEXT"), bearers=keys)


async def begun(port, authority):
    client = await Client.connect(port.at("SASL_SSL"), client_tls(authority))
    assert (await client.handshake("OAUTHBEARER")).error_code.value == 0
    return client


# -- the client's message --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (b"n,,\x01auth=Bearer a.b.c\x01\x01", Bearer("a.b.c", "")),
        (b"n,a=alice,\x01auth=bearer  a.b.c==\x01\x01", Bearer("a.b.c==", "alice")),
        (b"n,,\x01auth=BEARER a\x01traceId=123 x\x01\x01", Bearer("a", "")),
    ],
)
def test_a_message_of_the_client_is_parsed_as_in_kafka(message, found):
    assert parse_bearer(message) == found


@pytest.mark.parametrize(
    "message",
    [
        *(b"", b"\x01", b"n,,", b"n,,\x01\x01", b"y,,\x01auth=Bearer a\x01\x01", b"\xff\xfe"),
        *(b"n,,\x01auth=Basic a\x01\x01", b"n,,\x01auth=Bearer\x01\x01", b"n,,auth=Bearer a"),
        *(b"n,,\x01auth=Bearer a b\x01\x01", b"n,,\x01AUTH=Bearer a\x01\x01", b"n,a=,\x01\x01"),
        b"n,,\x01auth=Bearer " + b"a" * 40_000 + b"\x01\x01",
    ],
)
def test_another_message_is_refused(message):
    with pytest.raises(MalformedBearer):
        parse_bearer(message)


@given(st.binary(max_size=80))
def test_any_bytes_are_refused_without_another_error(message):
    with pytest.raises(MalformedBearer):
        parse_bearer(message)


# -- claims ----------------------------------------------------------------------------------------

NOW = 1_800_000_000
GOOD = {"iss": ISSUER, "aud": AUDIENCE, "sub": "carol", "iat": NOW, "exp": NOW + 60}


def test_good_claims_name_the_user_until_the_token_ends():
    for more in (
        *({}, {"aud": ["x", "other"]}, {"sub": " carol "}, {"nbf": NOW + 29.5}),
        *({"exp": NOW - 29}, {"iat": NOW + 10_000}, {"scope": 7}, {"x": None}),
    ):
        claims = GOOD | more
        assert subject_of(claims, RULES, NOW) == Subject("carol", claims["exp"])


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"exp": None}, "exp or iat"),
        ({"iat": None}, "exp or iat"),
        ({"exp": NOW - 30}, "expired"),
        ({"exp": "9999999999"}, "exp is not a time"),
        ({"exp": True}, "exp is not a time"),
        ({"exp": float("inf")}, "exp is not a time"),
        ({"exp": float("nan")}, "exp is not a time"),
        ({"exp": 10**400}, "exp is not a time"),
        ({"exp": -1}, "exp is not a time"),
        ({"nbf": NOW + 31}, "not valid yet"),
        ({"nbf": [NOW]}, "nbf is not a time"),
        ({"iss": "https://issuer.example/"}, "issuer"),
        ({"iss": [ISSUER]}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"aud": "Kafka"}, "audience"),
        ({"aud": {AUDIENCE: 1}}, "audience"),
        ({"aud": [[AUDIENCE]]}, "audience"),
        ({"aud": None}, "audience"),
        ({"sub": None}, "subject"),
        ({"sub": "  "}, "subject"),
        ({"sub": 7}, "subject"),
        ({"sub": "a\0b"}, "subject"),
        ({"sub": "\ud800"}, "subject"),
        ({"sub": "x" * 1025}, "subject"),
    ],
)
def test_other_claims_are_refused_with_the_reason(changed, reason):
    claims = {name: each for name, each in (GOOD | changed).items() if each is not None}
    with pytest.raises(BadClaims, match=reason):
        subject_of(claims, RULES, NOW)


def test_scopes_and_the_names_of_claims_are_settings():
    rules = ClaimRules(
        issuer=ISSUER,
        audiences=(AUDIENCE,),
        scopes=("kafka", "read"),
        scope_claim="scp",
        subject_claim="client",
    )
    for scopes in ("read kafka more", ["kafka", "read"], ["read kafka"]):
        claims = GOOD | {"scp": scopes, "client": "dave"}
        assert subject_of(claims, rules, NOW).user == "dave"
    for scopes in ("read", ["kafka"], None, {"kafka": 1, "read": 1}, "kafka,read"):
        with pytest.raises(BadClaims, match="scope lacks"):
            subject_of(GOOD | {"scp": scopes, "client": "dave"}, rules, NOW)


@given(
    st.dictionaries(
        st.sampled_from(sorted([*GOOD, "nbf"])),
        st.from_type(type(None) | bool | int | float | str | list),
    )
)
def test_no_claim_has_another_error(changed):
    try:
        assert subject_of(GOOD | changed, RULES, NOW).user
    except BadClaims as bad:
        assert str(bad)


# -- keys ------------------------------------------------------------------------------------------


def test_only_public_keys_for_signatures_are_read_from_a_jwks(issuer):
    rows = json.loads(issuer.jwks())["keys"]
    private = json.loads(json.dumps(issuer.keys["rsa"].as_dict(private=True)))
    numbers = rsa.generate_private_key(65_537, 1024).public_key().public_numbers()
    small = {"kty": "RSA", "kid": "small", "e": "AQAB", "n": encoded(numbers.n.to_bytes(128))}
    others = [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "hmac"},
        rows[0] | {"use": "enc", "kid": "enc"},
        small,
        {"kty": "RSA", "kid": "cut", "n": "AQAB"},
        {"kty": ["RSA"]},
        "text",
        None,
        private | {"kid": "was private"},
    ]
    found = keys_of(json.dumps({"keys": [*rows, *others]}).encode())
    assert sorted(found) == ["ec", "rsa", "was private"]
    assert not found["was private"].is_private


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"[]", b"{}", b'{"keys": 7}', b'{"keys": []}', b"\xff", b"[" * 100_000),
        b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}',
    ],
)
def test_another_jwks_is_refused(content):
    with pytest.raises(JwksFault):
        keys_of(content)


def jwt_of(header, claims, signature=b""):
    return f"{encoded(header)}.{encoded(claims)}.{encoded(signature)}"


def bad_tokens(issuer, stranger):
    """Yield tokens that must not be taken, each with the reason."""
    claims, good = issuer.claims(), issuer.token()
    head, body, signature = good.split(".")
    public = issuer.keys["rsa"].as_pem(private=False)
    for name in ("none", "None", "nOnE", "", "HS256", "rs256", "RS1", "EdDSA"):
        yield jwt_of({"alg": name, "kid": "rsa"}, claims), "algorithm"
        yield jwt_of({"alg": name, "kid": "rsa"}, claims, b"x"), "algorithm"
    unsigned = jwt_of({"alg": "HS256", "kid": "rsa"}, claims).rpartition(".")[0]
    yield f"{unsigned}.{encoded(hmac.digest(public, unsigned.encode(), 'sha256'))}", "algorithm"
    yield jwt_of({"alg": ["RS256"], "kid": "rsa"}, claims), ""
    yield jwt_of({"kid": "rsa"}, claims), ""
    for key_id in ("../../../etc/passwd", "file:///etc/passwd", "rsa\0", "RSA", "x" * 5_000, ""):
        yield issuer.token(header={"kid": key_id}), "key is unknown"
    for key_id in (7, None, ["rsa"], {"rsa": 1}, True):
        yield jwt_of({"alg": "RS256", "kid": key_id}, claims, b"x" * 256), ""
    yield issuer.token("RS256", {"kid": "ec"}), "not one of its key"
    yield issuer.token("ES256", {"kid": "rsa"}), "not one of its key"
    yield stranger.token(), "signature"
    embedded = stranger.keys["rsa"].as_dict(private=False)
    yield stranger.token(header={"jwk": embedded}), "signature"
    yield stranger.token(header={"jku": "https://stranger.example/jwks"}), "signature"
    yield stranger.token(header={"x5u": "https://stranger.example/x"}), "signature"
    yield f"{head}.{encoded(issuer.claims(sub='admin'))}.{signature}", "signature"
    yield f"{head}.{body}.", "signature"
    yield f"{head}.{body}.{signature[:-8]}", "signature"
    yield f"{head}.{body}.{encoded(bytes(256))}", "signature"
    yield jwt_of({"alg": "ES256", "kid": "ec"}, claims, bytes(64)), "signature"  # CVE-2022-21449
    yield jwt_of({"alg": "RS256", "kid": "rsa", "crit": ["x"], "x": 1}, claims, b"x"), ""
    yield jwt_of({"alg": "RS256", "kid": "rsa", "b64": False}, claims, b"x" * 256), ""
    yield issuer.token(payload=b"[1]"), "no JSON object"
    yield issuer.token(payload=b'"text"'), "no JSON object"
    yield issuer.token(payload=b"\xff"), "no JSON object"
    yield issuer.token(payload=b"[" * 5_000), "no JSON object"
    yield f"{encoded(b'[' * 5_000)}.{body}.{signature}", "no signed JWT"
    yield f"{encoded(b'{' * 50)}.{body}.{signature}", "no signed JWT"
    for parts in (0, 1, 2, 4, 5):
        yield ".".join([head] * parts) or "x", "no signed JWT"
    yield issuer.token(exp=1), "expired"
    yield issuer.token(nbf=2**40), "not valid yet"
    yield issuer.token(iss="https://stranger.example"), "issuer"
    yield issuer.token(aud="elsewhere"), "audience"
    yield issuer.token(sub=None), "subject"
    yield issuer.token("RS512"), "algorithm"


async def test_bad_tokens_are_refused_each_for_its_reason(issuer, stranger, authority):
    keys = await keys_for(authority)
    assert keys.check(issuer.token()).user == "carol"
    count = 0
    for token, reason in bad_tokens(issuer, stranger):
        found = keys.check(token)
        assert isinstance(found, str), token[:200]
        assert reason in found, (found, token[:200])
        assert token[:40] not in found
        count += 1
    assert count > 50


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_tokens_of_each_algorithm_are_taken(algorithm, issuer, authority):
    keys = await keys_for(authority)
    assert keys.check(issuer.token(algorithm)).user == "carol"
    other = await keys_for(authority, algorithms=("RS512",))
    assert other.check(issuer.token(algorithm)) == "its algorithm is not enabled"


async def test_the_only_key_may_have_no_name(issuer, authority, tmp_path):
    (authority.path / "one.json").write_bytes(issuer.jwks("rsa"))
    config = OAuthConfig(jwks=authority.path / "one.json", issuer=ISSUER, audiences=(AUDIENCE,))
    keys = BearerKeys(config, SystemClock().now_ms)
    keys.load()
    assert keys.check(issuer.token(header={"kid": None})).user == "carol"


async def test_a_token_that_names_no_key_has_the_only_key_of_its_algorithm(issuer, stranger):
    keys = BearerKeys(
        OAuthConfig(jwks=Path("jwks.json"), issuer=ISSUER, audiences=(AUDIENCE,)),
        SystemClock().now_ms,
    )
    own, other = (keys_of(each.jwks()) for each in (issuer, stranger))
    for algorithm in ALGORITHMS:
        token = issuer.token(algorithm, {"kid": None})
        keys._keys = own
        assert keys.check(token).user == "carol"
        keys._keys = own | {f"other {name}": key for name, key in other.items()}
        assert keys.check(token) == "its key is unknown"
        unnamed = [row | {"kid": ""} for row in json.loads(issuer.jwks())["keys"]]
        keys._keys |= keys_of(json.dumps({"keys": unnamed}).encode())
        assert keys.check(token).user == "carol"
        for name in ("", f"{UNNAMED}RSA", f"{UNNAMED}EC"):
            assert keys.check(issuer.token(algorithm, {"kid": name})) == "its key is unknown"
        keys._keys = other
        assert keys.check(token) == "its signature is wrong"


async def test_a_new_key_is_read_and_a_faulty_file_changes_nothing(issuer, stranger, tmp_path):
    file = tmp_path / "jwks.json"
    file.write_bytes(issuer.jwks("ec"))
    keys = BearerKeys(
        OAuthConfig(jwks=file, issuer=ISSUER, audiences=(AUDIENCE,)), SystemClock().now_ms
    )
    await keys.start()
    try:
        assert keys.check(issuer.token()) == "its key is unknown"
        file.write_bytes(issuer.jwks())
        await keys._read()
        assert keys.check(issuer.token()).user == "carol"
        file.write_text("nonsense")
        await keys._read()
        assert keys.check(issuer.token()).user == "carol"
    finally:
        keys.close()


async def test_keys_that_are_closed_while_they_are_read_are_read_no_more(issuer, authority):
    keys = BearerKeys(config_of(authority), SystemClock().now_ms)
    await keys.start()
    keys.close()
    await keys._read()
    assert keys._timer is None


async def test_an_unknown_key_asks_for_the_keys_once_a_minute(issuer, authority, monkeypatch):
    keys, asked = await keys_for(authority), []
    monkeypatch.setattr(keys, "reload", lambda: asked.append(1))
    for _ in range(5):
        assert keys.check(issuer.token(header={"kid": "new"})) == "its key is unknown"
    assert asked == [1]


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        path = self.server.answers.get(self.path)
        if path == b"nonsense":
            self.wfile.write(b"220 mail.example.com ESMTP\r\n")
            return
        self.send_response(404 if path is None else 302 if path == b"elsewhere" else 200)
        if path == b"elsewhere":
            self.send_header("Location", "/jwks")
        self.end_headers()
        self.wfile.write(path or b"")

    def log_message(self, *_):
        pass


@pytest.fixture
def https(authority, issuer):
    """A server of keys, with a certificate of the authority."""
    server = HTTPServer(("127.0.0.1", 0), _Handler)
    server.answers = {
        "/jwks": issuer.jwks(),
        "/moved": b"elsewhere",
        "/mail": b"nonsense",
        "/long": b" " * (bearer_keys.JWKS_BYTES_MAX + 1),
    }
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.path / "server.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


async def test_keys_come_from_an_https_server_whose_certificate_is_checked(
    https, authority, issuer, monkeypatch, capsys
):
    def keys_at(path):
        return BearerKeys(
            OAuthConfig(jwks=https + path, issuer=ISSUER, audiences=(AUDIENCE,)),
            SystemClock().now_ms,
        )

    monkeypatch.setenv("SSL_CERT_FILE", str(authority.trusted))
    keys = keys_at("/jwks")
    await keys.start()
    assert keys.check(issuer.token()).user == "carol"
    keys.close()
    for path, reason in (
        *(("/none", "404"), ("/moved", "302"), ("/long", "longer than 1 MiB")),
        ("/mail", "BadStatusLine"),
    ):
        with pytest.raises(JwksFault, match=reason):
            keys_at(path).load()
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path / "server.pem"))
    monkeypatch.delenv("SSL_CERT_FILE")
    keys = keys_at("/jwks")
    await keys.start()
    keys.close()
    assert "certificate verify failed" in capsys.readouterr().err
    assert keys.check(issuer.token()) == "its key is unknown"


# -- the port --------------------------------------------------------------------------------------


async def test_a_token_names_the_client_and_ends_its_session(issuer, authority):
    keys = await keys_for(authority)
    async with bearer_port(authority, keys) as port:
        client = await begun(port, authority)
        answer = await client.token(message_of(issuer.token()))
        assert (answer.error_code.value, bytes(answer.auth_bytes)) == (0, b"")
        assert 590 < answer.session_lifetime.total_seconds() <= 600
        await client.who()
        assert port.principals == ["User:carol"]
        clock = port.registry.loop.time
        port.registry.loop.time = lambda: clock() + 601
        client.send(13, 3, group_id="g", members=[])
        assert await client.is_closed()


async def test_the_shorter_of_both_lifetimes_counts(issuer, authority):
    keys = await keys_for(authority)
    async with bearer_port(authority, keys, session_s=20.0) as port:
        client = await begun(port, authority)
        answer = await client.token(message_of(issuer.token()))
        assert answer.session_lifetime.total_seconds() == 20


async def test_a_client_shows_a_newer_token_of_the_same_user_only(issuer, authority):
    keys = await keys_for(authority)
    async with bearer_port(authority, keys) as port:
        for user, code in (("carol", 0), ("mallory", FAILED)):
            client = await begun(port, authority)
            await client.token(message_of(issuer.token()))
            await client.handshake("OAUTHBEARER")
            answer = await client.token(message_of(issuer.token(sub=user)))
            assert answer.error_code.value == code
        assert answer.error_message.startswith("Cannot change principals during re-auth")


async def test_a_refused_token_gets_kafkas_answers(issuer, authority, capsys):
    keys = await keys_for(authority)
    async with bearer_port(authority, keys) as port:
        for last in (b"\x01", message_of(issuer.token()), b"", b"\x01\x01"):
            client = await begun(port, authority)
            answer = await client.token(message_of(issuer.token(exp=1)))
            assert (answer.error_code.value, bytes(answer.auth_bytes)) == (
                0,
                INVALID_TOKEN.encode(),
            )
            answer = await client.token(last)
            assert answer.error_code.value == FAILED
            assert (answer.error_message == INVALID_TOKEN) == (last == b"\x01")
            assert "invalid" in answer.error_message
            assert await client.is_closed()
        assert port.principals == []
        assert port.registry.refusals[Refused.LOGIN] >= 4
    text = capsys.readouterr().err
    assert "it has expired" in text
    assert issuer.token()[:30] not in text


async def test_a_client_may_ask_to_be_the_user_of_its_token_only(issuer, authority):
    keys = await keys_for(authority)
    async with bearer_port(authority, keys) as port:
        client = await begun(port, authority)
        answer = await client.token(message_of(issuer.token(), "a=carol"))
        assert answer.error_code.value == 0
        client = await begun(port, authority)
        answer = await client.token(message_of(issuer.token(), "a=admin"))
        assert answer.error_code.value == FAILED
        assert "(admin) that is different from the token's principal name (carol)" in (
            answer.error_message
        )


async def test_other_bytes_fail_and_a_token_of_a_mebibyte_ends_the_connection(issuer, authority):
    keys = await keys_for(authority)
    async with bearer_port(authority, keys) as port:
        for token in (b"", b"\0", b"\x01", b"n,,", b"\xff" * 100, b"n,,\x01auth=Bearer\x01\x01"):
            client = await begun(port, authority)
            answer = await client.token(token)
            assert answer.error_code.value == FAILED
            assert "invalid credentials with SASL mechanism OAUTHBEARER" in answer.error_message
            assert await client.is_closed()
        client = await begun(port, authority)
        client.send(36, 2, auth_bytes=message_of("a" * 1024 * 1024))
        assert await client.is_closed()


async def test_bad_tokens_get_one_answer_and_no_traceback(issuer, stranger, authority, capsys):
    keys = await keys_for(authority)
    answers = set()
    async with bearer_port(authority, keys) as port:
        for token, _ in bad_tokens(issuer, stranger):
            client = await begun(port, authority)
            answer = await client.token(message_of(token))
            answers.add((answer.error_code.value, bytes(answer.auth_bytes)))
            client.close()
        assert port.principals == []
    # A token of characters that no token has is a message of another form.
    assert answers <= {(0, INVALID_TOKEN.encode()), (FAILED, b"")}
    assert "Traceback" not in capsys.readouterr().err


async def test_bearer_tokens_are_offered_only_inside_tls(issuer, authority):
    keys = await keys_for(authority)
    async with bearer_port(authority, keys) as port:
        client = await Client.connect(port.at("SASL_PLAINTEXT"))
        answer = await client.handshake("OAUTHBEARER")
        assert (answer.error_code.value, list(answer.mechanisms)) == (
            UNSUPPORTED,
            ["SCRAM-SHA-512"],
        )


async def test_tokens_are_bare_frames_after_a_handshake_of_version_0(issuer, authority):
    keys = await keys_for(authority)
    async with bearer_port(authority, keys) as port:
        client = await Client.connect(port.at("SASL_SSL"), client_tls(authority))
        await client.handshake("OAUTHBEARER", version=0)
        client.send_frame(message_of(issuer.token()))
        assert await client.frame() == b""
        await client.who()
        assert port.principals == ["User:carol"]


def test_nothing_of_a_token_is_shown():
    bearer = Bearer("marked.secret.token", "alice")
    assert "marked" not in repr(bearer)
    assert base64.b64encode(b"x")
