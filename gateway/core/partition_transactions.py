"""The transactions in one partition: open ones, aborted ones, and the last stable offset. Pure.

This stands beside `ProducerStates`, which checks the sequences of the same batches. Each producer
of transactions has its epoch, the epoch of the coordinator that ended its last transaction, and the
first offset of its open one. The last stable offset is the lowest first offset of transactions that
are open or whose marker is not durable yet. It never falls.

Source: Apache Kafka 4.3, ProducerStateManager, ProducerAppendInfo, VerificationStateEntry and
UnifiedLog; KIP-98, KIP-890, KIP-1228.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from gateway.core.transaction_states import EPOCH_BUMP_VERSION, EPOCH_MAX, NO_EPOCH

NO_OFFSET = -1
NO_LEADER_EPOCH = -1
"""The leader epoch of a partition that is being opened, and of a marker that names none."""
ABORTED_MAX = 65_536
"""The aborted transactions of one segment. A segment is to roll before it has more."""
_IDLE_GUARDS_MAX = 1_000

_HEAD = Struct(">BII")  # version, number of producers, number of aborted transactions
_PRODUCER = Struct(">qhiqqq")  # id, epoch, coordinator epoch, first offset, start and use in ms
_ROWS_PER_STEP = 2_000  # rows of a snapshot that are decoded before other tasks run
_ABORTED = Struct(">qqqq")  # producer id, first and last offset, last stable offset
_VERSION = 1


class AbortedTransaction(NamedTuple):
    """One aborted transaction of the partition, as Fetch returns it to readers."""

    producer_id: int
    first_offset: int
    last_offset: int  # the offset of its marker
    # The last stable offset once the marker was durable. Transactions that end later begin at or
    # above it, unless they were open already.
    stable_offset: int


class ProducerTransactions(NamedTuple):
    """The transactions of one producer id."""

    epoch: int = NO_EPOCH
    coordinator_epoch: int = -1  # of the last marker
    first_offset: int = NO_OFFSET  # of the open transaction; -1 if there is none
    started_ms: int = -1
    used_ms: int = 0
    # The last marker of this ownership. Not stored: a marker names the leader epoch that it is for.
    number: int = -1
    marker_offset: int = NO_OFFSET

    @property
    def open(self) -> bool:
        return self.first_offset != NO_OFFSET


_NO_TRANSACTIONS = ProducerTransactions()


class EndMarker(NamedTuple):
    """A marker for one partition. `number` and `leader_epoch` are -1 if a broker sent neither."""

    producer_id: int
    epoch: int
    coordinator_epoch: int
    commit: bool
    version: int = 0  # the transaction version; from 2 on the epoch is above that of the batches
    number: int = -1
    leader_epoch: int = NO_LEADER_EPOCH


class RepeatedMarker(NamedTuple):
    """A marker that is in the log already. Answer once the log is durable past `offset`."""

    offset: int


class Guard(NamedTuple):
    """The verification of one producer, from its question to the batch or marker that ends it.

    `number` is unique in this ownership, so the answer to an earlier question cannot pass for that
    to a later one.
    """

    number: int
    epoch: int
    lowest_sequence: int
    bumps_epoch: bool  # the producer uses protocol 2
    used_ms: int
    # The first batch of a producer that is unknown in this partition must have the sequence 0.
    # Always in protocol 2; in protocol 1 while the lowest sequences of some guards are forgotten.
    from_zero: bool


class _Event(NamedTuple):
    """A change that is not durable yet: the producer as it was before it."""

    offset: int
    producer_id: int
    before: ProducerTransactions | None


class PartitionTransactions:
    """The transactions of one partition, during one ownership with `leader_epoch`."""

    def __init__(self, leader_epoch: int = 0) -> None:
        self.leader_epoch = leader_epoch
        self._producers: dict[int, ProducerTransactions] = {}
        # First offsets of transactions that hold back the last stable offset, ascending. The value
        # is the offset of the marker, or -1 while the transaction is open. An entry goes when its
        # marker is durable.
        self._unstable: OrderedDict[int, int] = OrderedDict()
        # The first offsets of open transactions, ascending. All are in `_unstable` too.
        self._open: OrderedDict[int, None] = OrderedDict()
        # Marker and first offset of each ended transaction in `_unstable`, in the order of markers.
        self._ended: deque[tuple[int, int]] = deque()
        # The aborted transactions of this segment, in the order of their markers.
        self._aborted: list[AbortedTransaction] = []
        # Changes at or above the durable offset, in the order of their offsets.
        self._events: deque[_Event] = deque()
        # Verifications under way or answered, by producer id, until a batch or a marker.
        self._guards: dict[int, Guard] = {}
        self._guard_number = 0  # rises by one with each guard
        # The producer ids of guards whose question was answered, the oldest answer first. Clients
        # choose the ids, so at most `_IDLE_GUARDS_MAX` are kept.
        self._idle_guards: dict[int, None] = {}
        # When the newest guard was dropped for that bound, until `expire`. None if none was.
        self._forgot_ms: int | None = None

    def __len__(self) -> int:
        return len(self._producers)

    def producer(self, producer_id: int) -> ProducerTransactions | None:
        """Return the transactions of one producer, or None if it has none."""
        return self._producers.get(producer_id)

    @property
    def producer_ids(self) -> list[int]:
        """The ids of all producers that have or had transactions, in no order."""
        return list(self._producers)

    def open_before(self, offset: int) -> list[tuple[int, ProducerTransactions]]:
        """Return the open transactions that began below `offset`, in order, by producer id."""
        found = [
            (producer_id, known)
            for producer_id, known in self._producers.items()
            if known.open and known.first_offset < offset
        ]
        return sorted(found, key=lambda each: each[1].first_offset)

    @property
    def aborted(self) -> Sequence[AbortedTransaction]:
        """The aborted transactions of this segment, in the order of their markers."""
        return self._aborted

    # -- the last stable offset -----------------------------------------------------------------

    def stable_offset(self, high_watermark: int, log_start: int = 0) -> int:
        """Return the offset up to which the outcome of every record is known and durable."""
        first = next(iter(self._unstable), high_watermark)
        return max(min(first, high_watermark), min(log_start, high_watermark))

    def on_durable(self, end_offset: int) -> None:
        """Release what was durable below `end_offset`, which never falls."""
        events = self._events
        while events and events[0].offset < end_offset:
            events.popleft()
        ended = self._ended
        while ended and ended[0][0] < end_offset:
            del self._unstable[ended.popleft()[1]]

    # -- batches --------------------------------------------------------------------------------

    def begin_verification(
        self, producer_id: int, epoch: int, first_sequence: int, now_ms: int, *, bumps_epoch: bool
    ) -> Guard | ErrorCode | None:
        """Begin to verify the first batch of a transaction with its coordinator.

        Returns None if the transaction is open, so that no question is needed.
        """
        known = self._producers.get(producer_id)
        if known is not None:
            if epoch < known.epoch:
                return ErrorCode.invalid_producer_epoch
            if known.open and known.epoch == epoch:
                return None
        guard = self._guards.get(producer_id)
        if guard is None:
            self._guard_number += 1
            from_zero = bumps_epoch or self._forgot_ms is not None
            guard = Guard(self._guard_number, epoch, first_sequence, bumps_epoch, now_ms, from_zero)
        elif epoch > guard.epoch:
            guard = guard._replace(epoch=epoch, lowest_sequence=first_sequence)
        elif epoch == guard.epoch:
            guard = guard._replace(lowest_sequence=min(first_sequence, guard.lowest_sequence))
        self._guards[producer_id] = guard
        self._idle_guards.pop(producer_id, None)
        return guard

    def end_verification(
        self, producer_id: int, number: int, now_ms: int, *, refused: bool = False
    ) -> None:
        """Record that the question of the guard with `number` was answered.

        A refused guard is dropped. Others are kept for the batch, or for its retry: a later batch
        must not overtake it. Beyond the bound the oldest one is dropped. A batch that it allowed is
        refused, and unknown producers must begin at the sequence 0 until `expire` finds that old.
        """
        guard = self._guards.get(producer_id)
        if guard is None or guard.number != number:
            return  # a batch or a marker ended it
        if refused:
            self._drop_guard(producer_id)
            return
        self._idle_guards.pop(producer_id, None)
        self._idle_guards[producer_id] = None
        if len(self._idle_guards) > _IDLE_GUARDS_MAX:
            self._drop_guard(next(iter(self._idle_guards)))
            self._forgot_ms = now_ms

    def _drop_guard(self, producer_id: int) -> None:
        self._guards.pop(producer_id, None)
        self._idle_guards.pop(producer_id, None)

    def guard(self, producer_id: int) -> Guard | None:
        """Return the verification of this producer that a batch or a marker has not ended."""
        return self._guards.get(producer_id)

    def check_batch(
        self,
        producer_id: int,
        epoch: int,
        first_sequence: int,
        guard: Guard | None = None,
        *,
        transactional: bool,
        first_of_producer: bool = False,
    ) -> ErrorCode:
        """Check a batch that repeats none. `guard` is that of its verification, if it had one.

        `first_of_producer` is True if no batch of this producer is known in this partition.
        """
        known = self._producers.get(producer_id)
        if known is not None and epoch < known.epoch:
            return ErrorCode.invalid_producer_epoch
        is_open = known is not None and known.open
        if not transactional:
            return ErrorCode.invalid_txn_state if is_open else ErrorCode.none
        if known is not None and is_open and known.epoch == epoch:
            return ErrorCode.none
        held = self._guards.get(producer_id)
        if held is None or guard is None or held.number != guard.number:
            return ErrorCode.invalid_txn_state
        if held.from_zero and first_of_producer and first_sequence != 0:
            return ErrorCode.out_of_order_sequence_number
        # A later batch must not overtake the first one, which is still being verified.
        late = first_sequence > held.lowest_sequence
        return ErrorCode.out_of_order_sequence_number if late else ErrorCode.none

    def accept_batch(
        self, producer_id: int, epoch: int, base_offset: int, now_ms: int, *, transactional: bool
    ) -> None:
        """Record a batch that `check_batch` allowed and that got `base_offset`."""
        known = self._producers.get(producer_id)
        if not transactional and known is None:
            return  # a producer without transactions costs nothing here
        before = known or _NO_TRANSACTIONS
        first, started_ms = before.first_offset, before.started_ms
        if transactional:
            self._drop_guard(producer_id)
            if first == NO_OFFSET:
                first, started_ms = base_offset, now_ms
                self._unstable[base_offset] = NO_OFFSET
                self._open[base_offset] = None
        if known is None or known.epoch != epoch or known.first_offset != first:
            self._events.append(_Event(base_offset, producer_id, known))
        self._producers[producer_id] = ProducerTransactions(
            epoch,
            before.coordinator_epoch,
            first,
            started_ms,
            now_ms,
            before.number,
            before.marker_offset,
        )

    # -- markers --------------------------------------------------------------------------------

    def check_marker(self, marker: EndMarker) -> ErrorCode | RepeatedMarker:
        """Check a marker. Returns `ErrorCode.none` if it may be appended."""
        if marker.leader_epoch not in (NO_LEADER_EPOCH, self.leader_epoch):
            # It was sent to an earlier ownership, whose numbers are unknown here. While the
            # partition is being opened, that holds for each marker that names one.
            return ErrorCode.not_leader_or_follower
        known = self._producers.get(marker.producer_id)
        if known is None:
            return ErrorCode.none
        if _epoch_is_late(known, marker):
            return ErrorCode.invalid_producer_epoch
        if known.coordinator_epoch > marker.coordinator_epoch:
            return ErrorCode.transaction_coordinator_fenced
        same_coordinator = known.coordinator_epoch == marker.coordinator_epoch
        if same_coordinator and 0 <= marker.number <= known.number:
            # In protocol 1 a late copy has the epoch of the transaction after its own.
            return RepeatedMarker(known.marker_offset)
        return ErrorCode.none

    def accept_marker(self, marker: EndMarker, offset: int, now_ms: int) -> None:
        """Record a marker that `check_marker` allowed and that got `offset`."""
        producer_id = marker.producer_id
        known = self._producers.get(producer_id)
        self._events.append(_Event(offset, producer_id, known))
        guard = self._guards.get(producer_id)
        # In protocol 2 the next transaction may already be verified; it has the marker's epoch.
        if guard is not None and not (guard.bumps_epoch and guard.epoch == marker.epoch):
            self._drop_guard(producer_id)
        number = marker.number
        if known is not None:
            if known.open:
                self._end(producer_id, known.first_offset, marker, offset)
            if known.coordinator_epoch == marker.coordinator_epoch:
                # An admin client numbers nothing, and must not let a late copy pass.
                number = max(number, known.number)
        self._producers[producer_id] = ProducerTransactions(
            marker.epoch,
            marker.coordinator_epoch,
            used_ms=now_ms,
            number=number,
            marker_offset=offset,
        )

    def _end(self, producer_id: int, first: int, marker: EndMarker, offset: int) -> None:
        self._unstable[first] = offset
        del self._open[first]
        self._ended.append((offset, first))
        if marker.commit:
            return
        stable = next(iter(self._open), offset + 1)
        self._aborted.append(AbortedTransaction(producer_id, first, offset, stable))

    # -- segments and expiry --------------------------------------------------------------------

    @property
    def must_roll(self) -> bool:
        """True if the segment has to roll before another transaction is aborted in it."""
        return len(self._aborted) >= ABORTED_MAX

    def roll(self, start_offset: int) -> tuple[int, tuple[AbortedTransaction, ...]]:
        """Begin a new segment at `start_offset`, below which all is durable.

        Returns the last stable offset there, and the transactions that were aborted in the segment
        before. Markers that were accepted and wait for the new segment belong to it.
        """
        stable = start_offset
        for first, end in self._unstable.items():
            if first < start_offset and (end == NO_OFFSET or end >= start_offset):
                stable = first
                break
        before = tuple(one for one in self._aborted if one.last_offset < start_offset)
        self._aborted = [one for one in self._aborted if one.last_offset >= start_offset]
        return stable, before

    def expire(self, now_ms: int, after_ms: int, *, durable_offset: int) -> int:
        """Drop producers without an open transaction that were unused for `after_ms`.

        Drops verifications of that age too. Returns the number of producers dropped.
        """
        old: list[int] = []
        for producer_id, guard in self._guards.items():  # in the order of their beginning
            if now_ms - guard.used_ms <= after_ms:
                break
            old.append(producer_id)
        for producer_id in old:
            self._drop_guard(producer_id)
        if self._forgot_ms is not None and now_ms - self._forgot_ms > after_ms:
            self._forgot_ms = None
        changed = {event.producer_id for event in self._events if event.offset >= durable_offset}
        old = [
            producer_id
            for producer_id, known in self._producers.items()
            if not known.open
            and now_ms - known.used_ms > after_ms
            and producer_id not in changed
            and producer_id not in self._guards
        ]
        for producer_id in old:
            del self._producers[producer_id]
        return len(old)

    # -- snapshots ------------------------------------------------------------------------------

    def encode(self, end_offset: int) -> bytes:
        """Encode the state after all records below `end_offset`, without any later change.

        A later call never has a lower offset.
        """
        undone: dict[int, ProducerTransactions | None] = {}
        for event in self._events:
            if event.offset >= end_offset:
                undone.setdefault(event.producer_id, event.before)
        producers = {**self._producers, **undone}
        parts = [
            _PRODUCER.pack(
                producer_id,
                known.epoch,
                known.coordinator_epoch,
                known.first_offset,
                known.started_ms,
                known.used_ms,
            )
            for producer_id, known in producers.items()
            if known is not None
        ]
        aborted = [_ABORTED.pack(*one) for one in self._aborted if one.last_offset < end_offset]
        return b"".join((_HEAD.pack(_VERSION, len(parts), len(aborted)), *parts, *aborted))

    def load(self, data: bytes) -> Iterator[None]:
        """Replace the state by the decoded `data`; b"" has no transactions. Raises ValueError.

        Yields between steps of bounded length. The state is complete after the last step.
        """
        self._producers.clear()
        self._unstable.clear()
        self._open.clear()
        self._ended.clear()
        self._events.clear()
        self._guards.clear()
        self._idle_guards.clear()
        self._forgot_ms = None
        self._aborted = []
        if not data:
            return
        try:
            yield from self._load(data)
        except StructError as error:
            raise ValueError(f"transactions of {len(data)} bytes are truncated") from error

    def _load(self, data: bytes) -> Iterator[None]:
        producers, aborted = stored_rows(data)
        first_offsets: list[int] = []
        for number, (producer_id, *fields) in enumerate(producers, 1):
            known = self._producers[producer_id] = ProducerTransactions(*fields)
            if known.open:
                first_offsets.append(known.first_offset)
            if number % _ROWS_PER_STEP == 0:
                yield
        for number, row in enumerate(aborted, 1):
            self._aborted.append(AbortedTransaction(*row))
            if number % _ROWS_PER_STEP == 0:
                yield
        self._open = OrderedDict.fromkeys(sorted(first_offsets))
        self._unstable.update(dict.fromkeys(self._open, NO_OFFSET))


def _epoch_is_late(known: ProducerTransactions, marker: EndMarker) -> bool:
    if marker.version < EPOCH_BUMP_VERSION:
        return marker.epoch < known.epoch
    if marker.epoch == known.epoch:
        # A retry if no transaction is open. The highest epoch may recover from an earlier mistake.
        return known.open and marker.epoch != EPOCH_MAX
    return marker.epoch < known.epoch


def stored_rows(
    data: bytes,
) -> tuple[Iterator[tuple[int, int, int, int, int, int]], Iterator[tuple[int, int, int, int]]]:
    """Return the rows of what `PartitionTransactions.encode` returned, decoded one by one.

    A row of a producer has its id and the first fields of `ProducerTransactions`, one of an aborted
    transaction those of `AbortedTransaction`. Raises ValueError, or struct.error if it is short.
    """
    version, producers, aborted = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise ValueError(f"transactions have version {version}; this release reads {_VERSION}")
    end = _HEAD.size + producers * _PRODUCER.size + aborted * _ABORTED.size
    if end != len(data):
        raise ValueError(f"transactions have {len(data)} bytes instead of {end}")
    view = memoryview(data)
    at = _HEAD.size + producers * _PRODUCER.size
    return _PRODUCER.iter_unpack(view[_HEAD.size : at]), _ABORTED.iter_unpack(view[at:])


def aborted_between(
    segments: Iterator[Sequence[AbortedTransaction]], start_offset: int, end_offset: int
) -> list[AbortedTransaction]:
    """Return the aborted transactions that overlap the offsets from `start_offset` to `end_offset`.

    `segments` are the lists of the segment with `start_offset` and of all later ones. It is read
    only as far as needed: a long transaction may be aborted in a later segment than its records.
    """
    found: list[AbortedTransaction] = []
    for aborted in segments:
        for one in aborted:
            if one.last_offset >= start_offset and one.first_offset < end_offset:
                found.append(one)
            if one.stable_offset >= end_offset:
                return found
    return found
