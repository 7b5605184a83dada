"""Tracks the idempotent producers of one partition, to tell the next batch from a retry.

Each producer id has its last batches {epoch, first and last sequence, base offset}. A retry is
searched among the newest five batches of the current epoch, as in Kafka. The newest five durable
batches and all batches accepted later are kept. So the state as of any offset at or above the
durable end can be encoded, however many batches a client has in flight.

Pure. Source: Kafka, ProducerStateManager, ProducerAppendInfo and ProducerStateEntry.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Generator, Iterator
from itertools import islice
from operator import itemgetter
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from gateway.core.producer_losses import ProducerLosses

WINDOW = 5
SEQUENCE_MAX = 2**31 - 1
_STATE = Struct(">BI")  # header of the state: version, number of producers
_PRODUCER = Struct(">qqB")  # one producer: id, last use in ms, number of batches
_BATCH = Struct(">hiiqq")  # one batch: epoch, first and last sequence, base offset, timestamp
_VERSION = 1
_LOSS_VERSION = 2  # after the header: a loss
_IDLE_MS = 60_000  # a producer unused for this time may be encoded
_STEP_PRODUCERS = 5_000  # producers loaded between two pauses


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
    """One producer id that is in use."""

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
    """The idempotent producers that wrote to one partition recently.

    A producer that is not in use is kept as its bytes in the encoded state, about 170 B with its
    key.
    """

    def __init__(self, recent_max: int = 1_000) -> None:
        """Create an empty state.

        `recent_max` producers are kept decoded, besides those with batches in flight.
        """
        self._recent_max = recent_max
        # The loss in front of the records that this state was built from. Loaded with the state.
        self.losses = ProducerLosses()
        # Producers by id, the least recently used first. A producer is in one of the two. In
        # `_recent` it may have batches that are not durable, and more than `WINDOW`. Producers
        # beyond `_recent_max`, or idle for a while, move to `_settled` if all batches are durable.
        self._recent: OrderedDict[int, _Producer] = OrderedDict()
        # Encoded producers with durable batches only, in the order of their last use. The next
        # batch moves a producer to `_recent`. `encode` joins these bytes as they are.
        self._settled: dict[int, bytes] = {}

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._recent or producer_id in self._settled

    def __len__(self) -> int:
        return len(self._recent) + len(self._settled)

    @property
    def batches(self) -> int:
        """The number of batches of all producers."""
        settled = sum(len(each) - _PRODUCER.size for each in self._settled.values())
        recent = sum(len(producer.batches) for producer in self._recent.values())
        return recent + settled // _BATCH.size

    @property
    def producer_ids(self) -> list[int]:
        """The ids of all producers, in no order."""
        return [*self._settled, *self._recent]

    def newest(self, producer_id: int) -> AcceptedBatch | None:
        """Return the newest batch of a producer, or None if it has none."""
        producer = self._recent.get(producer_id)
        if producer is None:
            packed = self._settled.get(producer_id)
            return None if packed is None else _unpack(packed).batches[-1]
        return producer.batches[-1]

    def check(
        self, producer_id: int, epoch: int, first_sequence: int, records: int
    ) -> AcceptedBatch | ErrorCode:
        """Check a batch against the state of its producer.

        Returns `ErrorCode.none` if the batch is the next one. For a retry, returns the batch that
        was accepted before. Otherwise returns the error for the producer.
        """
        producer = self._recent.get(producer_id)
        if producer is None:
            packed = self._settled.get(producer_id)
            if packed is None:
                return self.losses.judge_unknown(producer_id, epoch, first_sequence)
            producer = _unpack(packed)
        newest = producer.batches[-1]
        if epoch < newest.epoch:
            return ErrorCode.invalid_producer_epoch
        if newest.base_offset < self.losses.end_offset:
            retried = _retried(producer, epoch, first_sequence, records)
            return retried or self.losses.judge(producer_id, epoch, first_sequence)
        if epoch > newest.epoch:
            return ErrorCode.none if first_sequence == 0 else _OUT_OF_ORDER
        if first_sequence == (newest.last_sequence + 1) & SEQUENCE_MAX:
            return ErrorCode.none
        return _retried(producer, epoch, first_sequence, records) or _OUT_OF_ORDER

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
        recent = self._recent
        producer = recent.get(producer_id)
        if producer is None:
            packed = self._settled.pop(producer_id, None)
            producer = recent[producer_id] = _Producer() if packed is None else _unpack(packed)
        else:
            recent.move_to_end(producer_id)
        last = (first_sequence + records - 1) & SEQUENCE_MAX
        batches = producer.batches
        batches.append(AcceptedBatch(epoch, first_sequence, last, base_offset, timestamp_ms))
        if len(batches) > WINDOW:
            producer.forget_before(durable_offset)
        producer.used_ms = now_ms
        if len(recent) > self._recent_max:
            # Two, so that their number falls again after a long stall.
            self._settle_oldest(durable_offset)
            self._settle_oldest(durable_offset)

    def _settle_oldest(self, durable_offset: int) -> bool:
        """Settle the least recently used producer. Returns False if it has batches in flight."""
        producer_id = next(iter(self._recent))
        producer = self._recent[producer_id]
        if producer.batches[-1].base_offset >= durable_offset:
            return False
        del self._recent[producer_id]
        producer.forget_before(durable_offset)
        self._settled[producer_id] = _pack(producer_id, producer.used_ms, producer.batches)
        return True

    def expire(self, now_ms: int, after_ms: int, count_max: int, *, durable_offset: int) -> int:
        """Drop producers unused for `after_ms` (Kafka: producer.id.expiration.ms).

        Settles those unused for a minute first. Returns the number of producers settled and
        dropped, which is at most about `count_max`. A loss is forgotten after the same time.
        """
        done = 0
        if self.losses.end_offset and now_ms - self.losses.passed_ms > after_ms:
            self.losses.forget()
        recent = self._recent
        while recent and done < count_max:
            producer = recent[next(iter(recent))]
            if now_ms - producer.used_ms < _IDLE_MS or not self._settle_oldest(durable_offset):
                break
            done += 1
        old: list[int] = []
        for producer_id, packed in islice(self._settled.items(), count_max):
            if now_ms - _PRODUCER.unpack_from(packed)[1] <= after_ms:
                break
            old.append(producer_id)
        for producer_id in old:
            del self._settled[producer_id]
        return done + len(old)

    def encode(self, end_offset: int) -> bytes:
        """Encode the state after all batches below `end_offset`, without any later batch.

        A later call never has a lower offset.
        """
        while len(self._recent) > self._recent_max and self._settle_oldest(end_offset):
            pass
        parts: list[bytes] = []
        for producer_id, producer in self._recent.items():
            producer.forget_before(end_offset)
            batches = [b for b in producer.batches if b.base_offset < end_offset][-WINDOW:]
            if batches:
                parts.append(_pack(producer_id, producer.used_ms, batches))
        count = len(self._settled) + len(parts)
        head = _STATE.pack(_VERSION, count)
        if self.losses.end_offset:
            head = _STATE.pack(_LOSS_VERSION, count) + self.losses.encode()
        return b"".join((head, *self._settled.values(), *parts))

    def load(self, data: bytes) -> Iterator[None]:
        """Replace the state by the decoded `data`; b"" has no producers. Raises ValueError.

        Yields between steps of bounded length. The state is complete after the last step.
        """
        self._recent.clear()
        self._settled.clear()
        self.losses.forget()
        if not data:
            return
        try:
            end = yield from self._load(data)
        except StructError as error:
            raise ValueError(f"producer state of {len(data)} bytes is truncated") from error
        if end != len(data):
            raise ValueError(f"producer state has {len(data) - end} extra bytes")

    def _load(self, data: bytes) -> Generator[None, None, int]:
        version, count = _STATE.unpack_from(data)
        at = _STATE.size
        if version == _LOSS_VERSION:
            self.losses.load(data, at)
            at += ProducerLosses.ENCODED_BYTES
        elif version != _VERSION:
            raise ValueError(
                f"producer state has version {version}; this release reads 1 to {_LOSS_VERSION}"
            )
        found: list[tuple[int, int, bytes]] = []  # last use, producer id and encoded producer
        for number in range(1, count + 1):
            producer_id, used_ms, batches = _PRODUCER.unpack_from(data, at)
            if not batches:
                raise ValueError(f"producer {producer_id} has no batch")
            end = at + _PRODUCER.size + batches * _BATCH.size
            if end > len(data):
                raise ValueError(f"producer state of {len(data)} bytes is truncated")
            found.append((used_ms, producer_id, data[at:end]))
            at = end
            if number % _STEP_PRODUCERS == 0:
                yield
        found.sort(key=itemgetter(0))  # release 0.1.0 encoded them in the order of their first use
        yield
        for number, (_, producer_id, packed) in enumerate(found, 1):
            self._settled[producer_id] = packed
            if number % _STEP_PRODUCERS == 0:
                yield
        return at


def _retried(
    producer: _Producer, epoch: int, first_sequence: int, records: int
) -> AcceptedBatch | None:
    """Return the batch that this one repeats, among the newest ones of its epoch."""
    last_sequence = sequence_after(first_sequence, records - 1)
    for seen, batch in enumerate(reversed(producer.batches)):
        if seen == WINDOW or batch.epoch != epoch:
            break
        if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
            return batch
    return None


def _pack(producer_id: int, used_ms: int, batches: Collection[AcceptedBatch]) -> bytes:
    head = _PRODUCER.pack(producer_id, used_ms, len(batches))
    return b"".join((head, *(_BATCH.pack(*batch) for batch in batches)))


def _unpack(packed: bytes) -> _Producer:
    producer = _Producer()
    _, producer.used_ms, _ = _PRODUCER.unpack_from(packed)
    for at in range(_PRODUCER.size, len(packed), _BATCH.size):
        producer.batches.append(AcceptedBatch(*_BATCH.unpack_from(packed, at)))
    return producer


_OUT_OF_ORDER = ErrorCode.out_of_order_sequence_number
