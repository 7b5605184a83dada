"""Finds the metadata of the storage tier by asking a gateway, in Kafka's protocol."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.admin.client import AdminClient, AdminError
from gateway.topics.broker_configs import METADATA_ADDRESS
from ledger.command_line.units import is_loopback

_DESCRIBE_CONFIGS = 32
_BROKER_RESOURCE = 4


async def metadata_address(client: AdminClient) -> str:
    """Return the address that the gateway reports, for `--zookeeper`.

    Raises AdminError if it reports none: it may be a Kafka broker, an older gateway, or a gateway
    without a ledger port. A broker describes only itself, so the request names all of them.
    """
    resources = [
        {
            "resource_type": _BROKER_RESOURCE,
            "resource_name": str(broker.node_id),
            "configuration_keys": [METADATA_ADDRESS],
        }
        for broker in await client.brokers()
    ]
    answer = await client.send(_DESCRIBE_CONFIGS, {"resources": resources})
    for result in answer.results:
        for config in result.configs:
            if config.name == METADATA_ADDRESS and config.value:
                _raise_if_elsewhere(config.value, client.bootstrap_hosts)
                return config.value
    raise AdminError(
        "the server does not say where its ledgers are: pass --zookeeper host:port, or start "
        "`gateway dev` without --no-ledger-port and without --secure",
        "NO_METADATA_ADDRESS",
    )


def _raise_if_elsewhere(address: str, hosts: Iterable[str]) -> None:
    """Refuse a ledger port on the loopback of another machine: here, other ledgers may be there."""
    if address.startswith("grpc://127.") and not any(map(is_loopback, hosts)):
        raise AdminError(
            f"the ledgers are at {address} on the gateway's own machine: run this command there, "
            "or pass --zookeeper with an address that leads to them",
            "LOOPBACK_METADATA_ADDRESS",
        )
