"""Goal: a gateway that serves other machines in plain text reports it at its start and each hour.

Method: virtual time.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway.config import GatewayConfig, HttpConfig, Listener
from gateway.process.exposure import warn_each_hour
from ledger.command_line.units import is_loopback

P = Path("/passwords")


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


async def test_a_page_without_tls_or_passwords_is_in_the_warning(capsys):
    for page, is_warned in (
        (HttpConfig(port=1, host="192.0.2.1"), True),
        (HttpConfig(port=1, host="192.0.2.1", password_file=Path("/p")), True),
        (HttpConfig(port=1, host="192.0.2.1", certificate=Path("/c"), password_file=P), False),
        (HttpConfig(port=None, host="192.0.2.1"), False),
        (HttpConfig(port=1), False),
    ):
        warn_each_hour(GatewayConfig(http=page), asyncio.get_running_loop())
        assert ("page=192.0.2.1:1" in capsys.readouterr().err) is is_warned, page


def test_only_addresses_of_this_machine_alone_are_loopback():
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.0.2.1", "gateway", "")))
