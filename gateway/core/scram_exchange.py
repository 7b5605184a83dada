"""SCRAM-SHA-256 and SCRAM-SHA-512: both sides of one exchange. Pure: nonces come in.

    client   n,,n=alice,r=C        ─▶
             ◀─  r=CS,s=salt,i=8192          server
    client   c=biws,r=CS,p=proof   ─▶
             ◀─  v=signature                 server

The server keeps stored key and server key, never a password. A user that does not exist gets a salt
and iterations too, and fails at the same step as one with a wrong password.
Source: RFC 5802, RFC 7677; Kafka, ScramMessages and ScramSaslServer: user names are ASCII, and
passwords are not normalized. Kafka checks neither the channel flag nor `m=`; both are checked here.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable
from typing import Final

from gateway.core.scram_credentials import ITERATIONS_MIN, Credential, Mechanism

MECHANISMS: Final = {"SCRAM-SHA-256": Mechanism.SHA_256, "SCRAM-SHA-512": Mechanism.SHA_512}
"""The mechanisms of SASL by name."""

DIGESTS: Final = {Mechanism.SHA_256: "sha256", Mechanism.SHA_512: "sha512"}
CLIENT_ITERATIONS_MAX: Final = 1_000_000
"""A client computes no more: the server chooses the count, and each one costs time."""

OTHER_USER: Final = (
    "Authentication failed: Client requested an authorization id that is different from username"
)
"""What a client learns that asks to be another user, as in Kafka."""

MESSAGE_BYTES_MAX: Final = 8 * 1024
"""A message of SCRAM is refused if it is longer. Names and nonces are far shorter."""

_NAME: Final = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_NONCE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_BASE64: Final = r"(?:[a-zA-Z0-9/+]{4})*(?:[a-zA-Z0-9/+]{3}=|[a-zA-Z0-9/+]{2}==)?"
_EXTENSIONS: Final = r"(?:,[A-Za-z]+=[\x01-\x2b\x2d-\x7f]+)*"
_CLIENT_FIRST: Final = re.compile(
    rf"(?P<header>n,(?:a=(?P<authorized>{_NAME}))?,)"
    rf"(?P<bare>n=(?P<name>{_NAME}),r=(?P<nonce>{_NONCE})(?P<extensions>{_EXTENSIONS}))"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<unproved>c=(?P<channel>{_BASE64}),r=(?P<nonce>{_NONCE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)
_SERVER_FIRST: Final = re.compile(
    rf"r=(?P<nonce>{_NONCE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>[0-9]{{1,10}}){_EXTENSIONS}"
)
_SERVER_FINAL: Final = re.compile(rf"v=(?P<signature>{_BASE64}){_EXTENSIONS}")
_BY_TOKEN: Final = "tokenauth=true"


class ScramFailed(Exception):
    """The exchange failed. The text is for the log of its own side.

    The peer gets `shown`, or a text that says nothing if it is "".
    """

    def __init__(self, reason: str, shown: str = "") -> None:
        super().__init__(reason)
        self.shown = shown


def decode_name(written: str) -> str:
    """Return the user name of a `saslname`."""
    return written.replace("=2C", ",").replace("=3D", "=")


def encode_name(name: str) -> str:
    """Return a user name as a `saslname`."""
    return name.replace("=", "=3D").replace(",", "=2C")


def salted_password(mechanism: Mechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Return the salted password, which takes about 0.5 us for each iteration."""
    return hashlib.pbkdf2_hmac(DIGESTS[mechanism], password.encode(), salt, iterations)


class ScramServer:
    """The server's side of one exchange. Call `first`, then `final`; each once."""

    def __init__(
        self,
        mechanism: Mechanism,
        credential_of: Callable[[str], tuple[Credential, bool]],
        nonce: str,
    ) -> None:
        """Create the exchange with a fresh random `nonce` of printable characters but a comma.

        `credential_of` returns the credential of a user, and whether the user has it. For one that
        has none it returns made-up keys, which are the same each time.
        """
        self._digest = DIGESTS[mechanism]
        self._credential_of = credential_of
        self._own_nonce = nonce
        # Set by `first`: the user, its credential, whether it exists, and what both sides sign.
        self.user = ""
        self.credential: Credential | None = None
        self._exists = False
        self._header = b""
        self._nonce = ""
        self._signed = ""

    def __repr__(self) -> str:
        """Show no secret, as logs may contain this."""
        return f"ScramServer({self._digest})"

    def first(self, message: bytes) -> bytes:
        """Answer the first message of the client. Raises ScramFailed."""
        match = _parse(_CLIENT_FIRST, message)
        if _BY_TOKEN in match["extensions"].split(","):
            raise ScramFailed("delegation tokens are not supported")
        name, authorized = decode_name(match["name"]), match["authorized"]
        if authorized is not None and decode_name(authorized) != name:
            raise ScramFailed("the authorization id differs from the user", OTHER_USER)
        credential, self._exists = self._credential_of(name)
        self.user, self.credential = name, credential
        self._header = match["header"].encode()
        self._nonce = match["nonce"] + self._own_nonce
        salt = base64.b64encode(credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._signed = f"{match['bare']},{answer}"
        return answer.encode()

    def final(self, message: bytes) -> bytes:
        """Check the proof of the client, and return that of the server. Raises ScramFailed."""
        credential = self.credential
        if credential is None:
            raise ScramFailed("the last message came first")
        match = _parse(_CLIENT_FINAL, message)
        if not hmac.compare_digest(match["nonce"], self._nonce):
            raise ScramFailed("the nonce differs")
        if base64.b64decode(match["channel"]) != self._header:
            raise ScramFailed("the channel flag differs")
        signed = f"{self._signed},{match['unproved']}".encode()
        proof = base64.b64decode(match["proof"])
        signature = hmac.digest(credential.stored_key, signed, self._digest)
        if len(proof) != len(signature):
            raise ScramFailed("the proof has another size")
        key = hashlib.new(self._digest, _xor(proof, signature)).digest()
        is_proved = hmac.compare_digest(key, credential.stored_key)
        if not (is_proved and self._exists):
            raise ScramFailed("the proof is wrong" if self._exists else "there is no such user")
        mine = hmac.digest(credential.server_key, signed, self._digest)
        return b"v=" + base64.b64encode(mine)


class ScramClient:
    """The client's side of one exchange. Call `first`, `final` and `check`; each once."""

    def __init__(self, mechanism: Mechanism, user: str, password: str, nonce: str) -> None:
        """Create the exchange with a fresh random `nonce`."""
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={encode_name(user)},r={nonce}"
        self._expected = b""  # the server's signature; set by `final`

    def __repr__(self) -> str:
        """Show no secret, as logs may contain this."""
        return f"ScramClient({self._mechanism.name})"

    def first(self) -> bytes:
        """Return the first message."""
        return f"n,,{self._bare}".encode()

    def final(self, message: bytes) -> bytes:
        """Return the proof for the first answer of the server. Raises ScramFailed."""
        match = _parse(_SERVER_FIRST, message)
        nonce, iterations = match["nonce"], int(match["iterations"])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramFailed("the server changed the nonce")
        if not ITERATIONS_MIN <= iterations <= CLIENT_ITERATIONS_MAX:
            raise ScramFailed(f"the server asks for {iterations} iterations")
        digest, salt = DIGESTS[self._mechanism], base64.b64decode(match["salt"])
        salted = salted_password(self._mechanism, self._password, salt, iterations)
        unproved = f"c=biws,r={nonce}"
        signed = f"{self._bare},{message.decode()},{unproved}".encode()
        client_key = hmac.digest(salted, b"Client Key", digest)
        stored_key = hashlib.new(digest, client_key).digest()
        proof = _xor(client_key, hmac.digest(stored_key, signed, digest))
        server_key = hmac.digest(salted, b"Server Key", digest)
        self._expected = hmac.digest(server_key, signed, digest)
        return f"{unproved},p={base64.b64encode(proof).decode()}".encode()

    def check(self, message: bytes) -> None:
        """Check that the server has the keys of this user too. Raises ScramFailed."""
        match = _parse(_SERVER_FINAL, message)
        found = base64.b64decode(match["signature"])
        if not self._expected or not hmac.compare_digest(found, self._expected):
            raise ScramFailed("the server does not prove that it has the keys of this user")


def _parse(pattern: re.Pattern[str], message: bytes) -> re.Match[str]:
    if len(message) > MESSAGE_BYTES_MAX:
        raise ScramFailed("a message is too long")
    try:
        match = pattern.fullmatch(message.decode())
    except UnicodeDecodeError:
        match = None
    if match is None:
        raise ScramFailed("a message has another form")
    return match


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
