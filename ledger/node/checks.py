"""Checks of a bookie's settings, made before anything is written."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ledger.adapters.posix.uring import why_unavailable
from ledger.bookie.directory import VERSION, check_directory
from ledger.command_line.secret_files import SecretFault, read_private, read_public
from ledger.command_line.settings import Settings
from ledger.command_line.units import is_loopback
from ledger.command_line.zookeeper_settings import zookeeper_faults
from ledger.errors import ForeignDirectory

_STAMP_BYTES_MAX: Final = 4096
_ANY_ADDRESS: Final = ("0.0.0.0", "::", "")


def offline_faults(settings: Settings) -> list[str]:
    """Return all faults that can be found without a network, one line each."""
    return [
        *settings.faults,
        *_relation_faults(settings),
        *_tls_faults(settings),
        *zookeeper_faults(settings),
        *_listener_faults(settings),
        *_directory_faults(settings),
    ]


def port_faults(settings: Settings) -> list[str]:
    """Return a fault of each address that is in use or does not belong to this machine."""
    return [*_faults_of_port(settings, "port"), *_faults_of_port(settings, "grpc-port")]


def _faults_of_port(settings: Settings, name: str) -> list[str]:
    host, port = settings["host"], settings[name]
    if port == 0 or settings.faulty & {"host", name}:
        return []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return [_listen_fault(settings, name, error)]
    except UnicodeError:  # of a name that IDNA does not encode
        return [f"{settings.place('host')}: is not the name of a host"]
    return []


def _listen_fault(settings: Settings, name: str, error: OSError) -> str:
    """Return the fault of an address that cannot be bound, with the setting of its port."""
    host, port = settings.place("host"), settings.place(name)
    if error.errno == errno.EADDRINUSE:
        return f"{port}: in use; pass another --{name}"
    return f"{host}, {port}: cannot listen on this address: {error.strerror or error}"


def _relation_faults(settings: Settings) -> Iterator[str]:
    if settings["grpc-port"] == settings["port"] != 0:
        yield f"{settings.place('grpc-port')}: must differ from port, which serves TCP"
    if settings["disk-used-resume"] >= settings["disk-used-max"]:
        yield f"{settings.place('disk-used-resume')}: must be below disk-used-max"
    if settings["queue-max"] <= settings["entry-max"]:
        yield f"{settings.place('queue-max')}: must be larger than entry-max"
    if settings["answers-max"] <= settings["entry-max"]:
        yield f"{settings.place('answers-max')}: must be larger than entry-max"
    if settings["io"] == "uring" and (reason := why_unavailable()) is not None:
        yield f"{settings.place('io')}: {reason}; pass --io auto"


def _tls_faults(settings: Settings) -> Iterator[str]:
    files = {name: settings[name] for name in ("tls-cert", "tls-key", "tls-ca")}
    missing = [name for name, file in files.items() if file is None]
    if missing and len(missing) < len(files):
        given = next(name for name, file in files.items() if file is not None)
        yield f"{settings.place(given)}: needs {' and '.join(missing)} too"
    for name, file in files.items():
        if file is not None:
            yield from tls_file_faults(settings.place(name), file, secret=name == "tls-key")


def tls_file_faults(place: str, file: Path, *, secret: bool) -> Iterator[str]:
    """Yield the fault of a file of TLS that cannot be used. `secret` is True for a key."""
    try:
        content = read_private(file) if secret else read_public(file)
    except SecretFault as fault:
        yield f"{place}: {str(fault).removeprefix(f'{file}: ')}"
        return
    if b"-----BEGIN " not in content:
        yield f"{place}: is not a PEM file"


def _listener_faults(settings: Settings) -> Iterator[str]:
    host, secure = settings["host"], settings["tls-cert"] is not None
    if host in _ANY_ADDRESS and not settings["advertised-host"]:
        yield (
            f"{settings.place('host')}: clients cannot connect to this address; name one that they "
            "can with advertised-host"
        )
    if not secure and not settings["allow-insecure"] and not is_loopback(host):
        yield (
            f"{settings.place('host')}: other machines can reach it, so it needs tls-cert, tls-key "
            "and tls-ca, or allow-insecure"
        )


def _directory_faults(settings: Settings) -> Iterator[str]:
    data: Path = settings["data"]
    place = settings.place("data")
    try:
        there = data.absolute()
        while not there.exists():
            there = there.parent
        if not there.is_dir():
            yield f"{place}: {there} is not a directory"
        elif not os.access(there, os.W_OK | os.X_OK):
            yield f"{place}: {there} is not writable"
        elif data.exists():
            check_directory(_names(data), _stamp(data))
    except OSError as error:
        yield f"{place}: {error.strerror}"
    except ForeignDirectory as error:
        yield f"{place}: {error}"


def _names(data: Path) -> list[str]:
    return [each.name for each in data.iterdir()]


def _stamp(data: Path) -> bytes:
    version = data / VERSION
    if not version.exists():
        return b""
    with version.open("rb") as opened:
        return opened.read(_STAMP_BYTES_MAX)
