"""The repair worker: takes a marked ledger, makes it whole again, takes it off the list.

    lock ─▶ look (metadata, LAC, who holds what) ─▶ decide ─▶ copy ─▶ all durable? ─▶ swap (CAS)
              ▲                                                                       │
              └──────────────────────── until it is whole, or nothing helps ◀─────────┘

It may end between any two steps: what is left then is a mark, and copies that nobody counts.
Any number of workers may run; a lock saves double work and safety does not need it.
Source: BookKeeper, `ReplicationWorker.java`, `LedgerFragmentReplicator.java`; invariant L19.
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
from ledger.ids import BookieId, LedgerId
from ledger.ports.bookies import Bookies
from ledger.ports.clock import Clock
from ledger.ports.metadata import MetadataStore
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
    """What became of one attempt at a ledger."""

    REPAIRED = auto()  # whole, and off the list (or gone altogether)
    UNFINISHED = auto()  # still marked
    LOCKED = auto()  # another worker is at it


@dataclass(frozen=True, slots=True)
class RepairOutcome:
    result: RepairStatus
    reasons: tuple[str, ...] = ()  # why it is left
    retry_s: float | None = None  # trying again that soon will do more
    progress: bool = False  # this attempt changed something


class ReplicationWorker:
    """One worker process. `run` it, or call `work` for one pass over the list."""

    def __init__(
        self,
        store: MetadataStore,
        bookies: Bookies,
        clock: Clock,
        owner: BookieId,
        random: RandomSource,
        config: RepairConfig | None = None,
        client_config: LedgerClientConfig | None = None,
    ) -> None:
        config = config or RepairConfig()
        client_config = client_config or LedgerClientConfig()
        self.underreplicated = UnderreplicatedLedgers(store, clock, owner)
        self.progress = RepairProgress()
        self._config = config
        self._clock = clock
        self._random = random
        self._tools = RepairServices(
            metadata=LedgerMetadataStore(store, client_config),
            client=LedgerClient(store, bookies, clock, client_config),
            bookies=bookies,
            spares=SpareBookies(bookies, clock, random),
            budget=CopyBudget(config.in_flight_bytes_max, config.copy_bytes_per_s_max),
            progress=self.progress,
            config=config,
            client_config=client_config,
            grace_left_s=self._grace_left_s,
        )
        self._schedule = RetrySchedule(config.backoff_s_min, config.backoff_s_max)
        self._open_since: dict[LedgerId, tuple[object, float]] = {}
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """The list is worked off until this is cancelled. Errors are waited out."""
        while True:
            self._woken.clear()
            try:
                if await self.underreplicated.enabled():
                    await self.work()
            except MetadataUnavailable:
                pass  # nothing can be done without it; the next pass asks again
            try:
                async with asyncio.timeout(self._config.poll_s):
                    await self._woken.wait()
            except TimeoutError:
                continue

    def wake(self) -> None:
        """There may be new marks: look now."""
        self._woken.set()

    def on_bookies_changed(self) -> None:
        """What could not be mended before may be now: everything is tried again."""
        self._schedule.reset()
        self.wake()

    async def work(self) -> dict[LedgerId, RepairOutcome]:
        """Every marked ledger that need not wait was tried once, in random order."""
        marked = await self.underreplicated.ledgers()
        for gone in self._open_since.keys() - set(marked):
            del self._open_since[gone]
        return await self.work_on(self._schedule.ready(marked, self._clock.monotonic_s()))

    async def work_on(self, ledgers: Iterable[LedgerId]) -> dict[LedgerId, RepairOutcome]:
        """Each of these was tried once, a few at a time. Raises MetadataUnavailable."""
        waiting = sorted(ledgers, key=lambda _: self._random())
        outcomes: dict[LedgerId, RepairOutcome] = {}

        async def work() -> None:
            while waiting:
                ledger = waiting.pop()
                outcomes[ledger] = await self._try(ledger)

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

    async def _try(self, ledger: LedgerId) -> RepairOutcome:
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
        """One attempt at a marked ledger, under its lock. Raises LedgerError."""
        if not await self.underreplicated.enabled():
            return RepairOutcome(
                RepairStatus.UNFINISHED, ("repair is switched off in the whole cluster",)
            )
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
            pass  # the lock ends with the session

    async def _repair_locked(self, mark: UnderreplicatedLedger) -> RepairOutcome:
        note = await self.underreplicated.note(mark.ledger)
        attempt = RepairTask(self._tools, mark, note, await self.underreplicated.draining())
        try:
            found = await attempt.run()
        except NoSuchLedger:  # deleted: nothing lacks copies
            await self.underreplicated.done(mark)
            return RepairOutcome(RepairStatus.REPAIRED)
        if not found.whole:
            await self.underreplicated.set_note(mark.ledger, self._new_note(attempt, found))
            return RepairOutcome(
                RepairStatus.UNFINISHED, found.reasons, found.retry_s, attempt.progressed
            )
        if not await self.underreplicated.done(mark):
            return RepairOutcome(
                RepairStatus.UNFINISHED, ("it was marked again",), 0.0, attempt.progressed
            )
        self.progress.ledgers += 1
        self._open_since.pop(mark.ledger, None)
        return RepairOutcome(RepairStatus.REPAIRED, progress=attempt.progressed)

    def _new_note(self, attempt: RepairTask, found: TaskResult) -> RepairNote:
        return RepairNote(
            suspects=frozenset(attempt.suspects),
            lost=found.lost,
            unreadable=found.unreadable,
            reasons=found.reasons,
            at_ms=self._clock.now_ms(),
        )

    def _grace_left_s(self, ledger: LedgerId, what: object) -> float:
        """How long the ledger's writer may still take to mend its last fragment itself.

        `what` is that fragment; counted from when this process first saw it so.
        """
        now_s = self._clock.monotonic_s()
        known = self._open_since.get(ledger)
        if known is None or known[0] != what:
            known = self._open_since[ledger] = (what, now_s)
        return max(0.0, known[1] + self._config.grace_s - now_s)
