"""The offsets of open transactions of one subscriber, by producer id. Pure.

    put: pending ──(a later commit of the same partition)──▶ overtaken
      └──── end ─▶ committed or dropped; an overtaken offset is dropped ◀┘

Only `SubscriptionState` changes this object, and only by durable records. An offset stays pending
until its transaction ends, even if it was overtaken.
Source: Kafka, OffsetMetadataManager (pendingTransactionalOffsets and replayEndTransactionMarker).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from subscriptions.committed_offset import TopicIdPartition


class PendingOffset(NamedTuple):
    """One offset of an open transaction. `number` orders all that were put."""

    number: int
    producer_id: int
    epoch: int
    key: TopicIdPartition
    body: bytes  # its record, without the producer
    overtaken: bool = False  # a commit after it stays, even if the transaction commits


class PendingOffsets:
    """All pending offsets of one subscriber. Costs nothing while no transaction is open."""

    __slots__ = ("_counts", "_number", "_transactions", "size_bytes")

    def __init__(self) -> None:
        # The offsets of each producer with an open transaction.
        self._transactions: dict[int, dict[TopicIdPartition, PendingOffset]] = {}
        # The number of open transactions with an offset of the partition; no zeros.
        self._counts: Counter[TopicIdPartition] = Counter()
        self._number = 0  # of the last offset that was put
        # The bytes of all pending records.
        self.size_bytes = 0

    def __len__(self) -> int:
        """Return the number of partitions with a pending offset."""
        return len(self._counts)

    def __contains__(self, key: object) -> bool:
        return key in self._counts

    def __iter__(self) -> Iterator[TopicIdPartition]:
        """Iterate over the partitions with a pending offset."""
        return iter(self._counts)

    def epoch(self, producer_id: int) -> int | None:
        """Return the greatest epoch of the producer's pending offsets, or None without any."""
        found = self._transactions.get(producer_id)
        return max((each.epoch for each in found.values()), default=None) if found else None

    def all(self) -> list[PendingOffset]:
        """Return all pending offsets in the order in which they were put."""
        found = [each for offsets in self._transactions.values() for each in offsets.values()]
        return sorted(found)

    def put(self, producer_id: int, epoch: int, key: TopicIdPartition, body: bytes) -> None:
        """Add an offset to the transaction of this producer, or replace it."""
        offsets = self._transactions.setdefault(producer_id, {})
        old = offsets.get(key)
        if old is None:
            self._counts[key] += 1
        else:
            self.size_bytes -= len(old.body)
        self.size_bytes += len(body)
        self._number += 1
        offsets[key] = PendingOffset(self._number, producer_id, epoch, key, body)

    def overtake(self, key: TopicIdPartition, before: int | None = None) -> None:
        """Note that the partition has a commit after these offsets, or those `before` a number."""
        if key not in self._counts:
            return
        for offsets in self._transactions.values():
            each = offsets.get(key)
            if each is not None and (before is None or each.number < before):
                offsets[key] = each._replace(overtaken=True)

    def remove(self, key: TopicIdPartition) -> None:
        """Remove the offset from all transactions, because the committed one was removed."""
        if not self._counts.pop(key, 0):
            return
        for producer_id, offsets in list(self._transactions.items()):
            gone = offsets.pop(key, None)
            self.size_bytes -= 0 if gone is None else len(gone.body)
            if not offsets:
                del self._transactions[producer_id]

    def end(self, producer_id: int) -> list[PendingOffset]:
        """End the transaction of the producer. Return its offsets that were not overtaken."""
        offsets = self._transactions.pop(producer_id, {})
        for key, each in offsets.items():
            self.size_bytes -= len(each.body)
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]
        return [each for each in offsets.values() if not each.overtaken]
