"""Answers to keys of Kafka's server.properties that set nothing here.

Most of them have no effect, and a start goes on with a warning. A key that promises protection is
refused: to ignore it would leave open what the file closes. Loaded only for such a key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gateway.settings.broker_keys import BROKER_KEYS, STATIC_NAMES, TOPIC_DEFAULTS, base_name
from ledger.command_line.settings import Foreign

_INSTEAD: Final = {
    "controller.listener.names": "there is no controller, and its listeners are left out",
    "sasl.jaas.config": "add users with gateway user add",
    "sasl.server.callback.handler.class": "sasl.oauthbearer.* decide which tokens are valid",
    "socket.request.max.bytes": "it is always 100 MiB",
    "ssl.keystore.type": "it is always PEM",
    "ssl.truststore.type": "it is always PEM",
    "zookeeper.ssl.keystore.type": "it is always PEM",
    "zookeeper.ssl.truststore.type": "it is always PEM",
    "zookeeper.ssl.endpoint.identification.algorithm": "it is always HTTPS",
}
_MECHANISM: Final = re.compile(r"(?:gssapi|plain|scram-sha-256|scram-sha-512|oauthbearer)\.(.+)")
_STORES: Final = tuple(name for name, text in _INSTEAD.items() if text == "it is always PEM")
_PROTECTED: Final = ("SSL", "SASL_SSL", "SASL_PLAINTEXT")
_MAP: Final = "listener.security.protocol.map"
# How a value names listeners.
_WORDS: Final = re.compile(r"""[^\s,;'"\[\]]+""")
_MAPPED: Final = re.compile(r"""([^\s,;'"\[\]:]+)\s*:\s*(\w+)""")
_NAMING: Final[Mapping[str, re.Pattern[str]]] = {
    "security.inter.broker.protocol": _WORDS,
}
# Keys of Kafka 3 that Kafka 4 no longer has.
_EARLIER: Final = re.compile(
    r"advertised\.(host\.name|port)|broker\.id\.generation\.enable|control\.plane\.listener\.name"
    r"|delegation\.token\.master\.key|host\.name|inter\.broker\.protocol\.version"
    r"|log\.message\.(downconversion\.enable|format\.version|timestamp\.difference\.max\.ms)"
    r"|offsets\.commit\.required\.acks|password\.encoder\.\S+|port|reserved\.broker\.max\.id"
    r"|zookeeper\.\S+"
)


def answer(key: str, value: str, file: Mapping[str, str]) -> Foreign | None:
    """Return why a key of Kafka sets nothing here; None if Kafka does not have it either.

    `file` are all keys of the file with their values as text: a map names a listener's protocol.
    """
    name = base_name(key)
    of_mechanism = _MECHANISM.fullmatch(name)
    name = name if of_mechanism is None else of_mechanism[1]
    if name in _STORES and value.strip().upper() != "PEM":
        return Foreign("only PEM is read; convert the store, and set this to PEM", True)
    if _protects(key, name, value.strip(), file):
        return Foreign(f"is not supported yet: without it the port is open; {_fix(key)}", True)
    if name in TOPIC_DEFAULTS.values() or (name.startswith("log.cleaner.") and name in BROKER_KEYS):
        about = "has no effect in a file; alter it with kafka-configs --entity-type brokers"
        return Foreign(about, False)
    if name in BROKER_KEYS or name in STATIC_NAMES or _EARLIER.fullmatch(name):
        about = _INSTEAD.get(name)
        return Foreign(f"has no effect here{f'; {about}' if about else ''}", False)
    return None


def _fix(key: str) -> str:
    if key == "security.inter.broker.protocol":
        return "name a listener by inter.broker.listener.name instead"
    if key.startswith("listener.name."):
        return "set the key for all listeners, without this prefix"
    return "remove it"


def _protects(key: str, name: str, value: str, file: Mapping[str, str]) -> bool:
    """Return whether the key asks for TLS."""
    if name == "ssl.client.auth":
        return value.lower() not in ("", "none")
    if key.startswith("zookeeper.ssl."):
        return value.lower() not in ("", "false", "https") and name not in _STORES
    naming = _NAMING.get(key)
    mapped = file.get(_MAP, "")
    return naming is not None and any(_is_protected(each, mapped) for each in naming.findall(value))


def _is_protected(listener: str, mapped: str) -> bool:
    """Return whether the listener has a protocol that is protected, by its name or by the map."""
    protocols = {name.upper(): protocol.upper() for name, protocol in _MAPPED.findall(mapped)}
    name = listener.upper()
    return name in _PROTECTED or protocols.get(name) in _PROTECTED
