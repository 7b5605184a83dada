"""The replication worker: lock an under-replicated ledger, repair it, take it off the list.

    lock ─▶ examine (metadata, LAC, replicas) ─▶ plan ─▶ copy ─▶ all durable? ─▶ update (CAS)
                ▲                                                                    │
                └────────────── until it is complete, or nothing more helps ◀────────┘

The worker may stop between any two steps. The mark then remains, as do copies that are not in the
metadata yet. Any number of workers may run. A lock saves double work, and safety does not depend on
locks. Source: BookKeeper, `ReplicationWorker.java`, `LedgerFragmentReplicator.java`; invariant L19.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from ledger.client.client import LedgerClient
from ledger.client.config import LedgerClientConfig
from ledger.client.update_metadata import LedgerMetadataStore
from ledger.core.placement import RandomSource
from ledger.errors import LedgerError, MetadataUnavailable, NoSuchLedger
from ledger.events import EventKind, note_event
from ledger.ids import BookieId, LedgerId
from ledger.ports.bookies import Bookies
from ledger.ports.clock import Clock
from ledger.ports.metadata import MetadataStore
from ledger.repair.accepted_entries import AcceptedEntries, nothing_accepted
from ledger.repair.config import RepairConfig
from ledger.repair.entry_copier import CopyBudget, RepairProgress
from ledger.repair.repair_task import RepairServices, RepairTask, TaskResult
from ledger.repair.retry_schedule import RetrySchedule
from ledger.repair.spare_bookies import SpareBookies
from ledger.repair.underreplicated_ledgers import (
    RepairNote,
    UnderreplicatedLedger,
    UnderreplicatedLedgers,
)

_RELEASE_S_MAX: Final = 2.0


class RepairStatus(Enum):
    """The outcome of one attempt at a ledger."""

    REPAIRED = auto()  # the ledger is complete and off the list, or was deleted
    UNFINISHED = auto()  # the ledger is still on the list
    LOCKED = auto()  # another worker has the lock


@dataclass(frozen=True, slots=True)
class RepairOutcome:
    """The outcome of one attempt, with the reasons if it is unfinished."""

    result: RepairStatus
    reasons: tuple[str, ...] = ()  # why the ledger is unfinished
    retry_s: float | None = None  # time after which another attempt can do more
    progress: bool = False  # True if this attempt changed something


class ReplicationWorker:
    """One worker. Call `run`, or `run_pass` for one pass over the list."""

    def __init__(
        self,
        store: MetadataStore,
        bookies: Bookies,
        clock: Clock,
        owner: BookieId,
        random: RandomSource,
        config: RepairConfig | None = None,
        client_config: LedgerClientConfig | None = None,
        accepted: AcceptedEntries = nothing_accepted,
    ) -> None:
        config = config or RepairConfig()
        client_config = client_config or LedgerClientConfig()
        self.underreplicated = UnderreplicatedLedgers(store, clock, owner)
        # Counters since the start. Counters never fall.
        self.progress = RepairProgress()
        self._config = config
        self._clock = clock
        self._random = random
        self._services = RepairServices(
            metadata=LedgerMetadataStore(store, client_config),
            client=LedgerClient(store, bookies, clock, client_config),
            bookies=bookies,
            spares=SpareBookies(bookies, clock, random),
            budget=CopyBudget(config.in_flight_bytes_max, config.copy_bytes_per_s_max),
            progress=self.progress,
            config=config,
            client_config=client_config,
            grace_left_s=self._grace_left_s,
            accepted=accepted,
        )
        self._schedule = RetrySchedule(config.backoff_s_min, config.backoff_s_max)
        # Per open ledger: its last fragment with the bookies to be replaced, and since when this
        # process has seen both unchanged. Dropped when the ledger is off the list.
        self._open_since: dict[LedgerId, tuple[object, float]] = {}
        # Set by `wake`; `run` clears it before each pass.
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """Run passes over the list until cancelled. Metadata errors are retried."""
        while True:
            self._woken.clear()
            try:
                if await self.underreplicated.enabled():
                    await self.run_pass()
            except MetadataUnavailable:
                pass  # the next pass retries
            try:
                async with asyncio.timeout(self._config.poll_s):
                    await self._woken.wait()
            except TimeoutError:
                continue

    def wake(self) -> None:
        """Start a pass now, because there may be new marks."""
        self._woken.set()

    def on_bookies_changed(self) -> None:
        """Retry every ledger, because impossible repairs may be possible now."""
        self._schedule.reset()
        self.wake()

    async def run_pass(self) -> dict[LedgerId, RepairOutcome]:
        """Try each marked ledger that is due once, in random order."""
        marked = await self.underreplicated.ledgers()
        for gone in self._open_since.keys() - set(marked):
            del self._open_since[gone]
        return await self.repair_all(self._schedule.ready(marked, self._clock.monotonic_s()))

    async def repair_all(self, ledgers: Iterable[LedgerId]) -> dict[LedgerId, RepairOutcome]:
        """Try each of these ledgers once, a few in parallel. Raises MetadataUnavailable."""
        waiting = sorted(ledgers, key=lambda _: self._random())
        outcomes: dict[LedgerId, RepairOutcome] = {}

        async def work() -> None:
            while waiting:
                ledger = waiting.pop()
                outcomes[ledger] = await self._attempt(ledger)

        workers = [
            asyncio.create_task(work())
            for _ in range(min(len(waiting), self._config.ledgers_at_once))
        ]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return outcomes

    async def _attempt(self, ledger: LedgerId) -> RepairOutcome:
        try:
            outcome = await self.repair(ledger)
        except MetadataUnavailable:
            raise
        except LedgerError as error:
            outcome = RepairOutcome(RepairStatus.UNFINISHED, (str(error),))
        if outcome.result is RepairStatus.REPAIRED:
            self._schedule.on_repaired(ledger)
        else:
            now_s = self._clock.monotonic_s()
            retry_s = 0.0 if outcome.progress else outcome.retry_s
            self._schedule.on_failed(ledger, now_s, retry_s)
        return outcome

    async def repair(self, ledger: LedgerId) -> RepairOutcome:
        """Try to repair a marked ledger, under its lock. Raises LedgerError."""
        if not await self.underreplicated.enabled():
            return RepairOutcome(RepairStatus.UNFINISHED, ("repair is disabled in this cluster",))
        if not await self.underreplicated.lock(ledger):
            return RepairOutcome(RepairStatus.LOCKED)
        try:
            mark = await self.underreplicated.get(ledger)
            if mark is None:
                return RepairOutcome(RepairStatus.REPAIRED)
            return await self._repair_locked(mark)
        finally:
            await self._release(ledger)

    async def _release(self, ledger: LedgerId) -> None:
        try:
            async with asyncio.timeout(_RELEASE_S_MAX):
                await self.underreplicated.release(ledger)
        except (MetadataUnavailable, TimeoutError):
            pass  # the lock expires with the session

    async def _repair_locked(self, mark: UnderreplicatedLedger) -> RepairOutcome:
        note = await self.underreplicated.note(mark.ledger)
        task = RepairTask(self._services, mark, note, await self.underreplicated.draining())
        try:
            found = await task.run()
        except NoSuchLedger:  # the ledger was deleted meanwhile
            await self.underreplicated.mark_replicated(mark)
            return RepairOutcome(RepairStatus.REPAIRED)
        if not found.whole:
            await self.underreplicated.set_note(mark.ledger, self._new_note(task, found))
            return RepairOutcome(
                RepairStatus.UNFINISHED, found.reasons, found.retry_s, task.progressed
            )
        if not await self.underreplicated.mark_replicated(mark):
            return RepairOutcome(
                RepairStatus.UNFINISHED, ("it was marked again meanwhile",), 0.0, task.progressed
            )
        self.progress.ledgers += 1
        note_event(EventKind.REPAIR, ledger=mark.ledger)
        self._open_since.pop(mark.ledger, None)
        return RepairOutcome(RepairStatus.REPAIRED, progress=task.progressed)

    def _new_note(self, task: RepairTask, found: TaskResult) -> RepairNote:
        return RepairNote(
            suspects=frozenset(task.suspects),
            lost=found.lost,
            unreadable=found.unreadable,
            reasons=found.reasons,
            at_ms=self._clock.now_ms(),
        )

    def _grace_left_s(self, ledger: LedgerId, what: object) -> float:
        """Return how long the ledger's writer may still take to replace the bookies itself.

        `what` is the last fragment with the bookies. The time counts from the moment when this
        process first saw this state.
        """
        now_s = self._clock.monotonic_s()
        known = self._open_since.get(ledger)
        if known is None or known[0] != what:
            known = self._open_since[ledger] = (what, now_s)
        return max(0.0, known[1] + self._config.grace_s - now_s)
