"""The port to where positions are kept: last positions, advance, delete, list, history.

One interface for native stream subscribers and for Kafka groups; `znode_store` keeps a znode for
each position, `log_store` a log segment for each subscriber. Source: DistributedLog,
SubscriptionsStore, and its proposal of log segments (seed 004).
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from subscriptions.positions import Position, PositionKey


class Subscription(NamedTuple):
    """All that is known of one subscriber. `note` is the owner's own, b"" when never written."""

    positions: dict[PositionKey, Position]
    note: bytes = b""
    exists: bool = True


class Change(NamedTuple):
    """One thing that was written of a subscriber. `key` None: its note, which is `note` now."""

    time_ms: int  # by the wall clock of the store that wrote it; never falls within a history
    key: PositionKey | None
    position: Position | None = None  # None: removed
    note: bytes | None = None


class History(NamedTuple):
    """What became of a subscriber since `since_ms`; of the time before, nothing is known."""

    since_ms: int
    positions: dict[PositionKey, Position]  # as they were then
    note: bytes
    changes: list[Change]  # oldest first


def positions_at(history: History, at_ms: int) -> dict[PositionKey, Position] | None:
    """The positions as they were; None: that is too long ago to know."""
    if at_ms < history.since_ms:
        return None
    found = dict(history.positions)
    for change in history.changes:
        if change.time_ms > at_ms:
            break
        if change.key is None:
            continue
        if change.position is None:
            found.pop(change.key, None)
        else:
            found[change.key] = change.position
    return found


class SubscriptionsStore(Protocol):
    """Positions of many subscribers. Errors: NotOwner, MetadataUnavailable, CorruptFormat.

    A subscriber belongs to the store that loaded it last. Any failure of `advance` or `delete`
    ends that claim: nothing more is taken for the subscriber until it is loaded again.
    """

    async def load(self, subscriber: str) -> Subscription:
        """The last positions, and from now on only this store can advance them.

        Called when no advance of this subscriber is under way.
        """
        ...

    async def read(self, subscriber: str) -> Subscription:
        """The last positions, claiming nothing.

        The newest of a subscriber that another store advances just now may be missing; what
        `load` returns is never behind.
        """
        ...

    async def history(self, subscriber: str) -> History:
        """What was written of the subscriber, as far back as it is kept; claims nothing.

        As with `read`, the newest may be missing. A store that keeps the last positions only
        knows them since the newest of their commit times, and no changes.
        """
        ...

    async def room(self) -> None:
        """`advance` may be called: fewer changes are waiting than the store holds."""
        ...

    def advance(
        self,
        subscriber: str,
        positions: Mapping[PositionKey, Position | None],
        note: bytes | None = None,
    ) -> Future[None]:
        """Accepted, in call order, on return; durable, all of it at once, when the future resolves.

        None removes a position; a note of None leaves the note as it is. The subscriber was
        loaded. NotOwner: refused for good. MetadataUnavailable: the outcome is unknown.
        """
        ...

    async def delete(self, subscriber: str) -> bool:
        """All of the subscriber is gone, after the advances accepted before. False: was absent."""
        ...

    def release(self, subscriber: str) -> None:
        """The claim is given up and what was known of the subscriber is forgotten.

        Called when no advance of this subscriber is under way.
        """
        ...

    async def unload(self, subscriber: str) -> None:
        """What was accepted is durable or failed, and the claim is given up as `release` does.

        Afterwards the next owner has nothing to recover. Never raises a LedgerError: what could
        not be put in order is left to the next owner. A subscriber that is not loaded is left.
        """
        ...

    async def list(self) -> list[str]:
        """Subscribers that have anything stored, in no special order."""
        ...

    async def close(self) -> None:
        """What was accepted is durable or failed; claims are given up."""
        ...
