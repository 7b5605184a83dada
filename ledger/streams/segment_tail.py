"""The committed part of one segment that another process writes.

    pull    read the next entries, in order: for readers at the end
    jump    read only the last entry, for its position: the end moves

A tail never fences: it opens the ledger without recovery and reads entries up to the LAC. It passes
lost entries. The number of records in them is known once an entry behind them is read.
Source: DistributedLog, BKLogSegmentEntryReader and "Tailing reads" (seed 000).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ledger.client.client import LedgerClient
from ledger.client.reader import LedgerReader
from ledger.client.tail import TailReader
from ledger.core import records as log_records
from ledger.core.accepted_losses import StreamLosses
from ledger.core.gaps import ENTRY_MAX
from ledger.core.loss import EntryLost
from ledger.core.records import LogRecord
from ledger.core.segments import Segment
from ledger.core.snapshot_format import StateSnapshot, decode_snapshot, is_part, join
from ledger.core.sparse_index import ANY_TIMESTAMP, SparseIndex
from ledger.errors import CorruptFormat
from ledger.ids import EntryId
from ledger.streams.config import StreamLimits
from ledger.streams.tail_cache import StoredRecord

_LOST_STEPS = 64  # lost entries that are stepped over one by one


class SegmentTail:
    """A reader of one segment's end. Used by one task, which must `close` it."""

    timestamp_max = ANY_TIMESTAMP  # a jump skips records, which may have any timestamp
    size_bytes = 0  # the size is not counted here

    def __init__(
        self,
        client: LedgerClient,
        segment: Segment,
        limits: StreamLimits,
        timestamp_max: Callable[[memoryview], int],
        on_snapshot: Callable[[int, StateSnapshot], None],
        losses: Callable[[], StreamLosses],
    ) -> None:
        """`on_snapshot` receives the segment's number and each state snapshot read in it.

        `losses` returns the accepted losses of the stream. Their entries are passed unread.
        """
        self.number = segment.number
        self.start_sequence_id = segment.start_sequence_id
        # The last entry that was counted, at most the LAC; -1 before the first. Never decreases.
        self.last_entry = EntryId(-1)
        # User records up to and in `last_entry`, without those of lost entries at the end of them.
        # Never decreases.
        self.count = 0
        # True if lost entries were passed since the last one that was read. `count` is then a lower
        # bound.
        self.behind_loss = False
        # True once the ledger is closed and `last_entry` is its last entry. Never False again.
        self.ended = False
        # Points of the entries read, with one of unknown timestamp for each stretch skipped. A
        # jump replaces it by the index of the newest snapshot.
        self.index = SparseIndex(limits.index_stride_bytes)
        self._client = client
        self._ledger = segment.ledger
        self._limits = limits
        self._timestamp_max = timestamp_max
        self._on_snapshot = on_snapshot
        self._losses = losses
        # Set together by `open`, cleared by `close`.
        self._reader: LedgerReader | None = None
        self._tailer: TailReader | None = None
        # The first entry of the newest snapshot that a jump tried to read, -1 before the first.
        self._snapshot_entry = -1
        # Parts of the head snapshot until it is complete.
        self._parts: list[bytes] = []
        # True once the head snapshot was read, or the segment turned out to have none.
        self._past_head = False
        # True if a part of a state snapshot was lost, so that the epoch may be that of an earlier
        # segment.
        self.snapshot_lost = False

    @property
    def end_sequence_id(self) -> int:
        return self.start_sequence_id + self.count

    async def open(self) -> None:
        """Open the ledger, unless it is already open. Raises NoSuchLedger, MetadataUnavailable."""
        if self._reader is None:
            await self._open(read_lac=True)

    async def _open(self, *, read_lac: bool) -> None:
        self._reader = await self._client.open(self._ledger, read_lac=read_lac)
        self._tailer = self._client.tail(self._reader)

    def close(self) -> None:
        """Stop watching the ledger."""
        if self._tailer is not None:
            self._tailer.close()
        self._reader = self._tailer = None

    def set_confirmed(self, last: EntryId) -> None:
        """Raise the LAC to `last`, which the caller knows to be confirmed."""
        reader, _ = self._opened()
        reader.last_add_confirmed = max(reader.last_add_confirmed, last)

    async def sync(self) -> bool:
        """Read the LAC from enough bookies, so that the next `jump` reaches it.

        Opens the ledger if needed. Returns whether the ledger is closed. Raises EntryUnknown if too
        few bookies answer, NoSuchLedger, MetadataUnavailable.
        """
        new = self._reader is None
        if new:
            await self._open(read_lac=False)
        reader, _ = self._opened()
        await reader.read_lac(refresh=not new)
        return reader.metadata.closed

    # -- all entries --------------------------------------------------------------------------

    async def pull(self, timeout_s: float) -> list[StoredRecord]:
        """Read a chunk of confirmed entries, or wait for the next entry. Returns their records.

        Returns none after `timeout_s`, at the end, or if the entries hold only control records or
        are lost. Raises EntryUnknown, NoSuchEntry, NoSuchLedger; the tail then stays where it is.
        """
        reader, tailer = self._opened()
        wanted = EntryId(self.last_entry + 1)
        found: list[StoredRecord] = []
        if self._pass_accepted(wanted):
            return found
        losses = self._losses()
        behind = losses.first_behind(self.number, wanted)
        last = ENTRY_MAX if behind is None else EntryId(behind.first - 1)
        try:
            if wanted <= reader.last_add_confirmed:
                last = min(last, reader.last_add_confirmed)
                entries = await reader.read(wanted, last, self._limits.read_chunk_bytes)
            else:
                tail = await tailer.read_next(wanted, timeout_s)
                entries = [] if tail.payload is None else [(wanted, tail.payload)]
                self.ended = self.ended or tail.ended
        except EntryLost as error:
            assert error.entry == wanted
            self._pass_lost(wanted)
            return found
        if self._losses() is losses:  # otherwise they may be lost now: the next call reads on
            self._append_entries(entries, found)
        return found

    def _pass_accepted(self, entry: EntryId) -> bool:
        """Pass the accepted loss that holds `entry`. Returns False if there is none.

        Behind the reserved rest of a ledger that was closed by force there is nothing to read.
        """
        lost = self._losses().at_entry(self.number, entry)
        if lost is None:
            return False
        if lost.forced:
            self.ended = True
        else:
            self._pass_lost(lost.last)
        return True

    def _pass_lost(self, last: EntryId) -> None:
        """Move past lost entries, up to `last`."""
        if not self.behind_loss:
            self._index_gap(self.count, self.last_entry)
        self.last_entry, self.behind_loss = last, True
        self.snapshot_lost = self.snapshot_lost or not self._past_head
        self._past_head = True
        self._parts.clear()

    def _append_entries(
        self, entries: Iterable[tuple[EntryId, memoryview]], found: list[StoredRecord]
    ) -> None:
        for entry, payload in entries:
            assert entry == self.last_entry + 1
            size, timestamp_max = 0, -1
            before = len(found)
            for record in log_records.parse_entry(payload):
                self._find_count(record)
                if record.control:
                    self._read_control(record.data)
                    continue
                self._past_head = True
                if record.position != self.count + 1:
                    raise CorruptFormat(
                        f"ledger {self._ledger} entry {entry}: position {record.position} "
                        f"follows position {self.count}"
                    )
                at, data = self.end_sequence_id, record.data
                found.append(
                    StoredRecord(
                        at, at + record.records, self._timestamp_max(data), len(data), (data,)
                    )
                )
                self.count += record.records
                size += log_records.SET_HEAD_BYTES + len(data)
            self.last_entry = entry
            if len(found) > before:
                timestamp_max = max(r.timestamp_max for r in found[before:])
                self.index.add(found[before].sequence_id, entry, size, timestamp_max)

    def _find_count(self, record: LogRecord) -> None:
        """Set `count` from the first record behind lost entries."""
        if self.behind_loss:
            self.count = max(self.count, record.position - (not record.control))
            self.behind_loss = False

    def _read_control(self, data: memoryview) -> None:
        if self._past_head:
            return
        if not is_part(data):
            self._past_head = True
            return
        self._parts.append(bytes(data))
        whole = join(self._parts)
        if whole is not None:
            self._past_head = True
            self._parts.clear()
            self._on_snapshot(self.number, decode_snapshot(whole))

    # -- only the end -------------------------------------------------------------------------

    async def wait(self, timeout_s: float) -> bool:
        """Wait until an entry past `last_entry` is confirmed. Returns False after `timeout_s`.

        Raises as `pull`.
        """
        reader, tailer = self._opened()
        lac = await tailer.wait_lac(self.last_entry, timeout_s)
        self.ended = self.ended or (reader.metadata.closed and lac <= self.last_entry)
        return lac > self.last_entry

    async def jump(self) -> None:
        """Move `last_entry` and `count` to the LAC by reading only that entry. Raises as `pull`.

        If it is lost, the newest readable entry before it tells the count.
        """
        reader, _ = self._opened()
        forced = self._losses().forced_in(self.number)
        lac = reader.last_add_confirmed
        if forced is not None:
            lac = min(lac, EntryId(forced.first - 1))
            self.ended = self.ended or lac <= self.last_entry
        if lac <= self.last_entry:
            return
        entry, payload = await self._read_newest(lac)
        if payload is None:  # all of them are lost
            self._pass_lost(lac)
            return
        *_, final = log_records.parse_entry(payload)
        count = final.position + max(final.records - 1, 0)
        if count < self.count:
            raise CorruptFormat(
                f"ledger {self._ledger} entry {entry}: position {count} follows {self.count}"
            )
        if not count:  # only the head snapshot is confirmed: read it
            while self.last_entry < lac:
                await self.pull(0.0)
            return
        await self._index_up_to(entry, log_records.snapshot_distance(payload))
        if count > self.count and not self.behind_loss:  # else the stretch has its point already
            self._index_gap(self.count, self.last_entry)
        self.last_entry, self.count, self._past_head = entry, count, True
        self.behind_loss = False
        if entry < lac:
            self._pass_lost(lac)

    async def _read_newest(self, last: EntryId) -> tuple[EntryId, memoryview | None]:
        """Read the newest entry past `last_entry`, up to `last`, that is not lost.

        Returns None for its payload if all are lost. A long run of lost entries is left in growing
        steps.
        """
        reader, _ = self._opened()
        entry, asked = last, 0
        while entry > self.last_entry:
            accepted = self._losses().at_entry(self.number, entry)
            if accepted is not None:
                entry = EntryId(accepted.first - 1)
                continue
            try:
                [(_, payload)] = await reader.read(entry, entry, 1)
            except EntryLost:
                asked += 1
                entry = EntryId(entry - max(1, asked - _LOST_STEPS))
                continue
            return entry, payload
        return entry, None

    def _index_gap(self, count: int, entry: int) -> None:
        """Add a point for a stretch that was not read. Its timestamps and size are unknown."""
        stride = self._limits.index_stride_bytes
        self.index.add(self.start_sequence_id + count, entry + 1, stride, ANY_TIMESTAMP)

    async def _index_up_to(self, lac: EntryId, distance: int) -> None:
        """Replace the index by that of the newest snapshot, which is denser."""
        first = lac - distance if distance else 0
        if (
            first <= self._snapshot_entry
            or first < self.last_entry
            or (not distance and self.count)
        ):
            return
        found = await self._read_snapshot(EntryId(first), lac)
        self._snapshot_entry = first
        if found is None:
            return
        snapshot, count, entry = found
        self._on_snapshot(self.number, snapshot)
        self.index = snapshot.index
        self.index.stride_bytes = self._limits.index_stride_bytes
        if entry > self.last_entry:
            self.last_entry, self.count, self.behind_loss = entry, count, False

    async def _read_snapshot(
        self, first: EntryId, last: EntryId
    ) -> tuple[StateSnapshot, int, EntryId] | None:
        """Read the snapshot that begins at `first`, or return None.

        Returns with it the count of records before it, and its last entry.
        """
        reader, _ = self._opened()
        parts: list[memoryview] = []
        position = 0
        for entry in range(first, last + 1):
            try:
                [(_, payload)] = await reader.read(EntryId(entry), EntryId(entry), 1)
            except EntryLost:
                self.snapshot_lost = True
                return None
            for record in log_records.parse_entry(payload):
                if not record.control or not is_part(record.data):
                    return None
                parts.append(record.data)
                position = record.position
            whole = join(parts)
            if whole is not None:
                return decode_snapshot(whole), position, EntryId(entry)
        return None

    def _opened(self) -> tuple[LedgerReader, TailReader]:
        assert self._reader is not None
        assert self._tailer is not None
        return self._reader, self._tailer
