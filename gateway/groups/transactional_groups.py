"""The groups that may have pending offsets, by their partition of `__consumer_offsets`.

    /gateway/transactional/<partition>/<group>@<ownership, 32 hex>    empty

A marker names a partition, not the groups in it. So each load of a group has an *ownership*, a
random number, and adds the group under it before it asks about a transaction. The load removes the
node when it ends, if no offset is pending then. Nodes of loads that crashed are removed by a later
load. A node is never created twice, so a late removal cannot hide a group that was added since.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple
from uuid import UUID

from gateway.core.transaction_states import coordinator_partition
from gateway.topics.internal_topics import INTERNAL_PARTITIONS
from ledger.errors import NodeExists, NoNode
from ledger.ports.metadata import MetadataStore
from subscriptions.znodes.znode_format import node_name, subscriber_of

ROOT = "/gateway/transactional"
_NAMES_PER_STEP: Final = 500  # a millisecond
_SEPARATOR: Final = "@"  # never part of a quoted name


class ListedGroup(NamedTuple):
    """A group that may have pending offsets, and the ownership under which it was added."""

    group: str
    ownership: UUID | None  # None for a node without one, as earlier previews wrote it


def offsets_partition(group: str) -> int:
    """Return the partition of `__consumer_offsets` to which a group belongs, as in Kafka."""
    return coordinator_partition(group, INTERNAL_PARTITIONS)


class TransactionalGroups:
    """The stored index of these groups. Every method raises MetadataUnavailable."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def add(self, group: str, ownership: UUID) -> None:
        """Add the group. Its coordinator calls this, before it asks about a transaction."""
        try:
            await self._metadata.create(_path(group, ownership), parents=True)
        except NodeExists:
            pass

    async def remove(self, group: str, ownership: UUID | None) -> None:
        """Remove a node of the group, if no offset of the group is pending or another node exists.

        Its coordinator calls this for its own ownership and for those of earlier coordinators.
        """
        try:
            await self._metadata.delete(_path(group, ownership))
        except NoNode:
            pass

    async def of(self, partition: int) -> list[ListedGroup]:
        """Return every group of the partition that was added before this call.

        A group is listed once for each ownership that was not removed.
        """
        path = f"{ROOT}/{partition}"
        await self._metadata.sync(path)  # another broker may have added a group just now
        try:
            names = await self._metadata.children(path)
        except NoNode:
            return []
        found: list[ListedGroup] = []
        for number, name in enumerate(names, 1):
            found.append(_listed(name))
            if number % _NAMES_PER_STEP == 0:
                await asyncio.sleep(0)
        return found


def _listed(name: str) -> ListedGroup:
    quoted, _, ownership = name.partition(_SEPARATOR)
    return ListedGroup(subscriber_of(quoted), UUID(hex=ownership) if ownership else None)


def _path(group: str, ownership: UUID | None) -> str:
    end = "" if ownership is None else f"{_SEPARATOR}{ownership.hex}"
    return f"{ROOT}/{offsets_partition(group)}/{node_name(group)}{end}"
