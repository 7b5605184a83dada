"""Long polls: readers that wait at a bookie for a ledger's LAC to advance."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from ledger.bookie.answer_room import Share
from ledger.bookie.config import BookieConfig
from ledger.bookie.entry_index import EntryIndex
from ledger.bookie.entry_reader import EntryReader
from ledger.bookie.ledger_descriptor import QueuedRecord
from ledger.ids import EntryId, LedgerId
from ledger.ports.bookies import ReadReply, Status


class LongPolls:
    """The readers that wait for a LAC. Without readers, the cost is one check per group.

    Source: BookKeeper, long poll of the last add confirmed, with the entry (D32, D33).
    """

    __slots__ = ("_closed", "_config", "_index", "_loop", "_reader", "_waiters", "count")

    def __init__(self, index: EntryIndex, reader: EntryReader, config: BookieConfig) -> None:
        self._index = index
        self._reader = reader
        self._config = config
        self._loop = asyncio.get_running_loop()
        # Futures of the waiting readers, by ledger. A ledger's set is removed when a record of the
        # ledger is logged, or when its last reader leaves.
        self._waiters: dict[int, set[asyncio.Future[None]]] = {}
        # True once the bookie has stopped. No reader waits after that.
        self._closed = False
        # Readers waiting now.
        self.count = 0

    async def wait_lac(
        self, ledger: LedgerId, previous: EntryId, timeout_s: float, room: Share = None
    ) -> ReadReply:
        """Implement `Bookies.wait_lac`. OVERLOADED if `long_polls_max` readers wait already.

        Waits for an unknown ledger too, because its first entry may arrive soon.
        """
        end_s = self._loop.time() + min(timeout_s, self._config.long_poll_ms_max / 1000)
        while not self._is_due(ledger, previous) and (left_s := end_s - self._loop.time()) > 0:
            if self.count >= self._config.long_polls_max:
                return ReadReply(Status.OVERLOADED)
            await self._wait(ledger, left_s)
        reply = self._reader.read_lac(ledger)
        if reply.status is not Status.OK or reply.lac <= previous:
            return reply
        entry = await self._reader.read(ledger, EntryId(previous + 1), room)
        return entry if entry.status is Status.OK else reply

    def on_logged(self, records: Iterable[QueuedRecord]) -> None:
        """Wake the readers of these records' ledgers."""
        waiters = self._waiters
        for record in records:
            if record.ledger.ledger in waiters:
                self._wake(waiters.pop(record.ledger.ledger))

    def close(self) -> None:
        """Wake all readers, because the bookie has stopped."""
        self._closed = True
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters.values():
            self._wake(waiter)

    def _is_due(self, ledger: LedgerId, previous: EntryId) -> bool:
        """True if the reader can be answered now, or if the LAC will never advance."""
        try:
            state = self._index.state(ledger)
        except OSError:
            return True
        if state is None:
            return self._closed or ledger < self._index.limbo_below
        settled = self._closed or state.fenced or state.limbo or state.deleted
        return settled or state.lac > previous

    async def _wait(self, ledger: LedgerId, timeout_s: float) -> None:
        """Wait until a record of the ledger is logged, or for `timeout_s`."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        waiters = self._waiters.setdefault(ledger, set())
        waiters.add(waiter)
        self.count += 1
        try:
            await asyncio.wait([waiter], timeout=timeout_s)
        finally:
            self.count -= 1
            waiters.discard(waiter)
            if not waiters and self._waiters.get(ledger) is waiters:
                del self._waiters[ledger]

    def _wake(self, waiters: set[asyncio.Future[None]]) -> None:
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
