"""The transactions of a loaded group, besides its pending offsets. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.core.partition_transactions import EndMarker
from gateway.core.transaction_states import EPOCH_BUMP_VERSION
from subscriptions.committed_offset import TopicIdPartition

NUMBERS_MAX: Final = 20_000
"""Producers of one group whose last marker is remembered, in about 180 bytes each.

With more producers than that, each commit draws a new ownership, which is two writes of the index.
"""

_LISTED_MAX: Final = 16  # nodes of earlier loads that are remembered at once


class Verification:
    """A request that asks the coordinator of its transaction, until its offsets are accepted."""

    __slots__ = ("epoch", "voided")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.voided = False  # True once a marker has ended the transaction


class GroupTransactions:
    """The memory of one loaded group: ownership, verifications and numbers of markers.

    Each marker has to name the `ownership`. The numbers of markers are remembered for producers
    that have stored offsets since this load.
    """

    def __init__(self, ownership: UUID) -> None:
        # The name of this load in `TransactionalGroups`. `learn` replaces it.
        self.ownership = ownership
        # True once the index has the group under this ownership.
        self.registered = False
        # The ownerships under which the index may have the group. Those of earlier loads come from
        # markers.
        self.listed: set[UUID | None] = set()
        # Partitions whose pending offsets are accepted and not durable yet.
        self.in_flight: Counter[TopicIdPartition] = Counter()
        # Such changes by producer id: how many of each epoch. No zeros.
        self._writing: dict[int, Counter[int]] = {}
        # Verifications under way, by producer id.
        self._verifying: dict[int, list[Verification]] = {}
        # Coordinator epoch and number of the last marker of each producer that has stored offsets
        # since this load, the least recent one first.
        self._numbers: dict[int, tuple[int, int]] = {}

    # -- the index ------------------------------------------------------------------------------

    def note_listed(self, ownership: UUID | None) -> None:
        """Remember a node of the index that a marker named, so that it is removed later."""
        if len(self.listed) < _LISTED_MAX:
            self.listed.add(ownership)

    def remembers(self, producer_id: int) -> bool:
        """Return whether the producer has stored offsets since this load, or was about to."""
        return producer_id in self._numbers

    def learn(self, producer_id: int, fresh: UUID) -> None:
        """Remember the numbers of this producer, which is about to have offsets, from now on.

        The numbers of its markers until now may be unknown. So `fresh` is the ownership from now
        on, which no copy of such a marker names.
        """
        known = self._numbers.pop(producer_id, None)
        if known is None and self.ownership in self.listed:
            self.ownership, self.registered = fresh, False
        self._numbers[producer_id] = known or (-1, -1)
        while len(self._numbers) > NUMBERS_MAX:
            del self._numbers[next(iter(self._numbers))]

    # -- offsets that are being stored ------------------------------------------------------------

    def begin_writing(self, producer_id: int, epoch: int, keys: Counter[TopicIdPartition]) -> None:
        self.in_flight.update(keys)
        self._writing.setdefault(producer_id, Counter())[epoch] += 1

    def end_writing(self, producer_id: int, epoch: int, keys: Counter[TopicIdPartition]) -> None:
        self.in_flight -= keys
        left = self._writing[producer_id] - Counter((epoch,))
        if left:
            self._writing[producer_id] = left
        else:
            del self._writing[producer_id]

    def writing_epoch(self, producer_id: int) -> int | None:
        """Return the greatest epoch of this producer among such offsets, or None."""
        return max(self._writing.get(producer_id, ()), default=None)

    # -- verifications ----------------------------------------------------------------------------

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

    def is_verifying(self, producer_id: int) -> bool:
        return producer_id in self._verifying

    def void(self, marker: EndMarker) -> None:
        """Void verifications of the transaction that the marker ends."""
        bumped = marker.version >= EPOCH_BUMP_VERSION
        for each in self._verifying.get(marker.producer_id, ()):
            if each.epoch < marker.epoch or (each.epoch == marker.epoch and not bumped):
                each.voided = True

    # -- markers ----------------------------------------------------------------------------------

    def names_this(self, ownership: UUID | None) -> bool:
        """Return whether a marker names this ownership, so that its number can be compared."""
        return self.registered and ownership == self.ownership

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
        """Remember a marker that is durable, if its producer has stored offsets since this load."""
        known = self._numbers.get(marker.producer_id)
        if known is None:
            return
        number = marker.number
        if marker.coordinator_epoch == known[0]:
            number = max(number, known[1])
        self._numbers[marker.producer_id] = (max(marker.coordinator_epoch, known[0]), number)
