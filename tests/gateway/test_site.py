"""Goal: the page's connection to storage leaves nothing open when it fails.

Method: a site whose metadata are simulated, and of no cluster.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gateway.admin.client import AdminError
from gateway.admin.storage import StorageConnection
from gateway.config import GatewayConfig, HttpConfig
from gateway.http import site as sites
from gateway.http.site import Site
from tests.sim.metadata import SimMetadata


async def test_a_connection_that_fails_halfway_is_closed_before_the_next_one(monkeypatch):
    opened = []

    class Connection(StorageConnection):
        async def _connect(self):
            opened.append(SimMetadata())
            return opened[-1]

    async def address(client):
        return "zookeeper:2181"

    monkeypatch.setattr(sites, "StorageConnection", Connection)
    monkeypatch.setattr(sites, "metadata_address", address)
    ctx = SimpleNamespace(config=GatewayConfig(), own_ledgers=None)
    site = Site(ctx, HttpConfig(), "127.0.0.1:1")
    site._client = SimpleNamespace()
    for _ in range(2):
        with pytest.raises(AdminError, match="zookeeper:2181"):
            await site.storage()
    assert [each.closed for each in opened] == [True, True]
