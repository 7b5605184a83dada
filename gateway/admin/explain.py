"""Explains one record from the storage tier: its place, its copies, and when it goes.

An offset without a record is an AdminError whose text says why: deleted, not written yet, removed
by compaction, lost. A bookie that does not answer is a row of the result, and no error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from gateway.admin.client import AdminError
from gateway.admin.consume_batches import DamagedBatch
from gateway.admin.explain_batch import (
    EntryOffsets,
    StoredBatch,
    batch_row,
    batches_of,
    find_record,
    next_offset,
    offsets_of,
    outcome_at,
    record_row,
    transaction_row,
)
from gateway.admin.explain_kafka import PartitionView
from gateway.admin.ledgers import statuses_of
from gateway.admin.losses import topic_of
from gateway.admin.storage import Storage
from gateway.core.record_departure import (
    RecordFacts,
    SegmentFacts,
    StartFacts,
    TopicRules,
    cause_of_deletion,
    departures,
    read_rules,
)
from gateway.topics.partitions import stream_name
from ledger.core.accepted_losses import LostRange
from ledger.core.entry_format import read_header
from ledger.core.entry_search import EntrySearch
from ledger.core.journal_format import file_name
from ledger.core.ledger_metadata import LedgerMetadata
from ledger.core.loss import waited_for
from ledger.core.segments import Segment, Truncation
from ledger.core.text import names_of
from ledger.errors import CorruptFormat, NoNode
from ledger.ids import BookieId, EntryId
from ledger.losses.place import StreamPlaces, read_places
from ledger.ports.bookies import LocateReply, ReadManyReply, Status
from ledger.repair.entry_copier import EntryCopier
from ledger.repair.entry_ranges import merged

Row = dict[str, Any]

_BEHIND_LAC_MAX: Final = 1_000
"""Entries behind the LAC that are looked at. A bookie learns the LAC with the next entry only."""
_SCAN_ENTRIES_MAX: Final = 10_000
"""Entries that are read to find the end of a transaction or the next record."""


class _Here(NamedTuple):
    """The place of the batch that holds an offset."""

    segment: Segment
    metadata: LedgerMetadata
    copies: EntryCopier
    lac: EntryId
    entry: EntryId
    stored: StoredBatch


async def explain(storage: Storage, view: PartitionView) -> Row:
    """Explain the record at `view.offset`. Raises AdminError if there is none."""
    return await _Explanation(storage, view, await _read_places(storage, view)).explain()


async def _read_places(storage: Storage, view: PartitionView) -> StreamPlaces:
    topic = await topic_of(storage, view.topic)
    if not 0 <= view.partition < topic.partitions:
        raise AdminError(
            f"Topic '{view.topic}' has no partition {view.partition}.", "UNKNOWN_TOPIC_OR_PARTITION"
        )
    try:
        return await read_places(storage.store, stream_name(topic.topic_id, view.partition))
    except NoNode:
        raise AdminError(
            f"{view.topic}/{view.partition} has no records: it is being created or deleted, or its "
            "records are with their groups",
            "UNKNOWN_TOPIC_OR_PARTITION",
        ) from None


class _Explanation:
    """The explanation of one offset. Used once."""

    def __init__(self, storage: Storage, view: PartitionView, places: StreamPlaces) -> None:
        self._storage = storage
        self._view = view
        self._offset = view.offset
        self._places = places
        self._rules: TopicRules = read_rules(view.settings)
        self._now_ms = storage.clock.now_ms()

    async def explain(self) -> Row:
        """Return the explanation as plain data."""
        await self._check_range()
        self._check_accepted_loss()
        here = await self._find()
        row: Row = {"topic": self._view.topic, "partition": self._view.partition}
        row |= {"offset": self._offset}
        record = record_row(None)
        last_ms = here.stored.batch.header.max_timestamp
        facts = RecordFacts(True, False, here.stored.is_marker, last_ms)
        if here.stored.sound:
            found = await self._record_of(here)
            record = record_row(found)
            facts = facts._replace(has_key=found.key is not None, tombstone=found.value is None)
        return {
            "record": row | record,
            "batch": batch_row(here.stored, self._offset),
            "transaction": await self._transaction(here),
            "leader": {
                "node": self._view.leader,
                "address": self._view.address,
                "epoch": self._view.epoch,
            },
            "segment": self._segment_row(here),
            "ledger": _ledger_row(here),
            "copies": await copy_rows(self._storage, here.metadata, here.entry),
            "goes": await self._goes(here, facts),
            "acknowledged": self._acknowledged(here),
        }

    # -- offsets without a record --------------------------------------------------------------

    async def _check_range(self) -> None:
        """Raise AdminError for an offset below the start or behind the end."""
        start = max(self._places.start, self._view.start or 0)
        if self._offset < start:
            cause = await self._cause(start)
            by = "" if cause is None else f" by {cause}"
            raise AdminError(
                f"offset {self._offset} was deleted{by}; the first is {start}", "OFFSET_DELETED"
            )
        end = self._view.end
        if end is None:
            end = await self._end_in_storage()
        if end is not None and self._offset >= end:
            raise AdminError(f"not written yet: ends at {end}", "NOT_WRITTEN_YET")

    async def _end_in_storage(self) -> int | None:
        places = self._places
        if not places.segments:
            return places.start
        last = places.segments[-1]
        if last.completed:
            return places.losses.end_after(last.number, last.end_sequence_id)
        return await self._storage.survey.end_of(places.place(last))

    async def _cause(self, start: int) -> str | None:
        segments = self._places.segments
        listed = any(
            each.start_sequence_id <= self._offset < each.end_sequence_id
            or (not each.completed and each.start_sequence_id <= self._offset)
            for each in segments
        )
        if listed or not segments:
            facts = StartFacts(listed, inside=False, oldest_began_ms=None, bytes_left=None)
            return cause_of_deletion(self._rules, facts, self._now_ms)
        oldest = segments[0]
        inside = start != oldest.start_sequence_id or oldest.truncation is not Truncation.ACTIVE
        began_ms = None
        if not oldest.cleaned:
            began_ms = (await self._storage.metadata_of(oldest.ledger)).created_ms
        bytes_left = await self._bytes_of(segments, self._rules.retention_bytes)
        facts = StartFacts(False, inside, began_ms, bytes_left)
        return cause_of_deletion(self._rules, facts, self._now_ms)

    def _check_accepted_loss(self) -> None:
        loss = self._places.losses.at_offset(self._offset)
        if loss is not None:
            self._raise_lost(loss)

    def _raise_lost(self, loss: LostRange) -> None:
        """Raise AdminError for an offset in this range."""
        first, last, exact = loss.offsets
        most = "" if exact else "at most "
        lost = f"{most}offsets {first} to {last} are lost"
        acceptance = loss.evidence.acceptance
        if acceptance is not None:
            when = datetime.fromtimestamp(acceptance.at_ms / 1000, UTC)
            raise AdminError(
                f"{lost}; the loss was accepted on {when:%Y-%m-%dT%H:%M:%SZ} by {acceptance.by}",
                "OFFSET_LOST",
            )
        if not loss.evidence.verdict.lost:
            bookies = names_of(waited_for(loss.evidence.copies))
            raise AdminError(
                f"{most}offsets {first} to {last} cannot be read now: bookies that may have them "
                f"do not return them: {bookies}; see `gateway ledger why "
                f"{loss.evidence.ledger} {loss.first}`",
                "OFFSET_AWAITED",
            )
        view = self._view
        raise AdminError(
            f"{lost}; the loss is not accepted: see `gateway topic gaps {view.topic} "
            f"-p {view.partition}`",
            "OFFSET_LOST",
        )

    # -- the record ----------------------------------------------------------------------------

    async def _find(self) -> _Here:
        """Find the entry and the batch of the offset. Raises AdminError if it is lost."""
        segment = self._segment()
        metadata = await self._storage.metadata_of(segment.ledger)
        copies = self._storage.copies(metadata)
        lac = await copies.read_lac()
        last = segment.last_entry if segment.completed else lac
        entry = await self._search(copies, segment, last)
        most = last if metadata.closed else entry + _BEHIND_LAC_MAX
        while entry <= most:
            payload = await copies.read_payload(entry)
            if payload is None:
                break
            for stored in _batches(payload, segment):
                if stored.first <= self._offset < stored.end:
                    return _Here(segment, metadata, copies, lac, entry, stored)
            entry = EntryId(entry + 1)
        await self._raise_unreadable(segment, entry, EntryId(max(last, entry)))
        raise AssertionError("raises")

    def _segment(self) -> Segment:
        found = [each for each in self._places.segments if each.start_sequence_id <= self._offset]
        if not found:
            raise AdminError(
                f"offset {self._offset} is in no segment that is listed: run the command again",
                "SEGMENT_NOT_LISTED",
            )
        return found[-1]

    async def _search(self, copies: EntryCopier, segment: Segment, last: EntryId) -> EntryId:
        """Return the first entry that reaches the offset, or the first of lost ones that may."""
        search = EntrySearch(0, max(last, 0))
        while (entry := search.wanted) is not None:
            edges = await _edges(copies, segment, entry)
            if edges is None:
                search.on_lost(entry)
            else:
                search.on_read(entry, edges.end > self._offset)
        return search.result

    async def _raise_unreadable(self, segment: Segment, entry: EntryId, last: EntryId) -> None:
        """Raise AdminError: no bookie returned the entry of the offset."""
        near = merged([(max(entry - 1, 0), min(entry + 1, last))])
        seen = await self._storage.survey.examine(self._places.place(segment), verified=near)
        for loss in seen.found:
            if loss.offsets.first <= self._offset <= loss.offsets.last:
                self._raise_lost(loss)
        raise AdminError(
            f"offset {self._offset} cannot be read now, at entry {entry} of ledger "
            f"{segment.ledger}: see `gateway ledger why {segment.ledger} {entry}`",
            "OFFSET_AWAITED",
        )

    async def _record_of(self, here: _Here) -> Any:
        """Return the record. Raises AdminError if compaction removed it."""
        try:
            found = find_record(here.stored, self._offset)
        except DamagedBatch as error:
            raise AdminError(f"its batch cannot be read: {error}", "CORRUPT_MESSAGE") from None
        if found is not None:
            return found
        following = next_offset(here.stored, self._offset)
        async with aclosing(self._batches_behind(here)) as behind:
            async for later in behind:
                if following is not None:
                    break
                following = next_offset(later, self._offset)
        shown = "not known" if following is None else str(following)
        raise AdminError(
            f"offset {self._offset} was removed by compaction; the next one is {shown}",
            "OFFSET_COMPACTED",
        )

    async def _batches_behind(self, here: _Here) -> AsyncGenerator[StoredBatch]:
        """Yield the batches behind that of the offset, up to an entry that cannot be read."""
        async for segment, payload in self._payloads_from(here):
            for stored in _batches(payload, segment):
                if stored.first > here.stored.first:
                    yield stored

    async def _payloads_from(self, here: _Here) -> AsyncGenerator[tuple[Segment, memoryview]]:
        """Yield entries from that of the offset on, each with its segment. Stops as above."""
        entry, left = here.entry, _SCAN_ENTRIES_MAX
        for segment in self._places.segments:
            if segment.number < here.segment.number:
                continue
            metadata = await self._storage.metadata_of(segment.ledger)
            copies = self._storage.copies(metadata)
            while left and not (segment.completed and entry > segment.last_entry):
                payload = await copies.read_payload(entry)
                if payload is None:
                    return
                yield segment, payload
                entry, left = EntryId(entry + 1), left - 1
            entry = EntryId(0)

    async def _transaction(self, here: _Here) -> Row | None:
        if not here.stored.sound:
            return None
        try:
            row = transaction_row(here.stored, self._view.aborted, dict(self._view.opened or {}))
            if row is None or row["state"] is not None:
                return row
            row["state"] = await self._end_of_transaction(here, row["producer_id"])
        except DamagedBatch as error:
            raise AdminError(f"its batch cannot be read: {error}", "CORRUPT_MESSAGE") from None
        return row

    async def _end_of_transaction(self, here: _Here, producer_id: int) -> str:
        """Return the state by the next marker of the producer in the log. Raises DamagedBatch."""
        async with aclosing(self._batches_behind(here)) as behind:
            async for later in behind:
                state = outcome_at(later, producer_id)
                if state is not None:
                    return state
        return "unknown"

    def _segment_row(self, here: _Here) -> Row:
        segment, stored = here.segment, here.stored
        return {
            "number": segment.number,
            "first_number": segment.first_number,
            "state": _state_of(segment),
            "start_offset": segment.start_sequence_id,
            "end_offset": segment.end_sequence_id if segment.completed else None,
            "completed_ms": segment.completion_ms if segment.completed else None,
            "dlsn": {
                "segment": segment.number,
                "entry": here.entry,
                "slot": stored.slot + self._offset - stored.first,
            },
        }

    def _acknowledged(self, here: _Here) -> Row:
        metadata, end = here.metadata, self._view.end
        proof = None
        if here.lac >= here.entry:
            proof = "LAC >= entry"
        elif end is not None and end > self._offset:
            proof = "high watermark > offset"
        return {
            "at_least": None if proof is None else metadata.ack_quorum,
            "of": metadata.write_quorum,
            "proof": proof,
            "last_add_confirmed": here.lac,
            "entry": here.entry,
            "high_watermark": end,
            "times": None,  # `with_times` asks the writer
        }

    # -- when it goes --------------------------------------------------------------------------

    async def _goes(self, here: _Here, record: RecordFacts) -> list[Row]:
        segments = self._places.segments
        at = next(i for i, each in enumerate(segments) if each.number == here.segment.number)
        later = segments[at + 1 :]
        closed = [each.completion_ms for each in segments[: at + 1] if each.completed]
        facts = SegmentFacts(
            closed_ms=max(closed) if here.segment.completed else None,
            newest=not any(each.completed and each.last_entry >= 0 for each in later),
            later_bytes=await self._bytes_of(later, self._rules.retention_bytes),
        )
        return [each._asdict() for each in departures(self._rules, facts, record, self._now_ms)]

    async def _bytes_of(self, segments: Sequence[Segment], enough: int) -> int | None:
        """Return the bytes of these segments, counted up to `enough`. None if that is negative."""
        if enough < 0 or not self._rules.deletes:
            return None
        total = 0
        for segment in reversed(segments):
            if total >= enough:
                break
            if segment.truncation is not Truncation.TRUNCATED:
                total += await self._size_of(segment)
        return total

    async def _size_of(self, segment: Segment) -> int:
        """Return the bytes of a segment. Those of an open one come from its newest entries."""
        metadata = await self._storage.metadata_of(segment.ledger)
        if metadata.closed:
            return metadata.length
        copies = self._storage.copies(metadata)
        first = EntryId(max(await copies.read_lac(), 0))
        last = EntryId(first + _BEHIND_LAC_MAX)
        found = [0]
        for bookie in metadata.last_fragment.ensemble:
            reply = await copies.read_prefix(bookie, first, last)
            found += [read_header(body).length for body in reply.bodies]
        return max(found)


def _batches(payload: memoryview, segment: Segment) -> list[StoredBatch]:
    try:
        return list(batches_of(payload, segment.start_sequence_id))
    except CorruptFormat as error:
        raise AdminError(f"ledger {segment.ledger}: {error}", "CORRUPT_FORMAT") from error


async def _edges(copies: EntryCopier, segment: Segment, entry: EntryId) -> EntryOffsets | None:
    payload = await copies.read_payload(entry)
    return None if payload is None else offsets_of(payload, segment.start_sequence_id)


def _state_of(segment: Segment) -> str:
    if segment.truncation is Truncation.PARTIALLY_TRUNCATED:
        return "partially truncated"
    if segment.truncation is Truncation.TRUNCATED:
        return "truncated"
    if not segment.completed:
        return "in progress"
    if segment.merged:
        return "merged"
    return "cleaned" if segment.cleaned else "completed"


def _ledger_row(here: _Here) -> Row:
    metadata = here.metadata
    return {
        "ledger": metadata.ledger,
        "state": metadata.state.name,
        "entry": here.entry,
        "ensemble_size": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
        "last_add_confirmed": here.lac,
        "digest": metadata.digest_type.name,
        "fragment": metadata.fragment_of(here.entry).first,
    }


# -- copies ----------------------------------------------------------------------------------------

_HELD: Final = {
    Status.OK: "yes",
    Status.IO_ERROR: "damaged",
    Status.NO_ENTRY: "no",
    Status.NO_LEDGER: "no",
    Status.UNKNOWN_LEDGER_STATE: "lost",  # it may have had the entry: it is in limbo
}


async def copy_rows(storage: Storage, metadata: LedgerMetadata, entry: EntryId) -> list[Row]:
    """Return a row for each bookie of the entry's write set. Its copy is read and verified."""
    names = metadata.bookies_of(entry)
    statuses = await statuses_of(storage, names)
    copies = storage.copies(metadata)
    rows = [_copy_row(storage, copies, metadata, entry, name) for name in names]
    return [row | {"status": statuses[row["bookie"]]} for row in await asyncio.gather(*rows)]


async def _copy_row(
    storage: Storage,
    copies: EntryCopier,
    metadata: LedgerMetadata,
    entry: EntryId,
    bookie: BookieId,
) -> Row:
    reply, place = await asyncio.gather(
        copies.read_prefix(bookie, entry, entry), _locate(storage, metadata, entry, bookie)
    )
    located = place.status is Status.OK
    return {
        "bookie": bookie,
        "status": None,
        "has": held(reply),
        "file": file_name(place.file_id) if located else None,
        "position": place.position if located else None,
        "length": place.length if located else None,
        "located": place.status.name,
    }


def held(reply: ReadManyReply) -> str:
    """Return whether a bookie has the entry, from its answer to a read of the file.

    Only a copy whose digest matches counts as one. Silence and errors are unknown.
    """
    if reply.status is Status.OK and not reply.bodies:
        return "unknown"
    return _HELD.get(reply.status, "unknown")


async def _locate(
    storage: Storage, metadata: LedgerMetadata, entry: EntryId, bookie: BookieId
) -> LocateReply:
    """Ask a bookie where it has the entry. UNREACHABLE if it does not answer in time."""
    if bookie not in storage.bookies.registered():
        return LocateReply(Status.UNREACHABLE)
    try:
        async with asyncio.timeout(storage.client_config.read_timeout_s):
            return await storage.bookies.locate(bookie, metadata.ledger, entry)
    except TimeoutError:
        return LocateReply(Status.UNREACHABLE)
