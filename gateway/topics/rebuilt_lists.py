"""Rebuilds the aborted transactions of a segment from the log, where the head that listed them is
lost.

    the newest readable state in the segment, or before it ─▶ its batches up to the end ─▶ the list

A state in the segment is at most `snapshot_bytes` before its end. The state of an earlier segment
counts if all others are lost. A lost range between the state and the end may have held markers. It
is passed only if no transaction was open there: then it hides no outcome of a record that is left.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol

from gateway.core.aborted_lists import SegmentAborted
from gateway.core.followed_transactions import FollowedState
from gateway.topics.followed_batches import (
    CHUNK_BYTES,
    TURN_RECORDS,
    apply_record,
    load_followed,
)
from ledger.errors import LedgerError, NoSuchLedger, StreamUnavailable, Truncated
from ledger.ids import LedgerId
from ledger.streams.accepted_losses import EntryAwaited, EntryLost, StreamLosses
from ledger.streams.followed_state import StateWithin
from ledger.streams.tail_cache import StoredRecord

FAILED_S = 10.0
"""Seconds for which a rebuild that found a hidden outcome is not repeated."""


class OutcomeHidden(StreamUnavailable):
    """A lost range may have held markers, and no snapshot behind it is known yet."""


class RebuiltLog(Protocol):
    """The part of a stream from which a list is rebuilt."""

    @property
    def rewrites(self) -> int:
        """Counts the segments that were cleaned. Records and lists of one count belong together."""
        ...

    @property
    def accepted_losses(self) -> StreamLosses:
        """The losses that an operator accepted. Replaced by each change."""
        ...

    async def state_within(self, sequence_id: int) -> StateWithin | None:
        """Read the newest state up to the end of the segment with `sequence_id`.

        Returns None if there is none. Raises LedgerError.
        """
        ...

    async def read_any(self, sequence_id: int, bytes_max: int) -> list[StoredRecord]:
        """Read records, also below the start of the log. Raises LedgerError."""
        ...


class ListRebuilder:
    """Rebuilds the lists of one log, one at a time."""

    __slots__ = ("_failed", "_last", "_log", "_permits", "_turn")

    def __init__(self, log: RebuiltLog, permits: asyncio.Semaphore | None = None) -> None:
        """`permits` bounds the rebuilds of the process. Without it, there is one log."""
        self._log = log
        self._permits = permits or asyncio.Semaphore()
        # Held by the rebuild in progress.
        self._turn = asyncio.Lock()
        # The last list, and the rewrites then. For fetches that waited for their turn meanwhile.
        self._last: tuple[SegmentAborted, int] | None = None
        # The last rebuild that found no list. None before.
        self._failed: _Failure | None = None

    async def rebuild(self, offset: int, error: EntryLost) -> SegmentAborted:
        """Return the list of the segment with `offset`. `error` is the loss of the head behind it.

        Raises `error` if an outcome is hidden, StreamUnavailable if the segment was cleaned or
        removed meanwhile, and other errors of reading.
        """
        async with self._turn:
            if self._last is not None:
                one, rewrites = self._last
                if one.covers(offset) and rewrites == self._log.rewrites:
                    return one
            if self._failed is not None and self._failed.holds(error, self._log):
                raise error
            async with self._permits:
                return await self._rebuild(offset, error)

    async def _rebuild(self, offset: int, error: EntryLost) -> SegmentAborted:
        log = self._log
        losses, rewrites = log.accepted_losses, log.rewrites
        hidden: LedgerError | None = None
        try:
            found = await log.state_within(offset)
            if found is not None:
                one = await self._replay(found, rewrites)
                self._last = one, rewrites
                return one
        except (EntryLost, OutcomeHidden) as caught:
            hidden = caught
        except (Truncated, NoSuchLedger) as gone:
            raise StreamUnavailable(f"the segment with offset {offset} was removed") from gone
        until_s = asyncio.get_running_loop().time() + FAILED_S
        self._failed = _Failure(error.ledger, losses, until_s)
        raise error from hidden

    async def _replay(self, found: StateWithin, rewrites: int) -> SegmentAborted:
        """Apply the batches between the state and the end of the segment."""
        state = await load_followed(found.state)
        for border in found.borders:
            while state.end < border:
                records = await self._read(state.end)
                if rewrites != self._log.rewrites:
                    raise StreamUnavailable("a segment was cleaned while its list was rebuilt")
                if not records:
                    raise StreamUnavailable(f"record {state.end} cannot be read now")
                await _apply(state, records, border)
            if border > state.since:  # the border of a segment without records is known already
                state.begin_segment(border)
        first = min(state.before.first_offset, found.first)
        return state.before._replace(first_offset=first)

    async def _read(self, at: int) -> list[StoredRecord]:
        try:
            return await self._log.read_any(at, CHUNK_BYTES)
        except Truncated as error:
            unread = error.__cause__
            if isinstance(unread, EntryLost | EntryAwaited):
                raise unread from None  # it is below the start, but was not removed
            raise


class _Failure(NamedTuple):
    """A rebuild that found no list."""

    ledger: LedgerId  # of the lost head
    losses: StreamLosses  # those that were accepted before: with others, it is repeated
    until_s: float

    def holds(self, error: EntryLost, log: RebuiltLog) -> bool:
        """Return whether another rebuild for the same head would fail as well."""
        if error.ledger != self.ledger or log.accepted_losses is not self.losses:
            return False
        return asyncio.get_running_loop().time() < self.until_s


async def _apply(state: FollowedState, records: list[StoredRecord], end: int) -> None:
    """Apply the records below `end`. Raises OutcomeHidden, CorruptFormat."""
    for count, record in enumerate(records, 1):
        if record.sequence_id >= end:
            break
        if record.lost is None:
            apply_record(state, record)
        elif len(state.transactions):
            raise OutcomeHidden(
                f"offsets {state.end} to {record.end_sequence_id - 1} are lost, and may have held "
                "the ends of transactions"
            )
        state.end = min(record.end_sequence_id, end)
        if count % TURN_RECORDS == 0:
            await asyncio.sleep(0)
