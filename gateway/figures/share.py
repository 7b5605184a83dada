"""What this gateway knows: the partitions that it leads, and the groups that it coordinates.

A sample is taken every 10 s, or every second while the share is asked for. It runs in slices of
half a millisecond. Rates are over the last 5 to 20 s. About 0.6 KB is held for each partition, and
1.3 KB for each group with three offsets: 31 MB for 10,000 topics of 3 partitions and 10,000 groups.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gateway.figures.group_samples import GroupSamples
from gateway.figures.rows import PART, GroupRow, PartitionFigures, PartKey, TopicPart
from gateway.figures.slices import Slices
from gateway.figures.topic_samples import SampledPartition
from gateway.figures.versions import VersionedRows
from ledger.tasks import start_restarting

if TYPE_CHECKING:
    from gateway.handlers.api import Context
    from gateway.topics.catalog import Topic
    from gateway.topics.partition import Partition

ASKED_PERIOD_S: Final = 1.0
IDLE_PERIOD_S: Final = 10.0
ASKED_S: Final = 10.0
"""How long a question keeps the samples at a second."""

_OPENED_AT_ONCE: Final = 32  # partitions of an embedded gateway that one sample opens
_OPENED_MAX: Final = 1_000


class Share:
    """Samples of one gateway. They begin with the first one of these objects, and go on."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.topics: VersionedRows[PartKey, TopicPart] = VersionedRows()
        self.groups: VersionedRows[str, GroupRow] = VersionedRows()
        # What the rates of the partitions are computed from. Only of those led now.
        self._sampled: dict[tuple[str, int], SampledPartition] = {}
        self._group_samples = GroupSamples(ctx, self.groups)
        self._rounds = 0
        self._opened = 0  # partitions that samples have opened
        # When the last sample was complete and the last question came, on the clock of the loop.
        self._sampled_s: float | None = None
        self._asked_s: float | None = None
        # Set to end the pause between two samples. Callers of `fresh` wait for `_complete`.
        self._wake = asyncio.Event()
        self._complete = asyncio.Event()
        # Set at the end of the sample that is under way, or of the next one; then replaced.
        self._ended = asyncio.Event()
        self._task = start_restarting("the samples of figures", self._run)

    @property
    def sampled_s(self) -> float | None:
        """When the last sample was complete, on the clock of the loop. None before the first."""
        return self._sampled_s

    async def fresh(self, wait_s: float) -> None:
        """Ask for samples, and wait up to `wait_s` seconds if the last one is older than 1.5 s."""
        self.ask()
        loop = asyncio.get_running_loop()
        if self._sampled_s is not None and loop.time() - self._sampled_s < 1.5 * ASKED_PERIOD_S:
            return
        self._complete.clear()
        self._wake.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._complete.wait()

    async def renewed(self, wait_s: float) -> None:
        """Wait up to `wait_s` seconds for a sample that ends after this call.

        Samples go on as often as before, and take as long: the pauses begin anew with this one.
        """
        ended = self._ended
        self._wake.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await ended.wait()

    def ask(self) -> None:
        """Take a sample every second for the next 10 s."""
        now_s = asyncio.get_running_loop().time()
        if self._asked_s is None or now_s - self._asked_s > ASKED_S:
            self._wake.set()
        self._asked_s = now_s

    async def close(self) -> None:
        """Take no more samples."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    # -- samples ------------------------------------------------------------------------------

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            await self._sample()
            self._sampled_s = loop.time()
            self._complete.set()
            self._ended.set()
            self._ended = asyncio.Event()
            period_s = ASKED_PERIOD_S if self._is_asked() else IDLE_PERIOD_S
            with suppress(TimeoutError):
                async with asyncio.timeout(period_s):
                    await self._wake.wait()

    def _is_asked(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        return self._asked_s is not None and now_s - self._asked_s <= ASKED_S

    async def _sample(self) -> None:
        """Look at every partition and group once."""
        slices = Slices(hurried=not self._complete.is_set())
        self._rounds += 1
        room = _OPENED_AT_ONCE if self._is_asked() else 0
        seen: set[PartKey] = set()
        for topic in self._ctx.catalog.all():
            for first in range(0, topic.partitions, PART):
                part, wanted = await self._part(topic, first, slices, room)
                room -= wanted
                if part.partitions:
                    seen.add(part.key)
                    self.topics.put(part.key, part)
            if slices.used_up:
                await slices.rest()
        for key in [key for key in self.topics.rows if key not in seen]:
            self.topics.drop(key)
            await slices.pause()
        for place in [at for at, each in self._sampled.items() if each.round != self._rounds]:
            del self._sampled[place]
            await slices.pause()
        await self._group_samples.take(slices)

    async def _part(
        self, topic: Topic, first: int, slices: Slices, room: int
    ) -> tuple[TopicPart, int]:
        """Return a part of a topic, and how many of its partitions are being opened."""
        rows: list[PartitionFigures] = []
        partitions, now_s = self._ctx.partitions, asyncio.get_running_loop().time()
        opened = 0
        for index in range(first, min(topic.partitions, first + PART)):
            partition = partitions.opened(topic.name, index)
            if partition is not None and partition.is_leader:
                rows.append(self._row(topic, index, partition, now_s))
            elif opened < room and self._opens(topic, index):
                opened += 1
            if slices.used_up:
                await slices.rest()
                now_s = asyncio.get_running_loop().time()
        return TopicPart(topic.name, first, tuple(rows)), opened

    def _row(
        self, topic: Topic, index: int, partition: Partition, now_s: float
    ) -> PartitionFigures:
        place = (topic.name, index)
        known = self._sampled.get(place)
        if known is None or known.partition is not partition:
            known = self._sampled[place] = SampledPartition(partition, now_s)
        known.round = self._rounds
        return known.look(index, topic.replication_factor, now_s)

    def _opens(self, topic: Topic, index: int) -> bool:
        """Open a partition of an embedded gateway that no client has asked for yet.

        Returns whether it is being opened. In a cluster its owner opens each without a request.
        """
        if topic.is_internal or self._opened >= _OPENED_MAX:
            return False
        if self._ctx.config.zookeeper or self._ctx.partitions.led(topic.name, index) is not None:
            return False
        self._opened += 1
        return self._ctx.partitions.find(topic.name, index) is not None
