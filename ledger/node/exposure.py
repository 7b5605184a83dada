"""The warning of a bookie that other machines reach without TLS, each hour."""

from __future__ import annotations

import asyncio
import ipaddress
from typing import Final

from ledger.log import logger
from ledger.node.config import NodeConfig

WARNING_S: Final = 3_600.0


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def warn_each_hour(config: NodeConfig, loop: asyncio.AbstractEventLoop) -> None:
    """Log the port of a bookie without TLS now, and each hour from now on."""
    if config.tls_cert is not None or is_loopback(config.host):
        return
    logger().warning(
        "other machines can reach this bookie without TLS (allow-insecure)",
        host=config.host,
        port=config.port,
    )
    loop.call_later(WARNING_S, warn_each_hour, config, loop)
