"""The port to where positions are kept: last positions, advance, delete, list.

One interface for native stream subscribers and for Kafka groups; `znode_store` keeps a znode for
each position, a log segment will hold them one day. Source: DistributedLog, SubscriptionsStore,
and its proposal of log segments (seed 004).
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
        """The last positions, claiming nothing."""
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

    async def list(self) -> list[str]:
        """Subscribers that have anything stored, in no special order."""
        ...

    async def close(self) -> None:
        """What was accepted is durable or failed; claims are given up."""
        ...
