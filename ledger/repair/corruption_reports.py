"""Rot that readers meet is told to whoever mends it, so that it does not wait for a full check."""

from __future__ import annotations

import asyncio
from typing import Final

from ledger.errors import MetadataError
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.repair.underreplicated_ledgers import UnderreplicatedLedgers

_KNOWN_MAX: Final = 10_000  # copies told of; then all may be told of again
_AGAIN_S: Final = 1.0

Copy = tuple[LedgerId, BookieId]


class CorruptionReporter:
    """Marks ledgers with a rotten copy: once for each bookie and ledger, one after the other.

    `on_corrupt` is for `BookieHealth.on_corrupt`. What cannot be stored now is tried again.
    """

    def __init__(self, underreplication: UnderreplicatedLedgers) -> None:
        self._list = underreplication
        self._known: set[Copy] = set()
        self._waiting: list[Copy] = []
        self._task: asyncio.Task[None] | None = None

    def on_corrupt(self, bookie: BookieId, ledger: LedgerId, entry: EntryId) -> None:
        """Never waits. The entry does not matter: the whole copy will be read through."""
        del entry
        if (ledger, bookie) in self._known:
            return
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known.add((ledger, bookie))
        self._waiting.append((ledger, bookie))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        while self._waiting:
            ledger, bookie = self._waiting[0]
            try:
                await self._list.report_corrupt(ledger, (bookie,))
            except MetadataError:
                await asyncio.sleep(_AGAIN_S)
                continue
            self._waiting.pop(0)

    async def stop(self) -> None:
        """Nothing is told any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
