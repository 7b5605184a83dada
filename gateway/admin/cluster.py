"""Reads what `gateway cluster info` and `gateway cluster health` show."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway.admin.client import AdminClient, AdminError, Broker, Unreachable, raise_for
from gateway.admin.features import level_text, list_features
from gateway.admin.metadata_address import metadata_address
from gateway.admin.segments import from_storage
from gateway.admin.topics import Row
from gateway.core.cluster_health import (
    SILENT,
    BrokerFacts,
    ClusterFacts,
    DiskFacts,
    LedgerFacts,
)
from gateway.core.feature_levels import GATEWAY_VERSION

if TYPE_CHECKING:
    from gateway.admin.storage import Storage

_DESCRIBE_LOG_DIRS, _DESCRIBE_CLUSTER = 35, 60
_EMBEDDED: Final = "grpc://"  # metadata at the ledger port of a gateway that has all in one process


class Ledgers(NamedTuple):
    """What was read from the ledger tier."""

    facts: LedgerFacts
    bookies: list[Row]


async def cluster_info(client: AdminClient) -> Row:
    """Return the cluster as its servers describe it. What only gateways have is None elsewhere."""
    answer = await client.send(_DESCRIBE_CLUSTER, {"include_cluster_authorized_operations": False})
    raise_for(answer.error_code, answer.error_message, "DescribeCluster")
    features = await list_features(client)
    metadata = await client.metadata(None)
    leads = Counter(each.leader_id for topic in metadata.topics for each in topic.partitions)
    address = await _address(client)
    found = None if address is None else await _read_ledgers(client, address)
    ours = any(row["feature"] == GATEWAY_VERSION for row in features)
    return {
        "cluster_id": answer.cluster_id,
        "server": "ledger gateway" if ours else "other",
        "controller": None if answer.controller_id < 0 else answer.controller_id,
        "features": {
            row["feature"]: level_text(row["feature"], row["finalized"]) for row in features
        },
        "topics": len(metadata.topics),
        "partitions": sum(len(topic.partitions) for topic in metadata.topics),
        "metadata": address,
        "bookies": None if found is None else found.bookies,
        "gateways": [
            {
                "node": each.broker_id,
                "address": f"{each.host}:{each.port}",
                "rack": each.rack,
                "leads": leads[each.broker_id],
            }
            for each in sorted(answer.brokers, key=lambda each: each.broker_id)
        ],
    }


async def _address(client: AdminClient) -> str | None:
    with suppress(AdminError):
        return await metadata_address(client)
    return None


async def cluster_facts(client: AdminClient) -> ClusterFacts:
    """Return the facts by which the health of the cluster is judged."""
    metadata = await client.metadata(None)
    brokers = sorted(await client.brokers(), key=lambda each: each.node_id)
    answers = await asyncio.gather(*[_disks_of(client, broker) for broker in brokers])
    address = await _address(client)
    found = None if address is None else await _read_ledgers(client, address)
    disks = [disk for each in answers if each is not None for disk in each]
    if found is not None:
        disks += [bookie_disk(row) for row in found.bookies]
    return ClusterFacts(
        brokers=[
            BrokerFacts(each.node_id, f"{each.host}:{each.port}", answer is not None)
            for each, answer in zip(brokers, answers, strict=True)
        ],
        leaderless=_partitions(metadata, _has_no_leader),
        short=_partitions(metadata, _lacks_replicas),
        disks=disks,
        ledgers=None if found is None else found.facts,
    )


def _has_no_leader(partition: Any) -> bool:
    return partition.leader_id < 0


def _lacks_replicas(partition: Any) -> bool:
    return len(partition.isr_nodes) < len(partition.replica_nodes)


def _partitions(metadata: Any, is_wanted: Callable[[Any], bool]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic in sorted(metadata.topics, key=lambda each: each.name):
        indexes = sorted(each.partition_index for each in topic.partitions if is_wanted(each))
        if indexes:
            found[topic.name] = indexes
    return found


async def _disks_of(client: AdminClient, broker: Broker) -> list[DiskFacts] | None:
    """Return the disks of a broker, None if it does not answer. Partitions are not asked for."""
    try:
        answer = await client.at_broker(broker, _DESCRIBE_LOG_DIRS, lambda _: {"topics": []})
    except Unreachable:
        return None
    except AdminError:
        return []
    return [
        DiskFacts(
            f"{each.log_dir} of node {broker.node_id}",
            _known(getattr(each, "total_bytes", -1)),
            _known(getattr(each, "usable_bytes", -1)),
            each.error_code.name.upper() if each.error_code.value else None,
        )
        for each in answer.results
    ]


def _known(count: int) -> int | None:
    return None if count < 0 else count


def bookie_disk(row: Row) -> DiskFacts:
    """Return the disk of a bookie as it reported it."""
    return DiskFacts(f"the disk of bookie {row['bookie']}", row["disk_bytes"], row["free_bytes"])


async def _read_ledgers(client: AdminClient, address: str) -> Ledgers | None:
    """Return what the ledger tier says, None if it is not within reach."""
    embedded = address.startswith(_EMBEDDED)

    async def read(storage: Storage) -> Ledgers:
        return await read_ledgers(storage, await _most_copies(storage), embedded=embedded)

    return await from_storage(client, read)


async def read_ledgers(
    storage: Storage, copies: tuple[int, str | None], *, embedded: bool
) -> Ledgers:
    """Return what the ledger tier says. `copies` is the most that a topic has, and its name.

    Nothing repairs an `embedded` one.
    """
    from gateway.admin.bookies import list_known_bookies
    from ledger.repair.election import current_auditor

    bookies = await list_known_bookies(storage)
    copies_max, widest = copies
    auditor = None if embedded else await current_auditor(storage.store) is not None
    facts = LedgerFacts(
        bookies={row["bookie"]: _status(row) for row in bookies},
        copies_max=copies_max,
        widest_topic=widest,
        underreplicated=await storage.underreplicated.ledgers(),
        repair_enabled=await storage.underreplicated.enabled(),
        has_auditor=auditor,
    )
    return Ledgers(facts, bookies)


def _status(row: Row) -> str:
    """Return the status of a bookie; `silent` if it is registered and does not answer."""
    silent = row["disk_bytes"] is None and row["address"] is not None
    return SILENT if silent else row["status"]


async def _most_copies(storage: Storage) -> tuple[int, str | None]:
    """Return the most copies that a topic has, and the name of such a topic."""
    from gateway.admin.ledger_owners import read_topics

    topics: Sequence[Any] = [each for each in await read_topics(storage.store) if each.has_streams]
    widest = max(topics, key=lambda each: each.replication_factor, default=None)
    return (0, None) if widest is None else (widest.replication_factor, widest.name)
