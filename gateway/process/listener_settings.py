"""Settings of one listener, by Kafka's keys `listener.name.NAME.KEY` of a file or a variable.

They override the settings of all listeners. `NAME` is that of the listener in lower case. Settings
of SASL mechanisms, such as `listener.name.NAME.plain.sasl.jaas.config`, have no effect here.
Source: KIP-103, KIP-684; Kafka, ListenerName and ChannelBuilders.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

from gateway.config import SaslConfig, TlsConfig
from gateway.process.security_settings import sasl_config, security_rows, tls_config
from ledger.command_line.settings import KafkaKey, Setting, Settings

PREFIX: Final = "listener.name."
_KEY: Final = re.compile(r"listener\.name\.([a-z0-9_-]{1,64})\.(.+)")
_KEYS: Final = (
    *("ssl.keystore.location", "ssl.keystore.certificate.chain", "ssl.keystore.key"),
    *("ssl.key.password", "ssl.truststore.location", "ssl.truststore.certificates"),
    *("ssl.client.auth", "ssl.enabled.protocols", "ssl.cipher.suites"),
    *("ssl.principal.mapping.rules", "sasl.enabled.mechanisms", "connections.max.reauth.ms"),
)
# What a listener that names one of them does not take from the settings of all listeners.
_INSTEAD: Final = (
    ({"ssl-keystore-location"}, ("ssl-keystore-certificate-chain", "ssl-keystore-key")),
    ({"ssl-keystore-certificate-chain", "ssl-keystore-key"}, ("ssl-keystore-location",)),
    ({"ssl-truststore-location"}, ("ssl-truststore-certificates",)),
    ({"ssl-truststore-certificates"}, ("ssl-truststore-location",)),
)
_OF_KEYS: Final = ("ssl-keystore-location", "ssl-keystore-certificate-chain", "ssl-keystore-key")


@cache
def _rows() -> Mapping[str, tuple[Setting, KafkaKey]]:
    """Return the rows that a listener may have of its own, by Kafka's key."""
    found = {key.name: (row, key) for row in security_rows() for key in row.kafka}
    return {name: found[name] for name in _KEYS}


def listener_row(key: str) -> tuple[Setting, KafkaKey] | None:
    """Return the row of a key `listener.name.NAME.KEY`, or None."""
    match = _KEY.fullmatch(key.lower())
    found = _rows().get(match[2]) if match is not None else None
    if found is None:
        return None
    row, kafka = found
    return replace(row, name=key.lower(), environment=_variable(key)), kafka


def _variable(key: str) -> str:
    """Return the variable of Kafka's images for a key."""
    written = key.replace("_", "__").replace("-", "___").replace(".", "_")
    return f"KAFKA_{written.upper()}"


def _own(settings: Settings, listener: str) -> dict[str, Any]:
    """Return the values that a listener has of its own, by the names of the general rows."""
    found: dict[str, Any] = {}
    for key, (row, _) in _rows().items():
        name = f"{PREFIX}{listener.lower()}.{key}"
        if not settings.is_default(name):
            found[row.name] = settings[name]
    return found


class _Merged:
    """The settings of all listeners, with those that one has of its own."""

    def __init__(self, settings: Settings, own: Mapping[str, Any]) -> None:
        self._settings = settings
        self._own = dict(own)
        for named, left_out in _INSTEAD:
            if named.intersection(own):
                self._own |= {name: None for name in left_out if name not in own}

    def __getitem__(self, name: str) -> Any:
        return self._own[name] if name in self._own else self._settings[name]


def _names(settings: Settings) -> list[str]:
    """Return the names of listeners that have settings of their own, in capitals."""
    found = {match[1].upper() for row in settings.of_parts if (match := _KEY.fullmatch(row.name))}
    return sorted(found)


def listener_tls(settings: Settings) -> dict[str, TlsConfig]:
    """Return the TLS of each listener that has settings of its own, by name."""
    return {name: tls_of(settings, name) for name in _names(settings)}


def listener_sasl(settings: Settings) -> dict[str, SaslConfig]:
    """Return the SASL of each listener that has settings of its own, by name."""
    return {name: sasl_config(_Merged(settings, _own(settings, name))) for name in _names(settings)}


def tls_of(settings: Settings, listener: str) -> TlsConfig:
    """Return the TLS of a listener that has settings of its own."""
    own = _own(settings, listener)
    made = tls_config(_Merged(settings, own))
    return (
        made
        if "ssl-client-auth" in own
        else replace(made, client_auth=_shared_auth(settings, listener))
    )


def _shared_auth(settings: Settings, listener: str) -> str:
    """Return what `ssl.client.auth` of all listeners means for one: nothing if it has SASL."""
    mapped = {each.name: each.protocol for each in settings["listener-security-protocol-map"]}
    protocol = mapped.get(listener, listener)
    return "none" if protocol.startswith("SASL") else settings["ssl-client-auth"]


def mechanisms_of(settings: Settings, listener: str) -> tuple[str, ...]:
    """Return the mechanisms that are enabled for a listener."""
    found: tuple[str, ...] = _Merged(settings, _own(settings, listener))["sasl-enabled-mechanisms"]
    return found


def has_own_key(settings: Settings, listener: str) -> bool:
    """Return whether a listener has a private key of its own."""
    return any(name in _own(settings, listener) for name in _OF_KEYS)


def faults_of_listener_keys(settings: Settings, protocols: Mapping[str, str]) -> Iterator[str]:
    """Yield the faults of settings of single listeners, which have these protocols by name."""
    for row in settings.of_parts:
        match = _KEY.fullmatch(row.name)
        assert match is not None
        protocol = protocols.get(match[1].upper())
        if protocol is None:
            known = ", ".join(protocols) or "none is named"
            yield f"{settings.place(row.name)}: there is no such listener; there are: {known}"
        elif not _concerns(match[2], protocol):
            place = settings.place(row.name)
            yield f"{place}: has no effect on a listener with {protocol}; remove it"
    if not any(row.name in settings.faulty for row in settings.of_parts):
        for name in _names(settings):
            if protocols.get(name, "").endswith("SSL"):
                yield from _tls_faults(settings, name)


def _concerns(key: str, protocol: str) -> bool:
    return protocol.endswith("SSL") if key.startswith("ssl.") else protocol.startswith("SASL")


def _tls_faults(settings: Settings, listener: str) -> Iterator[str]:
    """Yield the fault of the keys and certificates of a listener."""
    from gateway.security.tls_contexts import TlsFault, client_context, server_context

    config, place = tls_of(settings, listener), f"{PREFIX}{listener.lower()}"
    if config.keystore is not None and (config.key or config.certificates):
        yield f"{place}: keep either ssl.keystore.location or ssl.keystore.key"
        return
    if not has_own_key(settings, listener):
        if config.keystore is None and not config.key:
            return  # a fault of the settings of all listeners
    elif config.keystore is None and not (config.key and config.certificates):
        yield f"{place}: pass both ssl.keystore.key and ssl.keystore.certificate.chain"
        return
    if config.client_auth != "none" and config.truststore is None and not config.trusted:
        yield f"{place}.ssl.client.auth: pass the CA certificates of clients too"
        return
    try:
        server_context(config)
        client_context(config)
    except TlsFault as fault:
        yield f"{place}: {fault}"


def without_own_key(settings: Settings, protocols: Mapping[str, str]) -> Sequence[str]:
    """Return the protocols of the listeners that need the key of all listeners."""
    return [protocol for name, protocol in protocols.items() if not has_own_key(settings, name)]
