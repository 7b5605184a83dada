"""The segments of partitions as rows, from the metadata of their ledgers, within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ledger.errors import LedgerError, NoNode
from ledger.losses.place import StreamPlaces, read_places

if TYPE_CHECKING:
    from gateway.admin.storage import Storage
    from ledger.core.segments import Segment

READS_MAX: Final = 200
"""Ledgers whose metadata one page reads. Each partition shows at least its two newest segments."""

OF_ONE_MAX: Final = 20
"""Segments that one partition shows, the newest ones."""

_OF_ONE_MIN: Final = 2
_AT_ONCE: Final = 16

Row = dict[str, Any]


class SegmentPlaces(NamedTuple):
    """The newest segments of one partition, oldest first, and how many it has."""

    rows: list[Row]
    total: int


async def read_segment_rows(
    storage: Storage, topic_id: str, indexes: Sequence[int]
) -> dict[int, SegmentPlaces]:
    """Return the segments of these partitions. One without a stream is left out."""
    short = set(await storage.underreplicated.ledgers())
    shown = min(OF_ONE_MAX, max(_OF_ONE_MIN, READS_MAX // max(1, len(indexes))))
    found: dict[int, SegmentPlaces] = {}

    async def read(index: int) -> None:
        try:
            places = await read_places(storage.store, f"{topic_id}-{index}")
        except NoNode:
            return  # its first writer has not come yet
        newest = places.segments[-shown:]
        rows = [await _row(storage, places, each, short) for each in newest]
        found[index] = SegmentPlaces(rows, len(places.segments))

    for at in range(0, len(indexes), _AT_ONCE):
        await asyncio.gather(*map(read, indexes[at : at + _AT_ONCE]))
    return found


async def _row(
    storage: Storage, places: StreamPlaces, segment: Segment, short: Collection[int]
) -> Row:
    try:
        metadata = (await storage.metadata.read_latest(segment.ledger)).metadata
        size = metadata.length * metadata.write_quorum if segment.completed else None
        created_ms: int | None = metadata.created_ms
    except LedgerError:
        size, created_ms = None, None  # it was deleted meanwhile
    lost = places.losses.of_segment(segment.number)
    return {
        "segment": segment.number,
        "ledger": segment.ledger,
        "state": _state(segment, lost=bool(lost), short=segment.ledger in short),
        "first_offset": segment.start_sequence_id,
        "end_offset": segment.end_sequence_id if segment.completed else None,
        "records": segment.record_count if segment.completed else None,
        "size_bytes": size,
        "created_ms": created_ms,
        "completed_ms": segment.completion_ms if segment.completed else None,
    }


def _state(segment: Segment, *, lost: bool, short: bool) -> str:
    """Return what matters most about a segment, as one word."""
    from ledger.core.segments import Truncation

    if lost:
        return "lost"
    if short:
        return "under-replicated"
    if segment.truncation is not Truncation.ACTIVE:
        whole = segment.truncation is Truncation.TRUNCATED
        return "truncated" if whole else "partly truncated"
    if segment.cleaned:
        return "compacted"
    return "closed" if segment.completed else "open"
