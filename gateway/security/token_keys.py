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
from urllib.parse import urlsplit

from gateway.security.token_sources import (
    CLIENT_ID,
    CLIENT_SECRET,
    SCOPE,
    URL,
    GrantedToken,
    TokenOfFile,
    read_token,
)
from ledger.command_line.secret_values import SecretFault

JAAS: Final = "sasl.jaas.config"
HANDLER: Final = "sasl.login.callback.handler.class"
RETRIEVER: Final = "sasl.oauthbearer.jwt.retriever.class"
ENCODED: Final = "sasl.oauthbearer.header.urlencode"
VALIDATOR: Final = "sasl.oauthbearer.jwt.validator.class"
PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer"
MODULE: Final = f"{PACKAGE}.OAuthBearerLoginModule"
HANDLERS: Final = (
    f"{PACKAGE}.OAuthBearerLoginCallbackHandler",
    f"{PACKAGE}.secured.OAuthBearerLoginCallbackHandler",
)
_OF_FILES: Final = ("DefaultJwtRetriever", "FileJwtRetriever")
_OF_SERVERS: Final = ("DefaultJwtRetriever", "ClientCredentialsJwtRetriever")
_NO_CLASSES: Final = ("sasl.login.class", "sasl.client.callback.handler.class")
_ENTRY: Final = re.compile(
    r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)(\s.*)?;\s*", re.DOTALL
)
# One option, whose value is in quotes or a word. A space or the end follows.
_OPTION: Final = re.compile(
    r"""\s+([^\s=;"']+)\s*=\s*"""
    r"""(?:"((?:[^"\\\r\n]|\\[^\r\n])*)"|'((?:[^'\\\r\n]|\\[^\r\n])*)'|([^\s;"']+))(?=\s|\Z)"""
)
_ESCAPES: Final = re.compile(r"\\[abfnrtv0-7]")  # Kafka reads others than the character itself
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z_.]*")
_OPTIONS: Final = ("clientId", "clientSecret", "scope")

Resolve = Callable[[str], str]
"""Returns a secret as it is, or what `file:PATH` and `env:NAME` refer to."""


class TokenFault(Exception):
    """Keys by which no token can be got: a line that names the fix, and never a secret."""


def token_source(keys: Mapping[str, str], resolve: Resolve) -> TokenOfFile | GrantedToken:
    """Return where the token of these keys is. Raises TokenFault, and what `resolve` raises.

    A file is read once, so that faults are found before anything is sent.
    """
    place, options = keys.get(URL, "").strip(), _jaas_options(keys)
    for key in _NO_CLASSES:
        _check_class(keys, key, ())
    _check_class(keys, HANDLER, HANDLERS)
    _check_class(keys, VALIDATOR, (f"{PACKAGE}.DefaultJwtValidator",))
    if _scheme(place) == "https":
        server = _server_url(place)
        _check_class(keys, RETRIEVER, tuple(f"{PACKAGE}.{each}" for each in _OF_SERVERS))
        client_id = keys.get(CLIENT_ID) or options.get("clientId", "")
        secret = keys.get(CLIENT_SECRET) or options.get("clientSecret", "")
        if not client_id or not secret:
            raise TokenFault(
                f"{URL}: a client is missing: set {CLIENT_ID} and {CLIENT_SECRET}, or "
                f"clientId and clientSecret in {JAAS}"
            )
        scope = keys.get(SCOPE) or options.get("scope", "")
        return GrantedToken(server, client_id, resolve(secret), scope, _is_encoded(keys))
    path = Path(place[len("file:") :].removeprefix("//"))
    _check_class(keys, RETRIEVER, tuple(f"{PACKAGE}.{each}" for each in _OF_FILES))
    try:
        read_token(path)
    except SecretFault as fault:
        raise TokenFault(str(fault)) from None
    return TokenOfFile(path)


def _scheme(place: str) -> str:
    """Return `https`, or `file` if a path follows. Raises TokenFault, and shows no other URL."""
    scheme, colon, rest = place.partition(":")
    scheme = scheme.lower()
    if colon and (scheme == "https" or (scheme == "file" and rest.removeprefix("//"))):
        return scheme
    shown = ", and is a URL of http" if scheme == "http" else ""
    raise TokenFault(
        f"{URL}: must be file:PATH, where the file has the token, or an https URL{shown}"
    )


def _server_url(place: str) -> str:
    """Return the URL of a server. Raises TokenFault, which shows no part of another one."""
    if re.search(r"[\s\x00-\x1f\x7f]", place):
        raise TokenFault(f"{URL}: must have no spaces and no control characters in the URL")
    try:
        parts = urlsplit(place)
        port = parts.port
    except ValueError:
        raise TokenFault(f"{URL}: host or port of the URL is not valid") from None
    if "@" in parts.netloc:
        raise TokenFault(f"{URL}: must have no user and no password in the URL")
    if not parts.hostname or port == 0 or parts.netloc.endswith(":"):
        raise TokenFault(f"{URL}: must have a host, and a port from 1 to 65535 if any")
    return parts._replace(scheme="https").geturl()


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
    written, at = (entry[2] or "").rstrip(), 0
    while at < len(written):
        option = _OPTION.match(written, at)
        if option is None:
            raise TokenFault(
                f'{JAAS}: option {len(found) + 1} must be name="value", in quotes if the value is '
                'no plain word, and with \\" for a quote in it'
            )
        name, double, single, bare = option.groups()
        _check_option(name)
        quoted = double or single or ""
        if _ESCAPES.search(re.sub(r"\\\\", "", quoted)):
            raise TokenFault(f"{JAAS}: {name}: may have only quotes and \\ behind a \\")
        found[name] = bare or re.sub(r"\\(.)", r"\1", quoted)
        at = option.end()
    return found


def _check_option(name: str) -> None:
    """Refuse an option by which Kafka's clients would do more than this one."""
    if name in _OPTIONS:
        return
    shown = f"{JAAS}: {name if _NAME.fullmatch(name) else 'an option'}"
    if name.startswith("unsecured"):
        raise TokenFault(f"{shown}: unsecured tokens are not supported")
    if name.startswith("extension_"):
        raise TokenFault(f"{shown}: extensions are not supported")
    if name.startswith("ssl."):
        raise TokenFault(
            f"{shown}: has no effect here; name the file with the authorities of the server in "
            "SSL_CERT_FILE, and for jobs on Spark in javax.net.ssl.trustStore of executors too"
        )
    raise TokenFault(f"{shown}: is not known; the options are {', '.join(_OPTIONS)}")


def _check_class(keys: Mapping[str, str], key: str, known: tuple[str, ...]) -> None:
    name = keys.get(key, "")
    if name and name not in known:
        fix = f"leave it out, or set {known[0]}" if known else "leave it out"
        raise TokenFault(f"{key}={name}: no classes are loaded; {fix}")
