"""Reads a ledger, open or closed, without disturbing its writer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ledger.client import metadata_format
from ledger.client.config import LedgerClientConfig
from ledger.client.health import SICK, BookieHealth
from ledger.client.speculative_read import Ask, SpeculativeRead
from ledger.client.update_metadata import LedgerMetadataStore, Versioned
from ledger.core.entry_format import EntryFormat
from ledger.core.ledger_metadata import LedgerMetadata
from ledger.core.quorum import Coverage, write_sets
from ledger.core.read_plan import ReadPlan
from ledger.errors import CorruptFormat, EntryUnknown, MetadataUnavailable, NoSuchEntry
from ledger.ids import NO_ENTRY, BookieId, Buffer, EntryId
from ledger.ports.bookies import Bookies, ReadReply, Status
from ledger.ports.metadata import Unwatch

_ABSENT = (Status.NO_ENTRY, Status.NO_LEDGER)

Entries = list[tuple[EntryId, memoryview]]


class LedgerReader:
    """Any number may read one ledger. Nothing above the last add confirmed is ever shown.

    `last_add_confirmed` never falls; someone who knows better, such as the writer in the same
    process, may raise it.
    """

    def __init__(
        self,
        metadata: Versioned,
        metadata_store: LedgerMetadataStore,
        bookies: Bookies,
        config: LedgerClientConfig,
        health: BookieHealth,
    ) -> None:
        """`health` is shared with the other readers and writers of the process."""
        self.metadata: LedgerMetadata = metadata.metadata
        self.last_add_confirmed: EntryId = NO_ENTRY
        self._metadata_store = metadata_store
        self._bookies = bookies
        self._loop = asyncio.get_running_loop()
        self._health = health
        self._timeout_s = config.read_timeout_s
        self._late_s = config.speculative_read_s
        self._format = EntryFormat(self.metadata.digest_type, self.metadata.password)
        self._last_good: BookieId | None = None
        self._take(self.metadata)

    def _take(self, metadata: LedgerMetadata) -> None:
        self.metadata = metadata
        # A fragment begins right after what was confirmed when it was made.
        known = (
            metadata.last_entry if metadata.closed else EntryId(metadata.last_fragment.first - 1)
        )
        assert known is not None
        self._learn(known)

    def _learn(self, lac: EntryId) -> None:
        self.last_add_confirmed = max(self.last_add_confirmed, lac)

    async def refresh(self) -> None:
        """`metadata` are as stored now. Raises NoSuchLedger when the ledger was deleted."""
        if not self.metadata.closed:
            self._take((await self._metadata_store.read(self.metadata.ledger)).metadata)

    def watch(self, on_changed: Callable[[], None]) -> Unwatch:
        """`on_changed` runs after each later change of the stored metadata; then `refresh`."""
        path = metadata_format.ledger_path(self.metadata.ledger)
        return self._metadata_store.store.watch(path, on_changed)

    async def read(self, first: EntryId, last: EntryId, max_bytes: int) -> Entries:
        """Payloads from `first` on, consecutive, at least one, up to `last` or `max_bytes`.

        Views of what the bookies sent, digests verified. Raises NoSuchEntry by evidence only:
        the ledger is closed below `first`, or Qw - Qa + 1 bookies say that they do not have it
        and none has. EntryUnknown: no replica could show it now, or it is not known to be
        confirmed.
        """
        assert 0 <= first <= last
        if last > self.last_add_confirmed and not self.metadata.closed:
            await self.read_lac()
        if first > self.last_add_confirmed:
            place = f"ledger {self.metadata.ledger} entry {first}"
            if self.metadata.closed:
                raise NoSuchEntry(f"{place}: closed at {self.metadata.last_entry}")
            raise EntryUnknown(f"{place} is not known to be confirmed")
        last = min(last, self.last_add_confirmed)
        entries = await self._read_first(first, last, max_bytes)
        if entries[-1][0] == last:
            return entries
        size = sum(len(payload) for _, payload in entries)
        # Not for a rest that the next entry would not fit into: asking costs more than it gives.
        while size + len(entries[-1][1]) <= max_bytes and entries[-1][0] < last:
            try:
                some = await self._read_some(EntryId(entries[-1][0] + 1), last, max_bytes - size)
            except (EntryUnknown, NoSuchEntry):
                break  # whoever asks for just these is told why
            entries += some
            size += sum(len(payload) for _, payload in some)
        return entries

    async def _read_first(self, first: EntryId, last: EntryId, max_bytes: int) -> Entries:
        """As `_read_some`; and what was moved to other bookies meanwhile is found there.

        An ensemble change may have done that, or a repair, even of a closed ledger.
        """
        asked = self.metadata  # another read of this reader may learn of newer ones meanwhile
        try:
            return await self._read_some(first, last, max_bytes)
        except (EntryUnknown, NoSuchEntry):
            ledger = asked.ledger
            try:
                stored = await self._metadata_store.read_latest(ledger)
            except MetadataUnavailable as unanswered:
                place = f"ledger {ledger} entry {first}"
                raise EntryUnknown(f"{place}: who has it could not be learnt") from unanswered
            self._take(stored.metadata)
            if self.metadata.bookies_of(first) == asked.bookies_of(first):
                raise
        return await self._read_some(first, last, max_bytes)

    async def _read_some(self, first: EntryId, last: EntryId, max_bytes: int) -> Entries:
        """What one bookie has of first..last: at least `first`."""
        metadata = self.metadata
        bookies = self._health.read_order(metadata.bookies_of(first), self._last_good)
        plan = ReadPlan(bookies, metadata.ack_quorum)

        def ask_next() -> Ask[Entries] | None:
            bookie = plan.next()
            if bookie is None:
                return None
            return self._ask_entries(plan, bookie, first, last, max_bytes)

        # Not so late that the last one had no time left to answer.
        late_s = min(self._late_s, self._timeout_s / (len(bookies) + 1))
        entries = await SpeculativeRead(
            ask_next,
            late_s=late_s,
            late_s_max=late_s,
            timeout_s=self._timeout_s,
            on_late=self._health.on_speculative_read,
        ).run()
        if entries is not None:
            return entries
        place = f"ledger {metadata.ledger} entry {first}"
        if plan.absent:
            raise NoSuchEntry(f"{place}: its bookies do not have it")
        raise EntryUnknown(f"{place}: no replica could be read")

    async def _ask_entries(
        self, plan: ReadPlan, bookie: BookieId, first: EntryId, last: EntryId, max_bytes: int
    ) -> Entries | None:
        """What the bookie has of first..last, verified; None when it cannot show `first`."""
        asked_at_s = self._loop.time()
        ok: bool | None = None
        try:
            reply = await self._bookies.read_many(
                bookie, self.metadata.ledger, first, last, max(1, max_bytes)
            )
            if reply.status is not Status.OK:
                ok = reply.status not in SICK
                if reply.status in _ABSENT:
                    plan.on_absent()
                return None
            entries = self.verified(bookie, first, reply.bodies)
            ok = bool(entries)
            if not entries:
                return None
            self._last_good = bookie
            self._learn(reply.lac)
            return entries
        finally:
            seconds = self._loop.time() - asked_at_s
            if ok is not None:
                self._health.on_result(bookie, ok, seconds)
            elif seconds >= self._late_s:  # given up; another one was faster
                self._health.on_result(bookie, False)

    def verified(self, bookie: BookieId, first: EntryId, bodies: Sequence[Buffer]) -> Entries:
        """Payloads of `first` and those after it, up to one that is not what was written."""
        entries: Entries = []
        ledger = self.metadata.ledger
        entry = first
        for body in bodies:
            try:
                payload = self._format.unpack(body, ledger, entry)
            except CorruptFormat:
                self._health.report_corrupt(bookie, ledger, entry)
                break
            entries.append((entry, payload))
            entry = EntryId(entry + 1)
        return entries

    async def read_lac(self) -> EntryId:
        """Not below any entry confirmed before the call, but for the last one that was added.

        A closed ledger answers from its metadata. Raises EntryUnknown when too few bookies of
        the last ensemble answer.
        """
        await self.refresh()
        if self.metadata.closed:
            return self.last_add_confirmed
        metadata = self.metadata
        coverage = Coverage(
            write_sets(metadata.ensemble_size, metadata.write_quorum), metadata.ack_quorum
        )

        def on_reply(index: int, known: bool) -> bool:
            if known:
                coverage.on_known(index)
            else:
                coverage.on_unknown(index)
            return coverage.reached or coverage.lost

        await self._ask_lacs(on_reply)
        if not coverage.reached:
            raise EntryUnknown(f"ledger {metadata.ledger}: too few bookies told their LAC")
        return self.last_add_confirmed

    async def try_read_lac(self) -> EntryId:
        """The first news from any bookie of the last ensemble, or what was known before.

        Faster than `read_lac`, and may be behind. Raises EntryUnknown when nobody answers.
        """
        before = self.last_add_confirmed
        heard = False

        def on_reply(_: int, known: bool) -> bool:
            nonlocal heard
            heard = heard or known
            return self.last_add_confirmed > before

        if not self.metadata.closed:
            await self._ask_lacs(on_reply)
            if not heard:
                raise EntryUnknown(f"ledger {self.metadata.ledger}: no bookie told its LAC")
        return self.last_add_confirmed

    async def _ask_lacs(self, on_reply: Callable[[int, bool], bool]) -> None:
        """All of the last ensemble were asked, until `on_reply` (index, known) said: enough."""
        ensemble = self.metadata.last_fragment.ensemble
        asking = {
            asyncio.ensure_future(self._ask_lac(index, bookie))
            for index, bookie in enumerate(ensemble)
        }
        enough = False
        try:
            while asking and not enough:
                done, asking = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
                for index, reply in sorted(task.result() for task in done):
                    enough |= self._hear(index, reply, on_reply)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    def _hear(self, index: int, reply: ReadReply, on_reply: Callable[[int, bool], bool]) -> bool:
        known = reply.status is Status.OK or reply.status in _ABSENT
        if known:
            self._learn(reply.lac)
        return on_reply(index, known)

    async def _ask_lac(self, index: int, bookie: BookieId) -> tuple[int, ReadReply]:
        try:
            async with asyncio.timeout(self._timeout_s):
                return index, await self._bookies.read_lac(bookie, self.metadata.ledger)
        except TimeoutError:
            return index, ReadReply(Status.UNREACHABLE)
