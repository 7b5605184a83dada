"""The state that the stream of a partition snapshots and replays: its producers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gateway.core.partition_transactions import PartitionTransactions
from gateway.core.producer_states import ProducerStates
from gateway.wire import batches
from ledger.errors import CorruptFormat

_PRODUCER_EXPIRY_MS = 86_400_000  # Kafka: producer.id.expiration.ms
_EXPIRED_PER_TURN = 5_000  # producers forgotten between two pauses for other tasks


class PartitionState:
    """The `OwnerState` of a partition's stream: its producers."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        # The producers of every accepted batch. Loaded and replayed when the stream is opened.
        self.producers = ProducerStates()
        # The transactions of these producers.
        self.transactions = PartitionTransactions()
        self._now_ms = now_ms

    def encode(self, end_sequence_id: int) -> bytes:
        return self.producers.encode(end_sequence_id)

    def expire(self, durable_offset: int) -> int:
        """Forget some producers that are unused for a day. Returns 0 once none is left."""
        return self.producers.expire(
            self._now_ms(), _PRODUCER_EXPIRY_MS, _EXPIRED_PER_TURN, durable_offset=durable_offset
        )

    def load(self, data: bytes) -> Iterator[None]:
        try:
            yield from self.producers.load(data)
        except ValueError as error:
            raise CorruptFormat(f"producer state: {error}") from error

    def replay(self, sequence_id: int, data: memoryview) -> None:
        header = batches.read_header(data)
        if header.producer_id >= 0:
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

    def pass_loss(self, first: int, last: int) -> None:
        self.producers.losses.pass_loss(last, self._now_ms())

    def timestamp_max(self, data: memoryview) -> int:
        return batches.timestamp_max(data)
