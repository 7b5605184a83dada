"""The sources of a client's OAUTHBEARER token: a file, or an authorization server.

A server is asked with the client's id and secret (RFC 6749, 4.4), as Kafka's clients ask. A token
is kept for a part of the time for which the server grants it, so that none is shown after its end.
Imported only for a login by a token.
Source: Apache Kafka 3.9 (AccessTokenRetrieverFactory) and 4.3 (DefaultJwtRetriever).
"""

from __future__ import annotations

import base64
import errno
import io
import json
import re
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import quote_plus, urlencode, urlsplit

from gateway.security.link_security import FetchedToken
from ledger.command_line.secret_values import SecretFault, read_private
from ledger.ports.clock import measured_s

if TYPE_CHECKING:
    import socket

    from _typeshed import WriteableBuffer

FETCH_S_MAX: Final = 10.0
ANSWER_BYTES_MAX: Final = 64 * 1024
KEPT_SHARE: Final = 0.8
"""The part of its lifetime (`expires_in`) for which a granted token is shown again."""

URL: Final = "sasl.oauthbearer.token.endpoint.url"
CLIENT_ID: Final = "sasl.oauthbearer.client.credentials.client.id"
CLIENT_SECRET: Final = "sasl.oauthbearer.client.credentials.client.secret"
SCOPE: Final = "sasl.oauthbearer.scope"
_CHECK: Final = "check the URL"
_LIFETIME_S_MAX: Final = 86_400  # no token is kept for longer
_PASSING: Final = (408, 429)  # and those from 500 on: the same request may be answered later
_TOKEN: Final = re.compile(r"[-_~+/.a-zA-Z0-9]+=*")


class TokenServerAway(SecretFault):
    """The error that a server gave no answer, or one that passes: it may be asked again."""


def read_token(file: Path) -> str:
    """Return the token of a file that only its owner may read. Raises SecretFault."""
    try:
        text = read_private(file).decode(errors="replace").strip()
    except SecretFault as fault:
        raise SecretFault(f"{URL}: {fault}; it must be the file with the token") from None
    if not _TOKEN.fullmatch(text):
        raise SecretFault(f"{URL}: {file}: must have one token, and nothing else")
    return text


@dataclass(frozen=True, slots=True)
class TokenOfFile:
    """A token that is read from its file at each login, so that a newer one is used."""

    file: Path

    @property
    def place(self) -> str:
        return f"{URL}: {self.file}"

    def fetch(self) -> FetchedToken:
        """Return the token. Blocks. Raises SecretFault."""
        return FetchedToken(read_token(self.file))


@dataclass(frozen=True, slots=True)
class GrantedToken:
    """A token that an https server grants to a client by its id and its secret."""

    url: str = field(repr=False)  # its query may have a secret
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""
    encoded: bool = False  # id and secret are encoded as in a form (RFC 6749, 2.3.1)

    @property
    def place(self) -> str:
        """The setting with its scheme, host and port alone: the rest may have a secret."""
        parts = urlsplit(self.url)
        return f"{URL}: {parts.scheme}://{parts.netloc}"

    def fetch(self) -> FetchedToken:
        """Return a new token. Raises SecretFault; TokenServerAway if the fault may pass.

        Blocks until the answer is whole, or until `FETCH_S_MAX` after the begin. The connection to
        each address of the server, and the handshake, may each take as long before that ends it.
        """
        answer: Any = None
        try:
            answer = json.loads(self._answer())
        except (ValueError, RecursionError):
            raise SecretFault(f"{self.place}: the server's answer is not JSON; {_CHECK}") from None
        fields = cast("dict[str, object]", answer) if isinstance(answer, dict) else {}
        found = fields.get("access_token")
        if not isinstance(found, str) or not _TOKEN.fullmatch(found):
            raise SecretFault(f"{self.place}: the server's answer has no access_token; {_CHECK}")
        return FetchedToken(found, _keep_s(fields.get("expires_in")))

    def _answer(self) -> bytes:
        try:
            opener = urllib.request.build_opener(_NoRedirect, _Timed)
            with opener.open(self._request(), timeout=FETCH_S_MAX) as answer:
                content = answer.read(ANSWER_BYTES_MAX + 1)
        except urllib.error.HTTPError as error:
            error.close()
            raise _refusal(self.place, error.code) from None
        except OSError as error:
            raise TokenServerAway(f"{self.place}: {_reason(error)}") from None
        except (EOFError, HTTPException) as error:
            fault = f"the answer is cut short or no HTTP ({type(error).__name__})"
            raise TokenServerAway(f"{self.place}: {fault}; {_CHECK}") from None
        except ValueError as error:
            raise SecretFault(f"{self.place}: {type(error).__name__}; {_CHECK}") from None
        if len(content) > ANSWER_BYTES_MAX:
            fault = "the server's answer is longer than 64 KiB"
            raise SecretFault(f"{self.place}: {fault}; {_CHECK}")
        return content

    def _request(self) -> urllib.request.Request:
        wanted = {"grant_type": "client_credentials"}
        if self.scope:
            wanted["scope"] = self.scope
        pair = self.client_id, self.client_secret
        written = ":".join(map(_encoded, pair) if self.encoded else pair)
        who = base64.b64encode(written.encode()).decode()
        headers = {
            "Accept": "application/json",
            "Authorization": f"Basic {who}",
            "Cache-Control": "no-cache",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        body = urlencode(wanted).encode()
        return urllib.request.Request(self.url, body, headers, method="POST")


def _encoded(text: str) -> str:
    """Return a text as Java's URLEncoder writes it."""
    return quote_plus(text, safe="*").replace("~", "%7E")


def _keep_s(expires_in: object) -> float:
    """Return for how long a token is kept: 0 without a lifetime in seconds, as RFC 6749 has it."""
    if isinstance(expires_in, bool) or not isinstance(expires_in, (int, float)):
        return 0.0
    lifetime_s = min(expires_in, _LIFETIME_S_MAX)
    return max(0.0, KEPT_SHARE * lifetime_s) if lifetime_s == lifetime_s else 0.0


def _refusal(place: str, code: int) -> SecretFault:
    """Return the error of an answer that grants no token, with what to do."""
    if code in _PASSING or code >= 500:
        return TokenServerAway(f"{place}: the server answers {code}; try again later")
    fixes = {
        400: f"check {CLIENT_ID}, {CLIENT_SECRET} and {SCOPE}",
        401: f"check {CLIENT_ID} and {CLIENT_SECRET}",
        403: f"check the rights of {CLIENT_ID}, and {SCOPE}",
    }
    fix = "no redirect is followed: set the URL that it leads to" if code < 400 else _CHECK
    return SecretFault(f"{place}: the server answers {code}; {fixes.get(code, fix)}")


def _reason(error: OSError) -> str:
    """Return why no server answered, with what to do."""
    cause = getattr(error, "reason", None)
    cause = cause if isinstance(cause, OSError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return (
            f"certificate verify failed: {cause.verify_message}; name the file with its "
            "authorities in SSL_CERT_FILE"
        )
    text = getattr(cause, "reason", None) or cause.strerror or "no answer in time"
    return f"{text}; check host and port of the URL"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the secret goes to the named server alone."""

    def redirect_request(self, *arguments: Any, **more: Any) -> None:
        return None


# -- one time for the whole answer: a timeout of a socket is that of each read ---------------------


class _Timed(urllib.request.HTTPSHandler):
    """Asks https servers, whose whole answers have one time."""

    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(_TimedConnection, req)


class _TimedConnection(HTTPSConnection):
    """A connection whose answers, also that of a proxy, end `FETCH_S_MAX` after its begin."""

    def __init__(self, host: str, **options: Any) -> None:
        super().__init__(host, **options)
        made = partial(_TimedResponse, measured_s() + FETCH_S_MAX)
        self.response_class = cast("type[HTTPResponse]", made)


class _TimedResponse(HTTPResponse):
    """An answer, with its status and headers, that is read until a time."""

    def __init__(self, ends_s: float, sock: socket.socket, *more: Any, **options: Any) -> None:
        super().__init__(sock, *more, **options)
        self.fp = io.BufferedReader(_TimedReads(self.fp.detach(), sock, ends_s))


class _TimedReads(io.RawIOBase):
    """The bytes of a socket until a time of the monotonic clock, in seconds."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, ends_s: float) -> None:
        self._raw = raw
        self._sock = sock
        self._ends_s = ends_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        """Read a piece, as soon as there is one. Raises TimeoutError."""
        left_s = self._ends_s - measured_s()
        try:
            if left_s > 0:
                self._sock.settimeout(left_s)
                return self._raw.readinto(buffer)
        except TimeoutError:
            pass
        text = f"the server's answer is not whole after {FETCH_S_MAX:g} s"
        raise TimeoutError(errno.ETIMEDOUT, text)

    def close(self) -> None:
        self._raw.close()
        super().close()
