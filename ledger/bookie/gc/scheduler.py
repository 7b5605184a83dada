"""The schedule of a bookie's garbage collection: at an interval and on request."""

from __future__ import annotations

import asyncio
from typing import Any

from ledger.bookie.bookie import Bookie
from ledger.bookie.gc.collector import GcResult, LedgerExists, ListLedgers, collect
from ledger.errors import LedgerError
from ledger.tasks import start_restarting


class GcScheduler:
    """Garbage collection of one bookie from `start` to `stop`.

    Source: BookKeeper GarbageCollectorThread.
    """

    def __init__(
        self,
        bookie: Bookie,
        list_ledgers: ListLedgers,
        ledger_exists: LedgerExists,
        *,
        interval_s: float,
        compaction_threshold: float,
        log: Any,
    ) -> None:
        self._bookie = bookie
        self._list_ledgers = list_ledgers
        self._ledger_exists = ledger_exists
        self._interval_s = interval_s
        self._compaction_threshold = compaction_threshold
        self._log = log
        # Collections that ended well or failed, and the sums of their results. Only grow.
        self.succeeded = self.failed = 0
        self.total = GcResult(0, 0, 0)
        # Set by `request`; cleared when a collection begins.
        self._requested = asyncio.Event()
        # Runs `_run` from `start` to `stop`.
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin the schedule. The first collection follows after one interval."""
        self._task = start_restarting("the garbage collection of a bookie", self._run)

    def request(self) -> None:
        """Start a collection now, or after the running collection."""
        self._requested.set()

    async def stop(self) -> None:
        """Cancel a running collection and schedule no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def collect(self) -> GcResult:
        """Run one collection now. Raises the errors of `ledger.bookie.gc.collector.collect`."""
        return await collect(
            self._bookie,
            self._list_ledgers,
            ledger_exists=self._ledger_exists,
            compaction_threshold=self._compaction_threshold,
        )

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._requested.wait()
            except TimeoutError:
                pass
            self._requested.clear()
            try:
                done = await self.collect()
            except (LedgerError, OSError) as error:
                self.failed += 1
                self._log().warning("garbage collection failed, will retry", reason=str(error))
                continue
            self.succeeded += 1
            self.total = GcResult(*map(sum, zip(self.total, done, strict=True)))
            if any(done):
                self._log().info("collected", **done._asdict())
