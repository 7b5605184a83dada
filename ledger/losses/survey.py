"""Find what is lost of a ledger, with the evidence and the Kafka offsets.

    lists of its bookies ─▶ entries that nobody shows ─▶ judged ─▶ offsets from both neighbours

The positions of the readable records on both sides give the offsets; at the end of a segment its
node does. Where a neighbour may exist and cannot be read, the offsets are *at most* those.
Source: seed 002, "Data Loss" (L16).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import NamedTuple

from ledger.client.config import LedgerClientConfig
from ledger.client.update_metadata import LedgerMetadataStore
from ledger.core.accepted_losses import LostRange
from ledger.core.entry_search import EntrySearch
from ledger.core.gaps import Evidence, OffsetRange, joined
from ledger.core.ledger_metadata import LedgerMetadata
from ledger.core.loss import judge
from ledger.core.records import POSITION_MAX, LogRecord, parse_entry
from ledger.errors import CorruptFormat
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.losses.place import LedgerPlace, entries_of
from ledger.ports.bookies import Bookies
from ledger.repair.checker import (
    ONLY_PROVED,
    UNKNOWN_CONTENTS,
    LossTerms,
    ReplicaContents,
    bookies_of,
    check_ledger,
    copy_state,
    fragments_of,
)
from ledger.repair.config import RepairConfig
from ledger.repair.entry_copier import CopyBudget, EntryCopier, RepairProgress
from ledger.repair.entry_ranges import (
    EMPTY,
    EntryRanges,
    difference,
    each,
    intersection,
    merged,
    union,
)
from ledger.streams.compressed_entries import decompressed

_ATTEMPTS_MAX = 10  # examinations of a ledger that repair changes meanwhile
_GROWN = 64  # entries that are verified beyond a neighbour with a damaged copy


class LedgerLosses(NamedTuple):
    """What is lost of a ledger. Entries of no range can be read."""

    place: LedgerPlace
    metadata: LedgerMetadata
    last: EntryId  # the last entry that was examined
    # Entries that nobody shows and nobody accepted, in order: those proved lost, and those of which
    # a bookie may hold a copy. The verdict of their evidence tells which.
    found: tuple[LostRange, ...]
    # Entries of accepted losses of which a bookie holds a sound copy. They stay lost.
    found_again: EntryRanges
    replicas: dict[BookieId, ReplicaContents]
    # The first entries of those of `found` whose first offset is unknown.
    unknown_starts: frozenset[EntryId]

    @property
    def proved(self) -> tuple[LostRange, ...]:
        """The losses that are proved and not accepted."""
        return tuple(one for one in self.found if one.evidence.verdict.lost)


async def no_suspects(ledger: LedgerId) -> Collection[BookieId]:
    return ()


class LossSurvey:
    """Examines ledgers, one at a time. `progress` counts the copies that were read."""

    def __init__(
        self,
        metadata: LedgerMetadataStore,
        bookies: Bookies,
        client_config: LedgerClientConfig,
        suspects: Callable[[LedgerId], Awaitable[Collection[BookieId]]] = no_suspects,
        progress: RepairProgress | None = None,
    ) -> None:
        """`suspects` returns bookies whose copies of a ledger are read, not only listed."""
        self._metadata = metadata
        self._bookies = bookies
        self._client_config = client_config
        self._suspects = suspects
        self._progress = progress or RepairProgress()

    def copier(self, metadata: LedgerMetadata) -> EntryCopier:
        """Return a reader of the copies of one ledger."""
        config = RepairConfig()
        budget = CopyBudget(config.in_flight_bytes_max, 0)
        return EntryCopier(
            metadata, self._bookies, budget, self._progress, config, self._client_config
        )

    async def examine(
        self,
        place: LedgerPlace,
        *,
        deep: bool = False,
        verified: EntryRanges = EMPTY,
        terms: LossTerms = ONLY_PROVED,
    ) -> LedgerLosses:
        """Find the losses of a ledger up to its LAC.

        With `deep` every copy is read, otherwise those of `verified`, of bookies in limbo and of
        suspects. Raises NoSuchLedger, CorruptFormat, MetadataUnavailable.
        """
        found: LedgerLosses | None = None
        for _ in range(_ATTEMPTS_MAX):
            metadata = (await self._metadata.read_latest(place.ledger)).metadata
            suspects = bookies_of(metadata) if deep else await self._suspects(place.ledger)
            one = _Examination(place, metadata, self.copier(metadata), terms)
            await one.list_copies(suspects, verified)
            found = await one.find()
            # The write sets must be those after the last answer, because repair moves entries.
            after = (await self._metadata.read_latest(place.ledger)).metadata
            grown = difference(one.unread, verified)
            if after.fragments == metadata.fragments and (deep or not grown):
                return found
            verified = union(verified, grown)
        assert found is not None
        return found

    async def end_of(self, place: LedgerPlace) -> int | None:
        """Return the offset that follows the last confirmed record, None if that is unreadable."""
        metadata = (await self._metadata.read_latest(place.ledger)).metadata
        return await _Examination(place, metadata, self.copier(metadata), ONLY_PROVED).find_end()

    async def find_entries(
        self, place: LedgerPlace, wanted: OffsetRange, last: EntryId
    ) -> EntryRanges:
        """Return entries up to `last` that include all that may hold `wanted`."""
        if last < 0:
            return EMPTY
        metadata = (await self._metadata.read_latest(place.ledger)).metadata
        one = _Examination(place, metadata, self.copier(metadata), ONLY_PROVED)
        await one.list_copies((), EMPTY)
        low = await one.locate(wanted.first, last)
        high = await one.locate(wanted.last + 1, last)
        return merged([(max(low - 1, 0), min(high + 1, last))])


class _Edges(NamedTuple):
    """The offsets of a readable entry."""

    begin: int  # of its first record; control records have none of their own
    end: int  # follows its last record


class _Examination:
    """One examination of a ledger. Used once."""

    def __init__(
        self, place: LedgerPlace, metadata: LedgerMetadata, copier: EntryCopier, terms: LossTerms
    ) -> None:
        # Neighbours of losses that a bookie lists and none returned; their copies are to be read.
        self.unread: EntryRanges = EMPTY
        self._place = place
        self._metadata = metadata
        self._copier = copier
        self._terms = terms
        self._accepted = entries_of(place.accepted)
        # Set by `list_copies`: the last entry to look at, and the contents of each bookie.
        self._last = EntryId(-1)
        self._replicas: dict[BookieId, ReplicaContents] = {}
        # Set by `find`: entries that nobody shows, without accepted ones.
        self._unreadable: EntryRanges = EMPTY
        # Grows in `find`: the first entries of ranges whose first offset is unknown.
        self._unknown_starts: set[EntryId] = set()

    async def list_copies(self, suspects: Collection[BookieId], verified: EntryRanges) -> None:
        """List the copies of all bookies, and read those of `suspects` and of `verified`."""
        metadata, copier = self._metadata, self._copier
        self._last = await copier.read_lac()
        self._replicas = await copier.survey(self._last, suspects)
        if not verified:
            return
        parts = fragments_of(metadata, self._last)
        for bookie, replica in self._replicas.items():
            if bookie in suspects or replica.limbo:
                continue
            share = intersection(copier.share_of_bookie(bookie, parts), verified)
            self._replicas[bookie] = await copier.inspect(bookie, share, deep=True)

    async def find(self) -> LedgerLosses:
        metadata = self._metadata
        check = check_ledger(
            metadata, self._last, self._replicas, accepted=self._accepted, terms=self._terms
        )
        self._unreadable = check.unreadable
        waiting = difference(check.unreadable, check.lost)
        found = [await self._range(*run) for run in (*check.lost, *waiting)]
        return LedgerLosses(
            self._place,
            metadata,
            self._last,
            tuple(sorted(found, key=lambda one: one.first)),
            await self._found_again(),
            self._replicas,
            frozenset(self._unknown_starts),
        )

    async def _range(self, first: EntryId, last: EntryId) -> LostRange:
        left, left_known = await self._left(first)
        right, right_known = await self._right(last)
        if not left_known:
            self._unknown_starts.add(first)
        offsets = OffsetRange(left, max(right, left) - 1, left_known and right_known)
        evidence = self._evidence(first, last)
        return LostRange(self._place.number, first, last, offsets, evidence)

    # -- evidence -----------------------------------------------------------------------------

    def _evidence(self, first: EntryId, last: EntryId) -> Evidence:
        metadata = self._metadata
        found: list[Evidence] = []
        for entry in self._samples(first, last):
            copies = tuple(
                copy_state(bookie, entry, self._contents(bookie), self._terms)
                for bookie in metadata.bookies_of(entry)
            )
            verdict = judge(copies, metadata.ack_quorum)
            found.append(Evidence(metadata.ledger, verdict, copies))
        unproved = [one.verdict for one in found if not one.verdict.lost]
        whole = joined(found)
        return whole._replace(verdict=unproved[0]) if unproved else whole

    def _samples(self, first: EntryId, last: EntryId) -> list[EntryId]:
        """Return entries of the range that stand for all of its entries.

        Within a fragment, and where no bookie's list begins or ends, the states of the copies
        repeat after as many entries as the ensemble has bookies.
        """
        metadata = self._metadata
        starts = {int(first)} | {int(part.first) for part in metadata.fragments}
        for bookie in bookies_of(metadata):
            replica = self._contents(bookie)
            for runs in (replica.damaged, replica.lacks):
                starts |= {at for run in runs for at in (run[0], run[1] + 1)}
        inside = sorted(at for at in starts if first <= at <= last)
        ends = [*inside[1:], last + 1]
        return [
            EntryId(entry)
            for start, end in zip(inside, ends, strict=True)
            for entry in range(start, min(end, start + metadata.ensemble_size))
        ]

    def _contents(self, bookie: BookieId) -> ReplicaContents:
        return self._replicas.get(bookie, UNKNOWN_CONTENTS)

    # -- offsets ------------------------------------------------------------------------------

    async def _left(self, first: EntryId) -> tuple[int, bool]:
        """Return the offset at which the range begins, and whether that is exact."""
        at, exact = first - 1, True
        while at >= 0:
            for known in self._place.accepted:
                if known.first <= at <= known.last:
                    return known.offsets.last + 1, exact and known.offsets.exact
            gap = _run_at(self._unreadable, at)
            edges = await self._edges(EntryId(at)) if gap is None else None
            if edges is not None:
                return edges.end, exact
            at, exact = (gap[0] if gap is not None else at) - 1, False
        return self._place.start, exact

    async def _right(self, last: EntryId) -> tuple[int, bool]:
        """Return the offset that follows the range, and whether that is exact."""
        at, exact = last + 1, True
        while at <= self._last:
            for known in self._place.accepted:
                if known.first <= at <= known.last:
                    return known.offsets.first, exact and (known.offsets.exact or known.forced)
            gap = _run_at(self._unreadable, at)
            edges = await self._edges(EntryId(at)) if gap is None else None
            if edges is not None:
                return edges.begin, exact
            at, exact = (gap[1] if gap is not None else at) + 1, False
        return self._end(exact=exact)

    def _end(self, *, exact: bool) -> tuple[int, bool]:
        place = self._place
        if place.end is not None:
            return place.end, exact
        for known in place.accepted:
            if known.forced:
                return known.offsets.first, exact
        return place.start + POSITION_MAX, False

    async def _edges(self, entry: EntryId) -> _Edges | None:
        """Return the offsets of an entry, None if no bookie returns it."""
        payload = await self._copier.read_payload(entry)
        records = [] if payload is None else _records(payload)
        if not records:
            self.unread = union(self.unread, merged([(entry, min(entry + _GROWN, self._last))]))
            return None
        first, last, start = records[0], records[-1], self._place.start
        return _Edges(
            start + first.position - (0 if first.control else 1),
            start + last.position + max(last.records - 1, 0),
        )

    async def find_end(self) -> int | None:
        """Return the offset that follows the last confirmed record, None if that is unreadable."""
        last = await self._copier.read_lac()
        edges = await self._edges(last) if last >= 0 else None
        return self._place.start if last < 0 else edges and edges.end

    async def locate(self, offset: int, last: EntryId) -> EntryId:
        """Return the first entry that reaches `offset`, or the first of lost ones that may do.

        By bisection over readable entries.
        """
        search = EntrySearch(0, last)
        unreadable = check_ledger(self._metadata, last, self._replicas).unreadable
        for lost in each(intersection(unreadable, merged([(0, last)]))):
            search.on_lost(lost)
        while (entry := search.wanted) is not None:
            edges = await self._edges(entry)
            if edges is None:
                search.on_lost(entry)
            else:
                search.on_read(entry, edges.end > offset)
        return search.result

    # -- copies that turned up ----------------------------------------------------------------

    async def _found_again(self) -> EntryRanges:
        """Return entries of accepted losses of which a bookie holds a sound copy."""
        found = EMPTY
        for bookie, replica in self._replicas.items():
            listed = intersection(replica.held, self._accepted)
            if listed:
                read = await self._copier.inspect(bookie, listed, deep=True)
                found = union(found, intersection(read.good, listed))
        return found


def _records(payload: memoryview) -> list[LogRecord]:
    """Return the records of an entry, none if they do not parse."""
    try:
        return list(parse_entry(decompressed(payload)))
    except CorruptFormat:
        return []


def _run_at(ranges: EntryRanges, entry: int) -> tuple[EntryId, EntryId] | None:
    return next((run for run in ranges if run[0] <= entry <= run[1]), None)
