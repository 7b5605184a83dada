"""The segments of topics as the ledger tier lists them, if its metadata are within reach.

Kafka's protocol does not show segments. The gateways say where the metadata are; Apache Kafka's
brokers do not, and then no segments are known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from gateway.admin.client import AdminClient, AdminError, Unreachable
from gateway.admin.metadata_address import metadata_address
from gateway.core.config_effect import SegmentFacts
from ledger.errors import LedgerError, NoNode

if TYPE_CHECKING:
    from gateway.admin.storage import Storage
    from ledger.core.segments import Segment

T = TypeVar("T")

_REACH_S_MAX: Final = 5.0
_AT_ONCE: Final = 16  # partitions or ledgers that are read at a time


async def from_storage(
    client: AdminClient, work: Callable[[Storage], Awaitable[T]], within_s: float = _REACH_S_MAX
) -> T | None:
    """Return the result of `work` with the ledger tier, or None if it is not within reach.

    It is not at Apache Kafka, if only the gateways reach it, and if it takes longer.
    """
    try:
        address = await metadata_address(client)
        from gateway.admin.storage import StorageConnection  # imports the links to bookies

        async with asyncio.timeout(within_s), StorageConnection(address) as storage:
            return await work(storage)
    except (AdminError, Unreachable, LedgerError, TimeoutError):
        return None


async def count_segments(storage: Storage, topic_id: str, indexes: Sequence[int]) -> dict[int, int]:
    """Return how many segments each partition has. One that has no stream is left out."""
    from ledger.streams.segment_store import ledgers_of

    async def count(index: int) -> int:
        return len(await ledgers_of(storage.store, f"{topic_id}-{index}"))

    return await _of_each(indexes, count)


async def read_segments(
    storage: Storage, topic_id: str, indexes: Sequence[int]
) -> dict[int, Sequence[SegmentFacts]]:
    """Return the segments of each partition, the oldest first. One without a stream is left out."""
    from ledger.losses.place import read_places

    async def read(index: int) -> Sequence[SegmentFacts]:
        segments = (await read_places(storage.store, f"{topic_id}-{index}")).segments
        found: list[SegmentFacts] = []
        for at in range(0, len(segments), _AT_ONCE):
            some = segments[at : at + _AT_ONCE]
            found += await asyncio.gather(*[_facts(storage, each) for each in some])
        return found

    return await _of_each(indexes, read)


async def _facts(storage: Storage, segment: Segment) -> SegmentFacts:
    from ledger.core.segments import Truncation

    try:
        metadata = (await storage.metadata.read_latest(segment.ledger)).metadata
        created_ms, length, copies = metadata.created_ms, metadata.length, metadata.write_quorum
    except LedgerError:
        created_ms, length, copies = None, None, 1  # it was deleted meanwhile
    return SegmentFacts(
        number=segment.number,
        ledger=segment.ledger,
        first_offset=segment.start_sequence_id,
        end_offset=segment.end_sequence_id if segment.completed else None,
        size_bytes=length if segment.completed else None,
        created_ms=created_ms,
        completed_ms=segment.completion_ms if segment.completed else None,
        truncated=segment.truncation is Truncation.TRUNCATED,
        empty=segment.completed and segment.last_entry < 0,
        copies=copies,
    )


async def _of_each(indexes: Sequence[int], read: Callable[[int], Awaitable[T]]) -> dict[int, T]:
    """Read all these partitions, `_AT_ONCE` at a time."""
    found: dict[int, T] = {}

    async def one(index: int) -> None:
        try:
            found[index] = await read(index)
        except NoNode:
            return  # its first writer has not come yet

    for at in range(0, len(indexes), _AT_ONCE):
        await asyncio.gather(*[one(index) for index in indexes[at : at + _AT_ONCE]])
    return found
