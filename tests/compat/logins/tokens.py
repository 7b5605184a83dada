"""Tokens of OAUTHBEARER, good and bad, at Apache Kafka 4.3 and at our port in this process.

Both have the same keys of the same issuer in a JWKS file, and get the same tokens. The recorded
answers are those of Kafka; `python -m tests.compat.logins --tokens` records them again.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from pathlib import Path
from typing import Any, Final

from gateway.config import OAuthConfig, SaslConfig, TlsConfig
from gateway.security.bearer_keys import BearerKeys
from ledger.adapters.system.clock import SystemClock
from tests.compat.logins.talk import Talk
from tests.gateway.issuer import ALGORITHMS, AUDIENCE, ISSUER, Issuer, encoded, message_of
from tests.gateway.pki import Authority
from tests.gateway.secure_rig import client_tls, secure_port
from tests.peers.kafka import FOR_TESTS, ApacheKafka
from tests.peers.processes import free_port

FILE: Final = Path(__file__).with_name("recorded_tokens.json")
LISTENER, MECHANISM = "SASL", "OAUTHBEARER"
MIB: Final = 1 << 20
AT_ONCE: Final = 8
_CLASSES: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearer"
Answers = dict[str, list[Any]]

_ONE: Final = "a connection has one token: another one after a refused one fails"
INTENDED: Final[dict[str, str]] = {
    "good, 100 KiB": "a message is refused from 32 KiB on",
    "good, of an algorithm that is not listed": "only listed algorithms are taken",
    "expired, then a good one": _ONE,
    "expired, then the same": _ONE,
}
"""The tokens with which our port differs from Kafka on purpose, with the reason."""


def tokens(issuer: Issuer, stranger: Issuer) -> dict[str, str]:
    """Return each token by its name. The stranger signs with keys that no JWKS has.

    Two are good within the 30 s by which clocks may differ, so they must be used at once.
    """
    now = int(time.time())
    good = issuer.token()
    head, body, signature = good.split(".")
    claims, elliptic = issuer.claims(), encoded({"alg": "ES256", "kid": "ec"})
    expired = issuer.token(iat=now - 7_200, exp=now - 3_600)
    foreign = stranger.keys["rsa"].as_dict(private=False)
    return {
        **{f"good, {each}": issuer.token(each) for each in ALGORITHMS},
        "good, of an algorithm that is not listed": issuer.token("RS512"),
        "good, one of several audiences": issuer.token(aud=["other", AUDIENCE]),
        "good, more claims": issuer.token(scope="read write", azp="client", nested={"a": [1]}),
        "good, 20 KiB": issuer.token(more="x" * 15_000),
        "good, 100 KiB": issuer.token(more="x" * 75_000),
        "1 MiB": issuer.token(more="x" * (MIB * 3 // 4)),
        "expired an hour ago": expired,
        "expired, ended as sarama does": expired,
        "expired, then a good one": expired,
        "expired, then the same": expired,
        "good, ended within the skew": issuer.token(iat=now - 7_200, exp=now - 2),
        "no end": issuer.token(exp=None),
        "an end that is a text": issuer.token(exp=str(now + 600)),
        "no time of issue": issuer.token(iat=None),
        "good, issued in an hour": issuer.token(iat=now + 3_600, exp=now + 7_200),
        "valid in an hour": issuer.token(nbf=now + 3_600, exp=now + 7_200),
        "good, begins within the skew": issuer.token(nbf=now + 15),
        "another audience": issuer.token(aud="elsewhere"),
        "no audience": issuer.token(aud=None),
        "another issuer": issuer.token(iss="https://stranger.example"),
        "no issuer": issuer.token(iss=None),
        "no subject": issuer.token(sub=None),
        "an empty subject": issuer.token(sub=""),
        "a subject of spaces": issuer.token(sub="  "),
        "a subject that is a number": issuer.token(sub=7),
        "an unknown key": issuer.token(header={"kid": "unknown"}),
        "a path as key": issuer.token(header={"kid": "../../../etc/passwd"}),
        "good, names no key": issuer.token(header={"kid": None}),
        "the key of another algorithm": issuer.token(header={"kid": "ec"}),
        "alg none": f"{encoded({'alg': 'none'})}.{body}.",
        "alg none with the key": f"{encoded({'alg': 'none', 'kid': 'rsa'})}.{body}.",
        "alg none with a signature": f"{encoded({'alg': 'none', 'kid': 'rsa'})}.{body}.{signature}",
        "HS256 by the public key": _by_the_public_key(issuer, claims),
        "signed by a stranger": stranger.token(),
        "a stranger's key in the header": stranger.token(header={"jwk": foreign}),
        "other claims": f"{head}.{encoded(issuer.claims(sub='admin'))}.{signature}",
        "no signature": f"{head}.{body}.",
        "a cut signature": f"{head}.{body}.{signature[:-8]}",
        "a signature of zeros": f"{elliptic}.{body}.{encoded(bytes(64))}",
        "two parts": f"{head}.{body}",
        "no token": "nonsense",
        "claims that are a list": issuer.token(payload=b"[1]"),
    }


def _by_the_public_key(issuer: Issuer, claims: dict[str, Any]) -> str:
    unsigned = f"{encoded({'alg': 'HS256', 'kid': 'rsa'})}.{encoded(claims)}"
    key = issuer.keys["rsa"].as_pem(private=False)
    return f"{unsigned}.{encoded(hmac.digest(key, unsigned.encode(), 'sha256'))}"


class TokenKafka(ApacheKafka):
    """Apache Kafka with a listener that takes tokens, whose keys are in a file."""

    def __init__(self, data: Path, jwks: Path) -> None:
        super().__init__(data, FOR_TESTS)
        self.jwks = jwks
        self.token_port = free_port()

    def argv(self) -> list[str]:
        java, *words = super().argv()
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.jwks.as_uri()}"
        return [java, allowed, *words]

    def prepare(self) -> None:
        super().prepare()
        names = {
            "PLAINTEXT": self.port,
            "CONTROLLER": self.controller_port,
            LISTENER: self.token_port,
        }
        protocols = {name: "SASL_PLAINTEXT" if name == LISTENER else "PLAINTEXT" for name in names}
        own = f"listener.name.{LISTENER.lower()}.{MECHANISM.lower()}"
        lines = {
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in names.items()),
            "listener.security.protocol.map": ",".join(
                f"{name}:{protocol}" for name, protocol in protocols.items()
            ),
            "sasl.enabled.mechanisms": MECHANISM,
            f"{own}.sasl.jaas.config": f"{_CLASSES}LoginModule required;",
            f"{own}.sasl.server.callback.handler.class": f"{_CLASSES}ValidatorCallbackHandler",
            "sasl.oauthbearer.jwks.endpoint.url": self.jwks.as_uri(),
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
        }
        with (self.data / "server.properties").open("a") as written:
            written.writelines(f"{key}={value}\n" for key, value in lines.items())


async def answers_of_kafka(kafka: TokenKafka, given: dict[str, str]) -> Answers:
    """Return the answers of a started server."""
    return await _played(given, lambda: Talk.connect(kafka.token_port, None))


async def answers_of_ours(directory: Path, jwks: Path, given: dict[str, str]) -> Answers:
    """Return the answers of our port. Logins are within TLS: tokens are taken there only."""
    authority = Authority(directory / "ca")
    authority.issue("server")
    keys = BearerKeys(
        OAuthConfig(jwks=jwks, issuer=ISSUER, audiences=(AUDIENCE,)), SystemClock().now_ms
    )
    await keys.start()
    try:
        tls = TlsConfig(keystore=authority.path / "server.pem")
        sasl = SaslConfig(mechanisms=(MECHANISM,), failure_s=0.1)
        async with secure_port(tls, sasl, protocols=("SASL_SSL",), bearers=keys) as port:
            context = client_tls(authority)
            return await _played(given, lambda: Talk.connect(port.at("SASL_SSL"), context))
    finally:
        keys.close()


async def _played(given: dict[str, str], connect: Any) -> Answers:
    gate = asyncio.Semaphore(AT_ONCE)
    ends = {
        "expired, ended as sarama does": rb"\x01",  # the four characters
        "expired, then a good one": message_of(given["good, RS256"]),
        "expired, then the same": message_of(given["expired an hour ago"]),
    }

    async def one(name: str, token: str) -> tuple[str, list[Any]]:
        async with gate:
            talk = await connect()
            await talk.handshake(MECHANISM)
            if await talk.token(message_of(token)):
                await talk.token(ends.get(name, b"\x01"))  # so ends a client that failed
            await talk.versions()
            talk.client.close()
            return name, [_rounded(each) for each in talk.answers]

    return dict(await asyncio.gather(*(one(*each) for each in given.items())))


def _rounded(answer: Any) -> Any:
    """Return an answer with the time of the session in whole minutes."""
    if isinstance(answer, dict) and "lifetime" in answer:
        return answer | {"lifetime": round(answer["lifetime"] / 60) * 60}
    return answer


def write_jwks(directory: Path, issuer: Issuer) -> Path:
    file = directory / "jwks.json"
    file.write_bytes(issuer.jwks())
    return file


def write_recorded(answers: Answers) -> None:
    FILE.write_text(json.dumps(answers, indent=1, sort_keys=True) + "\n")


def read_recorded() -> Answers:
    found: Answers = json.loads(FILE.read_text())
    return found


def accepted(answers: list[Any]) -> bool:
    """Return whether a login succeeded: its token was answered by an empty one, without error."""
    return (
        len(answers) > 1
        and answers[1] != "closed"
        and answers[1]["token"] == ""
        and not (answers[1]["error"])
    )
