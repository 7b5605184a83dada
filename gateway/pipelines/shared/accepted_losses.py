"""The accepted losses of topics, from the metadata store that the gateways name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from gateway.admin.metadata_address import metadata_address
from gateway.interrupt import run_interruptibly
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_servers import KafkaServers
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from gateway.pipelines.shared.storage import open_storage, read_topic
from gateway.pipelines.shared.topics import run_admin
from gateway.topics.partitions import stream_name
from ledger.core.accepted_losses import StreamLosses
from ledger.errors import CorruptFormat, MetadataUnavailable
from ledger.ports.metadata import MetadataStore
from ledger.streams.accepted_losses import AcceptedLosses, losses_path

_AT_ONCE = 16

AcceptedRanges = Mapping[TopicPartition, tuple[OffsetRange, ...]]
"""The accepted losses of each partition that has some, in order."""


class LossesUnknown(JobError):
    """An error because the metadata store of a gateway cannot be reached from here."""

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"the accepted losses of the topics are unknown: {cause}; name their metadata with "
            "--metadata",
            "LOSSES_UNKNOWN",
        )


def read_accepted(
    bootstrap: KafkaServers, topics: Iterable[str], metadata: str = ""
) -> AcceptedRanges:
    """Return the accepted losses of these topics. A Kafka broker has none.

    `metadata` replaces the address that the gateways name. Raises LossesUnknown if it leads
    nowhere, and JobError if the stored losses cannot be decoded.
    """
    try:
        address = metadata or run_admin(bootstrap, metadata_address)
    except JobError as error:
        if error.code == "NO_METADATA_ADDRESS":
            return {}
        if error.code == "LOOPBACK_METADATA_ADDRESS":
            raise LossesUnknown(str(error)) from error
        raise
    return run_interruptibly(_read(address, list(topics)))


async def _read(address: str, topics: list[str]) -> AcceptedRanges:
    try:
        async with open_storage(address) as storage:
            found = [each for name in topics for each in await _of_topic(storage.store, name)]
    except MetadataUnavailable as error:
        raise LossesUnknown(str(error)) from error
    except CorruptFormat as error:
        raise JobError(str(error), "CORRUPT_METADATA") from error
    except JobError as error:
        if error.code in ("UNREACHABLE", "NO_CLUSTER"):
            raise LossesUnknown(str(error)) from error
        raise
    return {partition: ranges for partition, ranges in found if ranges}


async def _of_topic(
    store: MetadataStore, name: str
) -> list[tuple[TopicPartition, tuple[OffsetRange, ...]]]:
    topic = await read_topic(store, name)
    losses = await _read_streams(
        store, [stream_name(topic.topic_id, index) for index in range(topic.partitions)]
    )
    partitions = [TopicPartition(name, index) for index in range(topic.partitions)]
    return [(p, lost_ranges(p, each)) for p, each in zip(partitions, losses, strict=True)]


async def _read_streams(store: MetadataStore, names: list[str]) -> list[StreamLosses]:
    if names:
        await store.sync(losses_path(names[0]))
    found: list[StreamLosses] = []
    for at in range(0, len(names), _AT_ONCE):
        some = names[at : at + _AT_ONCE]
        found += await asyncio.gather(*(AcceptedLosses(store, name).load() for name in some))
    return found


def lost_ranges(partition: TopicPartition, losses: StreamLosses) -> tuple[OffsetRange, ...]:
    """Return the lost offsets of a partition. Losses without offsets are left out."""
    return tuple(
        OffsetRange(*partition, each.offsets.first, each.offsets.last + 1)
        for each in losses.ranges
        if each.offsets.first <= each.offsets.last
    )
