"""Follows the transactions of a partition that another broker leads, from its log alone.

    idle ─(a reader of committed records)▶ loading the newest snapshot ─▶ following ─▶ idle
                                                    ▲                         │
                                                    └── hidden ◀─(a lost range)┘

Below `committed_end` every outcome was read here. It lags behind the leader's last stable offset,
but never passes it. A lost range may have held markers, so nothing behind it is served until the
owner has stored a snapshot behind it: the reader is sent to the leader meanwhile.
Reads are as bounded as those of a reader at the end of the log: after each `READ_BYTES_MAX`, a
newer snapshot replaces what is left to read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.core.followed_transactions import FollowedState
from gateway.core.partition_transactions import AbortedTransaction
from gateway.topics.aborted_reader import AbortedReader, StoredStates
from gateway.topics.followed_batches import (
    CHUNK_BYTES,
    TURN_RECORDS,
    apply_record,
    load_followed,
)
from gateway.topics.partition_warnings import PartitionWarnings
from gateway.topics.rebuilt_lists import OutcomeHidden
from ledger.errors import CorruptFormat, LedgerError, StreamUnavailable, Truncated
from ledger.streams.accepted_losses import EntryAwaited, EntryLost
from ledger.streams.followed_state import StoredState
from ledger.streams.read_turns import READER
from ledger.streams.tail_cache import StoredRecord
from ledger.tasks import start_once

LOADING_AT_ONCE = 4
"""Snapshots that a process reads at the same time. Each may take megabytes."""

READ_BYTES_MAX = 8 * 1024 * 1024
"""Bytes behind the snapshot after which a newer one is looked for: those between two snapshots."""

_TURN_BYTES = 64 * 1024  # batches that are applied at once when they arrive
_PAUSE_S, _PAUSE_S_MAX = 0.05, 2.0  # pause before a retry, which doubles up to the maximum


class FollowedLog(StoredStates, Protocol):
    """The part of `FollowedStream` that this needs."""

    @property
    def is_open(self) -> bool: ...

    @property
    def start_sequence_id(self) -> int: ...

    @property
    def end_sequence_id(self) -> int: ...

    def starts_above(self, sequence_id: int) -> list[int]: ...

    def read_cached(self, sequence_id: int, bytes_max: int) -> list[StoredRecord] | None: ...

    async def newest_state(self) -> StoredState: ...


class ReplicaTransactions:
    """The transactions of one followed log, while readers of committed records use it."""

    def __init__(
        self,
        stream: FollowedLog,
        log: PartitionWarnings,
        on_moved: Callable[[], None],
        loading: asyncio.Semaphore,
    ) -> None:
        """`on_moved` runs when `committed_end` moves, or is not going to move for now.

        `loading` is shared by all partitions of the process. Rebuilt lists take it too.
        """
        self._stream = stream
        self._log = log
        self._on_moved = on_moved
        self._loading = loading
        # The transactions below its `end`. None until the first snapshot was read, and while idle.
        self._state: FollowedState | None = None
        # Finds aborted transactions in `_state`, and replaced together with it.
        self._aborted: AbortedReader | None = None
        # The greatest `committed_end` so far. Never falls, also while idle.
        self._shown: int = 0
        # The value of `committed_end` at the last call of `on_moved`.
        self._moved_to: int = -1
        # Why the outcome of the batch at `_state.end` cannot be known now, or None.
        self._hidden: LedgerError | None = None
        # Follows the log. None while idle.
        self._following: asyncio.Task[None] | None = None
        # True while `_following` has nothing to read, so that `on_advanced` may apply batches.
        self._caught_up = False
        # Set if there is more to read.
        self._wake = asyncio.Event()
        # True if a reader of committed records came since the last `rest`.
        self._used = False

    # -- what readers see ---------------------------------------------------------------------

    @property
    def stable_offset(self) -> int:
        """The last stable offset as last known here. It never falls, and may lag."""
        return max(self._shown, min(self._stream.start_sequence_id, self._stream.end_sequence_id))

    @property
    def committed_end(self) -> int:
        """The offset below which readers of committed records are served now."""
        state = self._state
        return self._stream.start_sequence_id if state is None else state.stable_offset

    def hides(self, offset: int) -> LedgerError | None:
        """Return why the outcome of the batch at `offset` is hidden, or None if it is not.

        None also if it was just not read yet.
        """
        return self._hidden if offset >= self.committed_end else None

    def aborted_cached(self, start: int, end: int) -> list[AbortedTransaction] | None:
        """Return aborted transactions from memory, as `AbortedReader.cached` does.

        Returns None if the outcomes up to `end` are not known now.
        """
        if not self._lists(end) or self._aborted is None:
            return None
        return self._aborted.cached(start, end)

    async def aborted(self, start: int, end: int) -> list[AbortedTransaction]:
        """Return aborted transactions, as `AbortedReader.read` does. Raises LedgerError."""
        if not self._lists(end) or self._aborted is None:
            raise StreamUnavailable(f"the outcomes of records below {end} are not known now")
        return await self._aborted.read(start, end)

    def _lists(self, end: int) -> bool:
        """Return whether the aborted transactions below `end` are known.

        The list in memory does not fit a segment that was cleaned: of what the cleaner dropped, no
        marker is left that ends it for a consumer.
        """
        state = self._state
        if state is None or end > state.stable_offset:
            return False
        return state.end == state.since or not self._stream.cleaned_at(state.since)

    # -- life ---------------------------------------------------------------------------------

    def follow(self) -> None:
        """Follow the log from now on, because a reader of committed records uses it."""
        self._used = True
        if (self._following is None or self._following.done()) and self._stream.is_open:
            self._following = start_once("the transactions of a replica", self._follow())

    def rest(self) -> None:
        """Stop if no reader of committed records came since the last call."""
        if not self._used:
            self.stop()
        self._used = False

    def stop(self) -> None:
        """Stop and release the memory. `follow` begins again with the newest snapshot."""
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
        self._state = self._aborted = self._hidden = None
        self._caught_up = False

    # -- following ----------------------------------------------------------------------------

    def on_advanced(self) -> None:
        """Apply the batches that just arrived, if there are few and they are in memory."""
        state = self._state
        if state is None or not self._caught_up:
            self._wake.set()
            return
        records = self._stream.read_cached(state.end, _TURN_BYTES)
        if records is not None and len(records) <= TURN_RECORDS:
            try:
                self._apply(state, records)
            except LedgerError as error:
                self._hide(error)
            self._note_moved()
        if state.end < self._stream.end_sequence_id:
            self._caught_up = False
            self._wake.set()

    async def _follow(self) -> None:
        READER.set("")  # of the process, not of the client whose fetch began this
        pause_s = _PAUSE_S
        while self._stream.is_open:
            self._wake.clear()
            try:
                await self._catch_up()
                pause_s = _PAUSE_S
            except LedgerError as error:
                self._hide(error)
                if pause_s > 10 * _PAUSE_S:
                    self._log.warn("cannot read the ends of transactions here; will retry", error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)
                continue
            state = self._state
            self._caught_up = state is not None and state.end >= self._stream.end_sequence_id
            if self._caught_up:
                await self._wake.wait()
                self._caught_up = False
        self._following = None
        self.stop()

    async def _catch_up(self) -> None:
        """Read all batches up to the end. Raises LedgerError if an outcome cannot be known now."""
        state = await self._load() if self._state is None or self._hidden else self._state
        read_bytes = 0
        while state.end < self._stream.end_sequence_id:
            rewrites = self._stream.rewrites
            if self._stream.cleaned_at(state.end):
                state = await self._load()  # from the newest segment, which is not cleaned
            self._check_cleaned(state.end)
            records = await self._stream.read_any(state.end, CHUNK_BYTES)
            if rewrites != self._stream.rewrites:
                continue
            for first in range(0, len(records), TURN_RECORDS):
                if first:
                    await asyncio.sleep(0)
                self._apply(state, records[first : first + TURN_RECORDS])
                self._hidden = None
                self._note_moved()
            read_bytes += sum(record.size_bytes for record in records)
            if read_bytes > READ_BYTES_MAX:
                read_bytes, state = 0, await self._load()

    async def _load(self) -> FollowedState:
        """Read the newest snapshot, and go on with it if it is newer than the present state."""
        async with self._loading:
            stored = await self._stream.newest_state()
            known = self._state
            if known is not None and stored.sequence_id <= known.end:
                return known
            state = await load_followed(stored)
        self._state = state
        self._aborted = AbortedReader(state, self._stream, self._loading)
        self._hidden = None
        self._note_moved()
        return state

    def _apply(self, state: FollowedState, records: Sequence[StoredRecord]) -> None:
        """Apply these batches. Raises OutcomeHidden at a lost range, CorruptFormat."""
        borders = self._stream.starts_above(state.since)
        for record in records:
            if record.lost is not None or record.sequence_id > state.end:
                raise OutcomeHidden(
                    f"offsets {state.end} to {record.end_sequence_id - 1} are lost, and may have "
                    "held the ends of transactions"
                )
            while borders and borders[-1] <= state.end:
                self._check_cleaned(record.sequence_id)
                state.begin_segment(borders.pop())
            apply_record(state, record)

    def _check_cleaned(self, offset: int) -> None:
        """Raise StreamUnavailable if the segment with `offset` was cleaned: it may lack markers."""
        if self._stream.cleaned_at(offset):
            raise StreamUnavailable(f"the segment with offset {offset} was cleaned")

    def _hide(self, error: LedgerError) -> None:
        """Note that the next outcome cannot be known now. `_follow` tries again."""
        if isinstance(error, Truncated):
            self._state = self._aborted = None  # a snapshot above the new start comes next
        if not self._stream.is_open:
            return
        if isinstance(error, EntryLost | EntryAwaited | OutcomeHidden | CorruptFormat):
            self._hidden = error
            self._on_moved()

    def _note_moved(self) -> None:
        end = self.committed_end
        if end != self._moved_to:
            self._moved_to = end
            self._shown = max(self._shown, end)
            self._on_moved()
