"""Reads the footers of cleaned segments."""

from __future__ import annotations

from ledger.client.reader import LedgerReader
from ledger.core import records as log_records
from ledger.core.segment_footer import SegmentFooter, decode_footer, is_part, join
from ledger.core.segments import Segment
from ledger.core.snapshot_format import SegmentSummary
from ledger.errors import CorruptFormat
from ledger.ids import EntryId

_READ_BYTES = 1024 * 1024


async def read_footer(reader: LedgerReader, last_entry: EntryId) -> SegmentFooter:
    """Read the footer of a cleaned segment whose last entry is `last_entry`.

    Raises EntryLost, EntryAwaited, NoSuchLedger, and CorruptFormat if there is none.
    """
    where = f"ledger {reader.metadata.ledger}"
    reader.last_add_confirmed = max(reader.last_add_confirmed, last_entry)
    [(_, payload)] = await reader.read(last_entry, last_entry, _READ_BYTES)
    at = EntryId(last_entry - log_records.snapshot_distance(payload))
    if at < 0:
        raise CorruptFormat(f"{where}: the footer would begin before the first entry")
    parts: list[memoryview] = []
    while at <= last_entry:
        entries = await reader.read(at, last_entry, _READ_BYTES)
        for _, body in entries:
            parts += [each.data for each in log_records.parse_entry(body) if is_part(each)]
        at = EntryId(entries[-1][0] + 1)
    whole = join(parts)
    if whole is None:
        raise CorruptFormat(f"{where}: entry {last_entry} ends no footer")
    return decode_footer(whole)


def footer_summary(segment: Segment, footer: SegmentFooter, reader: LedgerReader) -> SegmentSummary:
    """Return the summary of a cleaned segment, from its footer and its ledger."""
    return SegmentSummary(
        number=segment.number,
        timestamp_max=footer.timestamp_max,
        size_bytes=reader.metadata.length or 0,
        epoch=footer.epoch,
        start_sequence_id=segment.start_sequence_id,
    )
