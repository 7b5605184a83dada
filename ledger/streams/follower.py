"""Reads a stream that somebody else writes: whatever is committed, soon after it is.

Never fences, never writes. What it shows is at or below the LAC that bookies tell, or in a
completed segment.
"""

from __future__ import annotations

from collections.abc import Callable

from ledger.core.segments import Segment
from ledger.streams.stream import StreamServices
from ledger.streams.tail_cache import StoredRecord


class FollowedStream:
    """`end_sequence_id` and `start_sequence_id` never fall, also over `close` and `open`."""

    def __init__(
        self,
        name: str,
        services: StreamServices,
        timestamp_max: Callable[[memoryview], int],
        on_advanced: Callable[[int], None],
    ) -> None:
        self.name = name
        self.epoch = 0  # the newest that a record was seen of
        self.start_sequence_id = 0
        self.end_sequence_id = 0
        self.segments: list[Segment] = []
        self._services = services
        self._timestamp_max = timestamp_max
        self._on_advanced = on_advanced

    async def open(self) -> None:
        """Followed: the list of segments and the end are known. Raises NoNode, LedgerError."""
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing is watched, polled or held any more; it may be opened again."""
        raise NotImplementedError

    def epoch_at(self, sequence_id: int) -> int:
        """The epoch of the ownership that wrote this sequence id."""
        raise NotImplementedError

    def read_cached(self, sequence_id: int, bytes_max: int) -> list[StoredRecord] | None:
        """As `read`, from memory, or None when it is not all there."""
        raise NotImplementedError

    async def read(self, sequence_id: int, bytes_max: int) -> list[StoredRecord]:
        """As `Stream.read`."""
        raise NotImplementedError

    async def find_timestamp(self, timestamp: int, first: int = 0) -> StoredRecord | None:
        """As `Stream.find_timestamp`."""
        raise NotImplementedError
