"""Requests about lost entries: which there are, and their acceptance, as plain data."""

from __future__ import annotations

import asyncio
import getpass
import socket
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

from gateway.admin.client import AdminError
from gateway.admin.storage import Storage
from gateway.core.topic_names import topic_name_fault
from gateway.topics.catalog import IDS, NAMES, Topic, decode_topic
from gateway.topics.partitions import stream_name
from ledger.core.accepted_losses import LostRange
from ledger.core.gaps import ENTRY_MAX, Evidence, GapKind, OffsetRange
from ledger.core.segments import Segment
from ledger.core.text import names_of
from ledger.errors import CorruptFormat, InvalidArgument, NoNode, NoSuchLedger
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.losses.choice import choose_losses
from ledger.losses.place import LedgerPlace, StreamPlaces, entries_of, find_place, read_places
from ledger.losses.survey import LedgerLosses
from ledger.repair.checker import LossTerms, bookies_of
from ledger.repair.entry_ranges import EntryRanges, as_text, intersection, merged

Row = dict[str, Any]
OnProgress = Callable[[int, int], None]

_AT_ONCE = 4  # ledgers that are examined at once


def operator() -> str:
    """Return the name that is stored with an acceptance."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no name for this user id
        user = "unknown"
    return f"{user}@{socket.gethostname().partition('.')[0]}"


async def topic_of(storage: Storage, name: str) -> Topic:
    """Return the topic of that name. Raises AdminError if it does not exist."""
    store = storage.store
    missing = AdminError(f"Topic '{name}' does not exist.", "UNKNOWN_TOPIC_OR_PARTITION")
    if topic_name_fault(name) is not None:  # it may not even be a part of a path
        raise missing
    try:
        await store.sync(IDS)
        topic_id = UUID((await store.get(f"{NAMES}/{name}")).data.decode())
        path = f"{IDS}/{topic_id}"
        return decode_topic(path, await store.get(path))
    except NoNode:
        raise missing from None
    except (ValueError, CorruptFormat) as error:
        raise AdminError(f"topic {name} cannot be read: {error}", "CORRUPT_METADATA") from error


async def _places_of(storage: Storage, topic: Topic, partition: int) -> StreamPlaces:
    if not 0 <= partition < topic.partitions:
        raise AdminError(
            f"Topic '{topic.name}' has no partition {partition}.", "UNKNOWN_TOPIC_OR_PARTITION"
        )
    try:
        return await read_places(storage.store, stream_name(topic.topic_id, partition))
    except NoNode:
        raise AdminError(
            f"partition {partition} of topic {topic.name} is being created or deleted",
            "UNKNOWN_TOPIC_OR_PARTITION",
        ) from None


# -- gaps ------------------------------------------------------------------------------------------


async def topic_gaps(
    storage: Storage,
    name: str,
    partitions: Sequence[int],
    *,
    deep: bool,
    every: bool,
    on_progress: OnProgress | None = None,
) -> list[Row]:
    """List the gaps of a topic, in order. With `deep` every copy of every entry is read.

    Only with `every` the ends of segments (BRIDGE) are included.
    """
    topic = await topic_of(storage, name)
    chosen = sorted(set(partitions)) or list(range(topic.partitions))
    found = [(index, await _places_of(storage, topic, index)) for index in chosen]
    waiting = [(index, places, one) for index, places in found for one in _readable(places)]
    whole, done = len(waiting), 0
    rows: dict[tuple[int, int], list[Row]] = {}

    async def work() -> None:
        nonlocal done
        while waiting:
            index, places, segment = waiting.pop()
            seen = await _examine(storage, places, segment, deep=deep)
            if seen is not None:
                rows[index, segment.number] = _rows_of(seen, places.start, every=every)
            done += 1
            if on_progress is not None:
                on_progress(done, whole)

    await asyncio.gather(*[work() for _ in range(_AT_ONCE)])
    listed = [(index, row) for index, places in found for row in _trimmed(places)]
    listed += [(index, row) for (index, _), some in sorted(rows.items()) for row in some]
    listed.sort(key=lambda each: each[0])  # stable: a TRIM stays first
    return [{"topic": name, "partition": index, **row} for index, row in listed]


def _readable(places: StreamPlaces) -> list[Segment]:
    """Return the segments that have readable records, or may have."""
    return [
        segment
        for segment in places.segments
        if not segment.completed or segment.end_sequence_id >= places.start
    ]


async def _examine(
    storage: Storage, places: StreamPlaces, segment: Segment, *, deep: bool
) -> LedgerLosses | None:
    """Examine a segment. Returns None if retention removed it meanwhile."""
    try:
        return await storage.survey.examine(places.place(segment), deep=deep)
    except NoSuchLedger:
        now = await read_places(storage.store, places.name)
        if any(each.number == segment.number for each in now.segments):
            raise
        return None


async def ledger_gaps(storage: Storage, ledger: LedgerId, *, deep: bool, every: bool) -> list[Row]:
    """List the gaps of one ledger, in order."""
    place = await find_place(storage.store, await storage.metadata_of(ledger))
    return _rows_of(await storage.survey.examine(place, deep=deep), 0, every=every)


def _trimmed(places: StreamPlaces) -> list[Row]:
    if places.start == 0:
        return []
    return [_row(GapKind.TRIM, OffsetRange(0, places.start - 1), state="trimmed")]


def _rows_of(seen: LedgerLosses, start: int, *, every: bool) -> list[Row]:
    """Return a row for each gap of a ledger, without those below `start`."""
    ranges = [(each, _state_of(each)) for each in seen.found]
    ranges += [(each, "accepted") for each in seen.place.accepted]
    rows: list[Row] = []
    for each, state in sorted(ranges, key=lambda pair: pair[0].first):
        if each.offsets.first < start and each.offsets.last < start:
            continue
        again = intersection(seen.found_again, entries_of((each,)))
        rows.append(lost_row(each, "found again" if again else state, again))
    place = seen.place
    closed_by_force = any(each.forced for each in place.accepted)
    if every and place.end is not None and not closed_by_force:
        offsets = OffsetRange(place.end, place.end - 1)
        first = EntryId(seen.last + 1)
        rows.append(_row(GapKind.BRIDGE, offsets, (first, ENTRY_MAX), place.number, place.ledger))
    return rows


def _state_of(loss: LostRange) -> str:
    return "lost" if loss.evidence.verdict.lost else "waiting"


def lost_row(loss: LostRange, state: str, again: EntryRanges = ()) -> Row:
    """Return one loss as plain data."""
    evidence = loss.evidence
    kind = None if state == "waiting" else GapKind.DATALOSS
    row = _row(kind, loss.offsets, (loss.first, loss.last), loss.segment, evidence.ledger, state)
    return {
        **row,
        "verdict": evidence.verdict.value,
        "evidence": _copies(evidence),
        "accepted_at": _accepted_at(evidence),
        "accepted_by": None if evidence.acceptance is None else evidence.acceptance.by,
        "found_again": as_text(again) or None,
    }


def _row(
    kind: GapKind | None,
    offsets: OffsetRange,
    entries: tuple[EntryId, EntryId] | None = None,
    segment: int | None = None,
    ledger: LedgerId | None = None,
    state: str | None = None,
) -> Row:
    return {
        "kind": None if kind is None else kind.name,
        "state": state,
        "offsets": [offsets.first, offsets.last],
        "exact": offsets.exact,
        "segment": segment,
        "ledger": ledger,
        "entries": None if entries is None else [entries[0], entries[1]],
    }


def _copies(evidence: Evidence) -> list[Row]:
    return [
        {"bookie": copy.bookie, "answer": copy.answer.value, "status": copy.status.name}
        for copy in evidence.copies
    ]


def _accepted_at(evidence: Evidence) -> str | None:
    if evidence.acceptance is None:
        return None
    time_s = evidence.acceptance.at_ms / 1000
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds")


def is_unaccepted_loss(row: Row) -> bool:
    """Return whether the row is a proved loss that is not accepted."""
    return row["state"] == "lost"


# -- acceptance ------------------------------------------------------------------------------------


class Proposal(NamedTuple):
    """The losses of one partition that an operator asked to accept, and their segments."""

    losses: tuple[LostRange, ...]
    places: tuple[LedgerPlace, ...]

    @property
    def rows(self) -> list[Row]:
        return [lost_row(each, "lost") for each in self.losses]


async def propose_loss(
    storage: Storage, name: str, partition: int, wanted: OffsetRange, give_up: Collection[str]
) -> Proposal:
    """Find the losses that cover the offsets `wanted`; none of them if all were accepted before.

    Copies on the bookies `give_up` and copies with a wrong digest count as lost. Raises AdminError
    if an offset is not lost, is past the end, or is in a segment that is not closed.
    """
    topic = await topic_of(storage, name)
    places = await _places_of(storage, topic, partition)
    terms = LossTerms(frozenset(map(BookieId, give_up)), damaged=True)
    segments = [
        segment
        for segment in places.segments
        if segment.start_sequence_id <= wanted.last
        and (not segment.completed or segment.end_sequence_id > wanted.first)
    ]
    _check_registered(storage, terms.given_up)
    await _check_known(storage, segments, terms.given_up)
    await _check_closed(storage, places, segments, wanted)
    found: list[LostRange] = []
    for segment in segments:
        place = places.place(segment)
        verified = await storage.survey.find_entries(place, wanted, segment.last_entry)
        seen = await storage.survey.examine(place, verified=verified, terms=terms)
        found += seen.found
    try:
        losses = choose_losses(wanted, found, places.losses)
    except InvalidArgument as error:
        raise AdminError(f"{name}-{partition}: {error}", "NOT_LOST") from error
    numbers = {each.segment for each in losses}
    return Proposal(
        tuple(losses),
        tuple(places.place(each) for each in segments if each.number in numbers),
    )


def _check_registered(storage: Storage, given_up: Collection[BookieId]) -> None:
    here = sorted(storage.bookies.registered().keys() & frozenset(given_up))
    if here:
        raise AdminError(
            f"--give-up {here[0]}: it is registered, so that it can answer; stop it first, or "
            "drain it",
            "BOOKIE_REGISTERED",
        )


async def _check_known(
    storage: Storage, segments: Iterable[Segment], given_up: Collection[BookieId]
) -> None:
    unknown = set(given_up)
    for segment in segments:
        if unknown:
            unknown -= bookies_of(await storage.metadata_of(segment.ledger))
    if unknown:
        raise AdminError(
            f"--give-up {min(unknown)}: no ledger of these offsets names this bookie",
            "UNKNOWN_BOOKIE",
        )


async def _check_closed(
    storage: Storage, places: StreamPlaces, segments: Sequence[Segment], wanted: OffsetRange
) -> None:
    """Raise AdminError for offsets past the end, and for a segment that is not completed."""
    end = await _end_of(storage, places)
    if end is not None and wanted.last >= end:
        raise AdminError(
            f"offset {wanted.last} is past the end {end} of the partition", "OFFSET_OUT_OF_RANGE"
        )
    for segment in segments:
        if not segment.completed:
            metadata = await storage.metadata_of(segment.ledger)
            state = "is not listed as completed" if metadata.closed else "is not closed"
            raise AdminError(
                f"offset {max(wanted.first, segment.start_sequence_id)} is in the last segment, "
                f"whose ledger {segment.ledger} {state}: losses there are accepted with "
                f"`gateway ledger recover {segment.ledger} --accept-loss`, once its writer stopped",
                "SEGMENT_NOT_CLOSED",
            )


async def _end_of(storage: Storage, places: StreamPlaces) -> int | None:
    """Return the end of a partition, None if its last record cannot be read."""
    if not places.segments:
        return places.start
    last = places.segments[-1]
    if last.completed:
        return places.losses.end_after(last.number, last.end_sequence_id)
    return await storage.survey.end_of(places.place(last))


async def accept_loss(
    storage: Storage,
    name: str,
    partition: int,
    wanted: OffsetRange,
    give_up: Collection[str],
    shown: Proposal,
) -> None:
    """Store the losses that cover `wanted` as accepted, all or none.

    Raises AdminError if they are not those that were `shown`: a copy may have come back.
    """
    proposal = await propose_loss(storage, name, partition, wanted, give_up)
    if not proposal.losses:  # another operator accepted them meanwhile
        return
    if [each[:4] for each in proposal.losses] != [each[:4] for each in shown.losses]:
        raise AdminError(
            "what is lost there changed meanwhile, nothing was done: run the command again",
            "LOSS_CHANGED",
        )
    await storage.acceptor.store(proposal.places[0], proposal.losses, operator())
    for place in proposal.places:
        await storage.underreplicated.mark(place.ledger, ())


async def preview_recovery(storage: Storage, ledger: LedgerId) -> str:
    """Return what `ledger recover --accept-loss` would give up, as words of its question."""
    metadata = await storage.metadata_of(ledger)
    absent = bookies_of(metadata) - storage.bookies.registered().keys()
    place = await find_place(storage.store, metadata)
    seen = await storage.survey.examine(
        place, deep=True, terms=LossTerms(frozenset(absent), damaged=True)
    )
    silent = [
        bookie
        for bookie, replica in seen.replicas.items()
        if not (bookie in absent or replica.complete or replica.limbo or replica.held)
    ]
    parts: list[str] = []
    if absent:
        parts.append(f"the copies of {names_of(absent)}, {_which(absent)} not registered")
    for bookie, replica in sorted(seen.replicas.items()):
        if replica.damaged:
            parts.append(f"damaged copies of entries {as_text(replica.damaged)} on {bookie}")
    lost = merged((each.first, each.last) for each in seen.proved)
    if lost:
        parts.append(f"entries {as_text(lost)}, of which no bookie has a readable copy")
    if await storage.acceptor.is_denied(metadata):
        parts.append("all of its records, if there were any: no bookie has one")
    if silent:
        verb = "is registered and does" if len(silent) == 1 else "are registered and do"
        parts.append(f"but nothing that {names_of(silent)} may have, which {verb} not answer")
    return "; ".join(parts)


def _which(bookies: Collection[BookieId]) -> str:
    return "which is" if len(bookies) == 1 else "which are"
