"""The place of one reader that is behind, and the records that were read ahead for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from ledger.core.accepted_losses import LostRange, StreamLosses
from ledger.core.sparse_index import NO_TIMESTAMP
from ledger.errors import CorruptFormat
from ledger.streams.tail_cache import StoredRecord


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
    ahead: asyncio.Task[list[StoredRecord]] | None = None  # reads the chunk after `ready`


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
        record = ready[0]
        # A loss of which a side is unknown may reach over records behind it.
        if record.end_sequence_id <= following and (not taken or taken[-1].lost is not None):
            ready.popleft()
            continue
        if record.sequence_id != following and (taken or record.sequence_id > following):
            raise CorruptFormat(f"expected record {following}, read {record.sequence_id}")
        if taken and record.size_bytes > left:
            return 0
        taken.append(ready.popleft())
        left -= record.size_bytes
        following = record.end_sequence_id
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
        cursor.ready.extend(ahead.result())


def size_of(records: Iterable[StoredRecord]) -> int:
    size = 0
    for record in records:
        size += record.size_bytes
    return size
