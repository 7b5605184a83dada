"""The bound on the readers that are behind, over all streams of a process."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Protocol

from ledger.streams.config import StreamLimits
from ledger.streams.read_turns import ReadTurns

_CHUNKS_LEFT: Final = 4  # chunks larger than the least one are read while so many more fit


class CursorOwner(Protocol):
    """The reads of one stream."""

    def forget(self, sequence_id: int) -> None:
        """Drop the cursor at `sequence_id` and the records that it read ahead."""
        ...


class CursorLimit:
    """The bound on the cursors of all streams of a process, and on what was read ahead for them.

    Evicts the least recently used cursor. The newest one stays, whatever it holds.
    """

    def __init__(self, cursors_max: int, bytes_max: int) -> None:
        self._cursors_max = cursors_max
        self.bytes_max = bytes_max
        # The sum of `_used`. At most `bytes_max`, unless a single cursor holds more.
        self.bytes_held = 0
        # Shared by the reads of all streams.
        self.turns = ReadTurns()
        # The bytes of each idle cursor, least recently used first. They include those of a read
        # under way. `SegmentReads` adds and removes a cursor.
        self._used: OrderedDict[tuple[CursorOwner, int], int] = OrderedDict()

    def chunk_bytes_max(self, limits: StreamLimits) -> int:
        """Return how much one cursor may read at once: less once others hold much."""
        left = max(0, self.bytes_max - self.bytes_held)
        return min(limits.read_window_bytes, left // _CHUNKS_LEFT)

    def remember(self, owner: CursorOwner, sequence_id: int, size: int) -> None:
        self.taken(owner, sequence_id)
        self._used[owner, sequence_id] = size
        self.bytes_held += size
        self._evict()

    def resize(self, owner: CursorOwner, sequence_id: int, size: int) -> None:
        """Note that an idle cursor holds `size` bytes now."""
        before = self._used.get((owner, sequence_id))
        if before is not None:
            self._used[owner, sequence_id] = size
            self.bytes_held += size - before
            self._evict()

    def taken(self, owner: CursorOwner, sequence_id: int) -> None:
        self.bytes_held -= self._used.pop((owner, sequence_id), 0)

    def _evict(self) -> None:
        used = self._used
        while len(used) > self._cursors_max or (self.bytes_held > self.bytes_max and len(used) > 1):
            (victim, at), size = used.popitem(last=False)
            self.bytes_held -= size
            victim.forget(at)
