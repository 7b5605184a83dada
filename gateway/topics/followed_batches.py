"""Applies stored states and batches to `FollowedState`, for replicas and rebuilt lists."""

from __future__ import annotations

import asyncio
from struct import error as StructError

from gateway.core.followed_transactions import FollowedState
from gateway.topics.partition_state import stored_transactions
from gateway.wire import batches
from gateway.wire.end_markers import read_marker
from ledger.errors import CorruptFormat
from ledger.streams.followed_state import StoredState
from ledger.streams.tail_cache import StoredRecord

CHUNK_BYTES = 1024 * 1024
"""Bytes that are read at once."""

TURN_RECORDS = 100
"""Batches that are applied before other tasks run."""

_BITS = batches.TRANSACTIONAL | batches.CONTROL
_BITS_AT = 22  # the low byte of the attributes of a batch


async def load_followed(stored: StoredState) -> FollowedState:
    """Return the transactions of a stored state. Other tasks run meanwhile."""
    found = stored_transactions(stored.data)
    if found is None:
        return FollowedState(stored.sequence_id, stored.segment_start)
    # Without a list that reaches back, the state before this segment had no transaction.
    since = found.since if found.since <= stored.sequence_id else stored.segment_start
    state = FollowedState(stored.sequence_id, since, found.before)
    try:
        for _ in state.transactions.load(found.rows):
            await asyncio.sleep(0)
    except (ValueError, StructError) as error:
        raise CorruptFormat(f"transactions of a partition: {error}") from error
    return state


def apply_record(state: FollowedState, record: StoredRecord) -> None:
    """Apply the batch at the end of `state`. Raises CorruptFormat."""
    data = record.data[0] if len(record.data) == 1 else b"".join(record.data)
    if data[_BITS_AT] & _BITS:
        header = batches.read_header(data)
        if header.producer_id >= 0:
            try:
                marker = read_marker(data, header)
            except ValueError as error:
                raise CorruptFormat(f"offset {record.sequence_id}: {error}") from error
            if marker is not None:
                state.transactions.on_marker(
                    header.producer_id, record.sequence_id, commit=marker.commit
                )
            else:
                state.transactions.on_batch(header.producer_id, record.sequence_id)
    state.end = record.end_sequence_id
