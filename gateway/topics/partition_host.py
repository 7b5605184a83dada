"""The port to the object whose state the partitions of an internal topic store."""

from __future__ import annotations

from typing import Protocol

from gateway.topics.partition_observer import PartitionObserver
from ledger.streams.recovery import OwnerState


class PartitionHost(Protocol):
    """What this broker does with the partitions of one internal topic that it leads."""

    def build(self, index: int) -> tuple[OwnerState, PartitionObserver]:
        """Return the state and the observer of a partition that this broker begins to lead.

        Called again after the partition was lost and gained, for a new state.
        """
        ...

    def on_forgotten(self, index: int) -> None:
        """Forget the state of a partition that was lost, handed over or deleted.

        A topic that was created again may have a partition of this index by then.
        """
        ...
