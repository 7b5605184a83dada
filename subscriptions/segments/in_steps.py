"""Work on the records of a subscriber, in steps between which other tasks run.

A takeover reads up to 4 MiB of small records, which takes most of a second to decode.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import TypeVar

from ledger.streams.plain_log import PlainRecord
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition
from subscriptions.segments.segment_records import (
    DecodedOffsets,
    SegmentRecord,
    SubscriptionState,
    decode_committed,
    decode_record,
)

RECORDS_PER_STEP = 500  # a few milliseconds

T = TypeVar("T")


async def in_steps(items: Iterable[T]) -> AsyncGenerator[T]:
    """Yield each item, and let other tasks run after every `RECORDS_PER_STEP` items."""
    for number, item in enumerate(items, 1):
        yield item
        if number % RECORDS_PER_STEP == 0:
            await asyncio.sleep(0)


async def decode_records(stored: Sequence[PlainRecord], path: str) -> list[SegmentRecord]:
    """Decode all records of a log. Raises CorruptFormat, naming `path`."""
    return [decode_record(each.data, path) async for each in in_steps(stored)]


async def copy_offsets(
    state: SubscriptionState, path: str
) -> dict[TopicIdPartition, CommittedOffset]:
    """Return all offsets of the state at the call. Raises CorruptFormat, naming `path`."""
    records = list(state.records.items())
    await _check_pending(state, path)
    return {key: decode_committed(key, body, path) async for key, body in in_steps(records)}


async def check_offsets(state: SubscriptionState, path: str) -> DecodedOffsets:
    """Return a live view of all offsets, which are checked. Raises CorruptFormat, naming `path`."""
    async for key, body in in_steps(list(state.records.items())):
        decode_committed(key, body, path)
    await _check_pending(state, path)
    return DecodedOffsets(state.records, path)


async def _check_pending(state: SubscriptionState, path: str) -> None:
    async for each in in_steps(state.pending.all()):
        decode_committed(each.key, each.body, path)
