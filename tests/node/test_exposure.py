"""Goal: a bookie that serves other machines without TLS reports it at its start and each hour.

Method: virtual time.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ledger.node.config import NodeConfig
from ledger.node.exposure import warn_if_exposed

_FILE = Path("/file")


async def test_an_exposed_bookie_is_a_warning_each_hour(capsys):
    config = NodeConfig(host="192.0.2.1", port=3181, allow_insecure=True)
    warn_if_exposed(config, asyncio.get_running_loop())
    await asyncio.sleep(2.5 * 3600)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all("192.0.2.1" in line and "allow-insecure" in line for line in lines)


@pytest.mark.parametrize(
    "config",
    [
        NodeConfig(host="127.0.0.1"),
        NodeConfig(host="192.0.2.1", tls_cert=_FILE, tls_key=_FILE, tls_ca=_FILE),
    ],
    ids=["loopback", "tls"],
)
async def test_a_protected_bookie_is_no_warning(config, capsys):
    warn_if_exposed(config, asyncio.get_running_loop())
    await asyncio.sleep(2.5 * 3600)
    assert capsys.readouterr().err == ""
