"""Accept the loss of entries, on an operator's request, so that the rest of a ledger is usable.

Bookies leave limbo, so that entries they lack count as missing. An open ledger is recovered. If too
few bookies are left for a recovery, the ledger is closed by force, at the last entry up to which
all entries can be read. Nothing is deleted: if an absent bookie returns with an entry, the entry is
part of the ledger again unless it is above the end.

A ledger closed by force was fenced on too few bookies to exclude its writer. A running writer that
reaches Qa bookies that did not answer here may acknowledge entries above the end. So the writer
must have stopped, or have seen the closed ledger, before.
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
    """The result: the end of the ledger, and the entries that are no longer part of it."""

    last_entry: EntryId
    given_up: EntryRanges  # entries that existed and cannot be read
    limbo_ended: tuple[BookieId, ...]
    forced: bool  # True if closed without enough bookies for a recovery


class LossAcceptor:
    """The acceptance of losses, one ledger at a time, with the services that it needs."""

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
        """Close the ledger with the entries that are left, and mark it for repair.

        Raises NoSuchLedger, MetadataUnavailable, or EntryUnknown if none of its bookies answers.
        """
        stored = await self._metadata.read_latest(ledger)
        ended = await self._end_limbos(stored.metadata)
        highest = await self._highest_written(stored.metadata)
        forced = False
        if not stored.metadata.closed:
            try:
                await self._client.recover(ledger)
            except (EntryUnknown, AddFailed, NotEnoughBookies):
                await self._close_by_force(ledger)
                forced = True
        metadata = (await self._metadata.read_latest(ledger)).metadata
        assert metadata.last_entry is not None
        copier = self._copier_of(metadata)
        replicas = await copier.survey(metadata.last_entry, bookies_of(metadata))
        unreadable = check_ledger(metadata, metadata.last_entry, replicas).unreadable
        above = merged([(metadata.last_entry + 1, highest)])
        await self._underreplicated.mark(ledger, ())
        return AcceptedLoss(metadata.last_entry, union(unreadable, above), ended, forced)

    def _copier_of(self, metadata: LedgerMetadata) -> EntryCopier:
        config = RepairConfig()
        budget = CopyBudget(config.in_flight_bytes_max, 0)
        return EntryCopier(
            metadata, self._bookies, budget, RepairProgress(), config, self._client_config
        )

    async def _highest_written(self, metadata: LedgerMetadata) -> EntryId:
        """Return the highest entry that may be confirmed, according to metadata and bookies."""
        if metadata.last_entry is not None:
            return metadata.last_entry
        copier = self._copier_of(metadata)
        replicas = await copier.list_replicas(metadata.last_fragment.ensemble)
        highest = [one.held[-1][1] for one in replicas.values() if one.held]
        return max([await copier.read_lac(), *highest])

    async def _end_limbos(self, metadata: LedgerMetadata) -> tuple[BookieId, ...]:
        copier = self._copier_of(metadata)
        replicas = await copier.list_replicas(bookies_of(metadata))
        ended: list[BookieId] = []
        for bookie, replica in replicas.items():
            if replica.limbo and await copier.end_limbo(bookie) is Status.OK:
                ended.append(bookie)
        return tuple(ended)

    async def _close_by_force(self, ledger: LedgerId) -> None:
        """Close the ledger at the last entry up to which all entries can be read."""
        while True:
            stored = await self._metadata.read_latest(ledger)
            stored = await self._metadata.update(stored, _begin)
            if stored.metadata.closed or await self._try_to_close(stored):
                return

    async def _try_to_close(self, stored: Versioned) -> bool:
        """Close the ledger. False if the metadata changed meanwhile."""
        metadata = stored.metadata
        last = await self._last_readable(metadata, await self._fence(metadata))
        closed = metadata.close(last, await self._length_up_to(metadata, last))
        change = partial(_closed, metadata, closed)
        return (await self._metadata.update(stored, change)).metadata.closed

    async def _fence(self, metadata: LedgerMetadata) -> list[BookieId]:
        """Fence the ledger and return the bookies that answered. Raises EntryUnknown if
        none did.
        """
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
        """Read one entry. Returns UNREACHABLE after a timeout, so that a hanging bookie delays no
        other.
        """
        key = master_key(metadata.password) if fence else None
        try:
            async with asyncio.timeout(self._client_config.read_timeout_s):
                return await self._bookies.read(bookie, metadata.ledger, entry, fence_key=key)
        except TimeoutError:
            return ReadReply(Status.UNREACHABLE)

    async def _last_readable(
        self, metadata: LedgerMetadata, fenced: Collection[BookieId]
    ) -> EntryId:
        """Return the last entry up to which the last fragment can be read, with valid digests.

        Raises EntryUnknown if a bookie of `fenced` stops answering before all entries it lists are
        read. Otherwise a short outage would cut off its entries.
        """
        copier = self._copier_of(metadata)
        fragment = metadata.last_fragment
        replicas = await copier.list_replicas(fenced)
        everything = merged([(fragment.first, 2**62)])
        shown = EMPTY
        for bookie in fenced:
            listed = intersection(replicas.get(bookie, UNKNOWN_CONTENTS).held, everything)
            read = await copier.inspect(bookie, listed, deep=True)
            if not read.complete:
                place = f"ledger {metadata.ledger}: {bookie}"
                raise EntryUnknown(
                    f"{place} stopped answering while it was read; try again, or stop it"
                )
            shown = union(shown, intersection(read.good, listed))
        starts = shown[:1]
        if not starts or starts[0][0] != fragment.first:
            return EntryId(fragment.first - 1)
        return starts[0][1]

    async def _length_up_to(self, metadata: LedgerMetadata, last: EntryId) -> int:
        """Return the payload bytes up to `last`, from the highest readable entry."""
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
