"""The port to where committed offsets are kept: load, advance, delete, list, history.

One interface serves Kafka groups and native subscribers. `znodes` keeps a znode for each offset,
`segments` a log segment for each subscriber. Source: DistributedLog, SubscriptionsStore, and the
proposal of log segments (seed 004).
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from subscriptions.committed_offset import CommittedOffset, TopicIdPartition
from subscriptions.pending_offsets import PendingOffsets


class Subscription(NamedTuple):
    """The stored state of one subscriber. `note` belongs to its owner; b"" if never written."""

    offsets: Mapping[TopicIdPartition, CommittedOffset]
    note: bytes = b""
    exists: bool = True
    keyed: Mapping[str, bytes] = {}  # notes with keys; see `KeyedStore`


class OffsetChange(NamedTuple):
    """One write to a subscriber. If `key` is None, the write set the note to `note`."""

    time_ms: int  # wall clock of the store that wrote it; never decreases within a history
    key: TopicIdPartition | None
    committed: CommittedOffset | None = None  # None if the offset was removed
    note: bytes | None = None


class SubscriptionHistory(NamedTuple):
    """The writes to a subscriber since `since_ms`. Earlier writes are no longer stored."""

    since_ms: int
    offsets: Mapping[TopicIdPartition, CommittedOffset]  # the offsets at `since_ms`
    note: bytes  # the note at `since_ms`
    changes: list[OffsetChange]  # oldest first


def offsets_at(
    history: SubscriptionHistory, at_ms: int
) -> dict[TopicIdPartition, CommittedOffset] | None:
    """Return the offsets as of `at_ms`, or None if the history begins later."""
    if at_ms < history.since_ms:
        return None
    found = dict(history.offsets)
    for change in history.changes:
        if change.time_ms > at_ms:
            break
        if change.key is None:
            continue
        if change.committed is None:
            found.pop(change.key, None)
        else:
            found[change.key] = change.committed
    return found


class SubscriptionsStore(Protocol):
    """Committed offsets of many subscribers. Errors: NotOwner, MetadataUnavailable, CorruptFormat.

    A subscriber belongs to the store that loaded it last. If `advance` or `delete` fails, that
    claim ends: the store accepts nothing for the subscriber until it is loaded again.
    """

    async def load(self, subscriber: str) -> Subscription:
        """Claim the subscriber and return its last offsets.

        From now on only this store can advance them. The offsets are a live view of the claim,
        which owns them: they contain a change once its future has resolved, until the claim ends.
        Call it while no advance of this subscriber is pending.
        """
        ...

    async def read(self, subscriber: str) -> Subscription:
        """Return the last offsets without claiming the subscriber.

        Offsets that another store is just advancing may be missing. The result of `load` is never
        behind.
        """
        ...

    async def exists(self, subscriber: str) -> bool:
        """Return whether the subscriber was stored before this call. Writes nothing."""
        ...

    async def history(self, subscriber: str) -> SubscriptionHistory:
        """Return the stored writes to the subscriber, without a claim.

        As with `read`, the newest writes may be missing. A store that keeps only the last offsets
        returns no changes, and the newest commit time as `since_ms`.
        """
        ...

    async def room(self) -> None:
        """Wait until `advance` may be called: the queue of changes is below its limit."""
        ...

    def advance(
        self,
        subscriber: str,
        offsets: Mapping[TopicIdPartition, CommittedOffset | None],
        note: bytes | None = None,
    ) -> Future[None]:
        """Accept offsets in call order. All of them are durable when the future resolves.

        None as an offset removes it; None as the note leaves the note unchanged. The subscriber
        must be loaded. The future raises NotOwner if the change was refused for good, and
        MetadataUnavailable if its outcome is unknown.
        """
        ...

    async def delete(self, subscriber: str) -> bool:
        """Delete the subscriber, after the advances accepted before. False if it did not exist."""
        ...

    def release(self, subscriber: str) -> None:
        """Give up the claim and forget the subscriber.

        Call it while no advance of this subscriber is pending.
        """
        ...

    async def unload(self, subscriber: str) -> None:
        """Wait until every accepted change is durable or has failed, then release the claim.

        Afterwards the next owner has nothing to recover. Raises no LedgerError: if the store could
        not finish, the next owner recovers. Does nothing for a subscriber that is not loaded.
        """
        ...

    async def list(self) -> list[str]:
        """Return every stored subscriber, in no particular order."""
        ...

    async def close(self) -> None:
        """Wait until every accepted change is durable or has failed, and give up all claims."""
        ...


@runtime_checkable
class KeyedStore(Protocol):
    """A store whose notes may have keys, so that a part of the owner's state changes alone.

    `load` and `read` return these notes too. The subscriber must be loaded.
    """

    def advance_keyed(
        self, subscriber: str, keyed: Mapping[str, bytes | None], note: bytes | None = None
    ) -> Future[None]:
        """Accept notes by key, as `advance` accepts offsets. None removes the note of a key.

        `note` replaces the note without a key, unless it is None.
        """
        ...


@runtime_checkable
class TransactionalStore(Protocol):
    """A store that also keeps offsets of open transactions. The subscriber must be loaded."""

    def pending(self, subscriber: str) -> PendingOffsets:
        """Return the pending offsets: a live view until the claim ends, as the loaded offsets."""
        ...

    def advance_pending(
        self,
        subscriber: str,
        producer_id: int,
        epoch: int,
        offsets: Mapping[TopicIdPartition, CommittedOffset],
    ) -> Future[None]:
        """Accept offsets of the transaction of a producer, as `advance` accepts offsets."""
        ...

    def end_pending(
        self, subscriber: str, producer_id: int, epoch: int, *, commits: bool
    ) -> Future[None]:
        """Accept the end of a transaction: its offsets are committed, or dropped, by one record."""
        ...
