"""Report corrupt entries found by readers, so that repair does not wait for a full check."""

from __future__ import annotations

import asyncio
from typing import Final

from ledger.errors import MetadataError
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.repair.underreplicated_ledgers import UnderreplicatedLedgers

_KNOWN_MAX: Final = 10_000  # reported copies remembered; beyond it all may be reported again
_AGAIN_S: Final = 1.0

Copy = tuple[LedgerId, BookieId]


class CorruptionReporter:
    """A queue of reports: ledgers with a corrupt copy, marked once per bookie and ledger.

    Pass `on_corrupt` to `BookieHealth.on_corrupt`. A report that cannot be stored is retried.
    """

    def __init__(self, underreplication: UnderreplicatedLedgers) -> None:
        self._ledgers = underreplication
        # Copies already reported or pending. Cleared when it exceeds its bound.
        self._reported: set[Copy] = set()
        # Copies still to be marked, oldest first. One is removed once it is stored.
        self._pending: list[Copy] = []
        # Marks the pending copies. None or done while there are none.
        self._task: asyncio.Task[None] | None = None

    def on_corrupt(self, bookie: BookieId, ledger: LedgerId, entry: EntryId) -> None:
        """Queue a report; never waits. `entry` is not stored: the worker reads the entire copy."""
        del entry
        if (ledger, bookie) in self._reported:
            return
        if len(self._reported) >= _KNOWN_MAX:
            self._reported.clear()
        self._reported.add((ledger, bookie))
        self._pending.append((ledger, bookie))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._report_pending())

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
        """Stop reporting; pending reports are dropped."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
