"""One attempt to repair one ledger: examine, plan and carry out, until nothing more can be done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from ledger.client.client import LedgerClient
from ledger.client.config import LedgerClientConfig
from ledger.client.update_metadata import LedgerMetadataStore, Versioned
from ledger.core.ledger_metadata import LedgerMetadata
from ledger.errors import AddFailed, BookieUnavailable, EntryUnknown, NotEnoughBookies
from ledger.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from ledger.ports.bookies import BookieInfo, Bookies, Status
from ledger.repair.accepted_entries import AcceptedEntries
from ledger.repair.checker import (
    LedgerCheck,
    LedgerFragment,
    ReplicaContents,
    check_ledger,
    fragments_of,
    share_of,
)
from ledger.repair.config import RepairConfig
from ledger.repair.entry_copier import CopyBudget, EntryCopier, RepairProgress
from ledger.repair.entry_ranges import EMPTY, EntryRanges, difference
from ledger.repair.plan import (
    BookieView,
    EndLimbo,
    FillCopies,
    FragmentChanged,
    QuorumSizes,
    RecoverLedger,
    RepairPlan,
    RepairStep,
    ReplaceBookie,
    WidenEnsemble,
    plan_repair,
    with_more_bookies,
    with_replacement,
)
from ledger.repair.spare_bookies import SpareBookies
from ledger.repair.underreplicated_ledgers import RepairNote, UnderreplicatedLedger


class RepairServices(NamedTuple):
    """The services shared by the tasks of one worker."""

    metadata: LedgerMetadataStore
    client: LedgerClient
    bookies: Bookies
    spares: SpareBookies
    budget: CopyBudget
    progress: RepairProgress
    config: RepairConfig
    client_config: LedgerClientConfig
    grace_left_s: Callable[[LedgerId, object], float]
    accepted: AcceptedEntries


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of an attempt. The ledger is complete if there are no reasons."""

    reasons: tuple[str, ...] = ()
    lost: EntryRanges = EMPTY
    unreadable: EntryRanges = EMPTY
    retry_s: float | None = None  # time after which another attempt can do more

    @property
    def whole(self) -> bool:
        """True if the ledger has all its copies."""
        return not self.reasons


class RepairTask:
    """One attempt at one ledger, with the findings of its rounds. Used once."""

    def __init__(
        self,
        services: RepairServices,
        mark: UnderreplicatedLedger,
        note: RepairNote,
        draining: frozenset[BookieId],
    ) -> None:
        self.services = services
        self.ledger = mark.ledger
        # Bookies with corrupt copies. Their copies are read, not only listed. Only grows.
        self.suspects = set(note.suspects)
        # Bookies whose corrupt copies cannot be replaced in place. Only grows.
        self.refused: set[BookieId] = set()
        # Bookies that failed as replacements. Only grows.
        self.unfit: set[BookieId] = set()
        # Successful fills: (first entry of the fragment, index, entries). A fill that is planned
        # again had no effect. Only grows.
        self.filled: set[tuple[EntryId, int, EntryRanges]] = set()
        # True once a step changed something, so that another attempt is worthwhile.
        self.progressed = False
        # Bookies whose copies are lost according to the mark, and bookies being drained. Constant.
        self._missing = mark.missing
        self._draining = draining

    async def run(self) -> TaskResult:
        """Repair as much as possible now. Raises NoSuchLedger, MetadataUnavailable."""
        for _ in range(self.services.config.rounds_max):
            one = RepairRound(self, await self.services.metadata.read_latest(self.ledger))
            plan, found = await one.examine()
            if plan.clean:
                return TaskResult()
            await one.carry_out(plan.steps)
            if not one.progressed:
                reasons = tuple(dict.fromkeys((*plan.reasons, *one.reasons)))
                return TaskResult(reasons, found.lost, found.unreadable, one.retry_s)
            self.progressed = True
        return TaskResult(("more steps are needed",), retry_s=0.0)

    def view(self, replicas: dict[BookieId, ReplicaContents]) -> BookieView:
        """Return the planner's view of the bookies."""
        registered: dict[BookieId, BookieInfo] = dict(self.services.bookies.registered())
        return BookieView(registered, replicas, self.gone, frozenset(self.refused))

    @property
    def gone(self) -> frozenset[BookieId]:
        """Bookies that must be replaced."""
        return (self._missing - self.services.bookies.registered().keys()) | self._draining

    @property
    def never(self) -> frozenset[BookieId]:
        """Bookies that must not join an ensemble."""
        return self.gone | self.refused | self.unfit


class RepairRound:
    """One examination of the ledger and the steps that follow from it. Used once."""

    def __init__(self, task: RepairTask, stored: Versioned) -> None:
        self.progressed = False
        # The reasons why steps were not carried out.
        self.reasons: list[str] = []
        # The time after which a fence becomes possible, or None.
        self.retry_s: float | None = None
        self._task = task
        self._services = services = task.services
        # The metadata as last read or written by this round.
        self._stored = stored
        # The contents of each bookie. Set by `examine`.
        self._replicas: dict[BookieId, ReplicaContents] = {}
        # Entries whose loss was accepted. They are never copied. Set by `examine`.
        self._accepted: EntryRanges = EMPTY
        self._copier = EntryCopier(
            stored.metadata,
            services.bookies,
            services.budget,
            services.progress,
            services.config,
            services.client_config,
        )

    @property
    def _metadata(self) -> LedgerMetadata:
        return self._stored.metadata

    async def examine(self) -> tuple[RepairPlan, LedgerCheck]:
        """Find the ledger's gaps and plan the next steps."""
        metadata = self._metadata
        lac = await self._copier.read_lac()
        settled = await self._settled_entry()
        self._replicas = await self._copier.survey(max(lac, settled), self._task.suspects)
        self._accepted = await self._services.accepted(metadata)
        found = check_ledger(metadata, lac, self._replicas, settled, accepted=self._accepted)
        return plan_repair(metadata, lac, found, self._task.view(self._replicas)), found

    async def _settled_entry(self) -> EntryId:
        """Return the highest entry that any bookie of the open fragment had `settle_s` ago.

        All entries up to this one had time to reach the other bookies. Returns -1 for a closed
        ledger.
        """
        if self._metadata.closed:
            return NO_ENTRY
        ensemble = self._metadata.last_fragment.ensemble
        replicas = await self._copier.list_replicas(ensemble)
        highest = max((one.held[-1][1] for one in replicas.values() if one.held), default=NO_ENTRY)
        await asyncio.sleep(self._services.config.settle_s)
        return highest

    async def carry_out(self, steps: tuple[RepairStep, ...]) -> None:
        """Carry out each step, or add the reason for its failure to `reasons`."""
        for step in steps:
            try:
                await self._carry_out_one(step)
            except (BookieUnavailable, EntryUnknown, AddFailed, NotEnoughBookies) as error:
                self.reasons.append(str(error))
            except FragmentChanged as change:
                self.reasons.append(f"{change} was changed meanwhile")
                self.progressed = True  # another round will examine the new metadata
        for bookie in self._copier.damaged:
            if bookie not in self._task.suspects:
                self._task.suspects.add(bookie)
                self.progressed = True

    async def _carry_out_one(self, step: RepairStep) -> None:
        if isinstance(step, FillCopies):
            await self._fill(step)
        elif isinstance(step, ReplaceBookie):
            await self._replace(step)
        elif isinstance(step, EndLimbo):
            await self._end_limbo(step)
        elif isinstance(step, RecoverLedger):
            await self._fence(step)
        else:
            await self._widen(step)

    async def _fill(self, step: FillCopies) -> None:
        gap = step.gap
        what = (gap.fragment.first, gap.index, step.missing)
        # The bookie accepted these entries and still does not list good copies
        if what in self._task.filled:
            self._refuse(gap.bookie)
            return
        self._task.filled.add(what)
        try:
            await self._copier.copy(step.missing, gap.fragment, self._replicas, gap.bookie)
        except BookieUnavailable:
            if self._replicas[gap.bookie].damaged == EMPTY:
                raise
            self._refuse(gap.bookie)
            return
        self._services.progress.fills += 1
        self.progressed = True

    def _refuse(self, bookie: BookieId) -> None:
        """Record that a bookie keeps its corrupt copies, so that another bookie replaces it."""
        if bookie not in self._task.refused:
            self._task.refused.add(bookie)
            self.progressed = True

    async def _replace(self, step: ReplaceBookie) -> None:
        """Copy the share to another bookie, durably, and then change the metadata."""
        metadata, fragment = self._metadata, step.fragment
        share = difference(share_of(fragment, step.index, metadata), self._accepted)
        while True:
            bookie = await self._services.spares.replacement(
                self._ensemble_now(fragment),
                step.index,
                metadata.write_quorum,
                self._task.never,
            )
            if bookie is None:
                self.reasons.append(f"no other bookie can replace {step.bookie}")
                return
            if await self._copy_all((bookie,), share, fragment):
                break
        change = partial(with_replacement, fragment=fragment, index=step.index, bookie=bookie)
        self._stored = await self._services.metadata.update(self._stored, change)
        self._services.progress.swaps += 1
        self.progressed = True

    def _ensemble_now(self, fragment: LedgerFragment) -> tuple[BookieId, ...]:
        """Return the fragment's ensemble with the replacements made by this round."""
        for now in self._metadata.fragments:
            if now.first == fragment.first:
                return now.ensemble
        raise FragmentChanged(f"ledger {self._metadata.ledger} fragment {fragment.first}")

    async def _copy_all(
        self, bookies: tuple[BookieId, ...], share: EntryRanges, fragment: LedgerFragment
    ) -> bool:
        """Copy the share to all of `bookies`. False if one of them is unfit.

        Returns True only after each bookie itself lists the share.
        """
        for bookie in bookies:
            try:
                missing = await self._copier.missing_on(bookie, share)
                await self._copier.copy(missing, fragment, self._replicas, bookie)
                await self._copier.check_holds(bookie, share)
            except BookieUnavailable as error:
                self._task.unfit.add(bookie)
                self.reasons.append(str(error))
                return False
        return True

    async def _end_limbo(self, step: EndLimbo) -> None:
        status = await self._copier.end_limbo(step.bookie)
        if status is Status.OK:
            self._services.progress.limbos_ended += 1
            self.progressed = True
        else:
            self.reasons.append(f"{step.bookie} stays in limbo: it answered {status.name}")

    async def _fence(self, step: RecoverLedger) -> None:
        """Recover and close the ledger, unless its writer may still replace the bookies."""
        ledger, last = self._metadata.ledger, self._metadata.last_fragment
        if not set(step.bookies) <= set(last.ensemble):  # a step before this one replaced some
            raise FragmentChanged(f"ledger {ledger} fragment {last.first}")
        left_s = self._services.grace_left_s(ledger, (last, step.bookies))
        names = " and ".join(step.bookies)
        if left_s > 0:
            self.reasons.append(f"its writer has {left_s:.0f} s left to replace {names}")
            self.retry_s = left_s
            return
        if step.needs_spare and not await self._has_spare(step.bookies):
            self.reasons.append(f"it is open, and no other bookie can replace {names}")
            return
        await self._services.client.recover(ledger)
        self._services.progress.fences += 1
        self.progressed = True

    async def _has_spare(self, gone: tuple[BookieId, ...]) -> bool:
        metadata = self._metadata
        ensemble = metadata.last_fragment.ensemble
        for bookie in gone:
            index = ensemble.index(bookie)
            spare = await self._services.spares.replacement(
                ensemble, index, metadata.write_quorum, self._task.never
            )
            if spare is not None:
                return True
        return False

    async def _widen(self, step: WidenEnsemble) -> None:
        """Copy every entry to more bookies, then add all of them to the metadata at once."""
        metadata = self._metadata
        parts = fragments_of(metadata, EntryId(metadata.last_entry or 0))
        count = step.quorum.write_quorum - metadata.write_quorum
        while True:
            added = await self._additions(parts, count)
            if not added:
                self.reasons.append("no further bookie is available for more copies")
                return
            shares = [difference(part.entries, self._accepted) for part in parts]
            copies = zip(parts, shares, strict=True)
            if all([await self._copy_all(added[p.first], share, p) for p, share in copies]):
                break
        size = metadata.write_quorum + len(added[parts[0].first])
        quorum = QuorumSizes(
            size, size, min(size, max(metadata.ack_quorum, step.quorum.ack_quorum))
        )
        change = partial(with_more_bookies, before=metadata, quorum=quorum, added=added)
        self._stored = await self._services.metadata.update(self._stored, change)
        self._services.progress.widened += 1
        self.progressed = True

    async def _additions(
        self, parts: list[LedgerFragment], count: int
    ) -> dict[EntryId, tuple[BookieId, ...]]:
        """Choose at most `count` bookies to add to each fragment, the same number to all."""
        found: dict[EntryId, tuple[BookieId, ...]] = {}
        for fragment in parts:
            added: list[BookieId] = []
            while len(added) < count:
                ensemble = (*fragment.ensemble, *added)
                one = await self._services.spares.addition(ensemble, self._task.never)
                if one is None:
                    break
                added.append(one)
            found[fragment.first] = tuple(added)
        fewest = min(len(added) for added in found.values())
        return {first: added[:fewest] for first, added in found.items()} if fewest else {}
