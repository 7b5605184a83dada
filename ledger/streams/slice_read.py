"""Reads of one slice of a stream, in any process: it takes the slice and the two ports.

A slice names the ledger of its segment. If the segment was cleaned or merged and the ledger is
gone, the rest of the slice is read from the ledger that the list names now.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import NoReturn

from ledger.client.client import LedgerClient
from ledger.client.reader import Entries, LedgerReader
from ledger.core import records as log_records
from ledger.core.accepted_losses import LostRange
from ledger.core.entry_search import PlaceSearch
from ledger.core.loss import EntryAwaited, EntryLost
from ledger.core.segments import Segment
from ledger.core.slice_order import EntryRun, SliceOrder
from ledger.core.sparse_index import SparseIndex
from ledger.errors import CorruptFormat, NoSuchLedger, Truncated
from ledger.ids import EntryId
from ledger.ports.metadata import MetadataStore
from ledger.streams.accepted_losses import AcceptedLosses
from ledger.streams.place_seek import check_found, find_place
from ledger.streams.scan import CHUNK_BYTES, ScannedRecord, StreamSlice, entry_before
from ledger.streams.segment_footers import read_footer
from ledger.streams.segment_list import SegmentList

_TURNS_TO_ASK = 8
"""Turns of the loop in which the next read is sent, before the caller gets its chunk."""


async def read_slice(
    store: MetadataStore, client: LedgerClient, piece: StreamSlice, chunk_bytes: int = CHUNK_BYTES
) -> AsyncGenerator[list[ScannedRecord]]:
    """Yield every stored record that holds a record of the slice, in order, in chunks.

    The first and the last one may hold further records. While the caller has one chunk, the next
    one is read; at most these two are in memory. If the segment is cleaned meanwhile, the rest is
    read as it is now. Raises EntryLost at a loss that no operator accepted.
    Raises Truncated if retention or truncation removed the segment, NoNode if the stream was
    deleted, and NoSuchLedger or NoSuchEntry if the data of a listed segment are missing. Raises
    EntryUnknown if no replica can be read now, and CorruptFormat if a record between others is
    missing, or the accepted losses cannot be read.
    """
    rest: StreamSlice | None = piece
    while rest is not None:
        reading = _SliceReading(store, client, rest, chunk_bytes)
        async with aclosing(_read_ledger(reading)) as chunks:
            async for chunk in chunks:
                yield chunk
        rest = reading.rest


async def _read_ledger(reading: _SliceReading) -> AsyncGenerator[list[ScannedRecord]]:
    """Yield the chunks of `reading` from the ledger of its slice."""
    try:
        async with aclosing(reading.chunks()) as chunks:
            async for chunk in chunks:
                yield chunk
    except NoSuchLedger as error:
        await reading.find_rest(error)
    finally:
        await reading.close()


class _SliceReading:
    """One read of a slice, with one chunk read ahead. Used by one task, which must `close` it."""

    def __init__(
        self, store: MetadataStore, client: LedgerClient, piece: StreamSlice, chunk_bytes: int
    ) -> None:
        self._store = store
        self._client = client
        self._piece = piece
        self._chunk_bytes = chunk_bytes
        self._order = SliceOrder(piece.stream, piece.first, piece.end)
        self._accepted = AcceptedLosses(store, piece.stream)
        # The first entry that is neither delivered nor passed.
        self._entry = piece.first_entry
        # True until the accepted losses were read after their last change.
        self._stale = True
        # The read of the next chunk, sent before the caller got the present one.
        self._ahead: asyncio.Task[Entries] | None = None
        # The part of the slice that is in another ledger now. Set by `find_rest`.
        self.rest: StreamSlice | None = None

    async def find_rest(self, error: NoSuchLedger) -> None:
        """Find the rest of the slice in the ledger that holds the cleaned or merged segment.

        Each record of that ledger ends where one of the old ledger ended, so none is read twice.
        Raises `error` if the segment has no other ledger.
        """
        piece = replace(self._piece, first=max(self._piece.first, self._order.following))
        segment = await _listed(self._store, piece, error)
        if segment.ledger == piece.ledger:
            raise error
        try:
            reader = await self._client.open(segment.ledger)
            index = (await read_footer(reader, segment.last_entry)).index
        except (EntryLost, EntryAwaited, NoSuchLedger):
            index = SparseIndex()  # the read from the first entry on reports the error
        self.rest = replace(
            piece,
            number=segment.number,
            ledger=segment.ledger,
            start_sequence_id=segment.start_sequence_id,
            first_entry=EntryId(index.entry_for(piece.first)),
            last_entry=entry_before(index, piece.end, segment.last_entry, None),
        )

    async def chunks(self) -> AsyncGenerator[list[ScannedRecord]]:
        piece, order = self._piece, self._order
        self._accepted.watch(self._on_losses_changed)
        await self._learn_losses()
        reader: LedgerReader | None = None
        while (run := self._next_run()) is not None:
            if reader is None:
                reader = await self._client.open(piece.ledger)
                reader.last_add_confirmed = max(reader.last_add_confirmed, piece.last_entry)
            if entries := await self._read(reader, run):
                await self._read_ahead(reader, EntryRun(EntryId(entries[-1][0] + 1), run.last))
                if records := self._ordered(_records_of(entries, piece)):
                    yield records
            if self._stale:
                await self._learn_losses()
        if lost := [_lost_record(each) for each in order.rest()]:
            yield lost
        if not order.complete:
            await self._raise_missing()

    def _next_run(self) -> EntryRun | None:
        """Return the entries to read next, or None at the end of the slice."""
        if self._order.complete:
            return None
        return self._order.next_run(self._entry, self._piece.last_entry)

    async def _read_ahead(self, reader: LedgerReader, run: EntryRun) -> None:
        """Send the read of the next chunk, before the caller gets the present one."""
        self._entry = run.first
        if run.first <= run.last:
            self._ahead = self._start_read(reader, run)
            for _ in range(_TURNS_TO_ASK):
                await asyncio.sleep(0)

    async def close(self) -> None:
        self._accepted.unwatch()
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.gather(self._ahead, return_exceptions=True)

    def _on_losses_changed(self) -> None:
        self._stale = True

    async def _learn_losses(self) -> None:
        self._stale = False
        losses = await self._accepted.load()
        self._order.learn(losses.of_segment(self._piece.number))

    def _start_read(self, reader: LedgerReader, run: EntryRun) -> asyncio.Task[Entries]:
        return asyncio.ensure_future(reader.read(run.first, run.last, self._chunk_bytes))

    async def _read(self, reader: LedgerReader, run: EntryRun) -> Entries:
        """Read entries from the first one of `run` on.

        Returns an empty list if a lost entry was passed: its loss was just accepted, or it is
        before the slice. A read ahead may begin before `run`, if a loss was accepted meanwhile.
        """
        if self._ahead is None:
            self._entry = run.first
            self._ahead = self._start_read(reader, run)
        try:
            entries = await self._ahead
        except (EntryLost, EntryAwaited) as error:
            self._ahead = None
            await self._learn_losses()
            if not self._order.is_lost(self._entry):
                await self._seek_behind(reader, error)
            return []
        self._ahead = None
        return entries

    async def _seek_behind(self, reader: LedgerReader, error: EntryLost | EntryAwaited) -> None:
        """Move from an entry that cannot be read to the one with the next record of the slice.

        A slice begins at a point of the index, which may be some entries before its first record,
        and an entry may hold only control records. Raises an error if the next record may be in an
        entry that cannot be read.
        """
        piece, following = self._piece, self._order.following
        lost = self._order.loss_at(following)
        if lost is not None:
            self._entry = lost.first
            return
        search = PlaceSearch(
            self._entry + 1,
            piece.last_entry + 1,
            start_sequence_id=piece.start_sequence_id,
            sequence_id=following,
            error=error,
        )
        place = await find_place(reader, search)
        check_found(place, following, piece.stream)
        self._entry = place.entry

    def _ordered(self, records: list[ScannedRecord]) -> list[ScannedRecord]:
        """Return the records to deliver, with the accepted losses before them."""
        found: list[ScannedRecord] = []
        for record in records:
            found += map(_lost_record, self._order.before(record.sequence_id))
            if self._order.take(record.sequence_id, record.end_sequence_id):
                found.append(record)
        return found

    async def _raise_missing(self) -> NoReturn:
        """Raise Truncated if the missing records were removed meanwhile, else CorruptFormat."""
        piece, following = self._piece, self._order.following
        listed = SegmentList(self._store, piece.stream)
        await listed.sync()
        await listed.load()
        if following < listed.start_sequence_id:
            raise Truncated(
                f"{piece.stream}: records {following} to {piece.end - 1} were removed during the "
                f"read; the start is now {listed.start_sequence_id}"
            )
        raise CorruptFormat(f"{piece.stream}: ledger {piece.ledger} lacks record {following}")


def _lost_record(lost: LostRange) -> ScannedRecord:
    return ScannedRecord(lost.offsets.first, lost.offsets.last + 1, memoryview(b""), lost)


def _records_of(
    entries: Sequence[tuple[EntryId, memoryview]], piece: StreamSlice
) -> list[ScannedRecord]:
    base = piece.start_sequence_id - 1
    first, end = piece.first, piece.end
    found: list[ScannedRecord] = []
    for _, payload in entries:
        for record in log_records.parse_entry(payload):
            at = base + record.position
            if not record.control and at < end and at + record.records > first:
                found.append(ScannedRecord(at, at + record.records, record.data))
    return found


async def _listed(store: MetadataStore, piece: StreamSlice, error: NoSuchLedger) -> Segment:
    """Return the segment of the slice as it is listed now.

    Raises Truncated if it was removed, NoNode if the stream was.
    """
    listed = SegmentList(store, piece.stream)
    await listed.sync()
    await listed.load()
    if piece.first < listed.start_sequence_id or not listed.segments:
        raise Truncated(
            f"{piece.stream}: records {piece.first} to {piece.end - 1} were removed during the "
            f"read; the start is now {listed.start_sequence_id}"
        ) from error
    for segment in listed.segments:
        if segment.first_number <= piece.number <= segment.number:
            return segment
    raise Truncated(f"{piece.stream}: segment {piece.number} was removed") from error
