"""The services that all streams of a process share: store, client, clock and caches."""

from __future__ import annotations

from ledger.client.client import LedgerClient
from ledger.ports.clock import Clock
from ledger.ports.metadata import MetadataStore
from ledger.streams.config import StreamLimits
from ledger.streams.reads import CursorLimit
from ledger.streams.steady_clock import SteadyClock
from ledger.streams.tail_cache import TailCache


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
        self.cache = TailCache(self.limits.tail_cache_bytes)
        self.cursors = CursorLimit(self.limits.cursors_max)
