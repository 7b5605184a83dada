"""What this gateway knows: the partitions that it leads, and the groups that it coordinates.

A sample is taken every 10 s, or every second while the share is asked for. It runs in slices of a
quarter of a millisecond, and computes figures only of what changed. Rates are over the last 5 to
20 s. About 0.6 KB is held for each partition, and 1.3 KB for each group with three offsets: 31 MB
for 10,000 topics of 3 partitions and 10,000 groups.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gateway.figures.group_samples import GroupSamples
from gateway.figures.partition_samples import PartitionSamples
from gateway.figures.rows import GroupRow, PartKey, TopicPart
from gateway.figures.slices import Slices
from gateway.figures.versions import VersionedRows
from ledger.tasks import start_restarting

if TYPE_CHECKING:
    from gateway.handlers.api import Context

ASKED_PERIOD_S: Final = 1.0
IDLE_PERIOD_S: Final = 10.0
ASKED_S: Final = 10.0
"""How long a question keeps the samples at a second."""


class Share:
    """Samples of one gateway. They begin with the first one of these objects, and go on."""

    def __init__(self, ctx: Context) -> None:
        self.topics: VersionedRows[PartKey, TopicPart] = VersionedRows()
        self.groups: VersionedRows[str, GroupRow] = VersionedRows()
        self.partition_samples = PartitionSamples(ctx, self.topics)
        self.group_samples = GroupSamples(ctx, self.groups)
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
        """Look at every partition and group that may have changed."""
        slices = Slices(hurried=not self._complete.is_set())
        await self.partition_samples.take(slices, opens=self._is_asked())
        await self.group_samples.take(slices)
