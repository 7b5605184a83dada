"""The place of one reader that is behind, and the records that were read ahead for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ledger.core.accepted_losses import LostRange, StreamLosses
from ledger.core.sparse_index import NO_TIMESTAMP
from ledger.errors import CorruptFormat
from ledger.ids import pinned_bytes
from ledger.streams.tail_cache import StoredRecord


class Chunk(NamedTuple):
    """What one read brought, and the bytes that its records keep in memory: whole messages."""

    records: list[StoredRecord]
    pinned_bytes: int


PINNED_MAX: Final = 5
"""The bytes that records of a response may keep in memory, in sizes of these records.

A response of 1 MiB may consist of the end of one message of 2 MiB and the beginning of the next.
"""

_AWAY_S: Final = 1.0
"""A reader that stayed away for longer does not need much at its next read."""


@dataclass(slots=True)
class Cursor:
    """The place of one reader, in use by at most one `read` at a time."""

    number: int  # segment number; each step looks up the `Segment`
    next_entry: int  # the first entry that is neither in `ready` nor returned
    # The accepted losses that it passed so far. After a change of the table's losses, the cursor
    # is dropped: what it holds may be lost now.
    losses: StreamLosses
    # The count of rewrites of the table when it was placed. After a change it is dropped too.
    rewrites: int
    # Records that were read and not yet returned.
    ready: deque[StoredRecord] = field(default_factory=deque[StoredRecord])
    ahead: asyncio.Task[Chunk] | None = None  # reads the chunk after `ready`
    # The bytes that each chunk with records in `ready` keeps in memory, oldest first, with the end
    # of its last record.
    chunks: deque[tuple[int, int]] = field(default_factory=deque[tuple[int, int]])
    ready_bytes: int = 0  # the sizes of the records in `ready`
    chunk_bytes: int = 0  # how much to read next; grows with what its reader takes
    idle_since_s: float = 0.0  # when its reader left last
    at: int = -1  # the sequence id that its reader will request next, while it is idle

    @property
    def held_bytes(self) -> int:
        """The bytes that the records in `ready` keep in memory."""
        return sum(size for _, size in self.chunks)

    def put(self, chunk: Chunk) -> None:
        """Add a chunk behind `ready`."""
        self.ready.extend(chunk.records)
        self.ready_bytes += size_of(chunk.records)
        if chunk.records:
            self.chunks.append((chunk.records[-1].end_sequence_id, chunk.pinned_bytes))

    def adapt(self, taken_bytes: int, now_s: float, least: int, most: int) -> None:
        """Choose how much to read next, after its reader took `taken_bytes` bytes.

        It is twice as much as before if the reader takes all that is ready within two such reads,
        and the least again if it stayed away for long. It is at most `most`, or the least if that
        is more.
        """
        if not self.chunk_bytes or now_s - self.idle_since_s > _AWAY_S:
            self.chunk_bytes = least
        elif self.ready_bytes < taken_bytes and 2 * taken_bytes >= least:
            self.chunk_bytes *= 2
        self.chunk_bytes = min(self.chunk_bytes, max(least, most))
        self.idle_since_s = now_s

    def forget_taken(self, sequence_id: int) -> None:
        """Stop counting chunks of which all records below `sequence_id` were taken."""
        chunks = self.chunks
        while chunks and (chunks[0][0] <= sequence_id or not self.ready):
            chunks.popleft()


def lost_record(lost: LostRange) -> StoredRecord:
    """Return the record that stands for an accepted loss."""
    first, last = lost.offsets.first, lost.offsets.last
    return StoredRecord(first, last + 1, NO_TIMESTAMP, 0, (), lost)


def take_ready(cursor: Cursor, following: int, bytes_max: int, taken: list[StoredRecord]) -> int:
    """Move ready records from `following` on to `taken`: at least one, up to `bytes_max` bytes.

    Returns the bytes left, 0 if the next record does not fit.
    """
    ready = cursor.ready
    left = bytes_max
    while ready and (left > 0 or not taken):
        first, end, _, size, _, _ = record = ready[0]  # much cheaper than its attributes
        # A loss of which a side is unknown may reach over records behind it.
        if end <= following and (not taken or taken[-1].lost is not None):
            ready.popleft()
            cursor.ready_bytes -= size
            continue
        if first != following and (taken or first > following):
            raise CorruptFormat(f"expected record {following}, read {first}")
        if taken and size > left:
            return 0
        taken.append(record)
        ready.popleft()
        cursor.ready_bytes -= size
        left -= size
        following = end
    return max(left, 0)


def drop_ahead(cursor: Cursor | None) -> None:
    """Cancel the read ahead of a cursor that is dropped."""
    if cursor is not None and cursor.ahead is not None:
        cursor.ahead.cancel()


def collect_ahead(cursor: Cursor) -> None:
    """Move the chunk that was read ahead to `ready`, if the read has ended.

    A failed read counts as never begun, because a new read may succeed.
    """
    ahead = cursor.ahead
    if ahead is None or not ahead.done():
        return
    cursor.ahead = None
    if not ahead.cancelled() and ahead.exception() is None:
        cursor.put(ahead.result())


def compact(records: list[StoredRecord]) -> list[StoredRecord]:
    """Copy a few records out of the large messages that bookies sent with them.

    Otherwise a small record of each of many partitions keeps as many messages in memory. So the
    records of a response keep at most `PINNED_MAX` times their size.
    """
    pinned = pinned_bytes(part for record in records for part in record.data)
    if pinned <= PINNED_MAX * size_of(records):
        return records
    return [record._replace(data=(b"".join(record.data),)) for record in records]


def size_of(records: Iterable[StoredRecord]) -> int:
    size = 0
    for record in records:
        size += record.size_bytes
    return size
