"""Tracks the idempotent producers of one partition, to tell the next batch from a retry.

Each producer id has its last batches {epoch, first and last sequence, base offset}. A retry is
searched among the newest five batches of the current epoch, as in Kafka. The newest five durable
batches and all batches accepted later are kept. So the state as of any offset at or above the
durable end can be encoded, however many batches a client has in flight.

Pure. Source: Kafka, ProducerStateManager, ProducerAppendInfo and ProducerStateEntry.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from kio.schema.errors import ErrorCode

WINDOW = 5
SEQUENCE_MAX = 2**31 - 1
_STATE = Struct(">BI")  # header of the state: version, number of producers
_PRODUCER = Struct(">qqB")  # one producer: id, last use in ms, number of batches
_BATCH = Struct(">hiiqq")  # one batch: epoch, first and last sequence, base offset, timestamp
_VERSION = 1


class AcceptedBatch(NamedTuple):
    """One batch of a producer, accepted and perhaps not durable yet."""

    epoch: int
    first_sequence: int
    last_sequence: int
    base_offset: int
    timestamp_ms: int

    @property
    def end_offset(self) -> int:
        """The offset after the last record of the batch."""
        return self.base_offset + sequence_distance(self.first_sequence, self.last_sequence) + 1


class _Producer:
    """One producer id."""

    __slots__ = ("batches", "used_ms")

    def __init__(self) -> None:
        # Batches in the order of their offsets. Never empty once a batch was accepted or loaded.
        self.batches: deque[AcceptedBatch] = deque()
        # Wall-clock time at which the last batch was accepted.
        self.used_ms = 0

    def forget_before(self, offset: int) -> None:
        """Keep the newest `WINDOW` batches below `offset`, and all at or above it."""
        batches = self.batches
        while len(batches) > WINDOW and batches[WINDOW].base_offset < offset:
            batches.popleft()


def sequence_after(sequence: int, steps: int) -> int:
    """Return the sequence `steps` later. Sequences wrap from 2^31-1 to 0."""
    return (sequence + steps) & SEQUENCE_MAX


def sequence_distance(first: int, last: int) -> int:
    """Return how many steps `last` is after `first`."""
    return (last - first) & SEQUENCE_MAX


class ProducerStates:
    """The idempotent producers that wrote to one partition recently."""

    def __init__(self) -> None:
        # By producer id. An entry exists from the first accepted batch until it expires.
        self._producers: dict[int, _Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def check(
        self, producer_id: int, epoch: int, first_sequence: int, records: int
    ) -> AcceptedBatch | ErrorCode:
        """Check a batch against the state of its producer.

        Returns `ErrorCode.none` if the batch is the next one. For a retry, returns the batch that
        was accepted before. Otherwise returns the error for the producer.
        """
        producer = self._producers.get(producer_id)
        if producer is None:
            return ErrorCode.none
        newest = producer.batches[-1]
        if epoch != newest.epoch:
            if epoch < newest.epoch:
                return ErrorCode.invalid_producer_epoch
            return ErrorCode.none if first_sequence == 0 else _OUT_OF_ORDER
        if first_sequence == (newest.last_sequence + 1) & SEQUENCE_MAX:
            return ErrorCode.none
        last_sequence = sequence_after(first_sequence, records - 1)
        for seen, batch in enumerate(reversed(producer.batches)):
            if seen == WINDOW or batch.epoch != epoch:
                break
            if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                return batch
        return _OUT_OF_ORDER

    def accept(
        self,
        producer_id: int,
        epoch: int,
        first_sequence: int,
        records: int,
        base_offset: int,
        timestamp_ms: int,
        now_ms: int,
        *,
        durable_offset: int,
    ) -> None:
        """Record a batch that `check` allowed and that got `base_offset`.

        From now on `encode` is never called with an offset below `durable_offset`.
        """
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = _Producer()
        last = sequence_after(first_sequence, records - 1)
        batches = producer.batches
        batches.append(AcceptedBatch(epoch, first_sequence, last, base_offset, timestamp_ms))
        if len(batches) > WINDOW:
            producer.forget_before(durable_offset)
        producer.used_ms = now_ms

    def expire(self, now_ms: int, after_ms: int) -> None:
        """Drop producers unused for `after_ms` (Kafka: producer.id.expiration.ms)."""
        old = [i for i, p in self._producers.items() if now_ms - p.used_ms > after_ms]
        for producer_id in old:
            del self._producers[producer_id]

    def encode(self, end_offset: int) -> bytes:
        """Encode the state after all batches below `end_offset`, without any later batch.

        A later call never has a lower offset.
        """
        parts: list[bytes] = []
        count = 0
        for producer_id, producer in self._producers.items():
            producer.forget_before(end_offset)
            batches = [b for b in producer.batches if b.base_offset < end_offset][-WINDOW:]
            if batches:
                count += 1
                parts.append(_PRODUCER.pack(producer_id, producer.used_ms, len(batches)))
                parts += [_BATCH.pack(*batch) for batch in batches]
        return _STATE.pack(_VERSION, count) + b"".join(parts)

    def load(self, data: bytes) -> None:
        """Replace the state by the decoded `data`; b"" has no producers. Raises ValueError."""
        self._producers.clear()
        if not data:
            return
        try:
            end = self._load(data)
        except StructError as error:
            raise ValueError(f"producer state of {len(data)} bytes is truncated") from error
        if end != len(data):
            raise ValueError(f"producer state has {len(data) - end} extra bytes")

    def _load(self, data: bytes) -> int:
        version, count = _STATE.unpack_from(data)
        if version != _VERSION:
            raise ValueError(f"producer state has version {version}; this release reads {_VERSION}")
        at = _STATE.size
        for _ in range(count):
            producer_id, used_ms, batches = _PRODUCER.unpack_from(data, at)
            if not batches:
                raise ValueError(f"producer {producer_id} has no batch")
            at += _PRODUCER.size
            producer = self._producers[producer_id] = _Producer()
            producer.used_ms = used_ms
            for _ in range(batches):
                producer.batches.append(AcceptedBatch(*_BATCH.unpack_from(data, at)))
                at += _BATCH.size
        return at


_OUT_OF_ORDER = ErrorCode.out_of_order_sequence_number
