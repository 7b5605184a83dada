"""Faults of the web page's settings: what other machines reach needs TLS and passwords."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gateway.process.server_settings import is_secure
from ledger.command_line.secret_files import OTHERS_READ, others_read
from ledger.command_line.units import is_loopback

if TYPE_CHECKING:
    from pathlib import Path

    from ledger.command_line.settings import Settings

_FILES = ("http-cert", "http-key", "http-password-file")
_BEYOND = "other machines can reach it"


def faults_of_page(settings: Settings) -> list[str]:
    """Return a line for each fault."""
    return [*_file_faults(settings), *_beyond_faults(settings)]


def _file_faults(settings: Settings) -> Iterator[str]:
    certificate, key = settings["http-cert"], settings["http-key"]
    if certificate and not key:
        yield f"{settings.place('http-cert')}: pass its private key too, by --http-key"
    if key and not certificate:
        yield f"{settings.place('http-key')}: pass its certificate too, by --http-cert"
    if certificate and not certificate.is_file():
        yield f"{settings.place('http-cert')}: no such file"
    if key:
        yield from _secret_faults(settings, "http-key", key)
    if settings["http-password-file"]:
        yield from _password_faults(settings)


def _secret_faults(settings: Settings, name: str, path: Path) -> Iterator[str]:
    try:
        if not path.is_file():
            yield f"{settings.place(name)}: no such file"
        elif others_read(path.stat().st_mode):
            yield f"{settings.place(name)}: {OTHERS_READ}"
    except OSError as error:
        yield f"{settings.place(name)}: {error.strerror}"


def _password_faults(settings: Settings) -> Iterator[str]:
    from gateway.http.password_file import PasswordFault, read_passwords

    try:
        read_passwords(settings["http-password-file"])
    except PasswordFault as fault:
        yield f"{settings.place('http-password-file')}: {fault}"


def _beyond_faults(settings: Settings) -> Iterator[str]:
    if settings["http-port"] is None or is_loopback(settings["http-host"]):
        return
    place = settings.place("http-host")
    if is_secure(settings):  # makes all of them
        return
    missing = [f"--{name}" for name in _FILES if not settings[name]]
    if missing and not settings["allow-insecure"]:
        yield f"{place}: {_BEYOND}, so pass {' and '.join(missing)}, or --allow-insecure"
    elif settings["http-write"] and not settings["http-password-file"]:
        yield f"{place}: {_BEYOND}, so --http-write needs --http-password-file as well"
