"""Find the entry of a segment that holds a sequence id, where entries of it may be lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ledger.client.reader import LedgerReader
from ledger.core.accepted_losses import StreamLosses
from ledger.core.entry_search import Place, PlaceSearch
from ledger.core.loss import EntryAwaited, EntryLost
from ledger.core.records import LogRecord, parse_entry
from ledger.core.segments import Segment
from ledger.errors import CorruptFormat


async def find_place(
    reader: LedgerReader,
    search: PlaceSearch,
    take_turn: Callable[[], Awaitable[None]] | None = None,
) -> Place:
    """Read the entries that the search asks for. Raises EntryUnknown if the LAC is unknown.

    `take_turn` is awaited before each read.
    """
    while (entry := search.wanted) is not None:
        if take_turn is not None:
            await take_turn()
        try:
            [(_, payload)] = await reader.read(entry, entry, 1)
        except (EntryLost, EntryAwaited) as error:
            search.on_error(entry, error)
        else:
            search.on_records(entry, _ends_of(payload))
    return search.place


def _ends_of(payload: memoryview) -> list[LogRecord]:
    """Return the first and the last record of an entry, or none if it holds none."""
    first: LogRecord | None = None
    last: LogRecord | None = None
    for last in parse_entry(payload):
        first = first or last
    return [] if first is None or last is None else [first, last]


def check_found(place: Place, sequence_id: int, where: str) -> None:
    """Raise the reason if the record at `sequence_id` cannot be read."""
    if place.error is not None:
        raise place.error
    if place.sequence_id is None or place.sequence_id > sequence_id:
        raise CorruptFormat(f"{where}: no entry holds record {sequence_id}")


def bounds_between(
    losses: StreamLosses, segment: Segment, sequence_id: int, low: int, high: int
) -> tuple[int, int]:
    """Narrow entries `low` to `high` - 1, which hold `sequence_id`, by the accepted losses.

    An accepted loss need not be read to know on which side of it the record is.
    """
    for lost in losses.of_segment(segment.number) if losses.ranges else ():
        if lost.offsets.last < sequence_id and lost.first < high:
            low = max(low, min(high, lost.last + 1))
        elif lost.offsets.first > sequence_id:
            high = max(low, min(high, lost.first))
    return low, high
