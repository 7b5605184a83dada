"""The tokens of OAUTHBEARER: the client's message, and the rules for the claims of a JWT. Pure.

    n,a=alice,\\x01auth=Bearer eyJ...\\x01\\x01      the client's message; `a=` may be missing

Signatures are not checked here. Source: RFC 7628, RFC 7519; Kafka, OAuthBearerClientInitialResponse
and BrokerJwtValidator: the claims `exp`, `iat` and that of the subject must be there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

from gateway.core.stored_names import NAME_BYTES_MAX

MESSAGE_BYTES_MAX: Final = 32 * 1024
"""A message of the client is refused if it is longer. Real tokens take 1 to 8 KiB."""

_NAME: Final = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_PAIRS: Final = r"(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*"
_MESSAGE: Final = re.compile(rf"n,(?:a=(?P<authorized>{_NAME}))?,\x01(?P<pairs>{_PAIRS})\x01")
_BEARER: Final = re.compile(r"(?i:bearer) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)")
_NUMBER_MAX: Final = 2**53


class MalformedBearer(ValueError):
    """The client's message has another form."""


class BadClaims(ValueError):
    """A claim of a token is missing or wrong. The text is for the log of this server."""


class Bearer(NamedTuple):
    """A token of a client, and the user that it wants to be, "" for that of the token."""

    token: str
    authorized: str

    def __repr__(self) -> str:
        """Show no secret, as logs may contain this."""
        return f"Bearer({self.authorized!r})"


class Subject(NamedTuple):
    """The user of a valid token, and the end of the token in seconds since 1970."""

    user: str
    ends_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRules:
    """What the claims of a token must be."""

    issuer: str
    audiences: tuple[str, ...]  # one of them must be among the token's
    scopes: tuple[str, ...] = ()  # all of them must be among the token's
    scope_claim: str = "scope"  # Kafka: sasl.oauthbearer.scope.claim.name
    subject_claim: str = "sub"  # Kafka: sasl.oauthbearer.sub.claim.name
    skew_s: float = 30.0  # by which clocks may differ; Kafka: sasl.oauthbearer.clock.skew.seconds


def parse_bearer(message: bytes) -> Bearer:
    """Return the token of a client's message. Raises MalformedBearer."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise MalformedBearer("the message is too long")
    try:
        found = _MESSAGE.fullmatch(message.decode())
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise MalformedBearer("the message has another form")
    pairs = dict(each.split("=", 1) for each in found["pairs"].split("\x01") if each)
    bearer = _BEARER.fullmatch(pairs.get("auth", ""))
    if bearer is None:
        raise MalformedBearer("the message has no bearer token")
    return Bearer(bearer["token"], found["authorized"] or "")


def subject_of(claims: Mapping[str, Any], rules: ClaimRules, now_s: float) -> Subject:
    """Return the user of a token whose signature is right. Raises BadClaims.

    `now_s` is the time in seconds since 1970.
    """
    ends_s = _time(claims, "exp")
    if ends_s is None or _time(claims, "iat") is None:
        raise BadClaims("exp or iat is missing")
    if now_s >= ends_s + rules.skew_s:
        raise BadClaims("it has expired")
    begins_s = _time(claims, "nbf")
    if begins_s is not None and now_s < begins_s - rules.skew_s:
        raise BadClaims("it is not valid yet")
    if claims.get("iss") != rules.issuer:
        raise BadClaims("its issuer is not the expected one")
    if not set(rules.audiences).intersection(_texts(claims.get("aud"))):
        raise BadClaims("its audience is not an expected one")
    missing = set(rules.scopes).difference(_scopes(claims.get(rules.scope_claim)))
    if missing:
        raise BadClaims(f"its scope lacks {', '.join(sorted(missing))}")
    return Subject(_user(claims.get(rules.subject_claim)), ends_s)


def _user(found: object) -> str:
    user = found.strip() if isinstance(found, str) else ""
    if not user:
        raise BadClaims("its subject is missing")
    try:
        size = len(user.encode())
    except UnicodeEncodeError:
        raise BadClaims("its subject has lone surrogates") from None
    if size > NAME_BYTES_MAX or "\0" in user:
        raise BadClaims("its subject is too long, or has a NUL character")
    return user


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    """Return a time in seconds since 1970, or None if the claim is missing. Raises BadClaims."""
    found = claims.get(name)
    if found is None:
        return None
    is_number = isinstance(found, (int, float)) and not isinstance(found, bool)
    if not is_number or not 0 <= found <= _NUMBER_MAX:  # NaN is not in these bounds either
        raise BadClaims(f"{name} is not a time")
    return float(found)


def _texts(found: object) -> Collection[str]:
    """Return the texts of a claim that is one text or a list. Anything else has none."""
    if isinstance(found, str):
        return (found,)
    if isinstance(found, list):
        return [each for each in cast("list[object]", found) if isinstance(each, str)]
    return ()


def _scopes(found: object) -> Collection[str]:
    """Return the scopes of a claim: a list, or one text with spaces between them (RFC 8693)."""
    return [scope for each in _texts(found) for scope in each.split()]
