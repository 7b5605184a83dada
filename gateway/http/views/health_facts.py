"""The facts by which a page judges the cluster, without a request that names all topics.

This process has the topics, their owners and the members in memory, and asks the bookies. The facts
are at most a second old while a page asks for them. A look that takes longer than `LEDGERS_S_MAX`
leaves the ledgers unknown.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.admin.client import AdminError, Unreachable
from gateway.admin.cluster import Ledgers, bookie_disk, read_ledgers
from gateway.cluster.port import StreamKey
from gateway.cluster.single_broker import SingleBroker
from gateway.core.cluster_health import BrokerFacts, ClusterFacts, DiskFacts
from gateway.figures.parts import mirror_of, part_of
from gateway.figures.slices import Refreshed, Slices
from gateway.handlers.log_dirs import directory, disk_space
from ledger.errors import LedgerError

if TYPE_CHECKING:
    from gateway.http.site import Site
    from gateway.topics.catalog import Topic

LEDGERS_S_MAX: Final = 3.0


class HealthFacts(NamedTuple):
    """What a look found."""

    facts: ClusterFacts
    ledgers: Ledgers | None
    missing: str | None  # why the ledgers are not known
    topics: int
    partitions: int


def health_facts(site: Site) -> Refreshed[HealthFacts]:
    """Return the facts of a site, which are read again while a page asks for them."""

    def make() -> Refreshed[HealthFacts]:
        topics = _Topics(site)
        return Refreshed("facts about health", lambda: _read(site, topics))

    return part_of(site.ctx, "health facts", make)


async def _read(site: Site, topics: _Topics) -> HealthFacts:
    slices = Slices()
    mirror = await mirror_of(site.ctx).fresh()
    await topics.look(slices)
    await slices.rest()
    ledgers, missing = await _ledgers(site, topics.copies)
    silent = mirror.silent()
    brokers = [
        BrokerFacts(each.node_id, f"{each.host}:{each.port}", each.node_id not in silent)
        for each in site.ctx.cluster.members()
    ]
    await slices.rest()
    disks = _own_disks(site)
    if ledgers is not None:
        disks += [bookie_disk(row) for row in ledgers.bookies]
    facts = ClusterFacts(
        brokers, topics.leaderless, {}, disks, None if ledgers is None else ledgers.facts
    )
    return HealthFacts(facts, ledgers, missing, topics.count, topics.partitions)


class _Topics:
    """Facts about topics for the checks of health."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._listed: list[Topic] | None = None  # the topics of the last look
        self.leaderless: dict[str, list[int]] = {}  # partitions without a leader
        self.copies: tuple[int, str | None] = (0, None)  # the most of a topic, and its name
        self.count = 0
        self.partitions = 0

    async def look(self, slices: Slices) -> None:
        """Look at all topics. Without other gateways only new and changed topics matter."""
        cluster = self._site.ctx.cluster
        topics = self._site.ctx.catalog.all()
        alone = isinstance(cluster, SingleBroker)
        if alone and topics is self._listed:
            return
        leaderless: dict[str, list[int]] = {}
        copies: tuple[int, str | None] = (0, None)
        for topic in topics:
            if topic.has_streams and topic.replication_factor > copies[0]:
                copies = topic.replication_factor, topic.name
            for index in range(0 if alone or not topic.has_streams else topic.partitions):
                if cluster.leader(StreamKey(topic.topic_id, index)).node_id < 0:
                    leaderless.setdefault(topic.name, []).append(index)
                await slices.pause()
            await slices.pause()
        self._listed, self.leaderless, self.copies = topics, leaderless, copies
        self.count = len(topics)
        self.partitions = sum(each.partitions for each in topics)


async def _ledgers(site: Site, copies: tuple[int, str | None]) -> tuple[Ledgers | None, str | None]:
    embedded = isinstance(site.ctx.cluster, SingleBroker)
    try:
        async with asyncio.timeout(LEDGERS_S_MAX):
            return await read_ledgers(await site.storage(), copies, embedded=embedded), None
    except TimeoutError:
        return None, f"the bookies did not answer within {LEDGERS_S_MAX:g} s"
    except (AdminError, Unreachable, LedgerError) as error:
        return None, str(error)


def _own_disks(site: Site) -> list[DiskFacts]:
    """Return the disk of embedded bookies. In a cluster each bookie reports its own."""
    ctx = site.ctx
    if not isinstance(ctx.cluster, SingleBroker):
        return []
    total, usable = disk_space(ctx)
    return [
        DiskFacts(
            f"{directory(bookie, ctx)} of node {ctx.cluster.node_id}",
            None if total < 0 else total,
            None if usable < 0 else usable,
        )
        for bookie in ctx.partitions.bookies()
    ]
