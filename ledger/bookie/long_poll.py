"""Readers that wait at a bookie for a ledger's next LAC (long polls)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from ledger.bookie.config import BookieConfig
from ledger.bookie.entry_index import EntryIndex
from ledger.bookie.entry_reader import EntryReader
from ledger.bookie.ledger_descriptor import LogRecord
from ledger.ids import EntryId, LedgerId
from ledger.ports.bookies import ReadReply, Status


class LongPolls:
    """Who waits for which ledger. As long as nobody does, it costs one look per group.

    Source: BookKeeper, long poll of the last add confirmed, with the entry (D32, D33).
    """

    __slots__ = ("_config", "_index", "_loop", "_over", "_reader", "_waiting", "count")

    def __init__(self, index: EntryIndex, reader: EntryReader, config: BookieConfig) -> None:
        self._index = index
        self._reader = reader
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, set[asyncio.Future[None]]] = {}
        self._over = False
        self.count = 0  # waiting now

    async def wait_lac(self, ledger: LedgerId, previous: EntryId, timeout_s: float) -> ReadReply:
        """As `Bookies.wait_lac`. OVERLOADED when too many wait already.

        For a ledger that is not known here it waits as well: its first entry may be on its way.
        """
        end_s = self._loop.time() + min(timeout_s, self._config.long_poll_ms_max / 1000)
        while not self._has_news(ledger, previous) and (left_s := end_s - self._loop.time()) > 0:
            if self.count >= self._config.long_polls_max:
                return ReadReply(Status.OVERLOADED)
            await self._wait(ledger, left_s)
        reply = self._reader.read_lac(ledger)
        if reply.status is not Status.OK or reply.lac <= previous:
            return reply
        entry = await self._reader.read(ledger, EntryId(previous + 1))
        return entry if entry.status is Status.OK else reply

    def on_logged(self, records: Iterable[LogRecord]) -> None:
        """The ledgers of these records may have news."""
        waiting = self._waiting
        for record in records:
            if record.ledger.ledger in waiting:
                self._wake(waiting.pop(record.ledger.ledger))

    def end(self) -> None:
        """The bookie ends: nobody waits any longer."""
        self._over = True
        waiting, self._waiting = self._waiting, {}
        for news in waiting.values():
            self._wake(news)

    def _has_news(self, ledger: LedgerId, previous: EntryId) -> bool:
        """An answer is due, be it that there never will be one."""
        try:
            state = self._index.state(ledger)
        except OSError:
            return True
        if state is None:
            return self._over or ledger < self._index.limbo_below
        settled = self._over or state.fenced or state.limbo or state.deleted
        return settled or state.lac > previous

    async def _wait(self, ledger: LedgerId, timeout_s: float) -> None:
        """Something of the ledger was logged, or time is up."""
        news: asyncio.Future[None] = self._loop.create_future()
        waiting = self._waiting.setdefault(ledger, set())
        waiting.add(news)
        self.count += 1
        try:
            await asyncio.wait([news], timeout=timeout_s)
        finally:
            self.count -= 1
            waiting.discard(news)
            if not waiting and self._waiting.get(ledger) is waiting:
                del self._waiting[ledger]

    def _wake(self, waiting: set[asyncio.Future[None]]) -> None:
        for news in waiting:
            if not news.done():
                news.set_result(None)
