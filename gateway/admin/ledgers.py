"""Requests of `gateway ledger` to the storage tier, with their results as plain data."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from datetime import UTC, datetime
from typing import Any

from gateway.admin.client import AdminError
from gateway.admin.ledger_owners import LedgerOwner, owner_of, read_topic_names
from gateway.admin.losses import lost_row, operator
from gateway.admin.storage import Storage, Watching
from ledger.core.accepted_losses import LostRange
from ledger.core.entry_format import EntryFormat
from ledger.core.ledger_metadata import LedgerMetadata
from ledger.core.loss import waited_for
from ledger.core.quorum import write_set
from ledger.core.text import names_of
from ledger.errors import (
    AddFailed,
    CorruptFormat,
    EntryUnknown,
    NotEnoughBookies,
)
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.losses.place import accepted_ranges, entries_of, find_place
from ledger.ports.bookies import BookieStats, ReadReply, Status
from ledger.repair.checker import (
    UNKNOWN_CONTENTS,
    LedgerFragment,
    ReplicaContents,
    bookies_of,
    check_ledger,
    fragments_of,
    share_of,
)
from ledger.repair.election import current_auditor
from ledger.repair.entry_ranges import EMPTY, as_text, count, difference, intersection
from ledger.repair.explain import LedgerFacts, ReplicaAnswer, explain_entry, explain_ledger

Row = dict[str, Any]
OnProgress = Callable[[int, int], None]
"""Called with two counts: copies that were read, and copies to read in total."""

_VERIFIED_AT_ONCE = 4


async def list_ledgers(
    storage: Storage, *, marked_only: bool = False, state: str | None = None
) -> list[Row]:
    """List by id all ledgers, the ledgers marked for repair, or the ledgers in one state."""
    marked = frozenset(await storage.underreplicated.ledgers())
    topics = await read_topic_names(storage.store)
    rows: list[Row] = []
    async for metadata in storage.auditor.all_metadata():
        if marked_only and metadata.ledger not in marked:
            continue
        if state is None or metadata.state.name == state:
            owner = owner_of(metadata.custom, topics)
            rows.append(_summary(metadata, owner, metadata.ledger in marked))
    return sorted(rows, key=lambda row: row["ledger"])


def _summary(metadata: LedgerMetadata, owner: LedgerOwner, marked: bool) -> Row:
    last = metadata.last_entry
    return {
        "ledger": metadata.ledger,
        "topic": owner.topic,
        "partition": owner.partition,
        "group": owner.group,
        "state": metadata.state.name,
        "quorum": f"{metadata.ensemble_size}/{metadata.write_quorum}/{metadata.ack_quorum}",
        "entries": None if last is None else last + 1,
        "bytes": None if last is None else metadata.length,
        "fragments": len(metadata.fragments),
        "created": _time(metadata.created_ms),
        "lacks_copies": marked,
    }


def _time(time_ms: int | None) -> str | None:
    if time_ms is None:
        return None
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")


async def show_ledger(storage: Storage, ledger: LedgerId) -> Row:
    """Return the metadata of a ledger, and the entries of each fragment that each bookie stores."""
    metadata = await storage.metadata_of(ledger)
    copies = storage.copies(metadata)
    lac = await copies.read_lac()
    replicas = await copies.list_replicas(bookies_of(metadata))
    mark = await storage.underreplicated.get(ledger)
    owner = owner_of(metadata.custom, await read_topic_names(storage.store))
    statuses = await statuses_of(storage, bookies_of(metadata))
    return {
        **_summary(metadata, owner, mark is not None),
        "last_entry": metadata.last_entry,
        "last_add_confirmed": lac,
        "digest": metadata.digest_type.name,
        "custom": {key: value.decode(errors="replace") for key, value in metadata.custom.items()},
        "copies": [
            _copy_row(metadata, fragment, index, replicas, statuses)
            for fragment in fragments_of(metadata, lac)
            for index in range(metadata.ensemble_size)
        ],
    }


def _copy_row(
    metadata: LedgerMetadata,
    fragment: LedgerFragment,
    index: int,
    replicas: dict[BookieId, ReplicaContents],
    statuses: dict[BookieId, str],
) -> Row:
    bookie = fragment.ensemble[index]
    share = share_of(fragment, index, metadata)
    replica = replicas.get(bookie, UNKNOWN_CONTENTS)
    missing = difference(share, replica.held)
    certain = replica.complete
    return {
        "fragment": fragment.first,
        "to": fragment.last if fragment.closed else None,
        "bookie": bookie,
        "status": statuses[bookie] + (",limbo" if replica.limbo else ""),
        "should_hold": count(share),
        "holds": count(share) - count(missing) if certain else None,
        "missing": as_text(missing) if certain else None,
    }


async def statuses_of(storage: Storage, bookies: Collection[BookieId]) -> dict[BookieId, str]:
    """Return `rw`, `ro` or `away` for each bookie, as `status_of` does."""
    names = list(bookies)
    stats = await asyncio.gather(*[stats_of(storage, name) for name in names])
    return {name: status_of(storage, name, one) for name, one in zip(names, stats, strict=True)}


def status_of(storage: Storage, bookie: BookieId, stats: BookieStats) -> str:
    """Return `rw` or `ro` as the bookie answered, else as it is registered; else `away`.

    `gateway dev` registers its bookies read-only at the ledger port, although they take writes of
    the gateway.
    """
    info = storage.bookies.registered().get(bookie)
    if info is None:
        return "away"
    writable = stats.writable if stats.status is Status.OK else not info.read_only
    return "rw" if writable else "ro"


async def stats_of(storage: Storage, bookie: BookieId) -> BookieStats:
    """Ask the bookie for its disk usage. UNREACHABLE if it does not answer in time."""
    if bookie not in storage.bookies.registered():
        return BookieStats(Status.UNREACHABLE)
    try:
        async with asyncio.timeout(storage.client_config.read_timeout_s):
            return await storage.bookies.stats(bookie)
    except TimeoutError:
        return BookieStats(Status.UNREACHABLE)


# -- verify ----------------------------------------------------------------------------------------


async def verify(
    storage: Storage,
    ledgers: list[LedgerId] | None,
    *,
    mark: bool,
    on_progress: OnProgress | None,
) -> Row:
    """Read every copy that should exist and verify its digest. Accepted losses are listed apart.

    Verifies all ledgers if `ledgers` is None. With `mark`, ledgers that lack good copies are marked
    for repair.
    """
    found = [metadata async for metadata in _chosen(storage, ledgers)]
    whole = sum(_copies_of(metadata) for metadata in found)
    show = None if on_progress is None else lambda: on_progress(storage.progress.checked, whole)
    rows: list[Row] = []
    accepted: list[Row] = []
    unreadable: list[Row] = []
    waiting = list(reversed(found))

    async def work() -> None:
        while waiting:
            metadata = waiting.pop()
            try:
                losses = await accepted_ranges(storage.store, metadata)
            except CorruptFormat as error:
                unreadable.append({"ledger": metadata.ledger, "reason": str(error)})
                losses = ()
            accepted.extend(lost_row(each, "accepted") for each in losses)
            rows.extend(await _verify_one(storage, metadata, losses, mark))

    async with Watching(show):
        await asyncio.gather(*[work() for _ in range(_VERIFIED_AT_ONCE)])
    accepted.sort(key=lambda row: (row["ledger"], row["entries"]))
    unreadable.sort(key=lambda row: row["ledger"])
    return {
        "ledgers": len(found),
        "copies_read": storage.progress.checked,
        "bytes_read": storage.progress.checked_bytes,
        "clean": not rows and not unreadable,
        "damage": sorted(rows, key=lambda row: (row["ledger"], row["fragment"], row["bookie"])),
        "accepted": accepted,
        "unreadable": unreadable,
    }


async def _chosen(
    storage: Storage, ledgers: list[LedgerId] | None
) -> AsyncIterator[LedgerMetadata]:
    if ledgers is None:
        async for metadata in storage.auditor.all_metadata():
            yield metadata
        return
    for ledger in ledgers:
        yield await storage.metadata_of(ledger)


def _copies_of(metadata: LedgerMetadata) -> int:
    """Return the number of entry copies: the number of entries times the write quorum.

    The result is a lower bound for an open ledger, whose last entry is unknown.
    """
    return (metadata.last_entry or 0) * metadata.write_quorum + metadata.write_quorum


async def _verify_one(
    storage: Storage, metadata: LedgerMetadata, accepted: tuple[LostRange, ...], mark: bool
) -> list[Row]:
    """Return a row for each bookie that lacks entries that it should store."""
    copies = storage.copies(metadata)
    lac = await copies.read_lac()
    replicas = await copies.survey(lac, bookies_of(metadata))
    found = check_ledger(metadata, lac, replicas, accepted=entries_of(accepted))
    rows: list[Row] = []
    statuses = await statuses_of(storage, {gap.bookie for gap in found.gaps})
    for gap in found.gaps:
        replica = replicas.get(gap.bookie, UNKNOWN_CONTENTS)
        damaged = intersection(gap.missing, replica.damaged)
        missing = difference(gap.missing, damaged) if replica.complete else EMPTY
        unknown = EMPTY if replica.complete else difference(gap.missing, damaged)
        rows.append(
            {
                "ledger": metadata.ledger,
                "fragment": gap.fragment.first,
                "bookie": gap.bookie,
                "status": statuses[gap.bookie] + (",limbo" if replica.limbo else ""),
                "missing": as_text(missing),
                "damaged": as_text(damaged),
                "unknown": as_text(unknown),
                "no_readable_copy": as_text(intersection(gap.missing, found.unreadable)),
                "lost": as_text(intersection(gap.missing, found.lost)),
            }
        )
    if rows and mark:
        await storage.underreplicated.report_corrupt(
            metadata.ledger, {gap.bookie for gap in found.gaps}
        )
    return rows


# -- recover ---------------------------------------------------------------------------------------


async def recover(storage: Storage, ledger: LedgerId, *, accept_loss: bool) -> Row:
    """Fence the writer and close the ledger.

    Returns the new state of the ledger. With `accept_loss`, the result includes the entries that
    were given up.
    """
    await storage.metadata_of(ledger)
    if accept_loss:
        try:
            loss = await storage.acceptor.accept_ledger(ledger, operator())
        except EntryUnknown as error:
            raise AdminError(str(error), "NO_BOOKIE_ANSWERS") from error
        return {
            **_closed(await storage.metadata_of(ledger)),
            "given_up": as_text(loss.given_up, 1000),
            "given_up_entries": count(loss.given_up),
            "limbo_ended": list(loss.limbo_ended),
            "forced": loss.forced,
            "accepted": [lost_row(each, "accepted") for each in loss.ranges],
            "waiting": [lost_row(each, "waiting") for each in loss.waiting],
        }
    try:
        await storage.client.recover(ledger)
    except (EntryUnknown, AddFailed, NotEnoughBookies) as error:
        fix = f"bring its bookies back, or see `gateway ledger why {ledger}`"
        raise AdminError(f"{error}; {fix}", "NOT_RECOVERABLE_NOW") from error
    return _closed(await storage.metadata_of(ledger))


def _closed(metadata: LedgerMetadata) -> Row:
    return {
        "ledger": metadata.ledger,
        "state": metadata.state.name,
        "last_entry": metadata.last_entry,
        "bytes": metadata.length,
    }


# -- why -------------------------------------------------------------------------------------------


async def why(storage: Storage, ledger: LedgerId, entry: EntryId | None) -> Row:
    """Explain in words the state of the ledger, or of one of its entries."""
    facts = await _facts(storage, ledger)
    blocked = await _blocked(storage, facts.metadata) if facts.found.unreadable else []
    if entry is None:
        return {"ledger": ledger, "because": [*explain_ledger(facts), *blocked]}
    metadata = facts.metadata
    bookies = metadata.bookies_of(entry)
    answers = await asyncio.gather(*[_ask(storage, metadata, one, entry) for one in bookies])
    replies = dict(zip(bookies, answers, strict=True))
    because = [*explain_entry(facts, entry, replies), *explain_ledger(facts), *blocked]
    return {
        "ledger": ledger,
        "entry": entry,
        "bookies": [
            {"bookie": bookie, "index": index, "says": replies[bookie].name.lower()}
            for bookie, index in zip(
                bookies,
                write_set(entry, metadata.ensemble_size, metadata.write_quorum),
                strict=True,
            )
        ],
        "because": because,
    }


async def _facts(storage: Storage, ledger: LedgerId) -> LedgerFacts:
    metadata = await storage.metadata_of(ledger)
    note = await storage.underreplicated.note(ledger)
    copies = storage.copies(metadata)
    lac = await copies.read_lac()
    replicas = await copies.survey(lac, note.suspects)
    accepted = await accepted_ranges(storage.store, metadata)
    return LedgerFacts(
        accepted=accepted,
        metadata=metadata,
        lac=lac,
        registered=storage.bookies.registered(),
        replicas=replicas,
        found=check_ledger(metadata, lac, replicas, accepted=entries_of(accepted)),
        mark=await storage.underreplicated.get(ledger),
        note=note,
        worker=await storage.underreplicated.locked_by(ledger),
        auditor=await current_auditor(storage.store),
        enabled=await storage.underreplicated.enabled(),
        draining=await storage.underreplicated.draining(),
        now_ms=storage.clock.now_ms(),
    )


async def _blocked(storage: Storage, metadata: LedgerMetadata) -> list[str]:
    """Return what readers of the ledger's partition meet at entries that cannot be read."""
    owner = owner_of(metadata.custom, await read_topic_names(storage.store))
    if owner.topic is None or owner.partition is None:
        return []
    place = await find_place(storage.store, metadata)
    lines: list[str] = []
    for loss in (await storage.survey.examine(place)).found:
        first, last, exact = loss.offsets
        where = f"Partition {owner.partition} of topic {owner.topic} is blocked at offset {first}"
        if last < first and loss.evidence.verdict.lost:
            lines.append(
                f"{where}: entries without records are lost. To go on without them: `gateway "
                f"ledger recover {metadata.ledger} --accept-loss`."
            )
        elif not loss.evidence.verdict.lost:
            bookies = names_of(waited_for(loss.evidence.copies))
            lines.append(f"{where}: it waits for {bookies}.")
        elif exact and place.end is not None:
            lines.append(
                f"{where}: offsets {first} to {last} are lost. To go on without them: `gateway "
                f"topic accept-loss {owner.topic} -p {owner.partition} --offsets {first}-{last}`."
            )
        else:
            lines.append(
                f"{where}: at most offsets {first} to {last} are lost. To go on without them: "
                f"`gateway ledger recover {metadata.ledger} --accept-loss`."
            )
    return lines


async def _ask(
    storage: Storage, metadata: LedgerMetadata, bookie: BookieId, entry: EntryId
) -> ReplicaAnswer:
    if bookie not in storage.bookies.registered():
        return ReplicaAnswer.AWAY
    try:
        async with asyncio.timeout(storage.client_config.read_timeout_s):
            reply = await storage.bookies.read(bookie, metadata.ledger, entry)
    except TimeoutError:
        return ReplicaAnswer.SILENT
    return _judge(metadata, entry, reply)


def _judge(metadata: LedgerMetadata, entry: EntryId, reply: ReadReply) -> ReplicaAnswer:
    if reply.status in (Status.NO_ENTRY, Status.NO_LEDGER):
        return ReplicaAnswer.DENIES
    if reply.status is Status.UNKNOWN_LEDGER_STATE:
        return ReplicaAnswer.LIMBO
    if reply.status is not Status.OK:
        return ReplicaAnswer.SILENT
    try:
        entry_format = EntryFormat(metadata.digest_type, metadata.password)
        entry_format.unpack(reply.body, metadata.ledger, entry)
    except CorruptFormat:
        return ReplicaAnswer.DAMAGED
    return ReplicaAnswer.SHOWS
