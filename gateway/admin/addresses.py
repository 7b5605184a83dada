"""The forms of the addresses that commands connect to."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Final

_PORT_MAX: Final = 65_535
_LABEL_MAX: Final = 63
_NAME: Final = r"[A-Za-z0-9_.-]+"
_HOST: Final = rf"(?:{_NAME}|\[[0-9A-Fa-f:.]+\])"
_SERVER: Final = re.compile(rf"(?:({_NAME})|\[([0-9A-Za-z:.%_-]+)\]):(\d{{1,5}})", re.ASCII)
_METADATA: Final = re.compile(
    rf"{_HOST}:\d{{1,5}}(,{_HOST}:\d{{1,5}})*(/(?!\.\.?(?:/|$))[^/,\s\0]+)*|grpc://{_HOST}:\d{{1,5}}",
    re.ASCII,
)


def parse_bootstrap(bootstrap: str) -> list[tuple[str, int]]:
    """Parse `host:port,[v6]:port,...`. Raises ValueError that names the part that is wrong.

    The error repeats nothing before an `@`: that may be a password, of which a comma is a part.
    """
    before, sign, after = bootstrap.rpartition("@")
    if sign:
        raise _not_host_and_port(f"...@{after}" if before else bootstrap)
    return [_parse_server(part.strip()) for part in bootstrap.split(",")]


def _parse_server(text: str) -> tuple[str, int]:
    found = _SERVER.fullmatch(text)
    if found is None or not _has_port(text):
        raise _not_host_and_port(text)
    name, address, port = found.groups()
    if not (_is_name(name) if name else _is_address(address)):
        raise _not_host_and_port(text)
    return name or address, int(port)


def _not_host_and_port(text: str) -> ValueError:
    return ValueError(f"{text!r} is not host:port, for example 127.0.0.1:9092")


def _is_name(host: str) -> bool:
    labels = host.removesuffix(".").split(".")
    return all(0 < len(label) <= _LABEL_MAX for label in labels)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def check_metadata_address(address: str) -> None:
    """Check the servers of ZooKeeper, or a ledger port. Raises ValueError with the form."""
    servers = address.removeprefix("grpc://").partition("/")[0].split(",")
    if not _METADATA.fullmatch(address) or not all(map(_has_port, servers)):
        raise ValueError(
            "must be host:port, or several separated by commas, with an optional /chroot"
        )


def _has_port(server: str) -> bool:
    return 0 < int(server.rpartition(":")[2]) <= _PORT_MAX
