"""The port by which a partition notifies the object whose state its log stores."""

from __future__ import annotations

from typing import Protocol


class PartitionObserver(Protocol):
    """Follows the ownerships of one partition: each opening ends before the next one begins."""

    def on_opened(self, epoch: int) -> None:
        """Handle that the partition is readable under `epoch`, and that its state is loaded."""
        ...

    def on_ended(self) -> None:
        """Handle the end of the ownership, by a failure, a loss or a hand-over.

        It acknowledges nothing more: batches that are still in flight fail.
        """
        ...


class ObservedOwnership:
    """The present ownership of a partition, which begins and ends once for its observer, if any."""

    __slots__ = ("_begun", "_observer")

    def __init__(self, observer: PartitionObserver | None) -> None:
        self._observer = observer
        # True from `begin` until `end`.
        self._begun = False

    def begin(self, epoch: int) -> None:
        """Notify the observer that the partition is readable under `epoch`."""
        if self._observer is not None:
            self._begun = True
            self._observer.on_opened(epoch)

    def end(self) -> None:
        """Notify the observer of the end, unless the ownership ended or never began."""
        if self._begun and self._observer is not None:
            self._begun = False
            self._observer.on_ended()
