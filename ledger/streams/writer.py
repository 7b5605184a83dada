"""Writing one segment: records that wait are packed into entries and confirmed in order.

    append ─▶ waiting ─(end of this loop turn, or an entry's worth)─▶ entry ─▶ ledger ─▶ durable

No task runs per record or entry: packing is one callback per loop turn, confirmation another.
A failed entry fails everything accepted after it, so the order never has a hole.
Each entry tells readers how far those before it are confirmed; when none follows, a control record
does (`control_ms`): readers that do not ask this process see the last record then.
Source: DistributedLog, BKLogSegmentWriter (seed 000).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ledger.core import records as log_records
from ledger.core.segments import EMPTY_TXID
from ledger.core.snapshot_format import Snapshot, split
from ledger.core.sparse_index import SparseIndex
from ledger.errors import LedgerError
from ledger.ids import Buffer, Dlsn, EntryId, LedgerId
from ledger.streams.config import StreamLimits
from ledger.streams.tail_cache import StoredRecord, StreamTail

OnDurable = Callable[[LedgerError | None], None]
_ENVELOPE_AND_HEAD = log_records.ENVELOPE_BYTES + log_records.SET_HEAD_BYTES
_CONTROL = b"control"  # Source: DistributedLogConstants.CONTROL_RECORD_CONTENT
SEGMENT_RECORDS_MAX = 1 << 30
"""A segment takes no more: positions are 32 bits, and one record may hold 2^31 - 1 of them."""


class LedgerSink(Protocol):
    """What a segment needs of an open ledger; `ledger.client.writer.LedgerWriter` is one."""

    ledger: LedgerId

    @property
    def full(self) -> bool: ...

    def add(
        self, payload: list[Buffer], on_confirmed: Callable[[LedgerError | None], None]
    ) -> EntryId: ...


class _Accepted(NamedTuple):
    record: StoredRecord
    on_durable: OnDurable


class _Entry(NamedTuple):
    """One entry under way. `slots`: how many records it holds, inner ones counted."""

    entry: EntryId
    accepted: list[_Accepted]
    slots: int
    timestamp_max: int


class SegmentWriter:
    """The one segment that takes records. Offsets are given out here, in call order."""

    __slots__ = (
        "_bytes_since_snapshot",
        "_control_timer",
        "_last_user_entry",
        "_limits",
        "_loop",
        "_on_advanced",
        "_on_failed",
        "_pack_scheduled",
        "_position",
        "_quiet",
        "_refused",
        "_sink",
        "_snapshot_due",
        "_snapshot_entry",
        "_snapshot_first",
        "_snapshot_parts",
        "_tail",
        "_take_snapshot",
        "_told_entry",
        "_under_way",
        "_waiting",
        "control_ms",
        "end_sequence_id",
        "failed",
        "held",
        "index",
        "last_dlsn",
        "next_sequence_id",
        "number",
        "size_bytes",
        "start_sequence_id",
        "timestamp_max",
        "waiting_bytes",
    )

    def __init__(
        self,
        sink: LedgerSink,
        *,
        number: int,
        start_sequence_id: int,
        tail: StreamTail,
        limits: StreamLimits,
        take_snapshot: Callable[[SparseIndex, int], Snapshot],
        on_advanced: Callable[[int], None],
        on_failed: Callable[[LedgerError], None],
    ) -> None:
        self.number = number
        self.start_sequence_id = start_sequence_id
        self.next_sequence_id: int = start_sequence_id  # of the next record accepted
        self.end_sequence_id: int = start_sequence_id  # one past the last durable record
        self.size_bytes = 0  # packed so far, headers included
        self.index = SparseIndex(limits.index_stride_bytes)  # packed, perhaps not yet durable
        self.timestamp_max = -1  # of the durable records
        self.last_dlsn = Dlsn(number, EntryId(-1), -1)  # of the last durable record
        self.failed: LedgerError | None = None
        self.held = False  # while held nothing is packed: a roll is under way
        self.waiting_bytes = 0
        self.control_ms = -1  # see `StreamConfig`; may change at any time
        self._control_timer: asyncio.TimerHandle | None = None
        self._last_user_entry = -1  # the last durable one that holds records
        self._told_entry = -1  # up to it readers learn from entries that hold no records
        self._sink = sink
        self._tail = tail
        self._limits = limits
        self._take_snapshot = take_snapshot
        self._on_advanced = on_advanced
        self._on_failed = on_failed
        self._waiting: deque[_Accepted] = deque()
        self._under_way: deque[_Entry] = deque()
        self._refused: LedgerError | None = None  # the ledger takes no more entries
        self._position = 0  # user records packed so far
        self._snapshot_entry = -1  # where the last snapshot begins; -1: none yet
        self._snapshot_parts: deque[bytes] = deque()  # of the next one; nothing comes between
        self._snapshot_first = -1  # entry of its first part
        self._bytes_since_snapshot = 0
        self._snapshot_due = limits.snapshot_bytes
        self._quiet = asyncio.Event()
        self._pack_scheduled = False
        self._loop = asyncio.get_running_loop()

    @property
    def ledger(self) -> LedgerId:
        return self._sink.ledger

    async def until_quiet(self) -> None:
        """Nothing is under way in the ledger, or it failed. While held, records may wait."""
        while self._under_way and self.failed is None:
            self._quiet.clear()
            await self._quiet.wait()

    @property
    def last_entry(self) -> EntryId:
        return self.last_dlsn.entry

    @property
    def last_txid(self) -> int:
        return self.end_sequence_id - 1 if self.durable_count else EMPTY_TXID

    @property
    def durable_count(self) -> int:
        return self.end_sequence_id - self.start_sequence_id

    def append(
        self,
        data: tuple[Buffer, ...],
        size: int,
        count: int,
        timestamp_max: int,
        on_durable: OnDurable,
    ) -> None:
        """`count` user records (one opaque piece) take the next sequence ids, in call order.

        `on_durable(None)` runs when they are durable and visible, `on_durable(error)` when that
        cannot happen here any more (a later recovery may still find them). Never inside append.
        """
        assert self.failed is None
        first = self.next_sequence_id
        self.next_sequence_id = first + count
        record = StoredRecord(first, first + count, timestamp_max, size, data)
        self._waiting.append(_Accepted(record, on_durable))
        self.waiting_bytes += size
        if not self._pack_scheduled:
            self._pack_scheduled = True
            self._loop.call_soon(self._pack_turn)

    def take_waiting(self) -> list[_Accepted]:
        """What was accepted and not packed, to be moved to the next segment in the same order."""
        moved = list(self._waiting)
        self._waiting.clear()
        self.waiting_bytes = 0
        return moved

    def adopt(self, moved: list[_Accepted]) -> None:
        """Records accepted by the segment before go first here; their sequence ids stand."""
        assert not self._waiting
        for accepted in moved:
            assert accepted.record.sequence_id == self.next_sequence_id
            self.next_sequence_id = accepted.record.end_sequence_id
            self.waiting_bytes += accepted.record.size_bytes
            self._waiting.append(accepted)
        self.pack()

    def write_snapshot(self) -> None:
        """A state snapshot is on its way; entries after its last part point back to it."""
        self._begin_snapshot()
        self.pack()

    def _begin_snapshot(self) -> None:
        assert not self._snapshot_parts
        snapshot = self._take_snapshot(self.index, self.start_sequence_id + self._position)
        whole = snapshot.encode()
        self._snapshot_parts.extend(split(whole))
        # A large one (very many producers) is not written again before it has paid for itself.
        self._snapshot_due = max(self._limits.snapshot_bytes, 8 * len(whole))
        self._snapshot_first = -1
        self._bytes_since_snapshot = 0

    def _send_part(self) -> None:
        """No record may come between the parts: the snapshot would not hold it."""
        parts = self._snapshot_parts
        txid = self.start_sequence_id + self._position - 1 if self._position else EMPTY_TXID
        record = log_records.control_record(self._position, txid, parts[0])
        entry = self._send([record], len(record), _NOTHING, 1, -1)
        if entry is None:
            return
        self._told_entry = self.last_dlsn.entry
        parts.popleft()
        if self._snapshot_first < 0:
            self._snapshot_first = entry
        if not parts:
            self._snapshot_entry = self._snapshot_first

    def _pack_turn(self) -> None:
        self._pack_scheduled = False
        self.pack()

    def pack(self) -> None:
        """Everything that waits is in entries, as far as the ledger has room and no roll holds."""
        sink = self._sink
        while self.failed is None and self._refused is None and not sink.full:
            if self._snapshot_parts:
                self._send_part()
                continue
            if not self._waiting or self.held or self._position >= SEGMENT_RECORDS_MAX:
                break
            self._pack_entry()
            if self._bytes_since_snapshot >= self._snapshot_due:
                self._begin_snapshot()

    def _pack_entry(self) -> None:
        waiting, room = self._waiting, self._limits.entry_bytes_max - _ENVELOPE_AND_HEAD
        accepted: list[_Accepted] = []
        buffers: list[Buffer] = []
        size, slots, position, timestamp_max = 0, 0, self._position, -1
        for one in waiting:
            record = one.record
            if accepted and size + record.size_bytes > room:
                break
            accepted.append(one)
            count = record.end_sequence_id - record.sequence_id
            buffers.append(
                log_records.set_head(
                    position + 1, record.end_sequence_id - 1, count, record.size_bytes
                )
            )
            buffers += record.data
            size += log_records.SET_HEAD_BYTES + record.size_bytes
            position += count
            slots += count
            if record.timestamp_max > timestamp_max:
                timestamp_max = record.timestamp_max
            if position >= SEGMENT_RECORDS_MAX:
                break
        entry = self._send(buffers, size, accepted, slots, timestamp_max)
        if entry is None:
            return
        if len(accepted) == len(waiting):
            waiting.clear()
        else:
            for _ in accepted:
                waiting.popleft()
        self.waiting_bytes -= size - log_records.SET_HEAD_BYTES * len(accepted)
        self._position = position
        self.index.add(accepted[0].record.sequence_id, entry, size, timestamp_max)
        self._bytes_since_snapshot += size

    def _send(
        self,
        buffers: list[Buffer],
        size: int,
        accepted: list[_Accepted],
        slots: int,
        timestamp_max: int,
    ) -> EntryId | None:
        """The entry's number; None: the ledger refused, and nothing more is sent.

        What is under way was accepted before: it ends first, then all that waits fails.
        """
        next_entry = self._next_entry()
        back = next_entry - self._snapshot_entry if self._snapshot_entry >= 0 else 0
        buffers.insert(0, log_records.envelope(size, back))
        try:
            entry = self._sink.add(buffers, self._entry_confirmed)
        except LedgerError as error:
            self._refused = error
            if not self._under_way:
                self._loop.call_soon(self.fail, error)
            return None
        assert entry == next_entry
        self._under_way.append(_Entry(entry, accepted, slots, timestamp_max))
        self.size_bytes += size + log_records.ENVELOPE_BYTES
        return entry

    def _next_entry(self) -> EntryId:
        if self._under_way:
            return EntryId(self._under_way[-1].entry + 1)
        return EntryId(self.last_dlsn.entry + 1)

    def _entry_confirmed(self, error: LedgerError | None) -> None:
        """Runs once per entry, in entry order."""
        entry = self._under_way.popleft()
        if error is None:
            self._confirm(entry)
            if self._waiting or self._snapshot_parts:
                self.pack()
        else:
            self.fail(error, entry.accepted)
        if not self._under_way:
            over = self.failed or self._refused
            if over is not None:
                self.fail(over)
            elif self.control_ms >= 0 and self._told_entry < self._last_user_entry:
                self._owe_control_record()
            self._quiet.set()

    def _confirm(self, entry: _Entry) -> None:
        self.last_dlsn = Dlsn(self.number, entry.entry, entry.slots - 1)
        if not entry.accepted:
            return
        if self.failed is None:  # else abandoned: its cached records are gone for good
            append = self._tail.append
            for accepted in entry.accepted:
                append(accepted.record)
        if entry.timestamp_max > self.timestamp_max:
            self.timestamp_max = entry.timestamp_max
        self._last_user_entry = entry.entry
        self.end_sequence_id = entry.accepted[-1].record.end_sequence_id
        for accepted in entry.accepted:
            accepted.on_durable(None)
        self._on_advanced(self.end_sequence_id)

    # Readers learn from an entry that those before it are confirmed, so the last record is owed one
    # more. Looked for by half periods, so that nothing needs the time when records are confirmed.

    def _owe_control_record(self) -> None:
        if not self.control_ms:
            self._write_control_record()
        elif self._control_timer is None:
            half_s = self.control_ms / 2000
            last_seen = self.last_dlsn.entry
            self._control_timer = self._loop.call_later(half_s, self._look_for_silence, last_seen)

    def _look_for_silence(self, last_seen: EntryId) -> None:
        self._control_timer = None
        if self._under_way or self._told_entry >= self._last_user_entry or self.control_ms < 0:
            return  # what is newer tells, or owes one itself
        if self.last_dlsn.entry != last_seen:
            self._owe_control_record()
        else:
            self._write_control_record()

    def _write_control_record(self) -> None:
        if self.held or self.failed is not None or self._refused is not None or self._sink.full:
            return  # the segment is being completed, which tells readers too
        record = log_records.control_record(self._position, self.last_txid, _CONTROL)
        self._told_entry = self.last_dlsn.entry
        self._send([record], len(record), _NOTHING, 1, -1)

    def retire(self) -> None:
        """Nothing more is sent by itself: its ledger is closed, or somebody else's."""
        self.control_ms = -1
        if self._control_timer is not None:
            self._control_timer.cancel()
            self._control_timer = None

    def fail(self, error: LedgerError, accepted: Sequence[_Accepted] = ()) -> None:
        """It takes nothing more. `accepted` fails; what waits, after all that is under way."""
        first_failure = self.failed is None
        self.failed = self.failed or error
        for one in accepted:
            one.on_durable(error)
        if not self._under_way:
            for one in self.take_waiting():
                one.on_durable(error)
        if first_failure:
            self._quiet.set()
            self._on_failed(error)


_NOTHING: list[_Accepted] = []
