"""Faults of the settings of TLS and SASL. Loaded only if a listener has one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from gateway.config import TlsConfig
from gateway.core.sasl_session import OAUTHBEARER, ONLY_IN_TLS, PLAIN
from gateway.process.listener_settings import (
    faults_of_listener_keys,
    mechanisms_of,
    without_own_key,
)
from gateway.process.oauth_settings import oauth_faults
from gateway.process.security_settings import tls_config
from ledger.command_line.settings import Settings

_KEYSTORE: Final = "ssl-keystore-location"
_CHAIN, _KEY = "ssl-keystore-certificate-chain", "ssl-keystore-key"
_TRUSTSTORE, _TRUSTED = "ssl-truststore-location", "ssl-truststore-certificates"
_LOGIN: Final = ("inter-broker-user", "inter-broker-password")
_ROWS: Final = (
    *(_KEYSTORE, _CHAIN, _KEY, "ssl-key-password", _TRUSTSTORE, _TRUSTED, "ssl-crl-location"),
    *("ssl-client-auth", "ssl-enabled-protocols", "ssl-cipher-suites"),
)


def faults_of_security(settings: Settings, protocols: Mapping[str, str]) -> list[str]:
    """Return the faults for listeners with these protocols, by the names of the listeners."""
    faults: list[str] = []
    if any(each.endswith("SSL") for each in without_own_key(settings, protocols)):
        faults += _tls_faults(settings)
    if "sasl-enabled-mechanisms" not in settings.faulty:
        enabled = {
            name: mechanisms_of(settings, name)
            for name, protocol in protocols.items()
            if protocol.startswith("SASL")
        }
        takes_tokens = any(OAUTHBEARER in each for each in enabled.values())
        faults += oauth_faults(settings, is_enabled=takes_tokens)
        for name, mechanisms in enabled.items():
            if protocols[name] == "SASL_PLAINTEXT":
                faults += _sasl_faults(settings, set(mechanisms))
    return [*dict.fromkeys(faults), *faults_of_listener_keys(settings, protocols)]


def faults_between_gateways(settings: Settings, name: str, protocol: str) -> Iterator[str]:
    """Yield the faults of the listener by which gateways reach each other."""
    mechanism = settings["inter-broker-mechanism"]
    if not protocol.startswith("SASL"):
        return
    missing = [each for each in _LOGIN if not settings[each] and each not in settings.faulty]
    if missing:
        options = " and ".join(f"--{each}" for each in missing)
        yield f"{options}: missing; gateways reach each other by {name} with {protocol}"
    if mechanism not in mechanisms_of(settings, name):
        place = settings.place("inter-broker-mechanism")
        yield f"{place}: is not enabled; add it to --sasl-enabled-mechanisms"
    elif mechanism == PLAIN and protocol == "SASL_PLAINTEXT":
        yield f"{settings.place('inter-broker-mechanism')}: PLAIN is not offered without TLS"


def _sasl_faults(settings: Settings, enabled: set[str]) -> Iterator[str]:
    if enabled <= ONLY_IN_TLS:
        place = settings.place("sasl-enabled-mechanisms")
        names = " and ".join(sorted(enabled))
        yield (
            f"{place}: {names} is not offered without TLS; add SCRAM-SHA-512, or give the "
            "listener SASL_SSL"
        )


def _tls_faults(settings: Settings) -> list[str]:
    if settings.faulty.intersection(_ROWS):
        return []
    faults = [*_key_faults(settings), *_trust_faults(settings)]
    return faults or list(_file_faults(settings, tls_config(settings)))


def _key_faults(settings: Settings) -> Iterator[str]:
    store, chain, key = (settings[name] for name in (_KEYSTORE, _CHAIN, _KEY))
    if store is not None:
        for name in (_CHAIN, _KEY):
            if settings[name]:
                yield f"{settings.place(name)}: cannot be used with --{_KEYSTORE}; keep one"
    elif not (chain or key):
        yield f"--{_KEYSTORE}: is missing; TLS needs a file with a private key and certificates"
    elif not key:
        yield f"{settings.place(_CHAIN)}: pass its private key too, by --{_KEY}"
    elif not chain:
        yield f"{settings.place(_KEY)}: pass its certificates too, by --{_CHAIN}"


def _trust_faults(settings: Settings) -> Iterator[str]:
    store, trusted = settings[_TRUSTSTORE], settings[_TRUSTED]
    if store is not None and trusted:
        yield f"{settings.place(_TRUSTED)}: cannot be used with --{_TRUSTSTORE}; keep one"
    if store is None and not trusted and settings["ssl-client-auth"] != "none":
        place = settings.place("ssl-client-auth")
        yield f"{place}: pass the CA certificates of clients too, by --{_TRUSTSTORE}"


def _file_faults(settings: Settings, config: TlsConfig) -> Iterator[str]:
    """Yield the fault of keys and certificates that cannot be loaded."""
    from gateway.security.tls_contexts import TlsFault, client_context, server_context

    try:
        server_context(config)
        client_context(config)
    except TlsFault as fault:
        yield f"--listener-security-protocol-map: {fault}"
