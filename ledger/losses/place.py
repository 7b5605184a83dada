"""The place of a ledger in its stream: its offsets, and the losses that were accepted there.

A ledger that no stream lists, such as a log of committed offsets, counts as a log of its own: its
offsets begin at 0, and its accepted losses are in its own metadata.
"""

from __future__ import annotations

from typing import NamedTuple

from ledger.client.accepted_entries import accepted_entries as given_up_entries
from ledger.core.accepted_losses import LostRange, StreamLosses
from ledger.core.gaps import Evidence, OffsetRange
from ledger.core.ledger_metadata import LedgerMetadata
from ledger.core.loss import Verdict
from ledger.core.segments import Segment, visible
from ledger.errors import NoNode, WrongState
from ledger.ids import STREAM_KEY, LedgerId
from ledger.ports.metadata import MetadataStore
from ledger.repair.entry_ranges import EntryRanges, merged
from ledger.streams.accepted_losses import AcceptedLosses
from ledger.streams.segment_list import SegmentList

_OWN_SEGMENT = 1


class LedgerPlace(NamedTuple):
    """Where the entries of a ledger stand."""

    ledger: LedgerId
    stream: str | None  # None: no stream lists the ledger
    number: int  # of its segment
    start: int  # the offset of its first record
    end: int | None  # the offset that follows its last record; None while it is not listed
    losses: StreamLosses  # those of the whole stream

    @property
    def accepted(self) -> tuple[LostRange, ...]:
        """The accepted losses of this ledger, in order."""
        return self.losses.of_segment(self.number)


class StreamPlaces(NamedTuple):
    """The listed segments of a stream, as far as their starts are known."""

    name: str
    start: int  # the first readable offset
    segments: tuple[Segment, ...]
    losses: StreamLosses

    def place(self, segment: Segment) -> LedgerPlace:
        """Return the place of a listed segment."""
        end = segment.end_sequence_id if segment.completed else None
        start = segment.start_sequence_id
        return LedgerPlace(segment.ledger, self.name, segment.number, start, end, self.losses)


async def read_places(store: MetadataStore, name: str) -> StreamPlaces:
    """Read the list of a stream. Raises NoNode, CorruptFormat, MetadataUnavailable."""
    listed = SegmentList(store, name)
    await listed.sync()
    await listed.load()
    segments = tuple(visible(listed.segments))
    return StreamPlaces(name, listed.start_sequence_id, segments, listed.losses)


async def find_place(store: MetadataStore, metadata: LedgerMetadata) -> LedgerPlace:
    """Return the place of a ledger. Raises CorruptFormat, MetadataUnavailable.

    Raises WrongState if its start is unknown, because the segment before it is not completed.
    """
    name = stream_of(metadata)
    places = None if name is None else await _places_if_any(store, name)
    if places is not None:
        place = await _listed_place(store, places, metadata.ledger)
        if place is not None:
            return place
    return LedgerPlace(metadata.ledger, None, _OWN_SEGMENT, 0, None, own_losses(metadata))


async def _places_if_any(store: MetadataStore, name: str) -> StreamPlaces | None:
    try:
        return await read_places(store, name)
    except NoNode:
        return None  # the stream was deleted


async def _listed_place(
    store: MetadataStore, places: StreamPlaces, ledger: LedgerId
) -> LedgerPlace | None:
    for segment in places.segments:
        if segment.ledger == ledger:
            return places.place(segment)
    await _check_unlisted(store, places, ledger)
    return None


async def _check_unlisted(store: MetadataStore, places: StreamPlaces, ledger: LedgerId) -> None:
    listed = SegmentList(store, places.name)
    await listed.load()
    for segment in listed.segments:
        if segment.ledger == ledger:
            before = places.segments[-1]
            raise WrongState(
                f"ledger {ledger}: its segment {segment.number} follows segment {before.number}, "
                f"whose ledger {before.ledger} is to be recovered first"
            )


def stream_of(metadata: LedgerMetadata) -> str | None:
    """Return the stream that the ledger was created for, None if there is none."""
    name = metadata.custom.get(STREAM_KEY, b"").decode(errors="replace")
    return name if name and "/" not in name else None


def own_losses(metadata: LedgerMetadata) -> StreamLosses:
    """Return the accepted losses in the metadata of a ledger without a stream.

    They have entries only: nobody reads such a ledger by offsets.
    """
    evidence = Evidence(metadata.ledger, Verdict.NON_AUTHORITATIVE, ())
    nothing = OffsetRange(0, -1, exact=False)
    return StreamLosses(
        tuple(
            LostRange(_OWN_SEGMENT, first, last, nothing, evidence)
            for first, last in given_up_entries(metadata)
        )
    )


def entries_of(ranges: tuple[LostRange, ...]) -> EntryRanges:
    """Return the entries of accepted losses of one ledger."""
    return merged((each.first, each.last) for each in ranges)


async def accepted_ranges(store: MetadataStore, metadata: LedgerMetadata) -> tuple[LostRange, ...]:
    """Return the accepted losses of a ledger, by one read of metadata.

    Raises CorruptFormat, MetadataUnavailable.
    """
    losses = own_losses(metadata)
    name = stream_of(metadata)
    if name is not None:
        losses = await AcceptedLosses(store, name).load()
    ledger = metadata.ledger
    return tuple(each for each in losses.ranges if each.evidence.ledger == ledger)


async def accepted_entries(store: MetadataStore, metadata: LedgerMetadata) -> EntryRanges:
    """Return the entries of a ledger whose loss was accepted. Raises as `accepted_ranges`."""
    return entries_of(await accepted_ranges(store, metadata))
