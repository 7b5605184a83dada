"""The writer of one segment: pack waiting records into entries and confirm them in order.

    append ─▶ waiting ─(end of this loop turn, or an entry's worth)─▶ entry ─▶ ledger ─▶ durable

No task runs per record or entry: packing is one callback per loop turn, confirmation another.
A failed entry fails all records accepted after it, so the log never has a hole. Each entry carries
the LAC of those before it. If no entry follows, a control record does after `control_ms`, so that
readers in other processes see the last record. Source: DistributedLog, BKLogSegmentWriter
(seed 000).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ledger.core import records as log_records
from ledger.core.segments import EMPTY_TXID
from ledger.core.snapshot_format import StateSnapshot, split
from ledger.core.sparse_index import SparseIndex
from ledger.errors import LedgerError
from ledger.ids import Buffer, Dlsn, EntryId, LedgerId
from ledger.streams.config import StreamLimits
from ledger.streams.tail_cache import StoredRecord, StreamTail
from ledger.tasks import do_each

OnDurable = Callable[[LedgerError | None], None]
_ENVELOPE_AND_HEAD = log_records.ENVELOPE_BYTES + log_records.SET_HEAD_BYTES
_CONTROL = b"control"  # Source: DistributedLogConstants.CONTROL_RECORD_CONTENT
_UNCONFIRMED_MAX = 2  # entries in flight while less than `_HELD_BYTES_MAX` waits
_HELD_BYTES_MAX = 64 * 1024
SEGMENT_RECORDS_MAX = 1 << 30
"""The records of a segment: positions have 32 bits, and one record may take 2^31 - 1 of them."""


class LedgerSink(Protocol):
    """The part of an open ledger that a segment uses; `LedgerWriter` implements it."""

    ledger: LedgerId

    @property
    def full(self) -> bool: ...

    def add(
        self, payload: list[Buffer], on_confirmed: Callable[[LedgerError | None], None]
    ) -> EntryId: ...


class _Accepted(NamedTuple):
    record: StoredRecord
    on_durable: OnDurable
    txid: int


def _acknowledge(accepted: _Accepted) -> None:
    accepted.on_durable(None)


class _Entry(NamedTuple):
    """One entry in flight. `slots` is its count of records, with the inner ones of sets."""

    entry: EntryId
    accepted: list[_Accepted]
    slots: int
    timestamp_max: int


class SegmentWriter:
    """The writer of the segment in progress. It assigns sequence ids in call order.

    Its caller bounds the records that wait.
    """

    __slots__ = (
        "_announced_entry",
        "_bytes_since_snapshot",
        "_control_timer",
        "_given_up",
        "_idle",
        "_in_flight",
        "_last_user_entry",
        "_limits",
        "_loop",
        "_on_advanced",
        "_on_failed",
        "_pack_scheduled",
        "_packed_txid",
        "_position",
        "_refused",
        "_sink",
        "_snapshot_due",
        "_snapshot_entry",
        "_snapshot_first",
        "_snapshot_parts",
        "_tail",
        "_take_snapshot",
        "_waiting",
        "control_ms",
        "end_sequence_id",
        "failed",
        "index",
        "last_dlsn",
        "last_txid",
        "next_sequence_id",
        "number",
        "paused",
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
        take_snapshot: Callable[[SparseIndex, int], StateSnapshot],
        on_advanced: Callable[[int], None],
        on_failed: Callable[[LedgerError], None],
    ) -> None:
        """`on_advanced` receives each new end, `on_failed` the first error. Needs a loop."""
        self.number = number
        self.start_sequence_id = start_sequence_id
        # The sequence id of the next accepted record. Never decreases, not even after a failure.
        self.next_sequence_id: int = start_sequence_id
        # One past the last durable record; at most `next_sequence_id`. Never decreases.
        self.end_sequence_id: int = start_sequence_id
        self.size_bytes = 0  # bytes packed into entries, with their headers
        # Points of all packed entries, also of those that are not durable yet.
        self.index = SparseIndex(limits.index_stride_bytes)
        self.timestamp_max = -1  # greatest timestamp of the durable records
        # The last durable slot, of control records too. Its entry is -1 before the first one.
        self.last_dlsn = Dlsn(number, EntryId(-1), -1)
        self.last_txid = EMPTY_TXID  # of the last durable user record
        # The first error. Once set, the writer accepts and packs nothing.
        self.failed: LedgerError | None = None
        # While True, accepted records wait unpacked. The owner sets it for the time of a roll.
        self.paused = False
        self.waiting_bytes = 0  # data bytes of the records in `_waiting`
        # Copy of `StreamConfig.control_ms`. The owner may change it; `retire` sets it to -1.
        self.control_ms = -1
        self._control_timer: asyncio.TimerHandle | None = None  # None: no control record is due
        self._last_user_entry = -1  # the last durable entry with user records
        # Readers learn of the entries up to this one from a control record or a snapshot.
        self._announced_entry = -1
        self._sink, self._tail, self._limits = sink, tail, limits
        self._take_snapshot = take_snapshot
        self._on_advanced, self._on_failed = on_advanced, on_failed
        # Accepted records, not packed, oldest first. A roll moves them to the next segment.
        self._waiting: deque[_Accepted] = deque()
        # Entries that the ledger accepted and has not confirmed, in entry order.
        self._in_flight: deque[_Entry] = deque()
        # Set when the ledger refuses an entry. Nothing more is sent; entries in flight may succeed.
        self._refused: LedgerError | None = None
        self._given_up: LedgerError | None = None  # set by `give_up`
        # Position, and so count, and transaction id of the last packed user record.
        self._position, self._packed_txid = 0, EMPTY_TXID
        self._snapshot_entry = -1  # the first entry of the last complete snapshot
        # Parts of the next snapshot that are not sent. While there are any, no record is packed.
        self._snapshot_parts: deque[bytes] = deque()
        self._snapshot_first = -1  # entry of the next snapshot's first part, -1 before it is sent
        # Bytes packed since the last snapshot began. At `_snapshot_due` the next one begins.
        self._bytes_since_snapshot = 0
        self._snapshot_due = limits.snapshot_bytes
        # Set when nothing is in flight or the writer fails. `wait_until_idle` clears it.
        self._idle = asyncio.Event()
        self._pack_scheduled = False  # True from the first append of a loop turn to its end
        self._loop = asyncio.get_running_loop()

    @property
    def ledger(self) -> LedgerId:
        return self._sink.ledger

    async def wait_until_durable(self) -> None:
        """Wait until no entry is in flight. Raises the error that ended the writer."""
        await self.wait_until_idle()
        if self.failed is not None:
            raise self.failed

    async def wait_until_idle(self) -> None:
        """Wait until no entry is in flight, or the writer failed. Records may still wait."""
        while self._in_flight and self.failed is None:
            self._idle.clear()
            await self._idle.wait()

    @property
    def last_entry(self) -> EntryId:
        return self.last_dlsn.entry

    @property
    def headed(self) -> bool:
        """True once the snapshot at the head of the segment is durable."""
        if self.failed is not None or self._snapshot_entry < 0:
            return False
        return self.end_sequence_id > self.start_sequence_id or not self._in_flight

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
        txid: int | None = None,
    ) -> None:
        """Accept `count` user records in one opaque piece. They get the next sequence ids.

        The transaction id is the last sequence id, unless the caller passes its own, which must
        not be below the one before.

        `on_durable(None)` runs once they are durable and readable. `on_durable(error)` runs if
        this writer failed; a later recovery may still find them. Neither runs inside append.
        """
        assert self.failed is None
        first = self.next_sequence_id
        self.next_sequence_id = first + count
        record = StoredRecord(first, first + count, timestamp_max, size, data)
        if txid is None:
            txid = first + count - 1
        self._waiting.append(_Accepted(record, on_durable, txid))
        self.waiting_bytes += size
        if not self._pack_scheduled:
            self._pack_scheduled = True
            self._loop.call_soon(self._pack_turn)

    def take_waiting(self) -> list[_Accepted]:
        """Remove and return the records that are not packed, for `adopt` of the next segment."""
        moved = list(self._waiting)
        self._waiting.clear()
        self.waiting_bytes = 0
        return moved

    def adopt(self, moved: list[_Accepted]) -> None:
        """Accept records of the previous segment first. They keep their sequence ids."""
        assert not self._waiting
        for accepted in moved:
            assert accepted.record.sequence_id == self.next_sequence_id
            self.next_sequence_id = accepted.record.end_sequence_id
            self.waiting_bytes += accepted.record.size_bytes
            self._waiting.append(accepted)
        self.pack()

    def write_snapshot(self) -> None:
        """Begin a state snapshot. Entries after its last part point back to it."""
        self._begin_snapshot()
        self.pack()

    def _begin_snapshot(self) -> None:
        assert not self._snapshot_parts
        snapshot = self._take_snapshot(self.index, self.start_sequence_id + self._position)
        whole = snapshot.encode()
        self._snapshot_parts.extend(split(whole))
        # A large snapshot is written less often.
        self._snapshot_due = max(self._limits.snapshot_bytes, 8 * len(whole))
        self._snapshot_first = -1
        self._bytes_since_snapshot = 0

    def _send_part(self) -> None:
        """Send the next part. A record between two parts would be missing from the snapshot."""
        parts = self._snapshot_parts
        record = log_records.control_record(self._position, self._packed_txid, parts[0])
        entry = self._send([record], len(record), _NOTHING, 1, -1)
        if entry is None:
            return
        self._announced_entry = self.last_dlsn.entry
        parts.popleft()
        if self._snapshot_first < 0:
            self._snapshot_first = entry
        if not parts:
            self._snapshot_entry = self._snapshot_first

    def _pack_turn(self) -> None:
        self._pack_scheduled = False
        self.pack()

    def pack(self) -> None:
        """Pack waiting records into entries, until the ledger is full or the writer is paused."""
        sink = self._sink
        while self.failed is None and self._refused is None and not sink.full:
            if self._snapshot_parts:
                self._send_part()
                continue
            if not self._waiting or self.paused or self._position >= SEGMENT_RECORDS_MAX:
                break
            if len(self._in_flight) >= _UNCONFIRMED_MAX and self.waiting_bytes < _HELD_BYTES_MAX:
                break  # the next confirmation packs what waits then, in one entry
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
            buffers.append(log_records.set_head(position + 1, one.txid, count, record.size_bytes))
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
        self._position, self._packed_txid = position, accepted[-1].txid
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
        """Send one entry and return its number, or None if the ledger refused it.

        After a refusal nothing more is sent. Once the entries in flight are answered, all waiting
        records fail.
        """
        next_entry = self._next_entry()
        back = next_entry - self._snapshot_entry if self._snapshot_entry >= 0 else 0
        buffers.insert(0, log_records.envelope(size, back))
        try:
            entry = self._sink.add(buffers, self._entry_confirmed)
        except LedgerError as error:
            self._refused = error
            if not self._in_flight:
                self._loop.call_soon(self.fail, error)
            return None
        assert entry == next_entry
        self._in_flight.append(_Entry(entry, accepted, slots, timestamp_max))
        self.size_bytes += size + log_records.ENVELOPE_BYTES
        return entry

    def _next_entry(self) -> EntryId:
        if self._in_flight:
            return EntryId(self._in_flight[-1].entry + 1)
        return EntryId(self.last_dlsn.entry + 1)

    def _entry_confirmed(self, error: LedgerError | None) -> None:
        """Complete the oldest entry in flight. The ledger calls it once per entry, in order."""
        entry = self._in_flight.popleft()
        error = error or self._given_up
        if error is None:
            self._confirm(entry)
            if self._waiting or self._snapshot_parts:
                self.pack()
        else:
            self.fail(error, entry.accepted)
        if not self._in_flight:
            error = self.failed or self._refused
            if error is not None:
                self.fail(error)
            elif self.control_ms >= 0 and self._announced_entry < self._last_user_entry:
                self._schedule_control_record()
            self._idle.set()

    def _confirm(self, entry: _Entry) -> None:
        self.last_dlsn = Dlsn(self.number, entry.entry, entry.slots - 1)
        if not entry.accepted:
            return
        if self.failed is None:  # an abandoned stream's tail stays cleared
            append = self._tail.append
            for accepted in entry.accepted:
                append(accepted.record)
        if entry.timestamp_max > self.timestamp_max:
            self.timestamp_max = entry.timestamp_max
        self._last_user_entry = entry.entry
        last = entry.accepted[-1]
        self.end_sequence_id, self.last_txid = last.record.end_sequence_id, last.txid
        do_each("an acknowledgement", _acknowledge, entry.accepted)
        self._on_advanced(self.end_sequence_id)

    # An entry carries the LAC, so readers learn of the last record only from a further entry. If no
    # record follows, a control record carries the LAC. The timer fires twice per period, so that
    # the confirm path never reads the clock.

    def _schedule_control_record(self) -> None:
        if not self.control_ms:
            self._write_control_record()
        elif self._control_timer is None:
            half_s = self.control_ms / 2000
            last_seen = self.last_dlsn.entry
            self._control_timer = self._loop.call_later(half_s, self._write_if_idle, last_seen)

    def _write_if_idle(self, last_seen: EntryId) -> None:
        self._control_timer = None
        if self._in_flight or self._announced_entry >= self._last_user_entry or self.control_ms < 0:
            return  # a newer entry carries the LAC, or schedules a control record itself
        if self.last_dlsn.entry != last_seen:
            self._schedule_control_record()
        else:
            self._write_control_record()

    def _write_control_record(self) -> None:
        if self.paused or self.failed is not None or self._refused is not None or self._sink.full:
            return  # the segment is being completed, which readers notice as well
        record = log_records.control_record(self._position, self.last_txid, _CONTROL)
        self._announced_entry = self.last_dlsn.entry
        self._send([record], len(record), _NOTHING, 1, -1)

    def retire(self) -> None:
        """Stop control records: the ledger is closed, or another process owns it."""
        self.control_ms = -1
        if self._control_timer is not None:
            self._control_timer.cancel()
            self._control_timer = None

    def give_up(self, error: LedgerError) -> None:
        """Fail also the entries in flight, whatever the bookies answer: their places are given up.

        Their records may or may not be stored, as after a failed add.
        """
        self._given_up = error
        self.fail(error)

    def fail(self, error: LedgerError, accepted: Sequence[_Accepted] = ()) -> None:
        """Fail `accepted` now, and the waiting records after the entries in flight."""
        first_failure = self.failed is None
        self.failed = self.failed or error
        do_each("a failure", lambda one: one.on_durable(error), accepted)
        if not self._in_flight:
            do_each("a failure", lambda one: one.on_durable(error), self.take_waiting())
        if first_failure:
            self._idle.set()
            self._on_failed(error)


_NOTHING: list[_Accepted] = []
