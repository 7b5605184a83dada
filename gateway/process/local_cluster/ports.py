"""Chooses the ports of a cluster on this machine."""

from __future__ import annotations

import random
import re
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gateway.process.local_cluster.faults import CannotStart
from gateway.process.local_cluster.services import AUDIT, LOOPBACK, ZOOKEEPER, Size
from gateway.process.local_cluster.state import State

FIRST_GATEWAY: Final = 9092
_ZOOKEEPER: Final = 2181
_DRAWN: Final = range(10_000, 32_768)  # below those of outgoing connections
_KEPT: Final = re.compile(r"^export GATEWAY_ZOOKEEPER=127\.0\.0\.1:(\d+)$", re.MULTILINE)


def choose_ports(directory: Path, state: State, size: Size, first: int | None) -> None:
    """Give each process a port, and keep those that there are. Raises CannotStart.

    Gateways listen from `first` on; None keeps their ports, or takes Kafka's.
    """
    _move_gateways(state, size, first)
    if not any(map(state.alive, state.processes)):
        _forget_taken(state)
    taken = set(state.ports.values())
    if ZOOKEEPER not in state.ports:
        wanted = [port for port in (_kept(directory), _ZOOKEEPER) if port is not None]
        state.ports[ZOOKEEPER] = _any_of(wanted, taken)
    for name in size.bookie_names:
        if name not in state.ports:
            state.ports[name] = _any_of((), taken)
    for name in size.names:
        if name != AUDIT and not state.alive(name) and not can_listen(state.ports[name]):
            _refuse(name, state.ports[name])


def _move_gateways(state: State, size: Size, first: int | None) -> None:
    known = state.ports.get("gateway-1")
    first = first or known or FIRST_GATEWAY
    if known not in (None, first) and any(map(state.alive, size.gateway_names)):
        raise CannotStart(
            f"--port {first}: the gateways listen from {known} on; stop them first with `gateway "
            "cluster down`",
            "RUNNING",
        )
    moved = {name: first + number for number, name in enumerate(size.gateway_names)}
    others = {port: name for name, port in state.ports.items() if not name.startswith("gateway-")}
    for name, port in moved.items():
        if port in others:
            raise CannotStart(
                f"port {port} of {name} is that of {others[port]}: name another first port with "
                "--port",
                "PORT_IN_USE",
            )
    state.ports |= moved


def _forget_taken(state: State) -> None:
    """Forget ports that other programs have taken meanwhile: no process relies on them now."""
    for name in [each for each in state.ports if not each.startswith("gateway-")]:
        if not can_listen(state.ports[name]):
            del state.ports[name]


def _refuse(name: str, port: int) -> None:
    fix = "stop the program that has it"
    if name.startswith("gateway-"):
        fix += ", or name another first port with --port"
    raise CannotStart(f"port {port} of {name} is in use: {fix}", "PORT_IN_USE")


def _kept(directory: Path) -> int | None:
    """Return ZooKeeper's port as an earlier run wrote it for shells."""
    try:
        found = _KEPT.search((directory / "env").read_text())
    except OSError:
        return None
    return int(found[1]) if found else None


def _any_of(wanted: Iterable[int], taken: set[int]) -> int:
    """Return a free port, one of the wanted if possible, and take it."""
    for port in wanted:
        if port not in taken and can_listen(port):
            taken.add(port)
            return port
    while True:
        port = random.choice(_DRAWN)
        if port not in taken and can_listen(port):
            taken.add(port)
            return port


def can_listen(port: int) -> bool:
    """True unless another process listens there. Connections of an earlier run do not matter."""
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError:
        return False
    return True
