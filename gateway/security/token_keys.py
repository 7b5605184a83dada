"""From Kafka's client keys to the source of a token of OAUTHBEARER.

The keys are those of Kafka 4 (`sasl.oauthbearer.client.credentials.*`, `sasl.oauthbearer.scope`),
which win, and the options of `sasl.jaas.config` that Kafka 3 has in their place (`clientId`,
`clientSecret`, `scope`). Both have `sasl.oauthbearer.header.urlencode`. Raises `TokenFault` for
what Kafka's clients do otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from gateway.security.token_sources import GrantedToken, TokenOfFile, read_token
from ledger.command_line.secret_values import SecretFault

URL: Final = "sasl.oauthbearer.token.endpoint.url"
JAAS: Final = "sasl.jaas.config"
HANDLER: Final = "sasl.login.callback.handler.class"
RETRIEVER: Final = "sasl.oauthbearer.jwt.retriever.class"
CLIENT_ID: Final = "sasl.oauthbearer.client.credentials.client.id"
CLIENT_SECRET: Final = "sasl.oauthbearer.client.credentials.client.secret"
SCOPE: Final = "sasl.oauthbearer.scope"
ENCODED: Final = "sasl.oauthbearer.header.urlencode"
PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer"
MODULE: Final = f"{PACKAGE}.OAuthBearerLoginModule"
HANDLERS: Final = (
    f"{PACKAGE}.OAuthBearerLoginCallbackHandler",
    f"{PACKAGE}.secured.OAuthBearerLoginCallbackHandler",
)
_OF_FILES: Final = ("DefaultJwtRetriever", "FileJwtRetriever")
_OF_SERVERS: Final = ("DefaultJwtRetriever", "ClientCredentialsJwtRetriever")
_ENTRY: Final = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*)", re.S)
_OPTION: Final = re.compile(
    r"""\b(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))"""
)

Resolve = Callable[[str], str]
"""Returns a secret as it is, or what `file:PATH` and `env:NAME` refer to."""


class TokenFault(Exception):
    """Keys by which no token can be got: a line that names the fix, and never a secret."""


def token_source(keys: Mapping[str, str], resolve: Resolve) -> TokenOfFile | GrantedToken:
    """Return where the token of these keys is. Raises TokenFault, and what `resolve` raises.

    A file is read once, so that faults are found before anything is sent.
    """
    place, options = keys.get(URL, ""), _jaas_options(keys)
    _check_class(keys, HANDLER, HANDLERS)
    if place.startswith("https://"):
        if "@" in place:
            raise TokenFault(f"{URL}: must have no user and no password in the URL")
        _check_class(keys, RETRIEVER, tuple(f"{PACKAGE}.{each}" for each in _OF_SERVERS))
        client_id = keys.get(CLIENT_ID) or options.get("clientId", "")
        secret = keys.get(CLIENT_SECRET) or options.get("clientSecret", "")
        if not client_id or not secret:
            raise TokenFault(
                f"{URL}={place}: a client is missing: set {CLIENT_ID} and {CLIENT_SECRET}, or "
                f"clientId and clientSecret in {JAAS}"
            )
        scope = keys.get(SCOPE) or options.get("scope", "")
        return GrantedToken(place, client_id, resolve(secret), scope, _is_encoded(keys))
    path = place.removeprefix("file://").removeprefix("file:")
    if not place.startswith("file:") or not path:
        raise TokenFault(
            f"{URL}={place}: must be file:PATH, where the file has the token, or an https URL"
        )
    _check_class(keys, RETRIEVER, tuple(f"{PACKAGE}.{each}" for each in _OF_FILES))
    try:
        read_token(Path(path))
    except SecretFault as fault:
        raise TokenFault(str(fault)) from None
    return TokenOfFile(Path(path))


def _is_encoded(keys: Mapping[str, str]) -> bool:
    text = keys.get(ENCODED, "").strip().lower() or "false"
    if text not in ("true", "false"):
        raise TokenFault(f"{ENCODED}={text}: must be true or false")
    return text == "true"


def _jaas_options(keys: Mapping[str, str]) -> dict[str, str]:
    """Return the options of `sasl.jaas.config`, none if it is missing."""
    text = keys.get(JAAS, "")
    if not text.strip():
        return {}
    entry = _ENTRY.fullmatch(text)
    if entry is None or entry[1] != MODULE:
        raise TokenFault(f"{JAAS}: must be `{MODULE} required ...;` for OAUTHBEARER")
    found: dict[str, str] = {}
    for name, double, single, bare in _OPTION.findall(entry[2]):
        if name.startswith("unsecured"):
            raise TokenFault(f"{JAAS}: {name}: unsecured tokens are not supported")
        if name.startswith("extension_"):
            raise TokenFault(f"{JAAS}: {name}: extensions are not supported")
        found[name] = bare or re.sub(r"\\(.)", r"\1", double or single)
    return found


def _check_class(keys: Mapping[str, str], key: str, known: tuple[str, ...]) -> None:
    name = keys.get(key, "")
    if name and name not in known:
        raise TokenFault(f"{key}={name}: no classes are loaded; leave it out, or set {known[0]}")
