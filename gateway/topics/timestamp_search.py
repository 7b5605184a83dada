"""Finds offsets by timestamp in the log of one partition, for ListOffsets.

The log finds batches by the greatest timestamp in their headers; the records of such a batch are
decoded in parts. Batches stored by older versions may have a header with a false timestamp, so that
many are decoded in vain. A `SearchBudget` bounds this work. Source: Kafka, LogSegment and
FileRecords.searchForTimestamp.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from gateway.topics.long_work import LongWork
from gateway.wire import batches
from ledger.streams.accepted_losses import EntryLost
from ledger.streams.stream import Stream
from ledger.streams.tail_cache import StoredRecord

PARTS_MAX = 2_000
"""The parts of decoding, of about a millisecond, that the searches of one request may take."""

_READ_BYTES = 1024 * 1024

Found = tuple[int, int]
"""A timestamp and the offset of the record that has it."""


class SearchBudget:
    """The parts of decoding that the searches of one request may still take."""

    __slots__ = ("parts",)

    def __init__(self, parts: int = PARTS_MAX) -> None:
        self.parts = parts


class TimestampSearch:
    """Searches in one log. Once the budget is used up, the headers of the batches decide."""

    def __init__(
        self, stream: Stream, decompressed_max: int, long_work: LongWork, budget: SearchBudget
    ) -> None:
        self._stream = stream
        self._decompressed_max = decompressed_max
        self._long_work = long_work
        self._budget = budget

    async def first_at_or_after(self, timestamp: int) -> Found | None:
        """Return the first record at or after `timestamp`, or None. Raises LedgerError."""
        from gateway.wire import record_scan

        stream = self._stream
        record = await stream.find_timestamp(timestamp)
        while record is not None:
            start = stream.start_sequence_id
            if record.lost is None:
                found = await self._decode(
                    record,
                    lambda batch, start=start: record_scan.first_at_or_after(
                        batch, timestamp, start, self._decompressed_max
                    ),
                    lambda header, start=start: record_scan.at_or_after_by_header(
                        header, timestamp, start
                    ),
                )
                if found is not None:
                    return found
            # The header's timestamp is later than any record's, or the latest records are below the
            # log start.
            record = await stream.find_timestamp(timestamp, record.end_sequence_id)
        return None

    async def of_timestamp_max(self) -> Found | None:
        """Return the first record with the greatest timestamp, or None. Raises LedgerError."""
        greatest = self._stream.timestamp_max
        if greatest is None:
            return await self._scan_for_timestamp_max()
        if greatest < 0:
            return None
        found = await self.first_at_or_after(greatest)
        return found if found is not None else await self._scan_for_timestamp_max()

    async def _scan_for_timestamp_max(self) -> Found | None:
        """Read every batch.

        The batch with the greatest timestamp is below the log start, or that timestamp is unknown.
        """
        from gateway.wire import record_scan

        stream = self._stream
        best: Found | None = None
        at = stream.start_sequence_id
        while at < stream.end_sequence_id:
            at = max(at, stream.start_sequence_id)
            try:
                records = await stream.read(at, _READ_BYTES)
            except EntryLost:
                behind = await stream.find_timestamp(best[0] + 1 if best else 0, at + 1)
                if behind is None:
                    break
                at = max(behind.sequence_id, at + 1)
                continue
            at = records[-1].end_sequence_id
            for record in records:
                if record.lost or (best is not None and record.timestamp_max <= best[0]):
                    continue
                start = stream.start_sequence_id
                found = await self._decode(
                    record,
                    lambda batch, start=start: record_scan.record_of_timestamp_max(
                        batch, start, self._decompressed_max
                    ),
                    lambda header, start=start: record_scan.by_header(header, start),
                )
                best = found if best is None or (found and found[0] > best[0]) else best
        return best

    async def _decode(
        self,
        record: StoredRecord,
        decode: Callable[[bytes], Generator[None, None, Found | None]],
        by_header: Callable[[batches.BatchHeader], Found | None],
    ) -> Found | None:
        batch = b"".join(record.data)
        steps = decode(batch)

        def within_budget() -> Generator[None, None, Found | None]:
            while self._budget.parts > 0:
                self._budget.parts -= 1
                try:
                    next(steps)
                except StopIteration as end:
                    return end.value
                yield
            steps.close()
            return by_header(batches.read_header(batch))

        return await self._long_work.search(within_budget())
