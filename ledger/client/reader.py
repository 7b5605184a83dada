"""Reads a ledger, open or closed, without disturbing its writer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ledger.client.config import LedgerClientConfig
from ledger.client.update_metadata import LedgerMetadataStore, Versioned
from ledger.core.entry_format import EntryFormat
from ledger.core.ledger_metadata import LedgerMetadata
from ledger.core.quorum import Coverage, write_sets
from ledger.core.read_plan import Absence, ReadPlan
from ledger.errors import CorruptFormat, EntryUnknown, NoSuchEntry
from ledger.ids import NO_ENTRY, BookieId, Buffer, EntryId
from ledger.world.bookies import Bookies, ReadManyReply, ReadReply, Status

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
    ) -> None:
        self.metadata: LedgerMetadata = metadata.metadata
        self.last_add_confirmed: EntryId = NO_ENTRY
        self._metadata_store = metadata_store
        self._bookies = bookies
        self._timeout_s = config.read_timeout_s
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

    async def read(self, first: EntryId, last: EntryId, max_bytes: int) -> Entries:
        """Payloads from `first` on, consecutive, at least one, up to `last` or `max_bytes`.

        Views of what the bookies sent, digests verified. Raises NoSuchEntry by evidence only:
        the ledger is closed below `first`, or Qw - Qa + 1 bookies say that they do not have it.
        EntryUnknown: no replica could show it now, or it is not known to be confirmed.
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
        entries: Entries = []
        size = 0
        while first <= last and (size < max_bytes or not entries):
            try:
                some = await self._read_some(first, last, max_bytes - size)
            except EntryUnknown:
                if not entries:
                    raise
                break
            entries += some
            first = EntryId(first + len(some))
            size += sum(len(payload) for _, payload in some)
        return entries

    async def _read_some(self, first: EntryId, last: EntryId, max_bytes: int) -> Entries:
        """What one bookie has of first..last: at least `first`."""
        metadata = self.metadata
        ledger = metadata.ledger
        plan = ReadPlan(metadata.bookies_of(first), metadata.ack_quorum, self._last_good)
        while plan.absence is Absence.UNDECIDED:
            bookie = plan.next()
            assert bookie is not None
            reply = await self._ask_entries(bookie, first, last, max_bytes)
            if reply.status is Status.OK:
                entries = self._verified(first, reply.bodies)
                if entries:
                    self._last_good = bookie
                    self._learn(reply.lac)
                    return entries
            elif reply.status in _ABSENT:
                plan.on_absent()
        if plan.absence is Absence.NO_SUCH_ENTRY:
            raise NoSuchEntry(f"ledger {ledger} entry {first}: its bookies do not have it")
        raise EntryUnknown(f"ledger {ledger} entry {first}: no replica could be read")

    async def _ask_entries(
        self, bookie: BookieId, first: EntryId, last: EntryId, max_bytes: int
    ) -> ReadManyReply:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._bookies.read_many(
                    bookie, self.metadata.ledger, first, last, max(1, max_bytes)
                )
        except TimeoutError:
            return ReadManyReply(Status.UNREACHABLE)

    def _verified(self, first: EntryId, bodies: Sequence[Buffer]) -> Entries:
        """Payloads up to the first body that is not what it should be."""
        entries: Entries = []
        entry = first
        for body in bodies:
            try:
                payload = self._format.unpack(body, self.metadata.ledger, entry)
            except CorruptFormat:
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
        ensemble = metadata.last_fragment.ensemble
        sets = write_sets(metadata.ensemble_size, metadata.write_quorum)
        coverage = Coverage(sets, metadata.ack_quorum)
        asking = {
            asyncio.ensure_future(self._ask_lac(index, bookie))
            for index, bookie in enumerate(ensemble)
        }
        try:
            while asking and not (coverage.reached or coverage.lost):
                done, asking = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
                for index, reply in sorted(task.result() for task in done):
                    self._count_lac(coverage, index, reply)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        if not coverage.reached:
            raise EntryUnknown(f"ledger {metadata.ledger}: too few bookies told their LAC")
        return self.last_add_confirmed

    def _count_lac(self, coverage: Coverage, index: int, reply: ReadReply) -> None:
        if reply.status is Status.OK or reply.status in _ABSENT:
            coverage.on_known(index)
            self._learn(reply.lac)
        else:
            coverage.on_unknown(index)

    async def _ask_lac(self, index: int, bookie: BookieId) -> tuple[int, ReadReply]:
        try:
            async with asyncio.timeout(self._timeout_s):
                return index, await self._bookies.read_lac(bookie, self.metadata.ledger)
        except TimeoutError:
            return index, ReadReply(Status.UNREACHABLE)
