"""Goal: a trigger of format("ledger") looks at storage once, cheaply, and misses no record.

Method: a real gateway, bookie and metadata tree on virtual time. A query's triggers run over ports
that count their calls; the topic's own partitions say what was acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from gateway.core.topic_names import CONSUMER_OFFSETS
from gateway.pipelines.direct import offsets
from gateway.pipelines.direct.checkpoint import StreamOffsets
from gateway.pipelines.direct.offsets import PartitionSources
from gateway.pipelines.direct.options import parse
from gateway.pipelines.direct.tasks import continued
from gateway.pipelines.direct.triggers import Triggers
from gateway.pipelines.shared.errors import DataLost, JobError
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from gateway.pipelines.shared.storage import ReadStorage
from gateway.topics import internal_topics
from ledger.client.client import LedgerClient
from ledger.errors import EntryUnknown
from ledger.streams.scan import ScannedRecord, StreamSlice
from ledger.streams.slice_read import read_slice
from tests.gateway.stream_cluster import StreamCluster, batch, started_cluster
from tests.pipelines.counted import Counted
from tests.sim.loop import SimClock
from tests.sim.metadata import MetadataFaults, SimMetadata

LISTS = 4
MANY = 40


class Query:
    """A streaming query on topic t: the ports it reads through, and its triggers."""

    def __init__(self, cluster: StreamCluster, **given: str) -> None:
        self.cluster = cluster
        self.store = Counted(SimMetadata(cluster.metadata.tree, MetadataFaults(latency_s=0.01)))
        self.bookies = Counted(cluster.port)
        options = {"metadata": "grpc://127.0.0.1:1", "path": "t", "startingOffsets": "earliest"}
        self.options = parse(options | given, streaming=True)
        client: Any = LedgerClient(self.store, self.bookies, SimClock())
        self.sources = PartitionSources(ReadStorage(self.store, client), self.options)
        self.triggers = Triggers(self.sources, self.options)

    async def trigger(self, limit: int | None = None) -> list[OffsetRange]:
        """Run one trigger as Spark does. Returns the planned ranges."""
        end = await self.triggers.latest(None, limit)
        start = self.triggers._next or await self.triggers.initial()
        return ranges_of(await self.triggers.tasks(start, end))


def ranges_of(tasks: list[Any]) -> list[OffsetRange]:
    return [OffsetRange(*t.topic_partition, t.piece.first, t.piece.end) for t in tasks]


def place(index: int) -> TopicPartition:
    return TopicPartition("t", index)


async def add(cluster: StreamCluster, *indexes: int) -> None:
    """Add two records to each of these partitions."""
    for index in indexes:
        await cluster.sent(await cluster.partition("t", index), batch())


@asynccontextmanager
async def filled(partitions: int) -> AsyncIterator[StreamCluster]:
    """Yield a cluster with topic t, two records in each of its partitions."""
    async with started_cluster() as cluster:
        await cluster.topic("t", partitions, control_record_policy="immediate")
        await add(cluster, *range(partitions))
        await asyncio.sleep(1)  # the LAC of the last batch reaches the bookie
        yield cluster
        await cluster.partitions.stop()


@pytest.fixture(autouse=True)
def few_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "_LISTS_PER_LOOK", LISTS)


# -- the number of calls -----------------------------------------------------------------------


async def test_a_plan_uses_the_look_of_its_trigger() -> None:
    async with filled(MANY) as cluster:
        query = Query(cluster)
        end = await query.triggers.latest(None, None)
        start = await query.triggers.initial()
        query.store.taken(), query.bookies.taken()
        planned = ranges_of(await query.triggers.tasks(start, end))
        assert planned == [OffsetRange("t", n, 0, 2) for n in range(MANY)]
        assert query.store.taken() == {"sync": 1, "exists": 1}
        assert not query.bookies.taken()


async def test_a_look_reads_one_node_per_partition_and_the_lists_of_a_few() -> None:
    async with filled(MANY) as cluster:
        query = Query(cluster)
        await query.trigger()
        query.store.taken(), query.bookies.taken()
        assert await query.trigger() == []
        # The topic's name and its node, each ledger, and start and losses of a few partitions.
        assert query.store.calls == {"sync": 1, "get": 2 + MANY + 2 * LISTS, "children": LISTS}
        assert query.bookies.taken() == {"read_lac": MANY}


async def test_an_open_reads_each_node_and_each_lac_once() -> None:
    async with filled(MANY) as cluster:
        query = Query(cluster)
        await query.triggers.latest(None, None)
        # Of each partition: its list, its segment, its losses, its start and its ledger.
        assert query.store.taken() == {"sync": 1, "get": 2 + 4 * MANY, "children": MANY}
        assert query.bookies.taken()["read_lac"] == MANY


async def test_partitions_are_looked_at_concurrently() -> None:
    async with filled(MANY) as cluster:
        query = Query(cluster)
        await query.triggers.latest(None, None)
        assert query.store.in_flight_max == MANY


async def test_after_a_restart_a_stored_batch_and_the_next_trigger_look_once_each() -> None:
    async with filled(3) as cluster:
        first = Query(cluster)
        start = await first.triggers.initial()
        end = await first.triggers.latest(start, None)
        query = Query(cluster)
        assert len(await query.triggers.tasks(start, end)) == 3
        assert query.store.taken()["children"] == 3
        await add(cluster, 0)
        await asyncio.sleep(1)
        assert await query.trigger() == [OffsetRange("t", 0, 2, 4)]
        assert query.store.taken()["children"] == 3


async def test_the_lists_of_all_partitions_are_read_in_turn() -> None:
    async with filled(LISTS * 3) as cluster:
        query = Query(cluster)
        await query.trigger()
        for index in range(LISTS * 3):
            partition = await cluster.partition("t", index)
            await partition.truncate(1)
        starts: list[int] = []
        for _ in range(3):
            found = await query.sources.refresh()
            starts.append(sum(each.scan.start_sequence_id for each in found.values()))
        assert starts == [LISTS, 2 * LISTS, 3 * LISTS]


# -- what a cheap look sees --------------------------------------------------------------------


async def test_a_look_sees_what_was_acknowledged_before_it_also_in_new_segments() -> None:
    async with filled(LISTS * 3) as cluster:
        query = Query(cluster)
        await query.trigger()
        for _ in range(3):
            await cluster.restart()  # the owner completes its segments, the next one begins others
            await add(cluster, *range(LISTS * 3))
            await asyncio.sleep(1)
            ends = {
                place(n): (await cluster.partition("t", n)).high_watermark for n in range(LISTS * 3)
            }
            found = await query.sources.refresh()
            assert {p: each.scan.end_sequence_id for p, each in found.items()} == ends


async def test_a_topic_created_again_is_reported_by_the_next_look() -> None:
    async with filled(3) as cluster:
        query = Query(cluster)
        await query.trigger()
        await cluster.catalog.delete("t")
        await cluster.topic("t", 3, control_record_policy="immediate")
        with pytest.raises(DataLost, match="deleted and recreated"):
            await query.triggers.latest(None, None)


async def test_partitions_added_later_are_read_from_their_start() -> None:
    async with filled(3) as cluster:
        query = Query(cluster)
        await query.trigger()
        await cluster.catalog.add_partitions("t", 5)
        await add(cluster, 4)
        await asyncio.sleep(1)
        assert await query.trigger() == [OffsetRange("t", 4, 0, 2)]


async def test_a_topic_created_again_with_as_many_records_is_read_from_its_start() -> None:
    async with filled(1) as cluster:
        query = Query(cluster, failOnDataLoss="false")
        await query.trigger()
        await cluster.catalog.delete("t")
        await cluster.topic("t", 1, control_record_policy="immediate")
        await add(cluster, 0)
        await asyncio.sleep(1)
        assert await query.trigger() == [OffsetRange("t", 0, 0, 2)]


async def test_a_batch_planned_before_its_topic_was_created_again_reads_nothing_of_the_new_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with filled(1) as cluster:
        query = Query(cluster, failOnDataLoss="false")
        start = await query.triggers.initial()
        end = await query.triggers.latest(start, None)
        await cluster.catalog.delete("t")
        await cluster.topic("t", 1, control_record_policy="immediate")
        await add(cluster, 0)
        await asyncio.sleep(1)
        assert await query.triggers.tasks(start, end) == []
    assert "deleted and recreated: t" in capsys.readouterr().err


# -- all that is available now -----------------------------------------------------------------


async def test_available_now_ends_at_what_was_there_in_limited_triggers() -> None:
    async with filled(5) as cluster:
        query = Query(cluster)
        await query.triggers.end_now()
        await add(cluster, *range(5))
        await cluster.catalog.add_partitions("t", 6)
        await add(cluster, 5)
        await asyncio.sleep(1)
        at = await query.triggers.initial()
        triggers, read = 0, 0
        while (end := await query.triggers.latest(at, 3)).offsets != at.offsets:
            planned = ranges_of(await query.triggers.tasks(at, end))
            read += sum(each.end - each.start for each in planned)
            at, triggers = end, triggers + 1
        assert at.offsets == {place(n): 2 for n in range(5)} | {place(5): 0}
        assert (read, triggers > 1) == (10, True)


async def test_available_now_continues_a_checkpoint_from_before() -> None:
    async with filled(2) as cluster:
        before = StreamOffsets({place(0): 1})
        query = Query(cluster)
        await query.triggers.end_now()
        end = await query.triggers.latest(before, None)
        assert end.offsets == {place(0): 2, place(1): 2}
        planned = ranges_of(await query.triggers.tasks(before, end))
        assert planned == [OffsetRange("t", 0, 1, 2), OffsetRange("t", 1, 0, 2)]


# -- a slice whose link is lost ----------------------------------------------------------------


@pytest.mark.parametrize("lost_after", [0, 1, 2])
async def test_a_slice_continues_where_its_link_was_lost(lost_after: int) -> None:
    async with filled(1) as cluster:
        for _ in range(5):
            await add(cluster, 0)
        await asyncio.sleep(1)
        query = Query(cluster)
        await query.triggers.latest(None, None)
        (source,) = (await query.sources.refresh()).values()
        (piece,) = await source.scan.cut(0, source.scan.end_sequence_id, 1 << 20)
        storage = query.sources._storage
        reads: list[StreamSlice] = []

        async def chunks(left: StreamSlice) -> list[list[ScannedRecord]]:
            found = read_slice(storage.store, storage.client, left, chunk_bytes=1)
            return [chunk async for chunk in found]

        whole = {piece.first: await chunks(piece)}
        for chunk in whole[piece.first]:
            left = replace(piece, first=chunk[-1].end_sequence_id)
            whole.setdefault(left.first, await chunks(left))

        def read(left: StreamSlice) -> Iterator[list[ScannedRecord]]:
            reads.append(left)
            found = whole[left.first]
            if len(reads) > 1:
                return iter(found)
            return chain(found[:lost_after], lost())

        def lost() -> Iterator[list[ScannedRecord]]:
            raise EntryUnknown("the link is lost")
            yield

        got = [record for chunk in continued(piece, read, lambda: True) for record in chunk]
        assert [record.sequence_id for record in got] == [0, 2, 4, 6, 8, 10]
        reads.clear()
        with pytest.raises(EntryUnknown):
            list(continued(piece, read, lambda: False))


# -- internal topics ---------------------------------------------------------------------------


async def test_a_topic_without_streams_is_refused_by_name_and_left_out_of_patterns() -> None:
    async with filled(2) as cluster:
        await internal_topics.ensure(cluster.catalog, CONSUMER_OFFSETS)
        with pytest.raises(JobError, match=f"{CONSUMER_OFFSETS} has no records"):
            await Query(cluster, path=CONSUMER_OFFSETS).trigger()
        options = {"metadata": "grpc://127.0.0.1:1", "subscribePattern": ".*"}
        query = Query(cluster)
        everything = parse(options | {"startingOffsets": "earliest"}, streaming=True)
        sources = PartitionSources(query.sources._storage, everything)
        assert sorted(await sources.refresh()) == [place(0), place(1)]
        sources.close()
