"""The client's side of SASL DIGEST-MD5, as ZooKeeper's `DigestLoginModule` offers it. Pure.

It is small enough to be here: the package that kazoo would use has not changed since 2019. The
password does not cross the network, but its proof can be guessed against, so TLS is wise.
Source: RFC 2831; ZooKeeper, `SecurityUtils.java` (service and host).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final

_PAIR: Final = re.compile(rb'\s*([a-z-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^",\s]*))\s*(?:,|$)')
_COUNT: Final = b"00000001"


class DigestFailed(Exception):
    """The server does not speak DIGEST-MD5, or did not prove that it has the password."""


class DigestMd5:
    """One login. `cnonce` is random text of this side."""

    def __init__(
        self, user: str, password: str, cnonce: str, place: str = "zookeeper/zk-sasl-md5"
    ) -> None:
        self._user, self._password = user, password
        self._cnonce = cnonce.encode()
        self._place = place.encode()
        # What the server must answer. Empty before `response`.
        self._expected = b""

    def response(self, challenge: bytes) -> bytes:
        """Return the answer to the server's challenge. Raises DigestFailed."""
        found = _pairs(challenge)
        nonce, realm = found.get(b"nonce", b""), found.get(b"realm", b"")
        if not nonce or found.get(b"algorithm") != b"md5-sess":
            raise DigestFailed("the server does not offer DIGEST-MD5")
        if b"auth" not in found.get(b"qop", b"auth").split(b","):
            raise DigestFailed("the server wants more than authentication of DIGEST-MD5")
        secret = b":".join((_text(self._user), realm, _text(self._password)))
        key = _hex(b":".join((_md5(secret), nonce, self._cnonce)))

        def proof(step: bytes) -> bytes:
            asked = _hex(step + b":" + self._place)
            return _hex(b":".join((key, nonce, _COUNT, self._cnonce, b"auth", asked)))

        self._expected = proof(b"")
        fields = {
            b"username": _quoted(self._user.encode()),
            b"realm": _quoted(realm),
            b"nonce": _quoted(nonce),
            b"cnonce": _quoted(self._cnonce),
            b"nc": _COUNT,
            b"qop": b"auth",
            b"digest-uri": _quoted(self._place),
            b"response": proof(b"AUTHENTICATE"),
            b"charset": b"utf-8",
        }
        return b",".join(b"%b=%b" % each for each in fields.items())

    def check(self, answer: bytes) -> None:
        """Raise DigestFailed unless the server proves that it has the password too."""
        shown = _pairs(answer).get(b"rspauth", b"")
        if not self._expected or not hmac.compare_digest(shown, self._expected):
            raise DigestFailed("the server does not prove that it has the password")


def _pairs(text: bytes) -> dict[bytes, bytes]:
    return {
        name: re.sub(rb"\\(.)", rb"\1", quoted) or plain
        for name, quoted, plain in _PAIR.findall(text)
    }


def _text(text: str) -> bytes:
    """Return a name or a password as it is hashed: in ISO 8859-1 if that has all characters."""
    try:
        return text.encode("iso-8859-1")
    except UnicodeEncodeError:
        return text.encode()


def _quoted(value: bytes) -> bytes:
    return b'"' + re.sub(rb'(["\\])', rb"\\\1", value) + b'"'


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()  # the protocol has no other


def _hex(data: bytes) -> bytes:
    return _md5(data).hex().encode()
