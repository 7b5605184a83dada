"""Checks of `gateway doctor` that ask ZooKeeper and bookies, or the brokers of Kafka instead."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from gateway.admin import doctor_local as local
from gateway.admin.client import AdminError, Unreachable
from gateway.admin.doctor_facts import Copies, LedgerFacts, Session, Space, Store
from gateway.admin.doctor_findings import Finding, fail, listed, unknown
from gateway.admin.doctor_judgement import judge_disk, judge_sessions
from gateway.admin.doctor_site import EXPECTED, ClusterView, Site
from gateway.admin.doctor_storage_judgement import judge_ledgers, judge_racks
from gateway.admin.storage import Storage
from gateway.topics.catalog import IDS
from gateway.topics.stored_topic import decode_topic
from ledger.adapters.zookeeper.zookeeper_metadata import ZooKeeperMetadata
from ledger.core.ledger_metadata import LedgerMetadata
from ledger.core.quorum import write_sets
from ledger.errors import CorruptFormat, NoNode
from ledger.ids import NO_ENTRY, BookieId
from ledger.losses.place import accepted_ranges, entries_of
from ledger.ports.bookies import BookieStats, Status
from ledger.repair.checker import bookies_of, check_ledger, fragments_of
from ledger.repair.election import current_auditor

_BOOKIE_S: Final = 4.0  # for the answer of a bookie
_EXAMINED_MAX: Final = 20  # marked ledgers whose bookies are asked for their entries
_SESSION_MS: Final = 10_000  # that this command asks for, as gateways do by default


class BookieAnswer(NamedTuple):
    """The answer of a registered bookie."""

    name: BookieId
    stats: BookieStats
    ahead_ms: float | None = None
    within_ms: float = 0.0
    release: str = ""
    fault: str | None = None


async def answered_bookies(site: Site) -> list[BookieAnswer]:
    """Ask all registered bookies for their space, their clock and their release."""
    storage = await site.storage.get()
    names = sorted(storage.bookies.registered())
    return await asyncio.gather(*[_ask(site, storage, name) for name in names])


async def _ask(site: Site, storage: Storage, name: BookieId) -> BookieAnswer:
    first = await _ask_once(site, storage, name)
    # The first question may have waited for a connection, so its clock is not exact.
    return first if first.fault is not None else await _ask_once(site, storage, name)


async def _ask_once(site: Site, storage: Storage, name: BookieId) -> BookieAnswer:
    begun_s = site.clock.monotonic_s()
    try:
        async with asyncio.timeout(_BOOKIE_S):
            stats = await storage.bookies.stats(name)
    except TimeoutError:
        gone = BookieStats(Status.UNREACHABLE)
        return BookieAnswer(name, gone, fault=f"no answer within {_BOOKIE_S:g} s")
    took_ms = (site.clock.monotonic_s() - begun_s) * 1000
    now_ms = site.clock.now_ms()
    if stats.status is not Status.OK:
        return BookieAnswer(name, stats, fault=f"answers {stats.status.name}")
    ahead_ms = stats.time_ms - (now_ms - took_ms / 2) if stats.time_ms else None
    return BookieAnswer(name, stats, ahead_ms, took_ms / 2, stats.release)


async def check_disk(site: Site, wait_s: float) -> Finding:
    here, bookies = await asyncio.gather(_space_here(site, wait_s), _spaces_of_bookies(site))
    return judge_disk(here + bookies)


async def _space_here(site: Site, wait_s: float) -> list[Space]:
    return [] if site.data is None else [await local.space_of(site.data, wait_s)]


async def _spaces_of_bookies(site: Site) -> list[Space]:
    """Return the space of each bookie, or nothing if no server leads to bookies."""
    try:
        await site.metadata.get()
    except EXPECTED:
        return []
    try:
        return [_space_of(each) for each in await answered_bookies(site)]
    except EXPECTED as error:
        return [Space("bookies", None, fault=str(error))]


def _space_of(answer: BookieAnswer) -> Space:
    place, stats = f"bookie {answer.name}", answer.stats
    if answer.fault is not None:
        return Space(place, None, fault=answer.fault)
    return Space(place, stats.free_bytes, stats.disk_bytes, stats.writable)


async def check_zookeeper(site: Site) -> Finding:
    try:
        await site.metadata.get()
    except AdminError as error:
        if not await site.is_ours():
            return unknown("zookeeper", "Apache Kafka keeps its metadata itself")
        return unknown("zookeeper", "; ".join([str(error), *await site.refusals()]))
    try:
        storage = await site.storage.get()
    except Unreachable as error:
        return fail("zookeeper", str(error), "start ZooKeeper, or run doctor where it is reached")
    sessions: list[Session] = []
    if isinstance(storage.store, ZooKeeperMetadata):
        granted = storage.store.negotiated_session_ms
        sessions.append(Session("this command", _SESSION_MS, granted))
        await storage.store.sync("/")  # raises if it stopped answering
        sessions += await _sessions_of_gateways(site)
    return judge_sessions(None, sessions)


async def _sessions_of_gateways(site: Site) -> list[Session]:
    try:
        reports = await site.reports.get()
    except Unreachable:
        return []
    return [
        Session(each.name, each.fields["session_wanted_ms"], each.fields["session_ms"])
        for each in reports
        if each.fields.get("session_wanted_ms") and each.fields.get("session_ms")
    ]


async def _is_kafka(site: Site) -> bool:
    """Return whether only Kafka's protocol is left: no place of ledgers was given, by a user or a
    broker. Raises AdminError if it may be given to a user with more rights.
    """
    try:
        await site.metadata.get()
    except AdminError as error:
        if refusals := await site.refusals():
            raise AdminError(listed(refusals), error.code) from None
        return True
    return False


async def check_racks(site: Site) -> Finding:
    if await _is_kafka(site):
        return _racks_of_kafka(await site.cluster.get())
    storage = await site.storage.get()
    one_process = await site.in_one_process()
    registered = storage.bookies.registered()
    stores: list[Store] = []
    for each in await answered_bookies(site):
        info = registered.get(each.name)
        # The bookies of one process are registered read-only, for readers of ledgers.
        writable = each.stats.writable if one_process else info is not None and not info.read_only
        stores.append(Store(each.name, "" if info is None else info.rack, writable))
    try:
        racks = (await site.cluster.get()).racks.values()
    except Unreachable:
        racks = ()
    return judge_racks(stores, await _copies(storage), tuple(racks))


def _racks_of_kafka(view: ClusterView) -> Finding:
    stores = [
        Store(f"broker {each.node_id}", view.racks.get(each.node_id, ""), writable=True)
        for each in view.brokers
    ]
    topics = [
        Copies(topic.name, max((len(each.replica_nodes) for each in topic.partitions), default=1))
        for topic in view.topics
    ]
    return judge_racks(stores, topics, noun="broker")


async def _copies(storage: Storage) -> list[Copies]:
    """Return the copies that each topic asks for."""
    try:
        nodes = await storage.store.read_tree(IDS)
    except NoNode:
        return []
    found: list[Copies] = []
    for path, node in nodes.items():
        try:
            topic = decode_topic(path, node)
        except CorruptFormat:
            continue  # the log of the gateway names it
        if topic.has_streams:
            found.append(Copies(topic.name, topic.replication_factor))
    return found


async def check_ledgers(site: Site) -> Finding:
    if await _is_kafka(site):
        return judge_ledgers(_partitions_of_kafka((await site.cluster.get()).topics))
    storage = await site.storage.get()
    present = storage.bookies.registered().keys()
    marked = frozenset(await storage.underreplicated.ledgers())
    whole = 0
    away: set[str] = set()
    unreachable: list[str] = []
    suspects: list[LedgerMetadata] = []
    async for metadata in storage.auditor.all_metadata():
        whole += 1
        gone = frozenset(bookies_of(metadata)) - present
        away |= gone
        if _has_no_copy(metadata, gone):
            unreachable.append(str(metadata.ledger))
        elif metadata.ledger in marked:
            suspects.append(metadata)
    lost = [str(each.ledger) for each in suspects[:_EXAMINED_MAX] if await _is_lost(storage, each)]
    facts = LedgerFacts(
        whole,
        lacking=tuple(map(str, sorted(marked))),
        away=tuple(sorted(away)),
        unreachable=tuple(unreachable),
        lost=tuple(lost),
        unreadable=tuple(map(str, sorted(storage.auditor.unreadable))),
        auditor=await site.in_one_process() or await current_auditor(storage.store) is not None,
        unexamined=max(0, len(suspects) - _EXAMINED_MAX),
    )
    return judge_ledgers(facts)


def _has_no_copy(metadata: LedgerMetadata, gone: frozenset[BookieId]) -> bool:
    """Return whether all bookies of some entry are absent, as far as the metadata show."""
    if not gone:
        return False
    width = metadata.ensemble_size
    sets = write_sets(width, metadata.write_quorum)
    last = NO_ENTRY if metadata.last_entry is None else metadata.last_entry
    for fragment in fragments_of(metadata, last):
        # Of a fragment that may still grow, any entry may exist.
        end = fragment.last + 1 if fragment.closed else fragment.first + width
        for entry in range(fragment.first, min(end, fragment.first + width)):
            if all(fragment.ensemble[index] in gone for index in sets[entry % width]):
                return True
    return False


async def _is_lost(storage: Storage, metadata: LedgerMetadata) -> bool:
    """Return whether an entry of a marked ledger is on no bookie, and its loss not accepted."""
    copies = storage.copies(metadata)
    lac = await copies.read_lac()
    replicas = await copies.list_replicas(bookies_of(metadata))
    accepted = entries_of(await accepted_ranges(storage.store, metadata))
    return bool(check_ledger(metadata, lac, replicas, accepted=accepted).lost)


def _partitions_of_kafka(topics: Any) -> LedgerFacts:
    partitions = [
        (f"{topic.name}-{each.partition_index}", each)
        for topic in topics
        for each in topic.partitions
    ]
    return LedgerFacts(
        len(partitions),
        "partition",
        lacking=tuple(
            name for name, each in partitions if len(each.isr_nodes) < len(each.replica_nodes)
        ),
        unreachable=tuple(name for name, each in partitions if not each.isr_nodes),
    )
