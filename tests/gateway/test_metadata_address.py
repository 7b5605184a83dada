"""Goal: a command never reads the ledgers of this machine for a gateway of another.

Method: `metadata_address` beside a client that gives the answer of a gateway.
"""

from types import SimpleNamespace

import pytest

from gateway.admin.client import AdminError
from gateway.admin.metadata_address import metadata_address

LOOPBACK = "grpc://127.0.0.1:3181"


class Asked:
    """Answers as a gateway that is reached by `host` and reports `address`."""

    def __init__(self, host, address):
        self.bootstrap_hosts = [host]
        self._address = address

    async def brokers(self):
        return [SimpleNamespace(node_id=0)]

    async def send(self, key, body):
        config = SimpleNamespace(name="ledger.metadata.address", value=self._address)
        return SimpleNamespace(results=[SimpleNamespace(configs=[config])])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.0.0.9"])
async def test_the_ledger_port_of_a_gateway_here_is_used(host):
    assert await metadata_address(Asked(host, LOOPBACK)) == LOOPBACK


@pytest.mark.parametrize("host", ["10.0.0.7", "gateway.example", "192.168.1.2"])
async def test_the_ledger_port_of_a_gateway_elsewhere_is_refused(host):
    with pytest.raises(AdminError, match="own machine"):
        await metadata_address(Asked(host, LOOPBACK))


async def test_servers_that_others_reach_are_used_wherever_the_gateway_is():
    assert await metadata_address(Asked("10.0.0.7", "zk-1:2181/chroot")) == "zk-1:2181/chroot"
