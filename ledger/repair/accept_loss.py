"""An operator gives up what is lost, so that the rest of a ledger can be used again.

Bookies in limbo are let out of it: what they do not have is then said to be gone. A ledger that
is not closed is recovered; where too few bookies are left for that, it is closed at the last
entry up to which everything can still be read. Nothing is deleted: an entry that turns up later
on a bookie that was away is only no longer part of the ledger when it lies above the end.

A ledger closed by force was fenced on too few bookies to be sure of its writer: one that still
runs, and reaches Qa bookies that did not answer here, may acknowledge entries above the end. Its
owner must be gone, or see the closed ledger, before this is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial
from typing import Final, NamedTuple

from ledger.client.client import LedgerClient
from ledger.client.config import LedgerClientConfig
from ledger.client.update_metadata import LedgerMetadataStore, Versioned
from ledger.core.entry_format import EntryFormat, master_key, read_header
from ledger.core.ledger_metadata import LedgerMetadata, LedgerState
from ledger.errors import AddFailed, CorruptFormat, EntryUnknown, NotEnoughBookies
from ledger.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from ledger.ports.bookies import Bookies, ReadReply, Status
from ledger.repair.checker import UNKNOWN_CONTENTS, bookies_of, check_ledger
from ledger.repair.config import RepairConfig
from ledger.repair.entry_copier import CopyBudget, EntryCopier, RepairProgress
from ledger.repair.entry_ranges import EMPTY, EntryRanges, intersection, merged, union
from ledger.repair.underreplicated_ledgers import UnderreplicatedLedgers

_FENCED: Final = (Status.OK, Status.NO_ENTRY, Status.NO_LEDGER)


class AcceptedLoss(NamedTuple):
    """What became of the ledger, and what is not in it any more."""

    last_entry: EntryId
    given_up: EntryRanges  # entries that were there once and cannot be read
    limbo_ended: tuple[BookieId, ...]
    forced: bool  # closed without the bookies that a recovery needs


class LossAcceptor:
    """Works on one ledger after another."""

    def __init__(
        self,
        client: LedgerClient,
        metadata: LedgerMetadataStore,
        bookies: Bookies,
        underreplicated: UnderreplicatedLedgers,
        client_config: LedgerClientConfig,
    ) -> None:
        self._client = client
        self._metadata = metadata
        self._bookies = bookies
        self._underreplicated = underreplicated
        self._client_config = client_config

    async def accept(self, ledger: LedgerId) -> AcceptedLoss:
        """The ledger is closed and answers plainly; it is marked, so that repair spreads the rest.

        Raises NoSuchLedger, MetadataUnavailable, EntryUnknown (no bookie of it answers at all).
        """
        stored = await self._metadata.read_latest(ledger)
        ended = await self._end_limbos(stored.metadata)
        existed = await self._existed(stored.metadata)
        forced = False
        if not stored.metadata.closed:
            try:
                await self._client.recover(ledger)
            except (EntryUnknown, AddFailed, NotEnoughBookies):
                await self._close_by_force(ledger)
                forced = True
        metadata = (await self._metadata.read_latest(ledger)).metadata
        assert metadata.last_entry is not None
        copies = self._copies(metadata)
        holdings = await copies.survey(metadata.last_entry, bookies_of(metadata))
        unreadable = check_ledger(metadata, metadata.last_entry, holdings).unreadable
        above = merged([(metadata.last_entry + 1, existed)])
        await self._underreplicated.mark(ledger, ())
        return AcceptedLoss(metadata.last_entry, union(unreadable, above), ended, forced)

    def _copies(self, metadata: LedgerMetadata) -> EntryCopier:
        config = RepairConfig()
        budget = CopyBudget(config.in_flight_bytes_max, 0)
        return EntryCopier(
            metadata, self._bookies, budget, RepairProgress(), config, self._client_config
        )

    async def _existed(self, metadata: LedgerMetadata) -> EntryId:
        """The highest entry that may have been confirmed, as far as anybody knows or holds."""
        if metadata.last_entry is not None:
            return metadata.last_entry
        copies = self._copies(metadata)
        holdings = await copies.lists(metadata.last_fragment.ensemble)
        highest = [one.held[-1][1] for one in holdings.values() if one.held]
        return max([await copies.read_lac(), *highest])

    async def _end_limbos(self, metadata: LedgerMetadata) -> tuple[BookieId, ...]:
        copies = self._copies(metadata)
        holdings = await copies.lists(bookies_of(metadata))
        ended: list[BookieId] = []
        for bookie, holding in holdings.items():
            if holding.limbo and await copies.end_limbo(bookie) is Status.OK:
                ended.append(bookie)
        return tuple(ended)

    async def _close_by_force(self, ledger: LedgerId) -> None:
        """Closed at the last entry up to which the bookies that answer show everything."""
        while True:
            stored = await self._metadata.read_latest(ledger)
            stored = await self._metadata.update(stored, _begin)
            if stored.metadata.closed or await self._try_to_close(stored):
                return

    async def _try_to_close(self, stored: Versioned) -> bool:
        """False: the metadata changed meanwhile."""
        metadata = stored.metadata
        last = await self._last_readable(metadata, await self._fence(metadata))
        closed = metadata.close(last, await self._length_up_to(metadata, last))
        change = partial(_closed, metadata, closed)
        return (await self._metadata.update(stored, change)).metadata.closed

    async def _fence(self, metadata: LedgerMetadata) -> list[BookieId]:
        """Those that answered; they take no adds of the old writer. Raises EntryUnknown if none."""
        ensemble = metadata.last_fragment.ensemble
        here = [bookie for bookie in ensemble if bookie in self._bookies.registered()]
        asked = [self._read(bookie, metadata, NO_ENTRY, fence=True) for bookie in here]
        replies = zip(here, await asyncio.gather(*asked), strict=True)
        fenced = [bookie for bookie, reply in replies if reply.status in _FENCED]
        if not fenced:
            raise EntryUnknown(f"ledger {metadata.ledger}: none of {', '.join(ensemble)} answers")
        return fenced

    async def _read(
        self, bookie: BookieId, metadata: LedgerMetadata, entry: EntryId, *, fence: bool = False
    ) -> ReadReply:
        """UNREACHABLE when it says nothing in time; so one that hangs holds up nobody else."""
        key = master_key(metadata.password) if fence else None
        try:
            async with asyncio.timeout(self._client_config.read_timeout_s):
                return await self._bookies.read(bookie, metadata.ledger, entry, fence_key=key)
        except TimeoutError:
            return ReadReply(Status.UNREACHABLE)

    async def _last_readable(
        self, metadata: LedgerMetadata, fenced: Collection[BookieId]
    ) -> EntryId:
        """All entries of the last fragment up to it are shown, with sound digests.

        Raises EntryUnknown when one of the `fenced`, which just answered, does not show all that
        it has: what it holds would be cut off for a moment's silence.
        """
        copies = self._copies(metadata)
        fragment = metadata.last_fragment
        holdings = await copies.lists(fenced)
        everything = merged([(fragment.first, 2**62)])
        shown = EMPTY
        for bookie in fenced:
            listed = intersection(holdings.get(bookie, UNKNOWN_CONTENTS).held, everything)
            read = await copies.inspect(bookie, listed, deep=True)
            if not read.complete:
                place = f"ledger {metadata.ledger}: {bookie}"
                raise EntryUnknown(f"{place} fell silent while it was read; try again, or stop it")
            shown = union(shown, intersection(read.good, listed))
        starts = shown[:1]
        if not starts or starts[0][0] != fragment.first:
            return EntryId(fragment.first - 1)
        return starts[0][1]

    async def _length_up_to(self, metadata: LedgerMetadata, last: EntryId) -> int:
        """Payload bytes of all entries up to `last`, by the highest of them that can be read."""
        for entry in range(last, -1, -1):
            length = await self._length_at(metadata, EntryId(entry))
            if length is not None:
                return length
        return 0

    async def _length_at(self, metadata: LedgerMetadata, entry: EntryId) -> int | None:
        entry_format = EntryFormat(metadata.digest_type, metadata.password)
        for bookie in metadata.bookies_of(entry):
            reply = await self._read(bookie, metadata, entry)
            try:
                entry_format.unpack(reply.body, metadata.ledger, entry)
            except CorruptFormat:
                continue
            return read_header(reply.body).length
        return None


def _begin(current: LedgerMetadata) -> LedgerMetadata | None:
    return current.in_recovery() if current.state is LedgerState.OPEN else None


def _closed(
    before: LedgerMetadata, closed: LedgerMetadata, current: LedgerMetadata
) -> LedgerMetadata | None:
    return closed if current == before else None
