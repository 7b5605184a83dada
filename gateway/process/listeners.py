"""Several listeners: the faults of their settings, and the configuration that they make.

Loaded only if a setting of listeners is given. Source: KIP-103, KIP-291; Kafka, KafkaConfig and
AbstractKafkaConfig.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from gateway.config import PLAINTEXT, Listener
from gateway.process.server_settings import (
    PORT_MAX,
    PROTOCOLS,
    SECURE,
    NamedAddress,
    is_secure,
)
from ledger.command_line.settings import Settings

_ROWS: Final = ("listener", "advertise", "listener-security-protocol-map")
_INTER_BROKER: Final = "inter-broker-listener-name"
# The replacement of each setting of the short form.
_INSTEAD: Final = {
    "host": "--listener NAME=HOST:PORT",
    "port": "--listener NAME=HOST:PORT",
    "advertised-host": "--advertise NAME=HOST:PORT",
    "advertised-port": "--advertise NAME=HOST:PORT",
    "peer-host": f"--{_INTER_BROKER} NAME",
    "peer-port": f"--{_INTER_BROKER} NAME",
}


def faults_of(settings: Settings) -> list[str]:
    """Return the faults of the settings of listeners. Their values could all be parsed."""
    if settings.faulty.intersection((*_ROWS, _INTER_BROKER)):
        return []
    listening, advertised = _given(settings, "listener"), _given(settings, "advertise")
    return [
        *_mixed(settings),
        *_unused(settings, listening),
        *_doubled(settings, "listener", listening),
        *_doubled(settings, "advertise", advertised),
        *_without_listener(settings, listening, advertised),
        *_ports(settings, listening, advertised),
        *_unserved(settings, listening),
        *_of_cluster(settings, listening, advertised),
    ]


def made(settings: Settings, shift: int = 0) -> tuple[Listener, ...]:
    """Return the listeners that the settings make. With faults, none of them may be opened.

    Ports are `shift` above the given ones, for one of several workers.
    """
    addresses = {each.name: each for each in _given(settings, "advertise")}
    listening = _given(settings, "listener")
    protocols = _protocols(settings, [each.name for each in listening])

    def listener(each: NamedAddress) -> Listener:
        shown, protocol = addresses.get(each.name), protocols.get(each.name, PLAINTEXT)
        port = each.port + shift if each.port else 0
        if shown is None:
            return Listener(each.name, each.host, port, protocol=protocol)
        return Listener(each.name, each.host, port, shown.host, shown.port + shift, protocol)

    return tuple(map(listener, listening))


def _given(settings: Settings, row: str) -> list[NamedAddress]:
    """Return the addresses of a row, without those of Kafka's controllers."""
    names = settings.foreign.get("controller.listener.names", "").split(",")
    left_out = {name.strip().upper() for name in names}
    addresses: Sequence[NamedAddress] = settings[row]
    return [each for each in addresses if each.name not in left_out]


def _mixed(settings: Settings) -> Iterator[str]:
    """Yield a fault for each setting of the short form beside the long form."""
    long = next((name for name in ("listener", "advertise") if settings[name]), None)
    if long is None:
        return
    for name, instead in _INSTEAD.items():
        if name in settings.table.rows and not settings.is_default(name):
            place = settings.place(name)
            yield f"{place}: cannot be used with {settings.place(long)}; pass {instead} instead"


def _unused(settings: Settings, listening: Sequence[NamedAddress]) -> Iterator[str]:
    if settings["listener"] and not listening:
        yield f"{settings.place('listener')}: names only controllers; add a listener for clients"


def _doubled(settings: Settings, row: str, addresses: Sequence[NamedAddress]) -> Iterator[str]:
    for name, count in Counter(each.name for each in addresses).items():
        if count > 1:
            yield f"{settings.place(row)}: {name} is named {count} times; keep one"


def _without_listener(
    settings: Settings, listening: Sequence[NamedAddress], advertised: Sequence[NamedAddress]
) -> Iterator[str]:
    names = {each.name for each in listening}
    for each in advertised:
        if each.name not in names:
            place = settings.place_of("advertise", str(each))
            instead = f"pass --listener {each.name}=HOST:PORT"
            yield f"{place}: there is no listener {each.name}; {instead}"


def _workers(settings: Settings) -> int:
    return settings["workers"] if "workers" in settings.table.rows else 1


def _ports(
    settings: Settings, listening: Sequence[NamedAddress], advertised: Sequence[NamedAddress]
) -> Iterator[str]:
    """Yield faults of ports that two listeners have, or that the last worker cannot have."""
    workers = _workers(settings)
    owners: dict[int, NamedAddress] = {}
    for each in listening:
        for port in range(each.port, each.port + workers) if each.port else ():
            other = owners.setdefault(port, each)
            if other is not each:
                place = settings.place_of("listener", str(each))
                beside = f" with {workers} workers" if workers > 1 else ""
                yield f"{place}: {other.name} has port {port} too{beside}; take another port"
                break
    for row, addresses in (("listener", listening), ("advertise", advertised)):
        for each in addresses:
            if each.port + workers - 1 > PORT_MAX:
                place = settings.place_of(row, str(each))
                last = each.port + workers - 1
                yield f"{place}: the port of the last worker would be {last}, above {PORT_MAX}"


def _protocols(settings: Settings, names: Sequence[str]) -> dict[str, str]:
    """Return the protocol of each listener that has one, by name."""
    if is_secure(settings):
        return dict.fromkeys(names, SECURE)
    mapped = {each.name: each.protocol for each in settings["listener-security-protocol-map"]}
    if mapped:
        return {name: mapped[name] for name in names if name in mapped}
    # Without a map, a listener with the name of a protocol has this protocol, as in Kafka.
    return {name: name if name in PROTOCOLS else PLAINTEXT for name in names}


def _unserved(settings: Settings, listening: Sequence[NamedAddress]) -> Iterator[str]:
    """Yield faults of listeners without a protocol, and of what their protocols need."""
    names = [each.name for each in listening] or [PLAINTEXT]
    protocols = _protocols(settings, names)
    for name in names:
        place = settings.place("listener-security-protocol-map")
        if name not in protocols and listening:
            yield f"{place}: has no protocol for the listener {name}; add {name}:{PLAINTEXT}"
        elif is_secure(settings) or listening:
            continue
        elif (protocol := protocols.get(name, PLAINTEXT)) != PLAINTEXT:
            yield (
                f"{place}: the protocol {protocol} of the listener {name} needs a named listener; "
                f"pass --listener {name}=HOST:PORT"
            )
    if is_secure(settings):  # makes all that its listeners need
        return
    if listening and any(each != PLAINTEXT for each in protocols.values()):
        from gateway.process.security_faults import faults_of_security

        yield from faults_of_security(settings, protocols)
    elif settings.of_parts:
        from gateway.process.listener_settings import faults_of_listener_keys

        yield from faults_of_listener_keys(settings, protocols)


def _of_cluster(
    settings: Settings, listening: Sequence[NamedAddress], advertised: Sequence[NamedAddress]
) -> Iterator[str]:
    """Yield faults of a gateway that registers its addresses for others."""
    if _INTER_BROKER not in settings.table.rows:
        return
    names = {each.name for each in advertised}
    for each in listening:
        if each.is_anywhere and each.name not in names:
            place = settings.place_of("listener", str(each))
            yield (
                f"{place}: clients cannot connect to this address; pass one that they can with "
                f"--advertise {each.name}=HOST:PORT"
            )
    chosen = settings[_INTER_BROKER]
    if chosen is not None and not (settings["listener"] or settings["advertise"]):
        for name in ("peer-host", "peer-port"):  # with listeners, `_mixed` reports them
            if not settings.is_default(name):
                beside = settings.place(_INTER_BROKER)
                yield f"{settings.place(name)}: cannot be used with {beside}, which replaces it"
    known = [each.name for each in listening] or [PLAINTEXT]
    if chosen is not None and chosen not in known:
        yield f"{settings.place(_INTER_BROKER)}: there is no such listener; take {known[0]}"
        return
    name = chosen or (PLAINTEXT if PLAINTEXT in known else known[0])
    protocol = _protocols(settings, known).get(name, PLAINTEXT)
    if listening and protocol != PLAINTEXT:
        from gateway.process.security_faults import faults_between_gateways

        yield from faults_between_gateways(settings, name, protocol)
