"""Goal: orphans that a crash leaves behind are deleted, and nothing else is. Method: crashes at the
relevant metadata steps, on virtual time; then stored streams and ledgers are counted.
"""

import asyncio
from uuid import UUID

import pytest

from gateway.topics.catalog import Catalog
from gateway.topics.orphans import LEDGER_AGE_MS_MIN, SEEN_S_MIN, Orphans
from ledger.client.metadata_format import ledger_path
from ledger.errors import MetadataUnavailable, NoNode
from ledger.ports.bookies import ReadReply, Status
from ledger.streams.plain_log import PlainLogs
from ledger.streams.segment_store import create_streams, list_streams, log_root
from ledger.streams.stream import Stream, StreamServices
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition
from subscriptions.segments.log_claim import SUBSCRIPTION_KEY
from subscriptions.segments.log_store import SubscriptionLogStore
from tests.gateway.stream_cluster import base_offsets, batch, started_cluster
from tests.sim.loop import SimClock
from tests.sim.metadata import MetadataFaults, SimMetadata

AGE_S = LEDGER_AGE_MS_MIN / 1000 + 1
GRACE_S = 61  # truncated segments are kept for a minute


async def clean(cluster, catalog=None):
    """A round of the only broker."""
    return await Orphans(catalog or cluster.catalog, cluster.services).round(alone=True)


async def ledgers(cluster):
    return await cluster.services.client.list_ledgers()


def unreachable_after(cluster, ending):
    """Make the metadata unreachable once a node whose path ends in this was written."""

    def on_set(path, data, version):
        if path.endswith(ending):
            cluster.metadata.faults = MetadataFaults(latency_s=1e-6, unsent=1.0)

    cluster.metadata.tree.on_set = on_set


def reachable(cluster):
    cluster.metadata.tree.on_set = None
    cluster.metadata.faults = None


async def rolled(cluster, partition, segments):
    for _ in range(segments):
        await cluster.sent(partition, batch())
        partition.stream.roll_soon()
        await asyncio.sleep(1)


async def test_a_ledger_that_no_segment_names_is_deleted_after_an_hour():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        await cluster.services.client.create(
            ensemble_size=1, write_quorum=1, ack_quorum=1, custom={"stream": b"lost"}
        )
        assert await clean(cluster) == 0, "it may be about to be named"
        await asyncio.sleep(AGE_S)
        assert await clean(cluster) == 1
        assert await ledgers(cluster) == [partition.stream.segments[0].ledger]


async def roll_that_waits(cluster):
    """A partition whose next ledger is not named yet, and the record that waits for its add."""
    partition = await cluster.topic()
    await cluster.sent(partition, batch())
    cluster.port.hold()
    waiting = cluster.send(partition, batch())
    await asyncio.sleep(0.01)
    partition.stream.roll_soon()
    await asyncio.sleep(1)
    assert len(await ledgers(cluster)) == 2
    return partition, waiting


async def test_a_clock_that_jumps_deletes_no_ledger_that_a_roll_waits_to_name():
    async with started_cluster() as cluster:
        partition, waiting = await roll_that_waits(cluster)
        cluster.clock.epoch_ms += 2 * LEDGER_AGE_MS_MIN
        assert await clean(cluster) == 0
        cluster.port.release()
        await asyncio.sleep(1)
        assert [each.base_offset for each in waiting] == [2]
        assert [each.base_offset for each in await cluster.sent(partition, batch())] == [4]
        assert base_offsets(await cluster.read_all(partition)) == [0, 2, 4]


async def test_an_orphan_is_deleted_once_the_jump_of_the_clock_is_believed():
    async with started_cluster() as cluster:
        await cluster.services.client.create(
            ensemble_size=1, write_quorum=1, ack_quorum=1, custom={"stream": b"lost"}
        )
        cluster.clock.epoch_ms += 2 * LEDGER_AGE_MS_MIN
        assert await clean(cluster) == 0
        await asyncio.sleep(AGE_S)
        assert await clean(cluster) == 1


async def test_a_broker_that_starts_with_its_clock_ahead_deletes_no_fresh_ledger_of_another():
    async with started_cluster() as cluster:
        partition, waiting = await roll_that_waits(cluster)
        ahead = SimClock()
        ahead.epoch_ms += 10 * LEDGER_AGE_MS_MIN
        services = StreamServices(cluster.metadata, cluster.services.client, ahead)
        orphans = Orphans(cluster.catalog, services)
        assert await orphans.round(alone=False) == 0
        cluster.port.release()
        await asyncio.sleep(1)
        assert [each.base_offset for each in waiting] == [2]
        await asyncio.sleep(SEEN_S_MIN)
        assert await orphans.round(alone=False) == 0
        assert [each.base_offset for each in await cluster.sent(partition, batch())] == [4]


@pytest.mark.parametrize("kind", ["ledger", "stream"])
async def test_an_orphan_is_deleted_once_one_broker_saw_it_for_half_an_hour(kind):
    async with started_cluster() as cluster:
        await cluster.partitions.stop()  # its own rounds are those of an only broker
        if kind == "ledger":
            await cluster.services.client.create(
                ensemble_size=1, write_quorum=1, ack_quorum=1, custom={"stream": b"lost"}
            )
            await asyncio.sleep(AGE_S)
        else:
            await create_streams(cluster.metadata, [f"{UUID(int=9)}-0"])
        orphans = Orphans(cluster.catalog, cluster.services)
        assert await orphans.round(alone=False) == 0
        await asyncio.sleep(SEEN_S_MIN - 1)
        assert await orphans.round(alone=False) == 0
        orphans.forget()  # another broker had the rounds for a while
        await asyncio.sleep(SEEN_S_MIN - 1)
        assert await orphans.round(alone=False) == 0
        await asyncio.sleep(SEEN_S_MIN + 1)
        assert await orphans.round(alone=False) == 1
        assert await ledgers(cluster) == []
        assert await list_streams(cluster.metadata) == []


async def test_a_ledger_that_another_broker_replaced_stays_for_its_delay():
    async with started_cluster() as cluster:
        delay_s = 3 * SEEN_S_MIN
        partition = await cluster.topic(file_delete_delay_ms=int(delay_s * 1000))
        await cluster.partitions.stop()
        stream = partition.stream.name.encode()
        await cluster.services.client.create(
            ensemble_size=1, write_quorum=1, ack_quorum=1, custom={"stream": stream}
        )
        await asyncio.sleep(AGE_S)
        orphans = Orphans(cluster.catalog, cluster.services)
        assert await orphans.round(alone=False) == 0
        for wait_s, deleted in ((delay_s - 1, 0), (2, 1)):
            await asyncio.sleep(wait_s)
            assert await orphans.round(alone=False) == deleted


async def test_a_ledger_that_is_not_a_streams_is_not_ours_to_delete():
    async with started_cluster() as cluster:
        await cluster.services.client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
        await asyncio.sleep(AGE_S)
        assert await clean(cluster) == 0
        assert len(await ledgers(cluster)) == 1


async def three_orphans(cluster):
    """Create three ledgers that no stream lists."""
    for _ in range(3):
        await cluster.services.client.create(
            ensemble_size=1, write_quorum=1, ack_quorum=1, custom={"stream": b"lost"}
        )
    await asyncio.sleep(AGE_S)
    return await ledgers(cluster)


async def test_a_ledger_that_cannot_be_deleted_keeps_no_other_one(capsys):
    async with started_cluster() as cluster:
        first, *_ = await three_orphans(cluster)
        sound = cluster.port.read

        async def read(bookie, ledger, entry, **more):
            failed = ReadReply(Status.IO_ERROR)
            return failed if ledger == first else await sound(bookie, ledger, entry, **more)

        cluster.port.read = read
        assert await clean(cluster) == 2
        assert await ledgers(cluster) == [first]
        assert f"ledger={first}" in capsys.readouterr().err
        cluster.port.read = sound
        assert await clean(cluster) == 1


async def test_without_metadata_no_further_ledger_is_tried():
    async with started_cluster() as cluster:
        await three_orphans(cluster)
        tried = []

        async def delete(ledger):
            tried.append(ledger)
            raise MetadataUnavailable("down")

        cluster.services.client.delete = delete
        with pytest.raises(MetadataUnavailable):
            await clean(cluster)
        assert len(tried) == 1


async def test_a_ledger_whose_metadata_cannot_be_read_keeps_no_other_one():
    async with started_cluster() as cluster:
        first, *_ = await three_orphans(cluster)
        path = ledger_path(first)
        found = await cluster.metadata.get(path)
        await cluster.metadata.set(path, b"rot", found.version)
        assert await clean(cluster) == 2
        assert await ledgers(cluster) == [first]


async def test_a_stream_whose_segments_cannot_be_read_keeps_its_ledgers_only():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        kept = await ledgers(cluster)
        await three_orphans(cluster)
        nodes = await cluster.metadata.read_tree(f"{log_root(partition.stream.name)}/ledgers")
        path, found = next(iter(nodes.items()))
        await cluster.metadata.set(path, b"rot", found.version)
        await cluster.crash()
        assert await clean(cluster) == 3
        assert await ledgers(cluster) == kept
        await cluster.metadata.set(path, found.data, -1)
        await cluster.crash()
        assert base_offsets(await cluster.read_all(await cluster.partition())) == [0]


async def test_a_crash_between_the_list_and_the_ledger_leaves_nothing_for_long():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await rolled(cluster, partition, 3)
        await partition.stream.truncate(4)
        await asyncio.sleep(GRACE_S)
        unreachable_after(cluster, "/start")
        await partition.stream.expire()
        reachable(cluster)
        assert len(await ledgers(cluster)) == 4
        await cluster.crash()
        await asyncio.sleep(AGE_S)
        assert await clean(cluster) == 2
        partition = await cluster.partition()
        assert base_offsets(await cluster.read_all(partition)) == [4]


async def test_a_removal_that_failed_is_tried_again_by_the_next_round():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await rolled(cluster, partition, 3)
        await partition.stream.truncate(4)
        await asyncio.sleep(GRACE_S)
        unreachable_after(cluster, "/start")
        await partition.stream.expire()
        reachable(cluster)
        assert len(await ledgers(cluster)) == 4
        await cluster.partitions.maintain_once()
        assert len(await ledgers(cluster)) == 2


async def test_a_topic_whose_metadata_cannot_be_read_keeps_its_data():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        topic = cluster.catalog.by_name("t")
        path = f"/gateway/topics/by-id/{topic.topic_id}"
        sound = await cluster.metadata.get(path)
        await cluster.metadata.set(path, b"rot", sound.version)
        await cluster.crash()
        assert cluster.catalog.by_id(topic.topic_id) is None
        await asyncio.sleep(AGE_S)
        assert await clean(cluster) == 0
        await cluster.metadata.set(path, sound.data, -1)
        await cluster.crash()
        assert base_offsets(await cluster.read_all(await cluster.partition())) == [0]


async def test_a_roll_that_failed_after_creating_its_ledger_leaves_an_orphan_for_an_hour(
    monkeypatch,
):
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        start = Stream._start_segment

        async def dies(self, taking_over=None):
            unreachable_after(cluster, "")  # the first node of a roll: the ledger
            await start(self, taking_over)

        monkeypatch.setattr(Stream, "_start_segment", dies)
        partition.stream.roll_soon()
        await asyncio.sleep(10)
        monkeypatch.undo()
        reachable(cluster)
        await cluster.crash()
        partition = await cluster.partition()
        (answer,) = await cluster.sent(partition, batch())
        assert answer.base_offset == 2
        await asyncio.sleep(AGE_S)
        await clean(cluster)
        assert await ledgers(cluster) == [s.ledger for s in partition.stream.segments]


async def test_the_round_opens_unused_partitions_a_few_at_a_time():
    async with started_cluster() as cluster:
        await cluster.catalog.create("wide", 200, 1, {})
        await cluster.start_gateway()
        counts = []
        for _ in range(4):
            await cluster.partitions.maintain_once()
            await asyncio.sleep(1)
            counts.append(len(cluster.partitions._by_name))
        assert counts == [64, 128, 192, 200]
        assert len(await list_streams(cluster.metadata)) == 200


@pytest.mark.slow
async def test_a_topic_that_another_gateway_made_is_no_orphan():
    async with started_cluster() as cluster:
        stale = Catalog(cluster.metadata)
        await stale.load()
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        assert await clean(cluster, stale) == 0
        await cluster.crash()
        assert base_offsets(await cluster.read_all(await cluster.partition())) == [0]


async def test_a_topic_stays_whose_making_was_never_answered():
    async with started_cluster() as cluster:
        cluster.metadata.faults = MetadataFaults(latency_s=1e-6)
        tree, made = cluster.metadata.tree, []

        def lose_the_reply(path, data, version):
            if path.startswith("/gateway/topics/by-id/"):
                made.append(path)
                cluster.metadata.faults.reply_lost = 1.0

        tree.on_set = lose_the_reply
        try:
            await cluster.catalog.create("t", 1, 1, {})
        except MetadataUnavailable:
            pass
        reachable(cluster)
        assert made
        assert await clean(cluster) == 0
        await cluster.crash()
        partition = await cluster.partition()
        (answer,) = await cluster.sent(partition, batch())
        assert answer.base_offset == 0


class NodeByNode(SimMetadata):
    """A store that reads trees without a snapshot; `between` runs after a list was read."""

    between = None

    async def read_tree(self, path):
        tree = {}
        for name in await self.children(path) if await self.exists(path) else ():
            if self.between is not None and path.endswith("/ledgers"):
                between, self.between = self.between, None
                await between()
            try:
                tree[f"{path}/{name}"] = await self.get(f"{path}/{name}")
            except NoNode:
                continue
            tree |= await self.read_tree(f"{path}/{name}")
        return tree


async def test_a_segment_that_is_completed_while_its_stream_is_read_keeps_its_ledger():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        await asyncio.sleep(AGE_S)
        cluster.services.metadata = NodeByNode(cluster.metadata.tree)

        async def complete():
            await rolled(cluster, partition, 1)

        cluster.services.metadata.between = complete
        assert await clean(cluster) == 0
        assert base_offsets(await cluster.read_all(partition)) == [0, 2]


async def commit(store, group):
    await store.load(group)
    await store.advance(group, {TopicIdPartition(UUID(int=1), 0): CommittedOffset(offset=7)})


async def test_only_a_ledger_that_its_subscription_does_not_name_is_deleted():
    async with started_cluster() as cluster:
        services = cluster.services
        logs = PlainLogs(services.client)
        store = SubscriptionLogStore(cluster.metadata, logs, cluster.clock)
        await commit(store, "g")
        named = await ledgers(cluster)
        for path in ("/gateway/groups/g", "/gateway/groups/nobody"):
            await logs.create({SUBSCRIPTION_KEY: path.encode()})
        await asyncio.sleep(AGE_S)
        assert await clean(cluster) == 2
        assert await ledgers(cluster) == named
        assert (await store.read("g")).offsets[TopicIdPartition(UUID(int=1), 0)].offset == 7
        await store.close()


async def test_a_ledger_of_a_subscription_that_cannot_be_read_stays():
    async with started_cluster() as cluster:
        logs = PlainLogs(cluster.services.client)
        await cluster.metadata.create("/gateway/groups/g", b"\x0a\xff", parents=True)
        await logs.create({SUBSCRIPTION_KEY: b"/gateway/groups/g"})
        await asyncio.sleep(AGE_S)
        assert await clean(cluster) == 0
        assert len(await ledgers(cluster)) == 1
