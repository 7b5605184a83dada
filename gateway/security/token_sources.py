"""Where a client gets its token of OAUTHBEARER: a file, or an authorization server.

A server is asked with the client's id and secret (RFC 6749, 4.4), as Kafka's clients ask. Each
login takes a token anew, so that one that has ended is not shown again. Imported only for a login
by a token.
Source: Apache Kafka 3.9 (AccessTokenRetrieverFactory) and 4.3 (DefaultJwtRetriever).
"""

from __future__ import annotations

import base64
import errno
import io
import json
import re
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import quote_plus, urlencode

from ledger.command_line.secret_values import SecretFault, read_private

if TYPE_CHECKING:
    import socket

    from _typeshed import WriteableBuffer

FETCH_S_MAX: Final = 10.0
ANSWER_BYTES_MAX: Final = 64 * 1024
_TOKEN: Final = re.compile(r"[-_~+/.a-zA-Z0-9]+=*")


def read_token(file: Path) -> str:
    """Return the token of a file that only its owner may read. Raises SecretFault."""
    text = read_private(file).decode(errors="replace").strip()
    if not _TOKEN.fullmatch(text):
        raise SecretFault(f"{file}: must have one token, and nothing else")
    return text


@dataclass(frozen=True, slots=True)
class TokenOfFile:
    """A token that is read from its file at each login, so that a newer one is used."""

    file: Path

    def fetch(self) -> str:
        """Return the token. Blocks. Raises SecretFault."""
        return read_token(self.file)


@dataclass(frozen=True, slots=True)
class GrantedToken:
    """A token that an https server grants to a client by its id and its secret."""

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""
    encoded: bool = False  # id and secret are encoded as in a form (RFC 6749, 2.3.1)

    def fetch(self) -> str:
        """Return a new token. Raises SecretFault.

        Blocks until the answer is whole, or until `FETCH_S_MAX` after the begin. The connection to
        each address of the server, and the handshake, may each take as long before that ends it.
        """
        answer: Any = None
        try:
            answer = json.loads(self._answer())
        except (ValueError, RecursionError):
            raise SecretFault(f"{self.url}: the server's answer is not JSON") from None
        found: object = None
        if isinstance(answer, dict):
            found = cast("dict[str, object]", answer).get("access_token")
        if not isinstance(found, str) or not _TOKEN.fullmatch(found):
            raise SecretFault(f"{self.url}: the server's answer has no access_token")
        return found

    def _answer(self) -> bytes:
        try:
            opener = urllib.request.build_opener(_NoRedirect, _Timed)
            with opener.open(self._request(), timeout=FETCH_S_MAX) as answer:
                content = answer.read(ANSWER_BYTES_MAX + 1)
        except urllib.error.HTTPError as error:
            error.close()
            raise SecretFault(f"{self.url}: the server answers {error.code}") from None
        except OSError as error:
            reason = getattr(error, "reason", None) or error.strerror or type(error).__name__
            raise SecretFault(f"{self.url}: {reason}") from None
        except (ValueError, EOFError, HTTPException) as error:
            raise SecretFault(f"{self.url}: {type(error).__name__}") from None
        if len(content) > ANSWER_BYTES_MAX:
            raise SecretFault(f"{self.url}: the server's answer is longer than 64 KiB")
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
        made = partial(_TimedResponse, monotonic() + FETCH_S_MAX)
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
        left_s = self._ends_s - monotonic()
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
