"""The forms of the addresses that commands connect to."""

from __future__ import annotations

import re
from typing import Final

_PORT_MAX: Final = 65_535
_HOST: Final = r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])"
_METADATA: Final = re.compile(
    rf"{_HOST}:\d{{1,5}}(,{_HOST}:\d{{1,5}})*(/(?!\.\.?(?:/|$))[^/,\s\0]+)*|grpc://{_HOST}:\d{{1,5}}",
    re.ASCII,
)


def parse_bootstrap(bootstrap: str) -> list[tuple[str, int]]:
    """Parse `host:port,[v6]:port,...`. Raises ValueError that names the part that is wrong."""
    servers: list[tuple[str, int]] = []
    for part in bootstrap.split(","):
        host, colon, port = part.strip().rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        named = bool(colon and host) and "/" not in host
        if not named or not port.isdecimal() or not 0 < int(port) <= _PORT_MAX:
            raise ValueError(f"{part.strip()!r} is not host:port, for example 127.0.0.1:9092")
        servers.append((host, int(port)))
    return servers


def check_metadata_address(address: str) -> None:
    """Check the servers of ZooKeeper, or a ledger port. Raises ValueError with the form."""
    servers = address.removeprefix("grpc://").partition("/")[0].split(",")
    if not _METADATA.fullmatch(address) or not all(map(_has_port, servers)):
        raise ValueError(
            "must be host:port, or several separated by commas, with an optional /chroot"
        )


def _has_port(server: str) -> bool:
    return 0 < int(server.rpartition(":")[2]) <= _PORT_MAX
