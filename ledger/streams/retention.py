"""Removal of segments from a stream: truncation, TTL, size.

    start moves, durably ─▶ segments below it are marked ─▶ (grace) ─▶ not listed ─▶ deleted
                                                                      their accepted losses dropped

Each arrow is a step of its own, and a crash may happen between any two. The stored state shows the
steps that are left, and the next round of `expire` does them. Source: seed 000, "Truncation",
"TTL".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ledger.client.reader import LedgerReader
from ledger.core.gaps import Position
from ledger.core.loss import EntryLost
from ledger.core.segment_table import SegmentTable
from ledger.core.segments import Segment, Truncation
from ledger.errors import BadVersion, CorruptFormat, LedgerError, NoSuchLedger
from ledger.ids import EntryId, LedgerId
from ledger.streams.accepted_losses import drop_truncated
from ledger.streams.config import StreamConfig
from ledger.streams.reads import SegmentReads
from ledger.streams.recovery import read_entries, user_records
from ledger.streams.segment_store import SegmentStore
from ledger.streams.services import StreamServices

_MEASURED_PER_TURN = 16  # reads of metadata in one round of `expire`


class Retention:
    """The retention of one stream, which shares its owner's table. Called under the owner's lock.

    Raises BadVersion if another process owns the stream.
    """

    def __init__(
        self,
        services: StreamServices,
        store: SegmentStore,
        table: SegmentTable,
        reads: SegmentReads,
        config: Callable[[], StreamConfig],
    ) -> None:
        self._metadata = services.metadata
        self._store = store
        self._client = services.client
        self._clock = services.steady_clock
        self._keep_unlisted = services.keep_unlisted
        self._table = table
        self._reads = reads
        self._config = config
        # The start for which all marks are stored, so that an unmoved start costs nothing.
        self._marked_start = -1
        # By segment number, the wall time when this process first saw it truncated. A new owner
        # begins the grace period again: a segment then stays longer, never shorter.
        self._truncated_ms: dict[int, int] = {}
        # Ledgers that are no longer listed and not yet deleted. Each round of `expire` retries
        # them. If the process ends first, the gateway's search for orphans finds them.
        self._removed: list[LedgerId] = []
        # Ledgers of segments that were cleaned, and the wall time of that. They are deleted once
        # readers had time to leave them.
        self._replaced_ms: dict[LedgerId, int] = {}
        # The ledgers of cleaned segments whose sizes the table has. Those that the newest snapshot
        # has may be older than the cleaning. Pruned with the list, cleared if the table is loaded.
        self._measured: set[LedgerId] = set()

    async def truncate(self, sequence_id: int) -> None:
        """Move the start to `sequence_id`, durably. Marking segments may fail and is retried."""
        await self._store.remove([], sequence_id)
        self._table.move_start(self._store.start_sequence_id)
        await self._try_to_mark()

    async def _try_to_mark(self) -> None:
        try:
            await self._mark()
        except BadVersion:
            raise
        except LedgerError:
            pass  # readers need no marks; the next round retries

    async def _mark(self) -> None:
        """Mark the segments below the start: truncated, or active from an entry and slot on."""
        table = self._table
        start = table.start_sequence_id
        if start == self._marked_start:
            return
        changes = [(each, await self._with_mark(each, start)) for each in table.unmarked()]
        changes = [(before, after) for before, after in changes if before != after]
        if changes:
            await self._store.mark(changes)
        table.mark([after for _, after in changes])
        for _, after in changes:
            if after.truncation is Truncation.TRUNCATED:
                self._truncated_ms[after.number] = self._clock.now_ms()
        if all(s.completed or s.start_sequence_id >= start for s in table.segments):
            self._marked_start = start

    async def _with_mark(self, segment: Segment, start: int) -> Segment:
        end = segment.end_sequence_id
        if self._table.losses.end_after(segment.number, end) <= start:
            return replace(segment, truncation=Truncation.TRUNCATED)
        if end <= start:  # among the reserved ids behind its last record
            entry, slot = EntryId(segment.last_entry + 1), 0
        else:
            entry, slot = await self._find_record(segment, start)
        return replace(
            segment,
            truncation=Truncation.PARTIALLY_TRUNCATED,
            min_active_entry=entry,
            min_active_slot=slot,
        )

    async def _find_record(self, segment: Segment, sequence_id: int) -> tuple[EntryId, int]:
        """Find the entry and the slot of the record with this sequence id.

        If a loss is on the way, its first entry: a mark may lie before the start, never past it.
        """
        position = sequence_id - segment.start_sequence_id + 1
        first = EntryId((await self._reads.index_of(segment)).entry_for(sequence_id))
        reader = await self._client.open(segment.ledger)
        lost = [each for each in self._table.losses.of_segment(segment.number) if each.last > first]
        last = min([segment.last_entry, *(EntryId(each.first - 1) for each in lost)])
        try:
            found = await _find_position(reader, first, last, position)
        except EntryLost as error:
            return error.entry, 0
        if found is not None:
            return found
        if last < segment.last_entry:
            return EntryId(max(last + 1, first)), 0
        raise CorruptFormat(f"ledger {segment.ledger}: no record at position {position}")

    async def expire(self) -> int:
        """Remove segments past their retention or grace period, and return how many."""
        await self._try_to_mark()
        config, now_ms = self._config(), self._clock.now_ms()
        due: set[int] = set()
        for segment in self._table.segments:
            if segment.truncation is not Truncation.TRUNCATED:
                break
            since_ms = self._truncated_ms.setdefault(segment.number, now_ms)
            if now_ms - since_ms >= config.truncated_keep_ms:
                due.add(segment.number)
        measured = await self._measure_cleaned()
        count = self._table.expired(
            now_ms=now_ms,
            ttl_ms=config.retention_ms,
            # Sizes from before a cleaning are too great, and would remove too much.
            bytes_max=config.retention_bytes if measured else -1,
            kept_long_enough=due,
        )
        if count:
            await self._remove(count)
        self._drop_replaced(now_ms, config.truncated_keep_ms)
        await self._delete_removed()
        await self._drop_losses()
        return count

    async def _measure_cleaned(self) -> bool:
        """Read the sizes of a few cleaned segments, each once. Return whether all are known now.

        After a takeover or a restart they are those of the newest snapshot, which may be older than
        the cleaning. Retention and the cleaner count with them.
        """
        cleaned = [each for each in self._table.segments if each.cleaned]
        self._measured &= {each.ledger for each in cleaned}
        missing = [each for each in cleaned if each.ledger not in self._measured]
        for segment in missing[:_MEASURED_PER_TURN]:
            try:
                size = (await self._client.read_metadata(segment.ledger)).length
            except LedgerError:
                return False  # the next round of `expire` retries
            self._table.measure(segment.number, size)
            self._measured.add(segment.ledger)
        return len(missing) <= _MEASURED_PER_TURN

    def on_measured(self, ledger: LedgerId) -> None:
        """Note that the table has the size of a cleaned segment: this owner has written it."""
        self._measured.add(ledger)

    def forget_sizes(self) -> None:
        """Read all sizes of cleaned segments again: the table was loaded."""
        self._measured.clear()

    async def _remove(self, count: int) -> None:
        """Remove the oldest `count` segments from the list. Their ledgers are deleted next."""
        table = self._table
        removed = table.segments[:count]
        await self._store.remove(removed, table.segments[count].start_sequence_id)
        table.remove_oldest(count)
        table.move_start(self._store.start_sequence_id)
        for segment in removed:
            self._truncated_ms.pop(segment.number, None)
            self._removed.append(segment.ledger)

    async def _drop_losses(self) -> None:
        """Drop the losses of segments that are no longer listed: nobody reads them any more.

        Those of a listed segment stay, because the owner's state may be replayed across them.
        """
        table = self._table
        if not table.segments:
            return
        oldest = Position(table.segments[0].number, EntryId(0))
        if table.losses.without_below(oldest) is table.losses:
            return
        try:
            table.losses = await drop_truncated(self._metadata, self._store.name, oldest)
        except LedgerError:
            pass  # readers need no fewer losses; the next round retries

    def delete_later(self, ledger: LedgerId) -> None:
        """Delete the ledger of a segment that has another one now, after the grace period.

        If this owner ends before, the search for orphans finds the ledger.
        """
        keep_ms = self._config().truncated_keep_ms
        self._replaced_ms[ledger] = self._clock.now_ms()
        self._keep_unlisted(ledger, keep_ms / 1000)

    def _drop_replaced(self, now_ms: int, keep_ms: int) -> None:
        """Delete the ledgers of cleaned segments whose grace period has ended."""
        for ledger in [r for r, at_ms in self._replaced_ms.items() if now_ms - at_ms >= keep_ms]:
            del self._replaced_ms[ledger]
            self._removed.append(ledger)

    async def _delete_removed(self) -> None:
        """Delete the ledgers of removed segments, and keep those that cannot be deleted now."""
        for ledger in list(self._removed):
            try:
                await self._client.delete(ledger)
            except NoSuchLedger:
                pass  # deleted before, and the reply was lost
            except LedgerError:
                continue  # the next round of `expire` retries
            self._removed.remove(ledger)


async def _find_position(
    reader: LedgerReader, first: EntryId, last: EntryId, position: int
) -> tuple[EntryId, int] | None:
    """Return the entry and the slot of the record at `position`, None if it lies behind `last`."""
    async for entry, body in read_entries(reader, first, last):
        for record in user_records(body):
            if position < record.position + record.records:
                return entry, record.slot + position - record.position
    return None
