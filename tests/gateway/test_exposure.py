"""Goal: a gateway that serves other machines in plain text reports it at its start and each hour.

Method: virtual time.
"""

from __future__ import annotations

import asyncio

from gateway.config import GatewayConfig, Listener
from gateway.process.exposure import is_loopback, warn_each_hour


async def test_an_exposed_listener_is_a_warning_each_hour(capsys):
    listeners = (Listener("A", "192.0.2.1", 1), Listener("B", "127.0.0.1", 2))
    warn_each_hour(GatewayConfig(listeners=listeners), asyncio.get_running_loop())
    await asyncio.sleep(2.5 * 3600)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all("A=192.0.2.1:1" in line and "B=" not in line for line in lines)


async def test_protected_listeners_are_no_warning(capsys):
    listeners = (Listener("A", "192.0.2.1", 1, protocol="SASL_SSL"), Listener("B", "::1", 2))
    warn_each_hour(GatewayConfig(listeners=listeners), asyncio.get_running_loop())
    await asyncio.sleep(2.5 * 3600)
    assert capsys.readouterr().err == ""


def test_only_addresses_of_this_machine_alone_are_loopback():
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.0.2.1", "gateway", "")))
