"""An issuer of tokens of OAUTHBEARER for tests: its keys, its JWKS, and good and bad tokens."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from joserfc import jwk, jws

ISSUER, AUDIENCE = "https://issuer.example", "kafka"
ALGORITHMS = ("RS256", "PS256", "ES256")


def encoded(data: bytes | dict[str, Any]) -> str:
    """Return base64url as tokens have it, of bytes or of an object as JSON."""
    written = data if isinstance(data, bytes) else json.dumps(data).encode()
    return base64.urlsafe_b64encode(written).decode().rstrip("=")


class Issuer:
    """Two keys, `rsa` and `ec`, and what it signs with them."""

    def __init__(self) -> None:
        raw = {
            "rsa": (rsa.generate_private_key(65_537, 2048), "RSA"),
            "ec": (ec.generate_private_key(ec.SECP256R1()), "EC"),
        }
        self.keys: dict[str, Any] = {
            name: jwk.import_key(self._pem(key), kind, {"kid": name})
            for name, (key, kind) in raw.items()
        }

    @staticmethod
    def _pem(key: Any) -> bytes:
        from cryptography.hazmat.primitives import serialization as form

        return bytes(
            key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
        )

    def jwks(self, *names: str) -> bytes:
        """Return the public keys as a JWKS."""
        rows = [self.keys[name].as_dict(private=False) for name in names or self.keys]
        return json.dumps({"keys": rows}).encode()

    @staticmethod
    def claims(**changed: Any) -> dict[str, Any]:
        """Return good claims with changes; None leaves a claim out."""
        now = int(time.time())
        good = {"iss": ISSUER, "aud": AUDIENCE, "sub": "carol", "iat": now, "exp": now + 600}
        return {name: each for name, each in (good | changed).items() if each is not None}

    def token(
        self,
        algorithm: str = "RS256",
        header: dict[str, Any] | None = None,
        payload: bytes | None = None,
        **changed: Any,
    ) -> str:
        """Return a token that this issuer signed, with changes of its header and claims."""
        name = "ec" if algorithm.startswith("ES") else "rsa"
        written = payload or json.dumps(self.claims(**changed)).encode()
        registry = jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False)
        registry.max_header_length = 1 << 20
        fields = {"alg": algorithm, "kid": name, **(header or {})}
        fields = {key: value for key, value in fields.items() if value is not None}
        return jws.serialize_compact(fields, written, self.keys[name], [algorithm], registry)


def message_of(token: str, authorized: str = "", more: str = "") -> bytes:
    """Return the client's message with a token."""
    return f"n,{authorized},\x01auth=Bearer {token}\x01{more}\x01".encode()
