"""The state that the stream of a partition snapshots and replays: producers and transactions.

    version 1, 2 = the producers alone (gateway.core.producer_states)
    version 3    = version · lengths of the next two · first offset of the present list
                   · producers · transactions · aborted transactions of the segment before

Version 3 is written only if a transaction is known. Releases without transactions refuse it: they
would let readers pass the last stable offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from gateway.core.aborted_lists import SegmentAborted, decode_aborted
from gateway.core.partition_transactions import EndMarker, PartitionTransactions
from gateway.core.producer_states import ProducerStates
from gateway.wire import batches
from gateway.wire.end_markers import read_marker
from ledger.errors import CorruptFormat

_PRODUCER_EXPIRY_MS = 86_400_000  # Kafka: producer.id.expiration.ms
_EXPIRED_PER_TURN = 5_000  # producers forgotten between two pauses for other tasks
_EXPIRY_PERIOD_MS = 600_000  # time between two searches for unused producers of transactions
_VERSION = 3
_HEAD = Struct(">BIIq")
_NOTHING_BEFORE = SegmentAborted(0, 0, 0)
_UNKNOWN = 2**62


class PartitionState:
    """The `OwnerState` of a partition's stream: its producers and their transactions."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        # The producers of every accepted batch. Loaded and replayed when the stream is opened.
        self.producers = ProducerStates()
        # The transactions of these producers.
        self.transactions = PartitionTransactions()
        # True once a transaction or a marker is known, until the next `load` without one. While it
        # is False, the partition of plain producers does no work for transactions.
        self.transactional = False
        # The list of `transactions` has all that were aborted from this offset on. Above all
        # offsets after a snapshot without transactions, until `cover` or the next segment.
        self.since = 0
        # The list of the segment before, which the head snapshot of the present one stores.
        self.before = _NOTHING_BEFORE
        # One past the last offset of the losses that the last load passed; 0 without any. A marker
        # may have been among them.
        self.lost_end = 0
        self._now_ms = now_ms
        # Time of the last search for unused producers of transactions.
        self._expired_ms = 0

    def encode(self, end_sequence_id: int) -> bytes:
        producers = self.producers.encode(end_sequence_id)
        known = self.transactions
        if not (len(known) or known.aborted or self.before.aborted):
            return producers
        transactions = known.encode(end_sequence_id)
        head = _HEAD.pack(_VERSION, len(producers), len(transactions), self.since)
        return b"".join((head, producers, transactions, self.before.encode()))

    def expire(self, durable_offset: int) -> int:
        """Forget some producers that are unused for a day. Returns 0 once none is left."""
        now_ms = self._now_ms()
        if self.transactional and now_ms - self._expired_ms > _EXPIRY_PERIOD_MS:
            self._expired_ms = now_ms
            self.transactions.expire(now_ms, _PRODUCER_EXPIRY_MS, durable_offset=durable_offset)
        return self.producers.expire(
            now_ms, _PRODUCER_EXPIRY_MS, _EXPIRED_PER_TURN, durable_offset=durable_offset
        )

    def load(self, data: bytes) -> Iterator[None]:
        try:
            yield from self._load(data)
        except (ValueError, StructError) as error:
            raise CorruptFormat(f"producer state: {error}") from error

    def _load(self, data: bytes) -> Iterator[None]:
        self.transactional, self.lost_end = False, 0
        self.since, self.before = _UNKNOWN, _NOTHING_BEFORE
        yield from self.transactions.load(b"")
        if data[:1] != bytes([_VERSION]):
            yield from self.producers.load(data)
            return
        _, producers, transactions, self.since = _HEAD.unpack_from(data)
        at = _HEAD.size + producers
        end = at + transactions
        yield from self.producers.load(data[_HEAD.size : at])
        yield from self.transactions.load(data[at:end])
        self.before = decode_aborted(data[end:])
        self.transactional = True

    def replay(self, sequence_id: int, data: memoryview) -> None:
        header = batches.read_header(data)
        if header.producer_id < 0:
            return
        if header.attributes & batches.CONTROL:
            self._replay_marker(sequence_id, data, header)
            return
        stamped = header.attributes & batches.LOG_APPEND_TIME
        self.producers.accept(
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.records,
            sequence_id,
            header.max_timestamp if stamped else -1,
            self._now_ms(),
            durable_offset=sequence_id,
        )
        transactional = header.attributes & batches.TRANSACTIONAL != 0
        if transactional or self.transactional:
            self.accept_batch(header, sequence_id, self._now_ms())
            self.transactions.on_durable(sequence_id + header.records)

    def _replay_marker(
        self, sequence_id: int, data: memoryview, header: batches.BatchHeader
    ) -> None:
        try:
            stored = read_marker(data, header)
        except ValueError as error:
            raise CorruptFormat(f"offset {sequence_id}: {error}") from error
        assert stored is not None
        marker = EndMarker(
            header.producer_id, header.producer_epoch, stored.coordinator_epoch, stored.commit
        )
        self.accept_marker(marker, sequence_id, self._now_ms())
        self.transactions.on_durable(sequence_id + 1)

    def accept_batch(self, header: batches.BatchHeader, base_offset: int, now_ms: int) -> None:
        """Record a batch of an idempotent producer that got `base_offset`."""
        transactional = header.attributes & batches.TRANSACTIONAL != 0
        self.transactional = self.transactional or transactional
        self.transactions.accept_batch(
            header.producer_id,
            header.producer_epoch,
            base_offset,
            now_ms,
            transactional=transactional,
        )

    def accept_marker(self, marker: EndMarker, offset: int, now_ms: int) -> None:
        """Record a marker that got `offset`."""
        self.transactional = True
        self.transactions.accept_marker(marker, offset, now_ms)

    def pass_loss(self, first: int, last: int) -> None:
        self.producers.losses.pass_loss(last, self._now_ms())
        self.lost_end = max(self.lost_end, last + 1)

    timestamp_max = staticmethod(batches.timestamp_max)

    # -- segments -----------------------------------------------------------------------------

    def cover(self, start: int) -> None:
        """Note that the newest segment, of which the state was rebuilt, begins at `start`."""
        if self.since == _UNKNOWN:
            self.since = start

    def begin_segment(self, start: int) -> None:
        """Begin the list of a segment that begins at `start`, before its head snapshot."""
        stable, aborted = self.transactions.roll(start)
        self.before = SegmentAborted(self.since, start, stable, aborted)
        self.since = start


class StoredTransactions(NamedTuple):
    """The transactions of a stored state: `rows` for `stored_rows`, the rest as in the state."""

    since: int
    rows: bytes
    before: SegmentAborted


def stored_transactions(state: bytes) -> StoredTransactions | None:
    """Return the transactions of what `PartitionState.encode` returned, None if it has none.

    Raises CorruptFormat.
    """
    if not _has_transactions(state):
        return None
    try:
        _, producers, transactions, since = _HEAD.unpack_from(state)
        at = _HEAD.size + producers
        end = at + transactions
        return StoredTransactions(since, state[at:end], decode_aborted(state[end:]))
    except (ValueError, StructError) as error:
        raise CorruptFormat(f"transactions of a partition: {error}") from error


def aborted_before(state: bytes, start: int) -> SegmentAborted:
    """Return the list of the segment that ends at `start`, from the state of the head there.

    Raises CorruptFormat.
    """
    if not _has_transactions(state):
        return SegmentAborted(start, start, start)  # no transaction was known
    try:
        _, producers, transactions, _ = _HEAD.unpack_from(state)
        return decode_aborted(state[_HEAD.size + producers + transactions :])
    except (ValueError, StructError) as error:
        raise CorruptFormat(f"aborted transactions before {start}: {error}") from error


def aborted_of_footer(first: int, end: int, data: bytes) -> SegmentAborted:
    """Return the list in the footer of a cleaned segment with these bounds.

    An empty one has no last stable offset, so a lookup goes on in the next segment. A footer has
    its list in the order of the records; lookups need that of the markers. Raises CorruptFormat.
    """
    if not data:
        return SegmentAborted(first, end, first)
    try:
        one = decode_aborted(data)
        in_order = tuple(sorted(one.aborted, key=attrgetter("last_offset")))
        return one._replace(first_offset=first, end_offset=end, aborted=in_order)
    except ValueError as error:
        raise CorruptFormat(f"aborted transactions of {first} to {end}: {error}") from error


def _has_transactions(state: bytes) -> bool:
    """Return whether a transaction was known. Raises CorruptFormat for a later version."""
    version = state[0] if state else 0
    if version > _VERSION:
        raise CorruptFormat(f"a partition's state has version {version}, up to {_VERSION} is read")
    return version == _VERSION
