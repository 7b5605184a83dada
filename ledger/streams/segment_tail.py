"""What is committed of one segment that somebody else writes: entry by entry, or only how far.

    pull    the next entries, all of them, in order: for readers at the end
    jump    only the last one, for its position: the end moves, nothing else is read

It never fences: the ledger is opened without recovery, and entries are asked for up to the LAC.
Source: DistributedLog, BKLogSegmentEntryReader and "Tailing reads" (seed 000).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ledger.client.client import LedgerClient
from ledger.client.reader import LedgerReader
from ledger.client.tail import TailReader
from ledger.core import records as log_records
from ledger.core.segments import Segment
from ledger.core.snapshot_format import StateSnapshot, decode_snapshot, is_part, join
from ledger.core.sparse_index import ANY_TIMESTAMP, SparseIndex
from ledger.errors import CorruptFormat
from ledger.ids import EntryId
from ledger.streams.config import StreamLimits
from ledger.streams.tail_cache import StoredRecord


class SegmentTail:
    """One task's; `close` it in the end. `last_entry` and `count` never fall."""

    timestamp_max = ANY_TIMESTAMP  # records that a jump left out may have any
    size_bytes = 0  # not counted

    def __init__(
        self,
        client: LedgerClient,
        segment: Segment,
        limits: StreamLimits,
        timestamp_max: Callable[[memoryview], int],
        on_snapshot: Callable[[int, StateSnapshot], None],
    ) -> None:
        """`on_snapshot` is given the segment's number and a state snapshot found in it."""
        self.number = segment.number
        self.start_sequence_id = segment.start_sequence_id
        self.last_entry = EntryId(-1)  # the last one whose records are counted
        self.count = 0  # user records up to it
        self.ended = False  # the ledger is closed, and `last_entry` is its last
        self.index = SparseIndex(limits.index_stride_bytes)
        self._client = client
        self._ledger = segment.ledger
        self._limits = limits
        self._timestamp_max = timestamp_max
        self._on_snapshot = on_snapshot
        self._reader: LedgerReader | None = None
        self._tailer: TailReader | None = None
        self._snapshot_entry = -1  # where the newest one that was read begins
        self._parts: list[bytes] = []  # of the head snapshot, until it is whole
        self._headed = False  # the head snapshot was read, or something else began there

    @property
    def end_sequence_id(self) -> int:
        return self.start_sequence_id + self.count

    async def open(self) -> None:
        """Its ledger is open. Raises NoSuchLedger, MetadataUnavailable."""
        if self._reader is None:
            self._reader = await self._client.open(self._ledger)
            self._tailer = self._client.tail(self._reader)

    def close(self) -> None:
        """Nothing is watched any more."""
        if self._tailer is not None:
            self._tailer.close()
        self._reader = self._tailer = None

    def confirmed(self, last: EntryId) -> None:
        """Whoever calls knows that `last` is: no bookie has to tell."""
        reader, _ = self._opened()
        reader.last_add_confirmed = max(reader.last_add_confirmed, last)

    async def sync(self) -> None:
        """Enough bookies told how far the ledger is confirmed: `jump` misses nothing older.

        Raises EntryUnknown when too few answer, NoSuchLedger.
        """
        reader, _ = self._opened()
        await reader.read_lac()

    # -- everything ---------------------------------------------------------------------------

    async def pull(self, timeout_s: float) -> list[StoredRecord]:
        """The records of the next entries: a chunk of those that are confirmed already, else of
        the one that is next, when it is. Empty after `timeout_s`, at the end, or when those
        entries hold control records only.

        Raises EntryUnknown, NoSuchEntry, NoSuchLedger; what was given before stands.
        """
        reader, tailer = self._opened()
        wanted = EntryId(self.last_entry + 1)
        found: list[StoredRecord] = []
        if wanted <= reader.last_add_confirmed:
            last = reader.last_add_confirmed
            self._take(await reader.read(wanted, last, self._limits.read_chunk_bytes), found)
            return found
        tail = await tailer.read_next(wanted, timeout_s)
        if tail.payload is not None:
            self._take([(wanted, tail.payload)], found)
        elif tail.ended:
            self.ended = True
        return found

    def _take(
        self, entries: Iterable[tuple[EntryId, memoryview]], found: list[StoredRecord]
    ) -> None:
        for entry, payload in entries:
            assert entry == self.last_entry + 1
            first, size, timestamp_max = self.end_sequence_id, 0, -1
            before = len(found)
            for record in log_records.parse_entry(payload):
                if record.control:
                    self._take_control(record.data)
                    continue
                self._headed = True
                if record.position != self.count + 1:
                    raise CorruptFormat(
                        f"ledger {self._ledger} entry {entry}: position {record.position} "
                        f"comes after {self.count}"
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
                self.index.add(first, entry, size, timestamp_max)

    def _take_control(self, data: memoryview) -> None:
        if self._headed:
            return
        if not is_part(data):
            self._headed = True
            return
        self._parts.append(bytes(data))
        whole = join(self._parts)
        if whole is not None:
            self._headed = True
            self._parts.clear()
            self._on_snapshot(self.number, decode_snapshot(whole))

    # -- only how far -------------------------------------------------------------------------

    async def wait(self, timeout_s: float) -> bool:
        """True: more is confirmed than is counted here. Raises as `pull`."""
        reader, tailer = self._opened()
        lac = await tailer.wait_lac(self.last_entry, timeout_s)
        self.ended = self.ended or (reader.metadata.closed and lac <= self.last_entry)
        return lac > self.last_entry

    async def jump(self) -> None:
        """`last_entry` and `count` are as of the last add confirmed, by reading that one entry.

        Raises as `pull`.
        """
        reader, _ = self._opened()
        lac = reader.last_add_confirmed
        if lac <= self.last_entry:
            return
        [(_, payload)] = await reader.read(lac, lac, 1)
        *_, final = log_records.parse_entry(payload)
        count = final.position + max(final.records - 1, 0)
        if count < self.count:
            raise CorruptFormat(f"ledger {self._ledger} entry {lac}: {count} after {self.count}")
        if not count:  # at its head: what there is is the snapshot
            while self.last_entry < lac:
                await self.pull(0.0)
            return
        await self._index_up_to(lac, log_records.snapshot_distance(payload))
        if count > self.count:
            self._index_gap(self.count, self.last_entry)
        self.last_entry, self.count, self._headed = lac, count, True

    def _index_gap(self, count: int, entry: int) -> None:
        """What follows was not read, so it may hold any timestamp. Its length is not known."""
        stride = self._limits.index_stride_bytes
        self.index.add(self.start_sequence_id + count, entry + 1, stride, ANY_TIMESTAMP)

    async def _index_up_to(self, lac: EntryId, distance: int) -> None:
        """The index of the newest snapshot is in place of what was read less densely."""
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
            self.last_entry, self.count = entry, count

    async def _read_snapshot(
        self, first: EntryId, last: EntryId
    ) -> tuple[StateSnapshot, int, EntryId] | None:
        """The snapshot that begins there, records before its end, its last entry."""
        reader, _ = self._opened()
        parts: list[memoryview] = []
        position = 0
        for entry in range(first, last + 1):
            [(_, payload)] = await reader.read(EntryId(entry), EntryId(entry), 1)
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
