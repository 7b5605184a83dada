"""One attempt at one ledger: look, decide, do, and look again until nothing more helps."""

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
from ledger.repair.entry_ranges import EMPTY, EntryRanges
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
    swapped,
    widened,
)
from ledger.repair.spare_bookies import SpareBookies
from ledger.repair.underreplicated_ledgers import RepairNote, UnderreplicatedLedger


class RepairServices(NamedTuple):
    """What attempts of one worker share."""

    metadata: LedgerMetadataStore
    client: LedgerClient
    bookies: Bookies
    spares: SpareBookies
    budget: CopyBudget
    progress: RepairProgress
    config: RepairConfig
    client_config: LedgerClientConfig
    grace_left_s: Callable[[LedgerId, object], float]


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How an attempt left the ledger: whole, or why not."""

    reasons: tuple[str, ...] = ()
    lost: EntryRanges = EMPTY
    unreadable: EntryRanges = EMPTY
    retry_s: float | None = None  # a further attempt that soon will do more

    @property
    def whole(self) -> bool:
        return not self.reasons


class RepairTask:
    """Holds what was learnt on the way; used once."""

    def __init__(
        self,
        tools: RepairServices,
        mark: UnderreplicatedLedger,
        note: RepairNote,
        draining: frozenset[BookieId],
    ) -> None:
        self.tools = tools
        self.ledger = mark.ledger
        self.suspects = set(note.suspects)  # their copies are read, not only listed
        self.refused: set[BookieId] = set()  # their bad copies cannot be mended in place
        self.unfit: set[BookieId] = set()  # failed as new members
        self.filled: set[tuple[EntryId, int, EntryRanges]] = set()
        self.progressed = False
        self._missing = mark.missing
        self._draining = draining

    async def run(self) -> TaskResult:
        """The ledger is as whole as can be now. Raises NoSuchLedger, MetadataUnavailable."""
        for _ in range(self.tools.config.rounds_max):
            one = RepairRound(self, await self.tools.metadata.read_latest(self.ledger))
            plan, found = await one.look()
            if plan.clean:
                return TaskResult()
            await one.do_all(plan.steps)
            if not one.progressed:
                reasons = tuple(dict.fromkeys((*plan.reasons, *one.reasons)))
                return TaskResult(reasons, found.lost, found.unreadable, one.retry_s)
            self.progressed = True
        return TaskResult(("there is more to do",), retry_s=0.0)

    def view(self, holdings: dict[BookieId, ReplicaContents]) -> BookieView:
        registered: dict[BookieId, BookieInfo] = dict(self.tools.bookies.registered())
        return BookieView(registered, holdings, self.gone, frozenset(self.refused))

    @property
    def gone(self) -> frozenset[BookieId]:
        """Bookies whose places others must take."""
        return (self._missing - self.tools.bookies.registered().keys()) | self._draining

    @property
    def never(self) -> frozenset[BookieId]:
        """Bookies that are not to become members."""
        return self.gone | self.refused | self.unfit


class RepairRound:
    """One look at the ledger and the steps that follow from it."""

    def __init__(self, attempt: RepairTask, stored: Versioned) -> None:
        self.progressed = False
        self.reasons: list[str] = []
        self.retry_s: float | None = None
        self._attempt = attempt
        self._tools = tools = attempt.tools
        self._stored = stored
        self._holdings: dict[BookieId, ReplicaContents] = {}
        self._copies = EntryCopier(
            stored.metadata,
            tools.bookies,
            tools.budget,
            tools.progress,
            tools.config,
            tools.client_config,
        )

    @property
    def _metadata(self) -> LedgerMetadata:
        return self._stored.metadata

    async def look(self) -> tuple[RepairPlan, LedgerCheck]:
        """What is there, and what is to be done about it."""
        metadata = self._metadata
        lac = await self._copies.read_lac()
        settled = await self._settled()
        self._holdings = await self._copies.survey(max(lac, settled), self._attempt.suspects)
        found = check_ledger(metadata, lac, self._holdings, settled)
        return plan_repair(metadata, lac, found, self._attempt.view(self._holdings)), found

    async def _settled(self) -> EntryId:
        """All that any bookie had of the open last fragment some time ago, for whoever is slow."""
        if self._metadata.closed:
            return NO_ENTRY
        ensemble = self._metadata.last_fragment.ensemble
        holdings = await self._copies.lists(ensemble)
        highest = max((one.held[-1][1] for one in holdings.values() if one.held), default=NO_ENTRY)
        await asyncio.sleep(self._tools.config.settle_s)
        return highest

    async def do_all(self, steps: tuple[RepairStep, ...]) -> None:
        """Each step is done, or `reasons` say why not."""
        for step in steps:
            try:
                await self._do(step)
            except (BookieUnavailable, EntryUnknown, AddFailed, NotEnoughBookies) as error:
                self.reasons.append(str(error))
            except FragmentChanged as change:
                self.reasons.append(f"{change} was changed by somebody else")
                self.progressed = True  # what is there now is worth another look
        for bookie in self._copies.damaged:
            if bookie not in self._attempt.suspects:
                self._attempt.suspects.add(bookie)
                self.progressed = True

    async def _do(self, step: RepairStep) -> None:
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
        if what in self._attempt.filled:  # it took them, and still does not show them
            self._refuse(gap.bookie)
            return
        self._attempt.filled.add(what)
        try:
            await self._copies.copy(step.missing, gap.fragment, self._holdings, gap.bookie)
        except BookieUnavailable:
            if self._holdings[gap.bookie].damaged == EMPTY:
                raise
            self._refuse(gap.bookie)
            return
        self._tools.progress.fills += 1
        self.progressed = True

    def _refuse(self, bookie: BookieId) -> None:
        """Its bad copies stay bad: another bookie has to take its place."""
        if bookie not in self._attempt.refused:
            self._attempt.refused.add(bookie)
            self.progressed = True

    async def _replace(self, step: ReplaceBookie) -> None:
        """Another bookie holds the whole share, durably; then, not before, it is swapped in."""
        metadata, fragment = self._metadata, step.fragment
        share = share_of(fragment, step.index, metadata)
        while True:
            bookie = await self._tools.spares.replacement(
                self._ensemble_now(fragment),
                step.index,
                metadata.write_quorum,
                self._attempt.never,
            )
            if bookie is None:
                self.reasons.append(f"no other bookie can take the place of {step.bookie}")
                return
            if await self._copy_all((bookie,), share, fragment):
                break
        change = partial(swapped, fragment=fragment, index=step.index, bookie=bookie)
        self._stored = await self._tools.metadata.update(self._stored, change)
        self._tools.progress.swaps += 1
        self.progressed = True

    def _ensemble_now(self, fragment: LedgerFragment) -> tuple[BookieId, ...]:
        """With the members that this round has swapped in already."""
        for now in self._metadata.fragments:
            if now.first == fragment.first:
                return now.ensemble
        raise FragmentChanged(f"ledger {self._metadata.ledger} fragment {fragment.first}")

    async def _copy_all(
        self, bookies: tuple[BookieId, ...], share: EntryRanges, fragment: LedgerFragment
    ) -> bool:
        """The share is durable on all of them, they say so; False: one of them is unfit."""
        for bookie in bookies:
            try:
                missing = await self._copies.missing_on(bookie, share)
                await self._copies.copy(missing, fragment, self._holdings, bookie)
                await self._copies.check_holds(bookie, share)
            except BookieUnavailable as error:
                self._attempt.unfit.add(bookie)
                self.reasons.append(str(error))
                return False
        return True

    async def _end_limbo(self, step: EndLimbo) -> None:
        status = await self._copies.end_limbo(step.bookie)
        if status is Status.OK:
            self._tools.progress.limbos_ended += 1
            self.progressed = True
        else:
            self.reasons.append(f"{step.bookie} stays in limbo: it answered {status.name}")

    async def _fence(self, step: RecoverLedger) -> None:
        """The ledger is recovered and closed, unless its writer may still mend it itself."""
        ledger, last = self._metadata.ledger, self._metadata.last_fragment
        left_s = self._tools.grace_left_s(ledger, (last, step.bookies))
        names = " and ".join(step.bookies)
        if left_s > 0:
            self.reasons.append(f"its writer has {left_s:.0f} s left to replace {names}")
            self.retry_s = left_s
            return
        if step.needs_spare and not await self._has_spare(step.bookies):
            self.reasons.append(f"it is open, and no other bookie can take the place of {names}")
            return
        await self._tools.client.recover(ledger)
        self._tools.progress.fences += 1
        self.progressed = True

    async def _has_spare(self, gone: tuple[BookieId, ...]) -> bool:
        metadata = self._metadata
        ensemble = metadata.last_fragment.ensemble
        for bookie in gone:
            index = ensemble.index(bookie)
            spare = await self._tools.spares.replacement(
                ensemble, index, metadata.write_quorum, self._attempt.never
            )
            if spare is not None:
                return True
        return False

    async def _widen(self, step: WidenEnsemble) -> None:
        """Every entry is on more bookies, then all of them become members at once."""
        metadata = self._metadata
        parts = fragments_of(metadata, EntryId(metadata.last_entry or 0))
        count = step.quorum.write_quorum - metadata.write_quorum
        while True:
            added = await self._additions(parts, count)
            if not added:
                self.reasons.append("no further bookie is there to hold more copies")
                return
            if all([await self._copy_all(added[p.first], p.entries, p) for p in parts]):
                break
        size = metadata.write_quorum + len(added[parts[0].first])
        quorum = QuorumSizes(
            size, size, min(size, max(metadata.ack_quorum, step.quorum.ack_quorum))
        )
        change = partial(widened, before=metadata, quorum=quorum, added=added)
        self._stored = await self._tools.metadata.update(self._stored, change)
        self._tools.progress.widened += 1
        self.progressed = True

    async def _additions(
        self, parts: list[LedgerFragment], count: int
    ) -> dict[EntryId, tuple[BookieId, ...]]:
        """As many for each fragment as there are for all of them, `count` at most."""
        found: dict[EntryId, tuple[BookieId, ...]] = {}
        for fragment in parts:
            added: list[BookieId] = []
            while len(added) < count:
                ensemble = (*fragment.ensemble, *added)
                one = await self._tools.spares.addition(ensemble, self._attempt.never)
                if one is None:
                    break
                added.append(one)
            found[fragment.first] = tuple(added)
        fewest = min(len(added) for added in found.values())
        return {first: added[:fewest] for first, added in found.items()} if fewest else {}
