"""The partitions of an internal topic that has no streams: every gateway serves them, as empty.

`__consumer_offsets` is shown because clients and tools look for it. Committed offsets are in one
log segment per group, and OffsetFetch returns them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.core.blocked_reads import BlockedRead
from gateway.core.partition_transactions import AbortedTransaction
from gateway.topics.partition import FetchWaiter
from ledger.errors import LedgerError
from ledger.streams.listed_stream import EpochEnd, EpochTable
from ledger.streams.tail_cache import StoredRecord

if TYPE_CHECKING:
    from gateway.topics.topic_traffic import Traffic


class NoLosses:
    """The losses of a partition without data: there are none."""

    def known_failure(self, offset: int) -> LedgerError | None:
        return None

    def places(self, start: int) -> list[BlockedRead]:
        return []


class EmptyPartition:
    """A partition without a stream, an owner, records or state. It is always open."""

    is_leader = True
    is_follower = False
    readable = True
    serves_fetches = True
    closed = False
    high_watermark = 0
    stable_offset = 0
    log_start_offset = 0
    leader_epoch = 0
    rewrites = 0

    losses = NoLosses()

    @property
    def traffic(self) -> Traffic:
        """New counts: no record is ever counted."""
        from gateway.topics.topic_traffic import Traffic

        return Traffic()

    async def ensure_readable(self) -> None:
        """Return at once."""

    def check_outcomes(self) -> None:
        """Return at once: there is no record."""

    def epoch_at(self, offset: int) -> int:
        return 0

    def epoch_end(self, epoch: int) -> EpochEnd | None:
        """Return where a leader epoch ends: it has had one, without records."""
        return EpochTable([(self.leader_epoch, 0)]).end_of(epoch, 0, 0)

    def read_cached(self, offset: int, bytes_max: int) -> list[StoredRecord] | None:
        return []

    async def read(self, offset: int, bytes_max: int) -> list[StoredRecord]:
        return []

    def aborted_cached(self, start: int, end: int) -> list[AbortedTransaction] | None:
        return []

    async def aborted(self, start: int, end: int) -> list[AbortedTransaction]:
        return []

    def add_waiter(self, waiter: FetchWaiter) -> None:
        """Do nothing: no record will arrive, so the fetch waits for its time."""

    def remove_waiter(self, waiter: FetchWaiter) -> None:
        """Do nothing, as `add_waiter`."""
