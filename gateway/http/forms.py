"""Forms that change something: their fields, and the proof that a page of ours sent them.

A page of another site can make a browser send a form to this one. It cannot set
`Sec-Fetch-Site` or `Origin`, and it cannot read the token.
"""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from gateway.http.pages import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

FIELDS_MAX: Final = 100
_KIND: Final = "application/x-www-form-urlencoded"
_TOKEN_BYTES: Final = 32
_FOREIGN: Final = "this request does not come from a page of this gateway; reload the page"


class Token:
    """The secret of this process that its forms carry."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(_TOKEN_BYTES)

    def written(self) -> str:
        """Return the token, another text each time.

        Pages are compressed. The lengths of many pages could reveal a text that is the same in
        each of them to a listener on the network. Source: the attack BREACH.
        """
        pad = secrets.token_bytes(_TOKEN_BYTES)
        return (pad + _xor(pad, self._secret)).hex()

    def accepts(self, written: str) -> bool:
        """Return whether a form has the token."""
        try:
            both = bytes.fromhex(written)
        except ValueError:
            return False
        if len(both) != 2 * _TOKEN_BYTES:
            return False
        found = _xor(both[:_TOKEN_BYTES], both[_TOKEN_BYTES:])
        return hmac.compare_digest(found, self._secret)


def _xor(first: bytes, second: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(first, second, strict=True))


def require_own_page(request: Request) -> None:
    """Let the request pass if a page of this very server sent it. Raises Refused."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        if site.lower() != "same-origin":
            raise Refused(403, "CROSS_SITE", _FOREIGN)
        return
    own = f"{request.scope['scheme']}://{request.headers.get('host', '')}"
    if request.headers.get("origin", "").lower() != own.lower():
        raise Refused(403, "CROSS_SITE", _FOREIGN)


def form_of(request: Request) -> dict[str, str]:
    """Parse the body as a form. Raises Refused if it is none, or has a field twice."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _KIND:
        raise Refused(415, "UNSUPPORTED_MEDIA_TYPE", f"the body must be {_KIND}")
    try:
        pairs = parse_qsl(
            request.scope["state"]["body"].decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=FIELDS_MAX,
        )
    except ValueError:
        message = f"the body is no form of at most {FIELDS_MAX} fields"
        raise Refused(400, "INVALID_REQUEST", message) from None
    form = dict(pairs)
    if len(form) != len(pairs):
        raise Refused(400, "INVALID_REQUEST", "a field of the form is there twice")
    return form


def place_after(form: Mapping[str, str]) -> str:
    """Return the path to which a browser goes after a change: `back` of the form, if it is ours."""
    back = form.get("back", "/")
    is_plain = all("!" <= each <= "~" and each not in '\\"<>' for each in back)
    is_ours = back.startswith("/") and not back.startswith("//")
    return back if is_plain and is_ours else "/"
