"""Shared by the owner and the followers of a stream: what they show of its segment table."""

from __future__ import annotations

from ledger.core.accepted_losses import StreamLosses
from ledger.core.epoch_table import EpochEnd, EpochTable
from ledger.core.segment_table import SegmentTable
from ledger.core.segments import Segment

__all__ = ["EpochEnd", "EpochTable", "ListedStream"]


class ListedStream:
    """A stream whose segments are in a table, which the subclass keeps up to date."""

    def __init__(self) -> None:
        # The segments, the start and the end that readers may see.
        self._table = SegmentTable()

    @property
    def epoch(self) -> int:
        """The epoch of the owner from `open` on: its first segment number, less the base.

        For a follower, the newest known epoch, -1 if none is known.
        """
        return self._table.epoch

    @property
    def start_sequence_id(self) -> int:
        return self._table.start_sequence_id

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self._table.segments

    @property
    def accepted_losses(self) -> StreamLosses:
        """The losses of this stream that an operator accepted."""
        return self._table.losses

    def epoch_at(self, sequence_id: int) -> int:
        """Return the epoch of the ownership that wrote this sequence id, or will write it."""
        return self._table.epoch_at(sequence_id)
