"""The services that all streams of a process share: store, client, clock and caches."""

from __future__ import annotations

import asyncio

from ledger.client.client import LedgerClient
from ledger.errors import LedgerError
from ledger.ids import LedgerId
from ledger.ports.clock import Clock, Histogram
from ledger.ports.metadata import MetadataStore
from ledger.streams.config import StreamLimits
from ledger.streams.cursor_limit import CursorLimit
from ledger.streams.steady_clock import SteadyClock
from ledger.streams.tail_cache import TailCache

_REBUILDS_AT_ONCE = 4


class StreamServices:
    """The shared services of a process. Created once."""

    def __init__(
        self,
        metadata: MetadataStore,
        client: LedgerClient,
        clock: Clock,
        limits: StreamLimits | None = None,
        epoch_base: int = 0,
    ) -> None:
        """`epoch_base` is that of the streams which the process creates for topics."""
        self.metadata = metadata
        self.client = client
        self.clock = clock
        self.epoch_base = epoch_base
        # For decisions to delete. One for all streams, so that any stream's look notices a jump.
        self.steady_clock = SteadyClock(clock)
        self.limits = limits or StreamLimits()
        self.cache = TailCache(self.limits.tail_cache_bytes, clock.monotonic_s)
        # Seconds for which partitions were opened: recovered, or taken over from another owner.
        self.openings = Histogram()
        self.cursors = CursorLimit(self.limits.cursors_max, self.limits.read_ahead_bytes)
        # Taken to rebuild from the log what a lost snapshot had. Each may hold megabytes.
        self.rebuilding = asyncio.Semaphore(_REBUILDS_AT_ONCE)
        # The ledgers that no stream lists now and that are no orphans, and the monotonic time
        # until which that holds: the cleaner writes them, or their readers have time to leave.
        self._unlisted_until_s: dict[LedgerId, float] = {}

    def keep_unlisted(self, ledger: LedgerId, duration_s: float) -> None:
        """Keep the search for orphans of this process from deleting `ledger`."""
        now_s = self.clock.monotonic_s()
        known = self._unlisted_until_s
        for gone in [each for each, until_s in known.items() if until_s < now_s]:
            del known[gone]
        known[ledger] = now_s + duration_s

    def forget_unlisted(self, ledger: LedgerId) -> None:
        """Let the search for orphans decide about `ledger` again."""
        self._unlisted_until_s.pop(ledger, None)

    def is_kept(self, ledger: LedgerId) -> bool:
        """Return whether a ledger that no stream lists must stay for now."""
        until_s = self._unlisted_until_s.get(ledger)
        return until_s is not None and self.clock.monotonic_s() <= until_s

    async def delete_unlisted(self, ledger: LedgerId) -> None:
        """Delete a ledger that no stream listed. If that fails, it is deleted as an orphan."""
        try:
            await self.client.delete(ledger)
        except LedgerError:
            pass
        self.forget_unlisted(ledger)
