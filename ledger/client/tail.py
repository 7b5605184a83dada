"""Follows a ledger while it grows: waits at a bookie instead of asking again and again.

One bookie is asked and holds the question until its LAC moves (long poll), the entry travels in
the answer. Another one is asked when it stays silent, errs or has no news for a whole period: it
may be cut off from the writer. A watch on the metadata tells of new fragments and of the end.
Source: BookKeeper, `ReadLastConfirmedAndEntryOp.java`; DistributedLog, "Tailing reads" (seed 000).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from ledger.client.config import LedgerClientConfig
from ledger.client.health import SICK, BookieHealth
from ledger.client.reader import LedgerReader
from ledger.client.speculative_read import Ask, SpeculativeRead
from ledger.core.quorum import coverage_size
from ledger.core.read_plan import tail_order
from ledger.errors import EntryUnknown, MetadataUnavailable
from ledger.ids import BookieId, EntryId
from ledger.ports.bookies import Bookies, ReadReply, Status
from ledger.ports.metadata import Unwatch

_ABSENT = (Status.NO_ENTRY, Status.NO_LEDGER)
_PAUSE_S = 0.02
_PAUSE_S_MAX = 1.0
_FOLLOW_S = 30.0
_FOLLOW_BYTES = 1024 * 1024


class Tail(NamedTuple):
    """What a wait at the tail brought."""

    lac: EntryId
    payload: memoryview | None = None  # of the entry that was wanted; None: not confirmed yet
    ended: bool = False  # the ledger is closed below it


class TailReader:
    """Waits for what a ledger does not have yet. Belongs to one task; `close` it in the end."""

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
        self._unwatch: Unwatch | None = None
        self._changed = True  # metadata may be newer than the reader knows
        self._woken = asyncio.Event()  # set with `_changed`
        self._poll: SpeculativeRead[Tail] | None = None
        self._quiet: set[BookieId] = set()  # had no news when last asked
        self._heard = False  # anyone, in this call

    def close(self) -> None:
        """Nothing is watched any more."""
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    async def wait_lac(self, previous: EntryId, timeout_s: float) -> EntryId:
        """The last add confirmed, once it is above `previous`, the ledger ended or time is up.

        Raises EntryUnknown when nobody answers, NoSuchLedger.
        """
        return (await self._wait(EntryId(previous + 1), timeout_s)).lac

    async def read_next(self, wanted: EntryId, timeout_s: float) -> Tail:
        """Entry `wanted`, at once if it is confirmed, else when it is; or no more than the LAC
        when it is not after `timeout_s`, or never will be.

        Raises EntryUnknown when nobody answers, or none can show an entry that is confirmed;
        NoSuchLedger; and NoSuchEntry by evidence, as `LedgerReader.read`.
        """
        tail = await self._wait(wanted, timeout_s)
        if tail.payload is None and wanted <= tail.lac:
            [(_, payload)] = await self.reader.read(wanted, wanted, 1)
            tail = Tail(self.reader.last_add_confirmed, payload)
        return tail

    async def follow(self, first: EntryId) -> AsyncIterator[tuple[EntryId, memoryview]]:
        """Every entry from `first` on as it is confirmed, until the ledger ends.

        Raises as `read_next`; going on after the last entry seen loses nothing.
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
        """Entry `wanted` is confirmed (and shown if it came along), cannot be, or time is up."""
        reader = self.reader
        end_s = self._loop.time() + timeout_s
        pause_s = _PAUSE_S
        self._heard = False
        while True:
            if wanted > reader.last_add_confirmed:
                await self._look()
            lac = reader.last_add_confirmed
            if wanted <= lac or reader.metadata.closed:
                return Tail(lac, ended=wanted > lac)
            if self._loop.time() >= end_s and self._heard:
                return Tail(lac)
            found = await self._ask(wanted, end_s)
            if found is not None and found.payload is not None:
                return found
            left_s = end_s - self._loop.time()
            if left_s <= 0 and not self._heard:
                raise EntryUnknown(f"ledger {reader.metadata.ledger}: no bookie told its LAC")
            if found is None and left_s > 0:
                await self._pause(min(pause_s, left_s))
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    async def _look(self) -> None:
        """The reader knows of every change of the metadata that was told so far."""
        if self._unwatch is None:  # before the first look, so that nothing falls between
            self._unwatch = self.reader.watch(self._on_changed)
        if self._changed:
            self._changed = False
            self._woken.clear()
            try:
                await self.reader.refresh()
            except MetadataUnavailable:
                self._changed = True  # the next round looks again; bookies answer meanwhile

    def _on_changed(self) -> None:
        self._changed = True
        self._woken.set()
        if self._poll is not None:
            self._poll.stop()

    async def _pause(self, pause_s: float) -> None:
        """So much time passed, or the metadata changed."""
        try:
            async with asyncio.timeout(pause_s):
                await self._woken.wait()
        except TimeoutError:
            pass

    async def _ask(self, wanted: EntryId, end_s: float) -> Tail | None:
        """What the first bookie that knows something said: news, or that there are none after a
        whole period. None: nobody could say even that, or the metadata changed."""
        metadata = self.reader.metadata
        order = iter(self._order(wanted))
        empties_left = coverage_size(metadata.ensemble_size, metadata.ack_quorum)

        def on_empty() -> None:
            nonlocal empties_left
            empties_left -= 1

        def ask_next() -> Ask[Tail] | None:
            bookie = next(order, None)
            if bookie is None or empties_left == 0:
                return None
            return self._ask_bookie(bookie, wanted, end_s, on_empty)

        left_s = max(0.0, end_s - self._loop.time())
        self._poll = SpeculativeRead(
            ask_next,
            late_s=self._late_s,
            late_s_max=self._late_s_max,
            timeout_s=min(left_s + self._late_s - self._long_poll_s, self._round_s),
            on_late=self._health.on_speculative_lac_read,
        )
        try:
            return await self._poll.run()
        finally:
            self._poll = None

    def _order(self, wanted: EntryId) -> list[BookieId]:
        """Those first that may have news soonest; those last that had none when last asked."""
        metadata = self.reader.metadata
        ensemble = metadata.last_fragment.ensemble
        self._quiet.intersection_update(ensemble)
        if len(self._quiet) == len(ensemble):
            self._quiet.clear()
        order = tail_order(ensemble, metadata.write_quorum, wanted)
        order = self._health.read_order(order, None)
        return sorted(order, key=self._quiet.__contains__)

    async def _ask_bookie(
        self, bookie: BookieId, wanted: EntryId, end_s: float, on_empty: Callable[[], None]
    ) -> Tail | None:
        reader = self.reader
        asked_at_s = self._loop.time()
        period_s = min(self._long_poll_s, max(0.0, end_s - asked_at_s))
        ok: bool | None = None
        try:
            reply = await self._bookies.wait_lac(
                bookie, reader.metadata.ledger, EntryId(wanted - 1), period_s
            )
            ok = reply.status not in SICK
            self._quiet.add(bookie)
            if reply.status is not Status.OK and reply.status not in _ABSENT:
                return None
            self._heard = True
            reader.last_add_confirmed = max(reader.last_add_confirmed, reply.lac)
            if reply.lac >= wanted:
                self._quiet.discard(bookie)
                return self._shown(bookie, wanted, reply)
            if 2 * (self._loop.time() - asked_at_s) >= period_s:
                return Tail(reply.lac)
            on_empty()  # it does not wait: it was fenced, or does not know the ledger
            return None
        finally:
            if ok is not None:
                self._health.on_result(bookie, ok)
            elif self._loop.time() - asked_at_s >= self._late_s:  # given up
                self._quiet.add(bookie)
                self._health.on_result(bookie, False)

    def _shown(self, bookie: BookieId, wanted: EntryId, reply: ReadReply) -> Tail:
        """With the entry if it came along and is what was written; else it is read elsewhere."""
        entries = self.reader.verified(bookie, wanted, (reply.body,)) if reply.body else ()
        payload = entries[0][1] if entries else None
        return Tail(self.reader.last_add_confirmed, payload)
