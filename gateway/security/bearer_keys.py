"""Checks the tokens of OAUTHBEARER: their signatures by the keys of a JWKS, then their claims.

The JWKS is a file, or what an https server returns. Imports the JWT library, and is imported only
by a process that offers OAUTHBEARER. Only the algorithms of the settings are taken, and only public
keys: `none`, HMAC and embedded keys (`jwk`, `jku`, `x5c`) do not count, whatever a token asks for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, cast

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry
from joserfc.jws import JWSRegistry

from gateway.config import OAuthConfig
from gateway.core.bearer_token import BadClaims, ClaimRules, Subject, subject_of
from gateway.log import logger
from ledger.tasks import in_thread, start_once

FETCH_S_MAX: Final = 10.0
JWKS_BYTES_MAX: Final = 1024 * 1024
KEYS_MAX: Final = 100
HEADER_BYTES_MAX: Final = 8 * 1024
RETRY_S: Final = 60.0
"""Seconds until the keys are read again after a failure, or for a token with an unknown key."""

RSA_BITS_MIN: Final = 2048
_PUBLIC: Final = {  # the members of a public key by its type
    "RSA": frozenset(("kty", "kid", "use", "key_ops", "alg", "n", "e")),
    "EC": frozenset(("kty", "kid", "use", "key_ops", "alg", "crv", "x", "y")),
}
_ALGORITHMS: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC"}  # the type of key by algorithm


class JwksFault(Exception):
    """A set of keys that cannot be used: a line that names the fix."""


class BadToken(Exception):
    """A token that is not valid. The text is for the log, and holds nothing that a client sent."""


UNNAMED: Final = "\0"  # begins the names of keys without an id


def keys_of(content: bytes) -> dict[str, Any]:
    """Return the public keys of a JWKS by their ids, or by `UNNAMED` and their type without one.

    Raises JwksFault.
    """
    rows: Any = None
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        rows = json.loads(content)["keys"]
    if not isinstance(rows, list):
        raise JwksFault("is no JSON Web Key Set, which is an object with keys")
    found: dict[str, Any] = {}
    for each in cast("list[object]", rows)[:KEYS_MAX]:
        row = cast("dict[str, Any]", each) if isinstance(each, dict) else {}
        key = _public_key(row)
        if key is not None:
            found[str(row["kid"]) if row.get("kid") else f"{UNNAMED}{key.key_type}"] = key
    if not found:
        raise JwksFault("has no public key of RSA with 2048 bits or more, or of EC, for signatures")
    return found


def _public_key(row: dict[str, Any]) -> Any:
    """Return the key of a row of a JWKS, or None if it verifies no signature."""
    kind: object = row.get("kty")
    members = _PUBLIC.get(kind) if isinstance(kind, str) else None
    if members is None or row.get("use", "sig") != "sig":
        return None
    try:
        if row["kty"] == "RSA" and len(row["n"]) * 6 < RSA_BITS_MIN:
            return None
        return JWKRegistry.import_key({name: row[name] for name in row if name in members})
    except (JoseError, ValueError, KeyError, TypeError, AttributeError):
        return None


def read_jwks(config: OAuthConfig) -> bytes:
    """Return the JWKS of the file or of the server. Raises JwksFault."""
    place = config.jwks
    try:
        if isinstance(place, Path):
            with place.open("rb") as opened:
                content = opened.read(JWKS_BYTES_MAX + 1)
        else:
            opener = urllib.request.build_opener(_NoRedirect)
            with opener.open(place, timeout=FETCH_S_MAX) as answer:
                content = answer.read(JWKS_BYTES_MAX + 1)
    except urllib.error.HTTPError as error:
        raise JwksFault(f"{place}: the server answers {error.code}") from None
    except OSError as error:
        reason = getattr(error, "reason", None) or error.strerror or type(error).__name__
        raise JwksFault(f"{place}: {reason}") from None
    except (ValueError, EOFError, HTTPException) as error:
        raise JwksFault(f"{place}: {type(error).__name__}") from None
    if len(content) > JWKS_BYTES_MAX:
        raise JwksFault(f"{place}: is longer than 1 MiB")
    return content


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: only the address that is allowed is asked."""

    def redirect_request(self, *arguments: Any, **more: Any) -> None:
        return None


class BearerKeys:
    """The keys of the issuer, which are read again after a while, and the check of tokens."""

    def __init__(self, config: OAuthConfig, now_ms: Callable[[], int]) -> None:
        """Create it. `now_ms` returns milliseconds since 1970."""
        self._config = config
        self._rules = ClaimRules(
            issuer=config.issuer,
            audiences=config.audiences,
            scopes=config.scopes,
            scope_claim=config.scope_claim,
            subject_claim=config.subject_claim,
            skew_s=config.skew_s,
        )
        self._now_ms = now_ms
        self._registry = JWSRegistry(algorithms=config.algorithms, strict_check_header=False)
        self._registry.max_header_length = HEADER_BYTES_MAX
        # The keys by id. Replaced as a whole; empty until they were read once.
        self._keys: Mapping[str, Any] = {}
        self._is_reading = False
        # When keys may be read for a token with an unknown key, on the loop's clock.
        self._may_read_s = float("-inf")
        self._is_closed = False
        # The next reading. None before `start` and after `close`.
        self._timer: asyncio.TimerHandle | None = None

    def wall_s(self) -> float:
        """Return the time in seconds since 1970."""
        return self._now_ms() / 1000

    def load(self) -> None:
        """Read the keys now, in this thread. Raises JwksFault."""
        content = read_jwks(self._config)
        try:
            self._keys = keys_of(content)
        except JwksFault as fault:
            raise JwksFault(f"{self._config.jwks}: {fault}") from None

    async def start(self) -> None:
        """Read the keys. Raises JwksFault for a file; a server is asked again later."""
        if isinstance(self._config.jwks, Path):
            self.load()
            self._read_in(self._config.refresh_s)
        else:
            await self._read()

    def close(self) -> None:
        """Read no keys any more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def reload(self) -> None:
        """Begin to read the keys again. Faults change nothing."""
        if not self._is_reading and self._timer is not None:
            self._timer.cancel()
            start_once("the keys of OAUTHBEARER", self._read())

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        self._is_reading, wait_s = True, RETRY_S
        try:
            await in_thread(self.load)
            wait_s = self._config.refresh_s
        except JwksFault as fault:
            logger().error("the keys of OAUTHBEARER were not read", reason=str(fault))
        finally:
            self._is_reading = False
            self._may_read_s = loop.time() + RETRY_S
            self._read_in(wait_s)

    def _read_in(self, wait_s: float) -> None:
        if self._is_closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(wait_s, self.reload)

    def check(self, token: str) -> Subject | str:
        """Return the subject of a token, or why it is not valid."""
        try:
            return subject_of(self._claims(token), self._rules, self.wall_s())
        except (BadToken, BadClaims) as bad:
            return str(bad)

    def _claims(self, token: str) -> dict[str, Any]:
        """Return the claims of a token whose signature is right. Raises BadToken."""
        try:
            signed = jws.extract_compact(token.encode(), registry=self._registry)
            header = signed.headers()
            algorithm = header.get("alg")
        except (JoseError, ValueError, TypeError, AttributeError, RecursionError, KeyError):
            raise BadToken("it is no signed JWT") from None
        if not isinstance(algorithm, str) or algorithm not in self._config.algorithms:
            raise BadToken("its algorithm is not enabled")
        key = self._key(header, algorithm)
        try:
            right = jws.validate_compact(signed, key, self._config.algorithms, self._registry)
        except (JoseError, ValueError, TypeError, AttributeError, KeyError):
            right = False
        if not right:
            raise BadToken("its signature is wrong")
        try:
            claims: Any = json.loads(signed.payload)
        except (ValueError, RecursionError):
            claims = None
        if not isinstance(claims, dict):
            raise BadToken("its claims are no JSON object")
        return cast("dict[str, Any]", claims)

    def _key(self, header: Mapping[str, Any], algorithm: str) -> Any:
        """Return the key that a token names. Raises BadToken.

        A token that names none has the key without an id, or the only one, of its algorithm.
        """
        kind = _ALGORITHMS[algorithm[:2]]
        if "kid" in header:
            key_id: object = header["kid"]
            named = isinstance(key_id, str) and key_id and not key_id.startswith(UNNAMED)
            found = self._keys.get(cast("str", key_id)) if named else None
        else:
            fitting = {name: key for name, key in self._keys.items() if key.key_type == kind}
            only = next(iter(fitting.values())) if len(fitting) == 1 else None
            found = fitting.get(f"{UNNAMED}{kind}", only)
        if found is None:
            self._ask_for_keys()
            raise BadToken("its key is unknown")
        if found.key_type != kind:
            raise BadToken("its algorithm is not one of its key")
        return found

    def _ask_for_keys(self) -> None:
        """Read the keys again, at most once in `RETRY_S`: the issuer may have a new one."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._may_read_s:
            self._may_read_s = now_s + RETRY_S
            self.reload()
