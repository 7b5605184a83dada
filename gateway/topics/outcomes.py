"""The outcomes of a partition's records: the last stable offset, and aborted transactions below.

    opening ─(its state is rebuilt)▶ known ─(the stream fails)▶ opening
       └─(the state lies in a loss, or cannot be read now)▶ hidden ─(it is read again)▶ known

Readers of committed records get records and offsets only while the outcomes are known. Otherwise
the last stable offset stays where it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from gateway.core.partition_transactions import AbortedTransaction
from gateway.topics.aborted_reader import AbortedReader
from gateway.topics.partition_state import PartitionState
from gateway.topics.partition_warnings import PartitionWarnings
from ledger.errors import EntryUnknown, LedgerError, StreamUnavailable
from ledger.streams.accepted_losses import EntryAwaited
from ledger.streams.stream import Stream
from ledger.tasks import start_once

_LEARN_PAUSE_S, _LEARN_PAUSE_S_MAX = 1.0, 30.0
"""Pause before a hidden state is read again for readers. It doubles up to the second value."""


class Outcomes:
    """The outcomes of the records of one partition that this broker leads."""

    __slots__ = (
        "_aborted",
        "_ends",
        "_floor",
        "_learning",
        "_log",
        "_may_exist",
        "_on_learned",
        "_opened",
        "_state",
        "_stream",
        "_whole",
    )

    def __init__(
        self,
        state: PartitionState,
        stream: Stream,
        log: PartitionWarnings,
        on_learned: Callable[[], None],
        may_exist: Callable[[], bool],
    ) -> None:
        """`on_learned` runs when a hidden state was read, so that waiting readers go on.

        While `may_exist` returns False, no log of the cluster ever had a transaction.
        """
        # None of these changes.
        self._state, self._stream, self._log = state, stream, log
        self._on_learned, self._may_exist = on_learned, may_exist
        self._aborted = AbortedReader(state, stream, stream.services.rebuilding)
        # The last stable offset when the stream was open last. Never falls.
        self._floor = 0
        # True while the stream is open for reading.
        self._opened = False
        # True once `_state` is known to be that of all records, until `on_ended`.
        self._whole = False
        # The number of calls of `on_ended`. While it stays, the state is that of one opening.
        self._ends = 0
        # Reads the hidden state again. None while no reader needs that.
        self._learning: asyncio.Task[None] | None = None

    def on_opened(self) -> None:
        """Record that the stream is open. Its state may be hidden."""
        self._opened = True
        self._is_known()

    def on_ended(self) -> None:
        """Record that the stream failed, or is opened again: its state will be rebuilt."""
        if self._is_known():
            self._floor = max(self._floor, self.stable_offset)
        self._opened = self._whole = False
        self._ends += 1

    async def close(self) -> None:
        """End for good: nothing is read any more."""
        self.on_ended()
        if self._learning is not None:
            self._learning.cancel()
            await asyncio.wait([self._learning])

    def _is_known(self) -> bool:
        if not self._whole and self._opened and self._stream.timestamp_max is not None:
            self._whole = True
            hanging = self._state.transactions.open_before(self._state.lost_end)
            self._log.warn_of_hanging(hanging)
        return self._whole

    def _is_plain(self) -> bool:
        """Return True if the log certainly has no transaction, also in a loss."""
        return self._opened and not self._state.transactional and not self._may_exist()

    @property
    def stable_offset(self) -> int:
        """The last stable offset: below it, the outcome of every record is known."""
        stream, state = self._stream, self._state
        if self._is_plain():
            self._floor = max(self._floor, stream.end_sequence_id)
            return self._floor
        if not (self._whole or self._is_known()):
            self._start_learning()
            return max(self._floor, stream.start_sequence_id)
        end = stream.end_sequence_id
        if not state.transactional:
            return end
        state.transactions.on_durable(end)
        return state.transactions.stable_offset(end, stream.start_sequence_id)

    def check(self) -> None:
        """Raise a retriable LedgerError if the outcomes are not known now."""
        if self._is_plain() or self._whole or self._is_known():
            return
        if not self._opened:
            raise StreamUnavailable(f"{self._stream.name} is opening")
        self._start_learning()
        raise EntryUnknown(f"{self._stream.name}: its transactions cannot be read now")

    def _start_learning(self) -> None:
        if self._opened and self._learning is None:
            self._learning = start_once(
                f"reading the state of {self._stream.name}", self._learn(), expected=LedgerError
            )

    async def _learn(self) -> None:
        """Read the hidden state again, as a batch of a producer would, until its bookies answer.

        A loss ends this: its acceptance opens the stream again.
        """
        pause_s = _LEARN_PAUSE_S
        try:
            while self._opened and not self._whole:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LEARN_PAUSE_S_MAX)
                with suppress(EntryAwaited):
                    await self._begin()
                    return
        finally:
            self._learning = None
            if self._is_known():
                self._on_learned()

    async def _begin(self) -> None:
        if self._opened:
            await self._stream.begin()

    def aborted_cached(self, start: int, end: int) -> list[AbortedTransaction] | None:
        """Return aborted transactions from memory, as `AbortedReader.cached` does.

        Returns None also if the outcomes are not known.
        """
        if self._is_plain():
            return []
        return self._aborted.cached(start, end) if self._whole or self._is_known() else None

    async def aborted(self, start: int, end: int) -> list[AbortedTransaction]:
        """Return aborted transactions, as `AbortedReader.read` does. Raises LedgerError.

        A list that was read while the stream failed is not returned: it may mix two states.
        """
        self.check()
        if self._is_plain():
            return []
        ends = self._ends
        found = await self._aborted.read(start, end)
        if self._ends != ends:
            raise StreamUnavailable(f"{self._stream.name} was opened again")
        return found
