"""The choice of a bookie that replaces a lost one, by liveness, rack and disk space."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

from ledger.core.placement import RandomSource, choose_replacement
from ledger.ids import BookieId
from ledger.ports.bookies import Bookies, BookieStats, Status
from ledger.ports.clock import Clock

_STATS_OLD_S: Final = 30.0
_STATS_S_MAX: Final = 2.0
_NOBODY: Final = BookieId("")


class SpareBookies:
    """Candidates for ensembles, with their disk usage."""

    def __init__(self, bookies: Bookies, clock: Clock, random: RandomSource) -> None:
        self._bookies = bookies
        self._clock = clock
        self._random = random
        # Used share of each bookie's disk, from 0 to 1. Replaced by `_refresh_load`.
        self._load: dict[BookieId, float] = {}
        # Time of the last refresh of `_load`, or None before the first refresh.
        self._asked_s: float | None = None

    async def replacement(
        self,
        ensemble: Sequence[BookieId],
        index: int,
        write_quorum: int,
        never: Collection[BookieId],
    ) -> BookieId | None:
        """Return a bookie for `index` of `ensemble` that is not in `never`, or None."""
        await self._refresh_load()
        registered = self._bookies.registered()
        candidates = {
            bookie: info.rack
            for bookie, info in registered.items()
            if not info.read_only and bookie not in never
        }
        return choose_replacement(
            candidates,
            ensemble,
            index,
            write_quorum=write_quorum,
            racks={bookie: info.rack for bookie, info in registered.items()},
            load=self._load,
            random=self._random,
        )

    async def addition(
        self, ensemble: Sequence[BookieId], never: Collection[BookieId]
    ) -> BookieId | None:
        """Return one more bookie for an ensemble whose members hold every entry, or None."""
        wider = (*ensemble, _NOBODY)
        return await self.replacement(wider, len(ensemble), len(wider), never)

    async def _refresh_load(self) -> None:
        """Refresh `_load` if it is older than half a minute."""
        now_s = self._clock.monotonic_s()
        if self._asked_s is not None and now_s - self._asked_s < _STATS_OLD_S:
            return
        self._asked_s = now_s
        names = self._bookies.available()
        stats = await asyncio.gather(*(self._ask(name) for name in names))
        self._load = {
            name: 1 - one.free_bytes / one.disk_bytes
            for name, one in zip(names, stats, strict=True)
            if one.status is Status.OK and one.disk_bytes > 0
        }

    async def _ask(self, bookie: BookieId) -> BookieStats:
        try:
            async with asyncio.timeout(_STATS_S_MAX):
                return await self._bookies.stats(bookie)
        except TimeoutError:
            return BookieStats(Status.UNREACHABLE)
