"""What a loaded group remembers of transactions, besides its pending offsets. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from kio.schema.errors import ErrorCode

from gateway.core.partition_transactions import EndMarker
from gateway.core.transaction_states import EPOCH_BUMP_VERSION
from subscriptions.committed_offset import TopicIdPartition

_NUMBERS_MAX: Final = 1_000  # producers of one group whose last marker is remembered


class Verification:
    """A request that asks the coordinator of its transaction, until its offsets are accepted."""

    __slots__ = ("epoch", "voided")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.voided = False  # True once a marker has ended the transaction


class GroupTransactions:
    """What one loaded group remembers of transactions, besides its pending offsets."""

    def __init__(self) -> None:
        # True once the group is in `TransactionalGroups`, from this load on.
        self.registered = False
        # Partitions whose pending offsets are accepted and not durable yet.
        self.in_flight: Counter[TopicIdPartition] = Counter()
        # The number of such changes of each producer.
        self.writing: Counter[int] = Counter()
        # Verifications under way, by producer id.
        self._verifying: dict[int, list[Verification]] = {}
        # Coordinator epoch and number of the last marker of each producer, the newest last.
        self._numbers: dict[int, tuple[int, int]] = {}

    @contextmanager
    def verifying(self, producer_id: int, epoch: int) -> Generator[Verification]:
        """Register a verification for the time of the block."""
        one = Verification(epoch)
        ongoing = self._verifying.setdefault(producer_id, [])
        ongoing.append(one)
        try:
            yield one
        finally:
            ongoing.remove(one)
            if not ongoing and self._verifying.get(producer_id) is ongoing:
                del self._verifying[producer_id]

    def void(self, marker: EndMarker) -> None:
        """Void verifications of the transaction that the marker ends."""
        bumped = marker.version >= EPOCH_BUMP_VERSION
        for each in self._verifying.get(marker.producer_id, ()):
            if each.epoch < marker.epoch or (each.epoch == marker.epoch and not bumped):
                each.voided = True

    def check_marker(self, marker: EndMarker) -> ErrorCode | None:
        """Return the answer to a late copy of a marker, or None if the marker is new."""
        known = self._numbers.get(marker.producer_id)
        if known is None:
            return None
        if 0 <= marker.coordinator_epoch < known[0]:
            return ErrorCode.transaction_coordinator_fenced
        same = marker.coordinator_epoch == known[0]
        return ErrorCode.none if same and 0 <= marker.number <= known[1] else None

    def note_marker(self, marker: EndMarker) -> None:
        """Remember a marker that is durable."""
        known = self._numbers.pop(marker.producer_id, (-1, -1))
        number = marker.number
        if marker.coordinator_epoch == known[0]:
            number = max(number, known[1])
        self._numbers[marker.producer_id] = (max(marker.coordinator_epoch, known[0]), number)
        while len(self._numbers) > _NUMBERS_MAX:
            del self._numbers[next(iter(self._numbers))]
