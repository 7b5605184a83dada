"""From Kafka's client keys to the TLS and the login of a connection.

Secrets may be written out, as in Kafka's client.properties, or be `file:PATH` or `env:NAME`. Keys
and certificates are PEM, by Kafka's keys or by those of librdkafka.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gateway.config import TlsConfig
from gateway.core.sasl_session import OAUTHBEARER, ONLY_IN_TLS, PLAIN, SUPPORTED
from gateway.security.link_security import LinkSecurity, Login, TokenSource
from gateway.security.tls_contexts import TlsFault, client_context
from ledger.command_line.secret_values import (
    SecretFault,
    is_reference,
    read_private,
    read_public,
    resolve_line,
)

_JAAS: Final = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')
_STORES: Final = ("ssl.keystore.type", "ssl.truststore.type")


class ClientFault(Exception):
    """Client keys that cannot be used: a line that names the fix, and never a secret."""


def link_security(protocol: str, keys: Mapping[str, str]) -> LinkSecurity:
    """Return what `security.protocol` and its keys ask for. Raises ClientFault."""
    context = None
    login = _login(keys) if protocol.startswith("SASL") else None
    if protocol.endswith("SSL"):
        try:
            context = client_context(tls_of(keys))
        except (TlsFault, SecretFault) as fault:
            raise ClientFault(str(fault)) from None
    elif login is not None and login.mechanism in ONLY_IN_TLS:
        shown = "password" if login.mechanism == PLAIN else "token"
        raise ClientFault(
            f"sasl.mechanism={login.mechanism} shows the {shown}; use SASL_SSL or SCRAM-SHA-512"
        )
    return LinkSecurity(context, login)


def _login(keys: Mapping[str, str]) -> Login:
    mechanism = keys.get("sasl.mechanism", "")
    if mechanism not in SUPPORTED:
        raise ClientFault(f"sasl.mechanism={mechanism}: must be {', '.join(SUPPORTED)}")
    if mechanism == OAUTHBEARER:
        return Login(mechanism, "", "", _token_source(keys))
    found = dict(_JAAS.findall(keys.get("sasl.jaas.config", "")))
    user = keys.get("sasl.username") or _unescaped(found.get("username", ""))
    password = keys.get("sasl.password") or _unescaped(found.get("password", ""))
    if not user or not password:
        raise ClientFault(
            "a user and a password are missing: set sasl.username and sasl.password, or "
            "sasl.jaas.config"
        )
    return Login(mechanism, user, _value(password))


def _token_source(keys: Mapping[str, str]) -> TokenSource:
    """Return where the token of OAUTHBEARER is, in Kafka's way. Raises ClientFault."""
    from gateway.security.token_keys import TokenFault, token_source

    try:
        return token_source(keys, _value)
    except TokenFault as fault:
        raise ClientFault(str(fault)) from None


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _value(written: str) -> str:
    try:
        return resolve_line(written) if is_reference(written) else written
    except SecretFault as fault:
        raise ClientFault(str(fault)) from None


def tls_of(keys: Mapping[str, str]) -> TlsConfig:
    """Return what the keys name for TLS. Raises ClientFault, SecretFault."""
    for name in _STORES:
        if keys.get(name, "PEM").upper() != "PEM":
            raise ClientFault(f"{name}={keys[name]}: only PEM is read; convert the store")
    if keys.get("ssl.endpoint.identification.algorithm", "https") != "https":
        raise ClientFault("ssl.endpoint.identification.algorithm: host names are always checked")
    truststore = keys.get("ssl.truststore.location") or keys.get("ssl.ca.location")
    chain, key = keys.get("ssl.keystore.certificate.chain", ""), keys.get("ssl.keystore.key", "")
    if place := keys.get("ssl.key.location"):
        key = read_private(Path(place)).decode()
    if place := keys.get("ssl.certificate.location"):
        chain = read_public(Path(place)).decode()
    return TlsConfig(
        keystore=Path(store) if (store := keys.get("ssl.keystore.location")) else None,
        certificates=chain,
        key=key,
        key_password=keys.get("ssl.key.password", ""),
        truststore=Path(truststore) if truststore else None,
        trusted=keys.get("ssl.truststore.certificates", ""),
    )
