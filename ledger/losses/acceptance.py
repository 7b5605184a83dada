"""Accept the loss of entries, on an operator's request, so that the rest of a ledger is usable.

    open ─▶ recover │ close by force ─▶ examine all copies ─▶ store the losses ─▶ end limbo ─▶ mark

The losses are stored before anything that cannot be undone, so a rerun finishes after a crash at
any point. Nothing is deleted. A copy that turns up later stays lost for every reader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from ledger.client.accepted_entries import accept_entries
from ledger.client.client import LedgerClient
from ledger.client.config import LedgerClientConfig
from ledger.client.update_metadata import LedgerMetadataStore
from ledger.core.accepted_losses import (
    OPERATOR_BYTES_MAX,
    RESERVED_OFFSETS,
    LostRange,
)
from ledger.core.gaps import ENTRY_MAX, Acceptance, OffsetRange
from ledger.core.ledger_metadata import LedgerMetadata
from ledger.core.text import printable
from ledger.errors import AddFailed, EntryUnknown, InvalidArgument, NotEnoughBookies
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.losses.forced_close import ForcedClose
from ledger.losses.place import LedgerPlace, find_place
from ledger.losses.survey import LedgerLosses, LossSurvey
from ledger.ports.bookies import Bookies, Status
from ledger.ports.clock import Clock
from ledger.repair.checker import LossTerms, bookies_of
from ledger.repair.entry_copier import EntryCopier
from ledger.repair.entry_ranges import EntryRanges, merged, union
from ledger.streams.accepted_losses import accept_losses

_ATTEMPTS_MAX = 10  # examinations of a ledger whose stream or bookies change meanwhile

Mark = Callable[[LedgerId], Awaitable[None]]


class AcceptedLoss(NamedTuple):
    """The result: the end of the ledger, and what is no longer part of its log."""

    last_entry: EntryId
    given_up: EntryRanges  # entries that existed and cannot be read
    limbo_ended: tuple[BookieId, ...]
    forced: bool  # True if closed without enough bookies for a recovery
    ranges: tuple[LostRange, ...]  # the accepted losses of the ledger, earlier ones included
    # Entries that cannot be read and were not given up: a registered bookie may have them.
    waiting: tuple[LostRange, ...]


class LossAcceptor:
    """The acceptance of losses, one ledger at a time, with the services that it needs."""

    def __init__(
        self,
        client: LedgerClient,
        metadata: LedgerMetadataStore,
        bookies: Bookies,
        clock: Clock,
        client_config: LedgerClientConfig,
        mark: Mark | None = None,
    ) -> None:
        """`mark` puts a ledger on the list of those to be repaired, if there is one."""
        self._client = client
        self._metadata = metadata
        self._bookies = bookies
        self._clock = clock
        self._client_config = client_config
        self._mark = mark
        self._survey = LossSurvey(metadata, bookies, client_config)

    async def accept_ledger(self, ledger: LedgerId, by: str) -> AcceptedLoss:
        """Close the ledger with the entries that are left, and give up those that are lost.

        Copies with a wrong digest, and those of bookies that are not registered, count as lost.
        Raises NoSuchLedger, MetadataUnavailable, WrongState if the segment before it is not
        completed, EntryUnknown if none of its bookies is registered or one that is needed does not
        answer, and InvalidArgument if there is no room for more losses.
        """
        metadata = (await self._metadata.read_latest(ledger)).metadata
        highest = await self._highest_written(metadata)
        forced = not metadata.closed and await self._close(metadata, by)
        metadata = (await self._metadata.read_latest(ledger)).metadata
        assert metadata.last_entry is not None
        copier = self._survey.copier(metadata)  # now, because it ends the limbo of no later start
        seen, lost = await self._give_up(metadata, by)
        ended = await self._end_limbos(metadata, copier)
        if self._mark is not None:
            await self._mark(ledger)
        after = (await self._metadata.read_latest(ledger)).metadata
        place = await find_place(self._metadata.store, after)
        entries = merged((each.first, each.last) for each in lost)
        above = merged([(metadata.last_entry + 1, highest)])
        return AcceptedLoss(
            metadata.last_entry,
            union(entries, above),
            ended,
            forced or any(each.first == metadata.last_entry + 1 for each in place.accepted),
            place.accepted,
            tuple(each for each in seen.found if each not in lost),
        )

    async def _give_up(
        self, metadata: LedgerMetadata, by: str
    ) -> tuple[LedgerLosses, list[LostRange]]:
        """Store what is lost of a closed ledger. Returns what was found, and what was stored.

        Repeats if the segment was completed, or a bookie registered, after it was looked at.
        """
        for _ in range(_ATTEMPTS_MAX):
            place = await find_place(self._metadata.store, metadata)
            absent = bookies_of(metadata) - self._bookies.registered().keys()
            terms = LossTerms(absent, damaged=True)
            seen = await self._survey.examine(place, deep=True, terms=terms)
            if absent & self._bookies.registered().keys():
                continue  # it can answer for itself now
            lost = [each for each in seen.proved if _is_settled(each, seen)]
            try:
                await self.store(place, lost, by)
            except InvalidArgument:
                if (await find_place(self._metadata.store, metadata)).end == place.end:
                    raise
                continue
            return seen, lost
        raise EntryUnknown(
            f"ledger {metadata.ledger}: its bookies come and go, or its stream changes; try again"
        )

    async def _close(self, metadata: LedgerMetadata, by: str) -> bool:
        """Recover the ledger. Close it by force if too few bookies are left for that.

        Returns whether it was closed by force.

        A bookie in limbo never counts for a recovery, so the end that it finds is proved. But
        bookies that lost all of the ledger without a trace would prove that nothing was written.
        So if no bookie has an entry of it, offsets are reserved as after a forced close.
        """
        ledger = metadata.ledger
        if not await self.is_denied(metadata):
            try:
                await self._client.recover(ledger)
                return False
            except (EntryUnknown, AddFailed, NotEnoughBookies):
                pass
        await ForcedClose(
            self._metadata, self._bookies, self._client_config, self._acceptance(by)
        ).run(ledger)
        return True

    async def is_denied(self, metadata: LedgerMetadata) -> bool:
        """Return whether the ledger is open, and no bookie that answers has an entry of it."""
        if metadata.closed:
            return False
        replicas = await self._survey.copier(metadata).list_replicas(bookies_of(metadata))
        return not any(replica.held for replica in replicas.values())

    def _acceptance(self, by: str) -> Acceptance:
        name = by.encode(errors="replace")[:OPERATOR_BYTES_MAX].decode(errors="ignore")
        return Acceptance(self._clock.now_ms(), printable(name))

    async def store(self, place: LedgerPlace, lost: Sequence[LostRange], by: str) -> None:
        """Store losses of one ledger as accepted. Those that are stored already change nothing."""
        acceptance = self._acceptance(by)
        signed = [
            each._replace(evidence=each.evidence._replace(acceptance=acceptance)) for each in lost
        ]
        store = self._metadata.store
        if not signed:
            return
        if place.stream is None:
            entries = [(each.first, each.last) for each in signed]
            await accept_entries(self._metadata, place.ledger, entries, acceptance)
            return
        stored = [_as_reserved(each) if place.end is None else each for each in signed]
        await accept_losses(store, place.stream, stored)

    async def _highest_written(self, metadata: LedgerMetadata) -> EntryId:
        """Return the highest entry that may be confirmed, according to metadata and bookies."""
        if metadata.last_entry is not None:
            return metadata.last_entry
        copier = self._survey.copier(metadata)
        replicas = await copier.list_replicas(metadata.last_fragment.ensemble)
        highest = [one.held[-1][1] for one in replicas.values() if one.held]
        return max([await copier.read_lac(), *highest])

    async def _end_limbos(
        self, metadata: LedgerMetadata, copier: EntryCopier
    ) -> tuple[BookieId, ...]:
        replicas = await copier.list_replicas(bookies_of(metadata))
        ended: list[BookieId] = []
        for bookie, replica in replicas.items():
            if replica.limbo and await copier.end_limbo(bookie) is Status.OK:
                ended.append(bookie)
        return tuple(ended)


def _is_settled(loss: LostRange, seen: LedgerLosses) -> bool:
    """Return whether the loss can be stored: its ends are known, or its start and nothing follows.

    The end of the ledger has no known offset while its segment is not listed as completed.
    """
    place = seen.place
    known_start = loss.first not in seen.unknown_starts
    at_end = place.end is None and loss.last == seen.last and known_start
    return loss.offsets.exact or at_end or place.stream is None


def _as_reserved(loss: LostRange) -> LostRange:
    """Return a loss with an unknown end as one that reserves all offsets behind its start."""
    if loss.offsets.exact:
        return loss
    first = loss.offsets.first
    offsets = OffsetRange(first, first + RESERVED_OFFSETS - 1, exact=False)
    return loss._replace(last=ENTRY_MAX, offsets=offsets)
