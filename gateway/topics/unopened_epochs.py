"""The epochs with which the partitions of an embedded gateway open.

They are read when the gateway starts, so that Metadata opens no partition to answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from uuid import UUID

from gateway.cluster.port import StreamKey
from gateway.log import logger, named
from gateway.topics.catalog import Topic
from ledger.errors import CorruptFormat, MetadataUnavailable, NoNode
from ledger.streams.segment_store import read_next_epoch
from ledger.streams.stream import StreamServices

_PER_TURN = 50  # partitions that are read between two pauses for other tasks


class UnopenedEpochs:
    """For each partition, the epoch with which this process opens it first.

    No other process opens streams of an embedded gateway, so these epochs stay right until then.
    """

    def __init__(self, services: StreamServices) -> None:
        self._services = services
        # By topic and index. An entry lasts from `load` or `add` until `forget`.
        self._epochs: dict[UUID, list[int]] = {}

    async def load(self, topics: Iterable[Topic], name: Callable[[UUID, int], str]) -> None:
        """Read the epochs of these topics, and log the partitions whose metadata cannot be read."""
        seen, unreadable, reason = 0, list[str](), ""
        for topic in topics:
            epochs = self._epochs[topic.topic_id] = []
            for index in range(topic.partitions):
                try:
                    epochs.append(await self._read(name(topic.topic_id, index)))
                except MetadataUnavailable as error:  # such as a damaged page of the store's file
                    epochs.append(-1)
                    unreadable.append(f"{topic.name}-{index}")
                    reason = str(error)
                seen += 1
                if seen % _PER_TURN == 0:
                    await asyncio.sleep(0)
        if unreadable:
            logger().error(
                "cannot read the leader epochs of partitions: Metadata shows none until they open",
                partitions=named(unreadable),
                count=len(unreadable),
                reason=reason,
            )

    async def _read(self, stream: str) -> int:
        try:
            return await read_next_epoch(self._services.metadata, stream)
        except NoNode:
            return self._first  # the partition creates its stream
        except CorruptFormat:
            return -1  # the partition cannot be opened

    @property
    def _first(self) -> int:
        return 1 - self._services.epoch_base

    def add(self, topic: Topic) -> None:
        """Add the partitions of a new topic, or those that were added to it: they are empty."""
        epochs = self._epochs.setdefault(topic.topic_id, [])
        epochs.extend([self._first] * (topic.partitions - len(epochs)))

    def forget(self, topic_id: UUID) -> None:
        self._epochs.pop(topic_id, None)

    def of(self, key: StreamKey) -> int:
        """Return the epoch, or -1 if the partition does not exist or its epoch cannot be read."""
        epochs = self._epochs.get(key.topic_id, ())
        return epochs[key.partition] if 0 <= key.partition < len(epochs) else -1
