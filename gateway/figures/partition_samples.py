"""Looks at the partitions of this gateway again and again, and puts what changed into a table.

A sample compares a few numbers of each partition with those of its last figures, and computes
figures only where they differ or where a rate may still change.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from gateway.figures.rows import PART, PartitionFigures, PartKey, TopicPart
from gateway.figures.topic_samples import SampledPartition

if TYPE_CHECKING:
    from gateway.figures.slices import Slices
    from gateway.figures.versions import VersionedRows
    from gateway.handlers.api import Context
    from gateway.topics.catalog import Topic
    from gateway.topics.partition import Partition

_OPENED_AT_ONCE: Final = 32  # partitions of an embedded gateway that one sample opens
_OPENED_MAX: Final = 1_000


class _Part:
    """Up to PART partitions of a topic, as the last sample found them."""

    __slots__ = ("first", "members", "opens", "topic", "waiting")

    def __init__(self, topic: Topic, first: int) -> None:
        self.topic = topic
        self.first = first
        # Those that this gateway leads and has opened.
        self.members: list[SampledPartition] = []
        # Those that are not open yet, or whose lease has lapsed.
        self.waiting: list[Partition] = []
        self.opens = True  # it may have partitions that a sample opens

    @property
    def key(self) -> PartKey:
        return self.topic.name, self.first

    @property
    def unchanged(self) -> bool:
        """True if a look would find the same partitions with the same figures."""
        for member in self.members:
            if not member.unchanged:
                return False
        return not any(each.readable and each.is_leader for each in self.waiting)


class PartitionSamples:
    """Samples of the partitions that one gateway leads."""

    def __init__(self, ctx: Context, table: VersionedRows[PartKey, TopicPart]) -> None:
        self._ctx = ctx
        self._table = table
        # The topics of the last sample, and their parts. A changed topic is another object.
        self._topics: object = None
        self._parts: dict[PartKey, _Part] = {}
        # `Partitions.changes` when the last sample began.
        self._changes = -1
        self._opened = 0  # partitions that samples have opened
        self._before_s = 0.0  # when the last sample began, on the clock of the loop

    async def take(self, slices: Slices, *, opens: bool) -> None:
        """Look at every partition that may have changed. With `opens`, open some that are not."""
        began_s = asyncio.get_running_loop().time()
        room = _OPENED_AT_ONCE if opens else 0
        changes, cluster = self._ctx.partitions.changes, self._ctx.cluster
        same = changes == self._changes
        if self._ctx.catalog.all() is not self._topics:
            same, self._changes = False, -1  # until a sample of them is complete
            await self._list(slices)
        for part in self._parts.values():
            is_due = not same or (part.opens and room > 0) or not part.unchanged
            if is_due or (part.members and not cluster.lease_held()):
                room -= await self._look(part, slices, room)
            elif slices.spent(1 + len(part.members)):
                await slices.rest()
        self._changes, self._before_s = changes, began_s

    async def _list(self, slices: Slices) -> None:
        """List the parts of the topics of now. Those of other topics leave."""
        topics, before = self._ctx.catalog.all(), self._parts
        parts: dict[PartKey, _Part] = {}
        for topic in topics:
            for first in range(0, topic.partitions, PART):
                part = parts[topic.name, first] = _Part(topic, first)
                known = before.get(part.key)
                # The sizes of members are those of all copies.
                if known is not None and known.topic.replication_factor == topic.replication_factor:
                    part.members = known.members
                await slices.pause()
        self._topics, self._parts = topics, parts
        for key in [each for each in before if each not in parts]:
            self._table.drop(key)
            await slices.pause()

    async def _look(self, part: _Part, slices: Slices, room: int) -> int:
        """Look at a part of a topic. Returns how many of its partitions are being opened."""
        topic = part.topic
        known = {each.index: each for each in part.members}
        members: list[SampledPartition] = []
        waiting: list[Partition] = []
        absent: list[int] = []
        rows: list[PartitionFigures] = []
        for index in range(part.first, min(topic.partitions, part.first + PART)):
            partition = self._ctx.partitions.led(topic.name, index)
            if partition is None:
                absent.append(index)
            elif partition.readable and partition.is_leader:
                member = self._member(index, partition, known.get(index))
                members.append(member)
                rows.append(self._row(topic, member))
            else:
                waiting.append(partition)
            if slices.used_up:
                await slices.rest()
        if rows:
            self._table.put(part.key, TopicPart(topic.name, part.first, tuple(rows)))
        else:
            self._table.drop(part.key)
        unopened = absent if self._may_open(topic) else []
        for index in unopened[:room]:
            self._opened += 1
            partition = self._ctx.partitions.find(topic.name, index)
            waiting += [] if partition is None else [partition]
            await slices.rest()
        part.members, part.waiting, part.opens = members, waiting, len(unopened) > room
        return min(room, len(unopened))

    def _member(
        self, index: int, partition: Partition, known: SampledPartition | None
    ) -> SampledPartition:
        if known is not None and known.partition is partition:
            return known
        return SampledPartition(index, partition, asyncio.get_running_loop().time())

    def _row(self, topic: Topic, member: SampledPartition) -> PartitionFigures:
        now_s = asyncio.get_running_loop().time()
        return member.look(topic.replication_factor, now_s, self._before_s)

    def _may_open(self, topic: Topic) -> bool:
        """Return whether a partition of an embedded gateway may be opened before a client asks.

        In a cluster its owner opens each without a request.
        """
        if self._ctx.config.zookeeper or topic.is_internal or not topic.has_streams:
            return False
        return self._opened < _OPENED_MAX
