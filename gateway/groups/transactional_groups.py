"""The groups that may have pending offsets, by their partition of `__consumer_offsets`.

    /gateway/transactional/<partition>/<group>    empty

A marker names a partition, not the groups in it. So a group is added before its first pending
offset is stored, and removed before its claim is released, if no offset is pending then. Only the
coordinator of a group changes its node, so that a marker never misses a group.
"""

from __future__ import annotations

from gateway.core.transaction_states import coordinator_partition
from gateway.topics.internal_topics import INTERNAL_PARTITIONS
from ledger.errors import NodeExists, NoNode
from ledger.ports.metadata import MetadataStore
from subscriptions.znodes.znode_format import node_name, subscriber_of

ROOT = "/gateway/transactional"


def offsets_partition(group: str) -> int:
    """Return the partition of `__consumer_offsets` to which a group belongs, as in Kafka."""
    return coordinator_partition(group, INTERNAL_PARTITIONS)


class TransactionalGroups:
    """The stored index of these groups. Every method raises MetadataUnavailable."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def add(self, group: str) -> None:
        """Add the group. Its coordinator calls this, before it stores a pending offset."""
        try:
            await self._metadata.create(_path(group), parents=True)
        except NodeExists:
            pass

    async def remove(self, group: str) -> None:
        """Remove the group. Its coordinator calls this, while no offset of the group is pending."""
        try:
            await self._metadata.delete(_path(group))
        except NoNode:
            pass

    async def of(self, partition: int) -> list[str]:
        """Return every group of the partition that was added before this call."""
        path = f"{ROOT}/{partition}"
        await self._metadata.sync(path)  # another broker may have added a group just now
        try:
            return sorted(map(subscriber_of, await self._metadata.children(path)))
        except NoNode:
            return []


def _path(group: str) -> str:
    return f"{ROOT}/{offsets_partition(group)}/{node_name(group)}"
