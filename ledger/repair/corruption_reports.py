"""Report corrupt entries found by readers, so that repair does not wait for a full check."""

from __future__ import annotations

import asyncio
from typing import Final

from ledger.errors import MetadataError
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.repair.underreplicated_ledgers import UnderreplicatedLedgers
from ledger.tasks import start_restarting

# Reported copies remembered; above this number, all may be reported again
_KNOWN_MAX: Final = 10_000
_AGAIN_S: Final = 1.0

Copy = tuple[LedgerId, BookieId]


class CorruptionReporter:
    """A queue of reports: ledgers with a corrupt copy, marked once per bookie and ledger.

    Pass `on_corrupt` to `BookieHealth.on_corrupt`. A report that cannot be stored is retried.
    """

    def __init__(self, underreplication: UnderreplicatedLedgers) -> None:
        self._ledgers = underreplication
        # Copies already reported or pending. Cleared above `_KNOWN_MAX`.
        self._reported: set[Copy] = set()
        # Copies still to be marked, oldest first. A copy is removed once its mark is stored.
        self._pending: list[Copy] = []
        # The task that marks pending copies. None or done while no copy is pending.
        self._task: asyncio.Task[None] | None = None

    def on_corrupt(self, bookie: BookieId, ledger: LedgerId, entry: EntryId) -> None:
        """Queue a report; never waits. `entry` is ignored, because the worker reads the entire
        copy.
        """
        del entry
        if (ledger, bookie) in self._reported:
            return
        if len(self._reported) >= _KNOWN_MAX:
            self._reported.clear()
        self._reported.add((ledger, bookie))
        self._pending.append((ledger, bookie))
        if self._task is None or self._task.done():
            self._task = start_restarting("the reports of corrupt entries", self._report_pending)

    async def _report_pending(self) -> None:
        while self._pending:
            ledger, bookie = self._pending[0]
            try:
                await self._ledgers.report_corrupt(ledger, (bookie,))
            except MetadataError:
                await asyncio.sleep(_AGAIN_S)
                continue
            self._pending.pop(0)

    async def stop(self) -> None:
        """Stop reporting and drop pending reports."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
