"""What a broker does for its partitions in the background: rolls, retention, and orphans.

every 5 s   roll old segments and delete expired ones, of the partitions that it leads
every hour  delete orphans, on one broker of the cluster
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from gateway.topics.orphans import Orphans
from ledger.errors import LedgerError
from ledger.tasks import reported, start_restarting

if TYPE_CHECKING:
    from gateway.cluster.port import Cluster
    from gateway.topics.catalog import Catalog, Topic
    from gateway.topics.partition import Partition
    from ledger.streams.services import StreamServices

MAINTENANCE_S = 5.0
_ROUNDS_PER_HOUR = 720
_OPENED_PER_ROUND = 64
_PARTITIONS_PER_TURN = 50  # the number of partitions between two pauses for other tasks

Find = Callable[[str, int], "Partition | None"]
"""Returns a partition by topic and index, None if this broker does not lead it."""


class Maintenance:
    """The background work of one process on its partitions. `start` once, `stop` once.

    `find` opens a partition, `led` does not. `serves` is whether this broker opens partitions of a
    topic. `alone` is True for a broker without others. `on_disk_freed` runs after ledgers were
    deleted.
    """

    def __init__(
        self,
        catalog: Catalog,
        services: StreamServices,
        cluster: Cluster,
        lookups: tuple[Find, Find, Callable[[Topic], bool]],
        on_disk_freed: Callable[[], Awaitable[None]],
        *,
        alone: bool,
    ) -> None:
        self._catalog = catalog
        self._cluster = cluster
        self._find, self._led, self._serves = lookups
        self._on_disk_freed = on_disk_freed
        self._alone = alone
        # The orphans of the last hourly round. The next round deletes them if still orphaned.
        self.orphans = Orphans(catalog, services)
        self._task: asyncio.Task[None] | None = None  # from `start` to `stop`

    def start(self) -> None:
        """Begin, and go on until `stop`."""
        self._task = start_restarting("the maintenance of partitions", self._run)

    async def stop(self) -> None:
        """End the work, in the middle of a round too."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            with reported("the deletion of orphans"):
                await self._delete_orphans()
            for _ in range(_ROUNDS_PER_HOUR):
                await asyncio.sleep(MAINTENANCE_S)
                await self.round()

    async def _delete_orphans(self) -> None:
        """Delete orphans, on one broker of the cluster."""
        members = self._cluster.members()
        alone = len(members) == 1 and self._alone
        if not alone and (not members or members[0].node_id != self._cluster.node_id):
            self.orphans.forget()
            return
        try:
            if await self.orphans.round(alone=alone):
                await self._on_disk_freed()
        except LedgerError:
            pass  # the next hourly round tries again

    async def round(self) -> None:
        """Roll old segments and delete expired ones, in every partition that this broker leads.

        Opens up to `_OPENED_PER_ROUND` closed partitions to maintain them.
        """
        removed, opened = 0, 0
        topics = [t for t in self._catalog.all() if t.has_streams and self._serves(t)]
        named = [(topic.name, index) for topic in topics for index in range(topic.partitions)]
        for seen, key in enumerate(named):
            if seen % _PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)
            known = self._led(*key) is not None
            opened += not known
            if known or opened <= _OPENED_PER_ROUND:
                removed += await self._maintain(*key)
        if removed:
            await self._on_disk_freed()

    async def _maintain(self, topic: str, index: int) -> int:
        """Maintain one partition. Return the number of deleted segments."""
        partition = self._find(topic, index)
        if partition is None or not partition.readable:
            return 0
        # Whatever fails, the next round tries again, and this round goes on with the others.
        with reported(f"the maintenance of {partition.name}"), suppress(LedgerError):
            await partition.expire_producers()
            partition.stream.roll_if_old()
            return await partition.expire()
        return 0
