"""The epochs of a stream's records, each with the sequence id at which it began. Pure.

Source: Kafka, LeaderEpochFileCache: `assign`, `endOffsetFor`, `truncateFromStartAsyncFlush`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple


class EpochStart(NamedTuple):
    """An epoch, and the sequence id of the first record that was written under it."""

    epoch: int
    start_sequence_id: int


class EpochEnd(NamedTuple):
    """The newest epoch up to a requested one, and one past its last record."""

    epoch: int
    end_sequence_id: int


class EpochTable:
    """Epochs and their starts. Both increase strictly from each entry to the next."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        """Create the table of these epochs and starts, in any order."""
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, start in sorted(set(entries)):
            self._append(epoch, start)

    def _append(self, epoch: int, start: int) -> None:
        """Append an epoch that is not below the last one.

        An epoch that begins where the next one begins has no record, and is dropped.
        """
        if self._epochs and self._epochs[-1] == epoch:
            return  # a later segment of the same ownership
        while self._starts and self._starts[-1] >= start:
            self._starts.pop()
            self._epochs.pop()
        self._epochs.append(epoch)
        self._starts.append(start)

    @property
    def newest(self) -> int:
        """The newest epoch, -1 if there is none."""
        return self._epochs[-1] if self._epochs else -1

    def entries_from(self, start: int) -> list[EpochStart]:
        """Return the entries of a log that begins at `start`. Its first epoch begins there too."""
        at = max(bisect_right(self._starts, start) - 1, 0)
        pairs = zip(self._epochs[at:], self._starts[at:], strict=True)
        return [EpochStart(epoch, max(first, start)) for epoch, first in pairs]

    def epoch_at(self, sequence_id: int) -> int | None:
        """Return the epoch of a record, or None below the first entry."""
        at = bisect_right(self._starts, sequence_id) - 1
        return self._epochs[at] if at >= 0 else None

    def end_of(self, epoch: int, start: int, end: int) -> EpochEnd | None:
        """Return where `epoch` ends in a log from `start` to `end`, or None if it is too new.

        If no record has this epoch, the answer is that of the epoch before. If all older epochs
        lie below the log, it is the requested epoch, with the start of the first known one.
        """
        epochs = self._epochs
        if not epochs or epoch > epochs[-1] or epoch == -1:
            return None
        if epoch == epochs[-1]:
            return EpochEnd(epoch, end)
        oldest = max(bisect_right(self._starts, start) - 1, 0)
        higher = max(bisect_right(epochs, epoch), oldest)
        floor = higher - 1
        found = epochs[floor] if floor >= oldest else epoch
        return EpochEnd(found, max(self._starts[higher], start))

    def without(self, shown: EpochTable, start: int) -> list[EpochStart]:
        """Return the entries of a log from `start` that `shown` lacks."""
        known = set(shown.entries_from(start))
        return [each for each in self.entries_from(start) if each not in known]
