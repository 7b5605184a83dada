"""Recovery of many ledgers at once: their requests share messages and transactions.

    recover ─▶ (waiting) ─▶ a batch: read all metadata ─▶ mark all IN_RECOVERY: one transaction
    ─▶ one FENCE_MANY to each bookie ─▶ close all: one transaction

A batch takes the calls that wait, up to `FENCED_MAX`; the next ones wait while `_BATCHES_MAX` are
under way. It closes the ledgers whose bookies all name the same end, which is nearly all of them
after the death of a gateway. Every other one goes alone, through `recover_ledger`: one in conflict
with another process, one whose bookies have to be asked for more, one that cannot be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ledger.client import metadata_format, recover
from ledger.client.config import LedgerClientConfig
from ledger.client.health import BookieHealth
from ledger.client.recover import Recovered, last_of, note_marked, start_recovery
from ledger.client.update_metadata import LedgerMetadataStore
from ledger.core.entry_format import master_key
from ledger.core.ledger_metadata import LedgerMetadata, Versioned
from ledger.core.quorum import Coverage, write_sets
from ledger.core.recovery import Close
from ledger.errors import EntryTooLarge, MetadataError
from ledger.events import EventKind, note_ledger_event
from ledger.ids import BookieId, LedgerId
from ledger.ports.bookies import FENCED_MAX, Bookies, ReadReply, Status
from ledger.ports.metadata import Set
from ledger.tasks import start_once

_BATCHES_MAX: Final = 2
_SILENT: Final = ReadReply(Status.UNREACHABLE)
_FENCED: Final = (Status.OK, Status.NO_ENTRY, Status.NO_LEDGER)

_Row = tuple[LedgerId, int]
"""A ledger, and the index of the bookie in its last ensemble."""

_Asking = asyncio.Task[Sequence[ReadReply]]

_Changes = Mapping[LedgerId, tuple[Versioned, LedgerMetadata]]
"""For each ledger the metadata as read, and those to store."""


class _Waiting(NamedTuple):
    ledger: LedgerId
    done: asyncio.Future[Recovered | None]  # None: it goes alone


class LedgerRecoveries:
    """The recoveries of one client."""

    together_min = 2
    """Fewer calls than these go alone."""

    def __init__(
        self,
        metadata_store: LedgerMetadataStore,
        bookies: Bookies,
        health: BookieHealth,
        config: LedgerClientConfig,
    ) -> None:
        self._metadata_store = metadata_store
        self._bookies = bookies
        self._health = health
        self._config = config
        self._loop = asyncio.get_running_loop()
        # Calls that are not in a batch yet, oldest first.
        self._waiting: list[_Waiting] = []
        # The number of batches under way, at most `_BATCHES_MAX`.
        self._batches = 0
        # True while `_begin` is due in the next turn of the loop.
        self._due = False

    async def recover(self, ledger: LedgerId) -> Recovered:
        """Recover one ledger, together with others that are asked for now. See `recover_ledger`."""
        done: asyncio.Future[Recovered | None] = self._loop.create_future()
        self._waiting.append(_Waiting(ledger, done))
        self._wake()
        found = await done
        return await self._alone(ledger) if found is None else found

    def _wake(self) -> None:
        if self._waiting and not self._due and self._batches < _BATCHES_MAX:
            self._due = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._due = False
        batch: dict[LedgerId, _Waiting] = {}
        for one in self._waiting:
            if len(batch) < FENCED_MAX and not one.done.done():
                batch.setdefault(one.ledger, one)
        taken = set(map(id, batch.values()))
        self._waiting = [w for w in self._waiting if id(w) not in taken and not w.done.done()]
        if len(batch) < self.together_min:
            self._settle(batch, {})
        else:
            self._batches += 1
            task = start_once("a batch of recoveries", self._run(batch))

            def on_done(_: object) -> None:
                if all(one.done.done() for one in batch.values()):  # all callers have given up
                    task.cancel()

            for one in batch.values():
                one.done.add_done_callback(on_done)
        self._wake()

    async def _run(self, batch: Mapping[LedgerId, _Waiting]) -> None:
        found: dict[LedgerId, Recovered] = {}
        try:
            found = await self._recover_all(list(batch))
        finally:
            self._batches -= 1
            self._settle(batch, found)
            self._wake()

    @staticmethod
    def _settle(batch: Mapping[LedgerId, _Waiting], found: Mapping[LedgerId, Recovered]) -> None:
        for ledger, one in batch.items():
            if not one.done.done():
                one.done.set_result(found.get(ledger))

    async def _alone(self, ledger: LedgerId) -> Recovered:
        return await recover.recover_ledger(
            ledger, self._metadata_store, self._bookies, self._health, self._config
        )

    # -- one batch -----------------------------------------------------------------------------

    async def _recover_all(self, ledgers: Sequence[LedgerId]) -> dict[LedgerId, Recovered]:
        """Return the ledgers that were recovered together."""
        known = await self._metadata_store.read_many(ledgers)
        found = {each: Recovered(one) for each, one in known.items() if one.metadata.closed}
        known = await self._mark({each: known[each] for each in known if each not in found})
        closes: dict[LedgerId, Close] = {}
        if known:
            replies = await self._fence(known)
            for ledger, one in known.items():
                run = recover.RecoveryRun(one.metadata, self._bookies, self._health, self._config)
                close = run.close_by_fences(replies[ledger])
                if close is not None:
                    closes[ledger] = close
        changes = {
            ledger: (known[ledger], close.metadata.close(close.last_entry, close.length or 0))
            for ledger, close in closes.items()
        }
        for ledger, stored in (await self._store(changes)).items():
            close = closes[ledger]
            note_ledger_event(EventKind.RECOVERY, stored.metadata, last_entry=close.last_entry)
            found[ledger] = Recovered(stored, last_of(close))
        return found

    async def _mark(self, known: Mapping[LedgerId, Versioned]) -> dict[LedgerId, Versioned]:
        """Mark open ledgers IN_RECOVERY. Returns those that are, as they are stored."""
        changes = {
            ledger: (one, marked)
            for ledger, one in known.items()
            if (marked := start_recovery(one.metadata)) is not None
        }
        marked = await self._store(changes)
        for ledger, one in marked.items():
            note_marked(known[ledger].metadata, one.metadata)
        return {each: one for each, one in known.items() if each not in changes} | marked

    async def _store(self, changes: _Changes) -> dict[LedgerId, Versioned]:
        """Store changed metadata in one transaction. Returns those that were stored.

        After a conflict all are read again, and those that are as before are tried once more.
        """
        for _ in range(2):
            if not changes:
                break
            ops = [
                Set(
                    metadata_format.ledger_path(ledger),
                    metadata_format.encode(wanted),
                    known.version,
                )
                for ledger, (known, wanted) in changes.items()
            ]
            try:
                await self._metadata_store.store.multi(ops)
            except EntryTooLarge:
                break
            except MetadataError:
                changes = await self._unchanged(changes)
                continue
            return {
                ledger: Versioned(wanted, known.version + 1)
                for ledger, (known, wanted) in changes.items()
            }
        return {}

    async def _unchanged(self, changes: _Changes) -> _Changes:
        """Return the changes of ledgers that are still as they were read."""
        now = await self._metadata_store.read_many(list(changes))
        return {each: one for each, one in changes.items() if now.get(each) == one[0]}

    # -- fences --------------------------------------------------------------------------------

    async def _fence(self, known: Mapping[LedgerId, Versioned]) -> dict[LedgerId, list[ReadReply]]:
        """Fence all ledgers at all bookies of their last ensembles. Returns the replies by index.

        Waits for all bookies for a short time, then only until most ledgers are fenced: the others
        go alone, so that one bookie that does not reply delays only the ledgers that need it.
        """
        asked: dict[BookieId, list[_Row]] = {}
        for ledger, one in known.items():
            for index, bookie in enumerate(one.metadata.last_fragment.ensemble):
                asked.setdefault(bookie, []).append((ledger, index))
        fences = _Fences(known)
        tasks = {
            start_once("the fences of a bookie", self._ask(bookie, rows, known)): rows
            for bookie, rows in asked.items()
        }
        until_s = self._loop.time() + self._config.read_timeout_s
        try:
            done, left = await asyncio.wait(tasks, timeout=self._config.recovery_patience_s)
            fences.take_all(done, tasks)
            while left and not fences.cover_most and self._loop.time() < until_s:
                wait_s = until_s - self._loop.time()
                first = asyncio.FIRST_COMPLETED
                done, left = await asyncio.wait(left, timeout=wait_s, return_when=first)
                fences.take_all(done, tasks)
        finally:
            for task in tasks:  # in order, so that simulated runs repeat
                task.cancel()
        return fences.replies

    async def _ask(
        self,
        bookie: BookieId,
        rows: Sequence[_Row],
        known: Mapping[LedgerId, Versioned],
    ) -> Sequence[ReadReply]:
        keys = [(ledger, master_key(known[ledger].metadata.password)) for ledger, _ in rows]
        return await self._bookies.fence_many(bookie, keys)


class _Fences:
    """The replies of all bookies to the fences of one batch."""

    def __init__(self, known: Mapping[LedgerId, Versioned]) -> None:
        # For each ledger the replies by index; UNREACHABLE for a bookie that has not replied.
        self.replies = {
            ledger: [_SILENT] * one.metadata.ensemble_size for ledger, one in known.items()
        }
        # Ledgers whose write sets are not covered by fenced bookies yet.
        self._uncovered = {ledger: coverage_of(one.metadata) for ledger, one in known.items()}

    @property
    def cover_most(self) -> bool:
        return 2 * len(self._uncovered) < len(self.replies)

    def take_all(self, done: set[_Asking], rows: Mapping[_Asking, Sequence[_Row]]) -> None:
        """Take the replies of these tasks, which asked for `rows`."""
        for task in [one for one in rows if one in done]:
            self._take(rows[task], task.result())

    def _take(self, rows: Sequence[_Row], replies: Sequence[ReadReply]) -> None:
        for (ledger, index), reply in zip(rows, replies, strict=True):
            self.replies[ledger][index] = reply
            coverage = self._uncovered.get(ledger)
            if coverage is not None and reply.status in _FENCED:
                coverage.on_known(index)
                if coverage.reached:
                    del self._uncovered[ledger]


def coverage_of(metadata: LedgerMetadata) -> Coverage:
    """Return the count of fences until all write sets of the last ensemble are covered."""
    sets = write_sets(metadata.ensemble_size, metadata.write_quorum)
    return Coverage(sets, metadata.ack_quorum)
