"""The warning of a bookie that other machines reach without TLS, each hour."""

from __future__ import annotations

import asyncio
from typing import Final

from ledger.adapters.system.hourly import warn_each_hour
from ledger.command_line.units import is_loopback
from ledger.node.config import NodeConfig

_EXPOSED: Final = "other machines can reach this bookie without TLS (--allow-insecure)"


def warn_if_exposed(config: NodeConfig, loop: asyncio.AbstractEventLoop) -> None:
    """Log the port of a bookie without TLS now, and each hour from now on."""
    if config.tls_cert is None and not is_loopback(config.host):
        warn_each_hour(loop, _EXPOSED, {"host": config.host, "port": config.port})
