"""Follows a ledger while it grows, by long polls at its bookies.

One bookie is polled, and holds the request until its LAC rises; the new entry comes with the
answer. Another bookie is polled if the first is silent, fails, or has had nothing new for a whole
period: it may be cut off from the writer. A watch on the metadata reports new fragments and the
end of the ledger.
Source: BookKeeper, `ReadLastConfirmedAndEntryOp.java`; DistributedLog, "Tailing reads" (seed 000).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, NamedTuple

from ledger.client.config import LedgerClientConfig
from ledger.client.health import UNHEALTHY, Answer, BookieHealth
from ledger.client.reader import LedgerReader
from ledger.client.speculative_read import Attempt, SpeculativeRead
from ledger.core.latency import SampleKind
from ledger.core.quorum import coverage_size
from ledger.core.read_plan import Lateness, tail_order
from ledger.errors import EntryUnknown, MetadataUnavailable
from ledger.ids import BookieId, EntryId
from ledger.ports.bookies import Bookies, ReadReply, Status
from ledger.ports.metadata import Unwatch

_ABSENT = (Status.NO_ENTRY, Status.NO_LEDGER)
_PAUSE_S = 0.02
_PAUSE_S_MAX = 1.0
_NOTHING = EntryId(-1)
_FOLLOW_S = 30.0
_FOLLOW_BYTES = 1024 * 1024


class Tail(NamedTuple):
    """The result of a wait at the tail."""

    lac: EntryId
    payload: memoryview | None = None  # payload of the wanted entry, or None if it was not received
    ended: bool = False  # True if the ledger is closed below the wanted entry


class _SameNews:
    """The answers of two bookies that were asked for the same news.

    A long poll may wait for hours, which measures the writer. What measures a bookie is how long
    after another one it had the news.
    """

    def __init__(self, wanted: EntryId, bookies: tuple[BookieId, BookieId]) -> None:
        self._wanted = wanted
        self.bookies = bookies
        # The time of the first answer with the news, and its bookie. None before it.
        self._first: tuple[float, BookieId, int] | None = None

    def lags(
        self, bookie: BookieId, wanted: EntryId, size: int, now_s: float
    ) -> list[tuple[BookieId, int, float]]:
        """Return (bookie, size, lag) of both bookies with the second answer, else nothing."""
        if wanted != self._wanted or bookie not in self.bookies:
            return []
        if self._first is None:
            self._first = (now_s, bookie, size)
            return []
        first_s, first, first_size = self._first
        if first == bookie:
            return []
        self._wanted = _NOTHING  # later answers are of other polls
        size = max(size, first_size)  # one class for both
        return [(first, size, 0.0), (bookie, size, now_s - first_s)]


class TailReader:
    """A reader that waits for the next entries of a ledger. One task uses it and closes it."""

    def __init__(
        self,
        reader: LedgerReader,
        bookies: Bookies,
        config: LedgerClientConfig,
        health: BookieHealth,
    ) -> None:
        self.reader = reader
        self._bookies = bookies
        self._health = health
        self._long_poll_s = config.long_poll_s
        self._late_s = config.speculative_lac_s
        self._late_s_max = config.speculative_lac_s_max
        self._round_s = config.long_poll_s + config.read_timeout_s
        self._loop = asyncio.get_running_loop()
        # The watch on the metadata. Set by the first wait, and ended by `close`.
        self._unwatch: Unwatch | None = None
        # True if the stored metadata may be newer than the reader's. Cleared by a refresh.
        self._changed = True
        # Set when the metadata change, to end a pause. Cleared together with `_changed`.
        self._wake = asyncio.Event()
        # The poll in flight. A change of the metadata stops it.
        self._poll: SpeculativeRead[Tail] | None = None
        # The news for which two bookies were asked last, to compare them.
        self._same_news = _SameNews(_NOTHING, (BookieId(""), BookieId("")))
        # Bookies of the ensemble that had nothing new at their last poll. They are polled last.
        # Cleared once all bookies, or enough of those that are not greylisted, are in the set.
        self._quiet: set[BookieId] = set()
        # True once a bookie has answered during the present wait. A wait without any answer fails.
        self._answered = False

    def close(self) -> None:
        """End the watch on the metadata."""
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    async def wait_lac(self, previous: EntryId, timeout_s: float) -> EntryId:
        """Wait until the LAC is above `previous`, the ledger ends or time is up. Return the LAC.

        Raises NoSuchLedger, or EntryUnknown if no bookie answers.
        """
        return (await self._wait(EntryId(previous + 1), timeout_s)).lac

    async def read_next(self, wanted: EntryId, timeout_s: float) -> Tail:
        """Wait until entry `wanted` is confirmed, and return it.

        If the entry is not confirmed after `timeout_s` seconds, or the ledger ends below it, the
        result has only the LAC. Raises EntryUnknown if no bookie answers, or a confirmed entry
        cannot be read now. Raises NoSuchLedger, and NoSuchEntry on evidence as in
        `LedgerReader.read`.
        """
        tail = await self._wait(wanted, timeout_s)
        if tail.payload is None and wanted <= tail.lac:
            [(_, payload)] = await self.reader.read(wanted, wanted, 1)
            tail = Tail(self.reader.last_add_confirmed, payload)
        return tail

    async def follow(self, first: EntryId) -> AsyncIterator[tuple[EntryId, memoryview]]:
        """Yield every entry from `first` on once it is confirmed, until the ledger ends.

        Raises the errors of `read_next`. The caller may then continue after the last received
        entry.
        """
        wanted = first
        while True:
            tail = await self.read_next(wanted, _FOLLOW_S)
            if tail.ended:
                return
            if tail.payload is None:
                continue
            yield wanted, tail.payload
            wanted = EntryId(wanted + 1)
            while wanted <= self.reader.last_add_confirmed:
                last = self.reader.last_add_confirmed
                for entry, payload in await self.reader.read(wanted, last, _FOLLOW_BYTES):
                    yield entry, payload
                    wanted = EntryId(entry + 1)

    async def _wait(self, wanted: EntryId, timeout_s: float) -> Tail:
        """Wait until entry `wanted` is confirmed, the ledger ends below it, or time is up.

        The result has the entry if a bookie's answer contained it.
        """
        reader = self.reader
        end_s = self._loop.time() + timeout_s
        pause_s = _PAUSE_S
        self._answered = False
        while True:
            if wanted > reader.last_add_confirmed:
                await self._refresh()
            lac = reader.last_add_confirmed
            if wanted <= lac or reader.metadata.closed:
                return Tail(lac, ended=wanted > lac)
            if self._loop.time() >= end_s and self._answered:
                return Tail(lac)
            found = await self._poll_bookies(wanted, end_s)
            if found is not None and found.payload is not None:
                return found
            left_s = end_s - self._loop.time()
            if left_s <= 0 and not self._answered:
                raise EntryUnknown(f"ledger {reader.metadata.ledger}: no bookie returned its LAC")
            if found is None and left_s > 0:
                await self._pause(min(pause_s, left_s))
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    async def _refresh(self) -> None:
        """Let the reader adopt all changes of the metadata that were reported so far."""
        if self._unwatch is None:  # watch before the first read, so that no change is missed
            self._unwatch = self.reader.watch(self._on_changed)
        if self._changed:
            self._changed = False
            self._wake.clear()
            try:
                await self.reader.refresh()
            except MetadataUnavailable:
                self._changed = True  # the next round retries; bookies are polled meanwhile

    def _on_changed(self) -> None:
        self._changed = True
        self._wake.set()
        if self._poll is not None:
            self._poll.stop()

    async def _pause(self, pause_s: float) -> None:
        """Wait for `pause_s` seconds, or until the metadata change."""
        try:
            async with asyncio.timeout(pause_s):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _poll_bookies(self, wanted: EntryId, end_s: float) -> Tail | None:
        """Poll bookies until one has a new entry, or has nothing new for a whole period.

        Returns None if no bookie could answer, or the metadata changed.
        """
        metadata = self.reader.metadata
        order = iter(self._order(wanted))
        empties_left = coverage_size(metadata.ensemble_size, metadata.ack_quorum)
        left_s = max(0.0, end_s - self._loop.time())
        timeout_s = min(left_s + self._late_s - self._long_poll_s, self._round_s)
        lateness = Lateness(self._loop.time() + timeout_s)

        def on_empty() -> None:
            nonlocal empties_left
            empties_left -= 1

        def next_attempt() -> Attempt[Tail] | None:
            bookie = next(order, None)
            if bookie is None or empties_left == 0:
                return None
            return self._poll_bookie(bookie, wanted, end_s, on_empty, lateness)

        self._poll = SpeculativeRead(
            next_attempt,
            late_s=self._late_s,
            late_s_max=self._late_s_max,
            timeout_s=timeout_s,
            on_late=self._health.on_speculative_lac_read,
        )
        try:
            return await self._poll.run()
        finally:
            self._poll = None

    def _order(self, wanted: EntryId) -> list[BookieId]:
        """Return the bookies to poll, ending with the ones that had nothing new last time.

        A greylisted bookie comes after them, unless the others might all lack the news.
        """
        metadata = self.reader.metadata
        ensemble = metadata.last_fragment.ensemble
        most = metadata.write_quorum - 1
        last = self._health.ask_last(ensemble, most, SampleKind.TAIL)
        if len(ensemble) - len(last) < coverage_size(metadata.ensemble_size, metadata.ack_quorum):
            last = frozenset[BookieId]()
        self._quiet.intersection_update(ensemble)
        if len(self._quiet | last) == len(ensemble):
            self._quiet.clear()
        order = tail_order(ensemble, metadata.write_quorum, wanted)
        order = self._health.read_order(order, None, most, SampleKind.TAIL)
        return sorted(order, key=lambda bookie: (bookie in last, bookie in self._quiet))

    async def _poll_bookie(
        self,
        bookie: BookieId,
        wanted: EntryId,
        end_s: float,
        on_empty: Callable[[], None],
        lateness: Lateness,
    ) -> Tail | None:
        reader = self.reader
        asked_at_s = self._loop.time()
        period_s = min(self._long_poll_s, max(0.0, end_s - asked_at_s))
        self._start_probe(bookie, wanted, period_s)
        ok: bool | None = None
        try:
            reply = await self._bookies.wait_lac(
                bookie, reader.metadata.ledger, EntryId(wanted - 1), period_s
            )
            ok = reply.status not in UNHEALTHY
            self._quiet.add(bookie)
            if reply.status is not Status.OK and reply.status not in _ABSENT:
                return None
            self._answered = True
            reader.last_add_confirmed = max(reader.last_add_confirmed, reply.lac)
            lateness.on_found(self._loop.time() - asked_at_s)
            if reply.lac >= wanted:
                self._quiet.discard(bookie)
                self._on_news(bookie, wanted, reply)
                return self._tail_of(bookie, wanted, reply)
            if 2 * (self._loop.time() - asked_at_s) >= period_s:
                return Tail(reply.lac)
            on_empty()  # an early answer: the ledger is fenced or missing there
            return None
        finally:
            if ok is not None:
                self._health.on_result(bookie, ok)
            elif self._loop.time() - asked_at_s >= self._late_s:
                self._quiet.add(bookie)
                if lateness.is_late(asked_at_s, self._loop.time(), self._late_s):
                    self._health.on_result(bookie, False)  # cancelled, as another one was faster

    def _start_probe(self, bookie: BookieId, wanted: EntryId, period_s: float) -> None:
        """Ask another bookie for the same news, if a comparison is due.

        Only bookies that store the next entry get the news at the same time.
        """

        def probe(other: BookieId) -> Coroutine[Any, Any, None]:
            self._same_news = _SameNews(wanted, (bookie, other))
            return self._probe(other, wanted, period_s)

        learners = self._learners(wanted)
        if bookie in learners:
            self._health.start_probe(bookie, SampleKind.TAIL, learners, probe)

    def _learners(self, wanted: EntryId) -> tuple[BookieId, ...]:
        """Return the bookies that store the entry after `wanted`, which confirms it."""
        metadata = self.reader.metadata
        ensemble = metadata.last_fragment.ensemble
        return tail_order(ensemble, metadata.write_quorum, wanted)[: metadata.write_quorum]

    async def _probe(self, bookie: BookieId, wanted: EntryId, period_s: float) -> None:
        """Poll one more bookie, only to measure it."""
        reply = ReadReply(Status.UNREACHABLE)
        try:
            async with asyncio.timeout(self._round_s):
                reply = await self._bookies.wait_lac(
                    bookie, self.reader.metadata.ledger, EntryId(wanted - 1), period_s
                )
        except TimeoutError:
            pass
        self._health.on_result(bookie, reply.status not in UNHEALTHY)
        if reply.status is Status.OK and reply.lac >= wanted:
            self._on_news(bookie, wanted, reply)

    def _on_news(self, bookie: BookieId, wanted: EntryId, reply: ReadReply) -> None:
        """Count how long this bookie had the news after another one, once both have answered."""
        lags = self._same_news.lags(bookie, wanted, len(reply.body), self._loop.time())
        both = self._same_news.bookies
        for each, size, seconds in lags:
            answer = Answer(SampleKind.TAIL, size, self._learners(wanted))
            self._health.on_sample(each, answer, seconds, both)

    def _tail_of(self, bookie: BookieId, wanted: EntryId, reply: ReadReply) -> Tail:
        """Return the LAC, and the entry if `reply` contains a correct copy of it."""
        entries = self.reader.verified(bookie, wanted, (reply.body,)) if reply.body else ()
        payload = entries[0][1] if entries else None
        return Tail(self.reader.last_add_confirmed, payload)
