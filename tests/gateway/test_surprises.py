"""Goal: an exception that nobody planned ends no background work of a gateway, and each waiting
client is answered.

Method: real partitions, catalogs and groups over simulated metadata that raises RuntimeError once,
at a chosen call.
"""

from __future__ import annotations

import asyncio
import struct
from contextlib import asynccontextmanager

import pytest
from kio.schema.errors import ErrorCode

from gateway.cluster.balancer import Balancer
from gateway.groups.group_scanner import EXPIRE_S
from gateway.process.assemble import stop_all
from gateway.topics.catalog import Catalog
from ledger.errors import MetadataUnavailable
from subscriptions.znodes.znode_store import GroupZnodeStore
from tests.gateway.group_world import World
from tests.gateway.stream_cluster import StreamCluster, batch
from tests.sim.loop import SimClock
from tests.sim.metadata import MetadataTree, SimMetadata
from tests.sim.surprises import Surprising

SURPRISE = RuntimeError("nobody planned it")


def reports() -> list[str]:
    """What reaches the exception handler of the loop from now on."""
    heard: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: heard.append(f"{context['message']}: {context.get('exception')!r}")
    )
    return heard


@asynccontextmanager
async def surprising_cluster():
    cluster = StreamCluster()
    cluster.metadata = Surprising(cluster.metadata)
    await cluster.start()
    yield cluster, cluster.metadata.planted


async def test_a_partition_opens_after_a_surprise():
    async with surprising_cluster() as (cluster, planted):
        await cluster.catalog.create("t", 1, 1, {})
        heard = reports()
        partition = cluster.partitions.find("t", 0)
        planted["sync"] = planted["read_tree"] = planted["get"] = SURPRISE
        answers = cluster.send(partition, batch())
        await asyncio.sleep(30)
        assert answers[0].error is ErrorCode.none
        assert "the opening of" in heard[0]


async def test_batches_that_wait_for_the_first_segment_are_answered():
    async with surprising_cluster() as (cluster, planted):
        await cluster.catalog.create("t", 1, 1, {})
        partition = cluster.partitions.find("t", 0)
        await partition.ensure_readable()
        heard = reports()
        planted["multi"] = SURPRISE
        answers = [cluster.send(partition, batch()) for _ in range(2)]
        await asyncio.sleep(30)
        assert [len(each) for each in answers] == [1, 1]
        assert heard
        assert (await cluster.sent(partition, batch()))[0].error is ErrorCode.none


def plant(partition, stream):
    """Let the partition and its path for produced batches use this stream."""
    partition.stream = partition._path._stream = stream


class RaisesAfterAppend(Surprising):
    """The stream accepts a batch, and then raises."""

    def append(self, *what):
        self.adapter.append(*what)
        if self.planted:
            raise self.planted.pop("append")


@pytest.mark.parametrize("stream", [Surprising, RaisesAfterAppend])
async def test_a_batch_whose_append_raises_is_answered_once_and_the_next_is_stored(stream):
    async with surprising_cluster() as (cluster, _):
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        heard = reports()
        plant(partition, stream(partition.stream, {"append": SURPRISE}))
        cluster.port.hold()
        answers = cluster.send(partition, batch())
        cluster.port.release()
        await asyncio.sleep(30)
        assert [each.error for each in answers] == [ErrorCode.not_leader_or_follower]
        assert "an append to" in heard[0]
        before = partition.high_watermark
        assert (await cluster.sent(partition, batch()))[0].base_offset == before


async def test_batches_that_wait_behind_one_whose_append_raises_do_not_overtake_it():
    async with surprising_cluster() as (cluster, _):
        await cluster.catalog.create("t", 1, 1, {})
        partition = cluster.partitions.find("t", 0)
        plant(partition, Surprising(partition.stream, {"append": SURPRISE}))
        answers = [cluster.send(partition, batch(sequence)) for sequence in (0, 2)]
        await asyncio.sleep(30)
        codes = [[each.error for each in told] for told in answers]
        assert codes == [[ErrorCode.not_leader_or_follower]] * 2
        again = await cluster.sent(partition, batch(0), batch(2))
        assert [each.base_offset for each in again] == [0, 2]


async def test_a_retry_after_an_append_that_raised_is_stored_and_not_taken_for_a_repeat():
    async with surprising_cluster() as (cluster, _):
        partition = await cluster.topic()
        await cluster.sent(partition, batch(0))
        plant(partition, Surprising(partition.stream, {"append": SURPRISE}))
        cluster.send(partition, batch(2))
        await cluster.sent(partition, batch())
        [answer] = await cluster.sent(partition, batch(2))
        assert answer.error is ErrorCode.none
        stored = await cluster.read_all(partition)
        assert [struct.unpack_from(">i", each, 53)[0] for each in stored] == [0, -1, 2]


async def test_records_that_wait_for_a_roll_are_answered_and_the_stream_goes_on():
    async with surprising_cluster() as (cluster, planted):
        partition = await cluster.topic(segment_ms=600_000)
        await cluster.sent(partition, batch())
        await asyncio.sleep(1300)
        heard = reports()
        planted["multi"] = SURPRISE
        assert partition.stream.roll_if_old()
        await asyncio.sleep(0.001)
        answers = [cluster.send(partition, batch()) for _ in range(3)]
        await asyncio.sleep(60)
        assert [len(each) for each in answers] == [1, 1, 1]
        assert len(heard) == 1
        assert "a roll failed" in heard[0]
        assert (await cluster.sent(partition, batch()))[0].error is ErrorCode.none


class OneSickStream(SimMetadata):
    """No transaction that names the stream `sick` ends without an exception."""

    sick = None

    async def multi(self, ops):
        if self.sick is not None and any(self.sick in op.path for op in ops):
            raise SURPRISE
        return await super().multi(ops)


async def test_retention_goes_on_with_the_other_partitions_after_a_surprise():
    cluster = StreamCluster()
    cluster.metadata = OneSickStream()
    await cluster.start()
    logs = [await cluster.topic(name, retention_ms=3_600_000) for name in "abc"]
    for _ in range(2):
        for log in logs:
            await cluster.sent(log, batch())
            log.stream.roll_soon()
        await asyncio.sleep(10)
    heard = reports()
    cluster.metadata.sick = logs[0].name
    await cluster.partitions.start()
    await asyncio.sleep(3600)
    assert heard
    assert [log.log_start_offset for log in logs] == [0, 2, 2]
    cluster.metadata.sick = None
    await asyncio.sleep(60)
    assert logs[0].log_start_offset == 2
    await cluster.partitions.stop()


class WaitingFetch:
    """A fetch that waits for records of one partition."""

    notified = False

    def on_data(self):
        self.notified = True


async def test_a_partition_whose_end_raises_leaves_no_other_partition_open():
    async with surprising_cluster() as (cluster, planted):
        await cluster.topic("t", partitions=80)
        partitions = [await cluster.partition("t", index) for index in range(80)]
        fetches = [WaitingFetch() for _ in partitions]
        for partition, fetch in zip(partitions, fetches, strict=True):
            await cluster.sent(partition, batch())
            partition.add_waiter(fetch)
        heard = reports()
        planted["multi"] = SURPRISE
        await cluster.partitions.stop()
        assert len(heard) == 1
        assert all(each.closed for each in partitions)
        assert all(each.notified for each in fetches)
        completed = [each for each in partitions if each.stream.segments[-1].completed]
        assert len(completed) == 79


async def test_a_catalog_hears_of_topics_after_a_surprise():
    tree = MetadataTree()
    ours = Surprising(SimMetadata(tree))
    here, there = Catalog(ours), Catalog(SimMetadata(tree))
    await here.load()
    await there.load()
    heard = reports()
    for call in ("children", "get"):
        ours.planted[call] = SURPRISE
        await there.create(f"made-before-{call}", 1, 1, {})
        await asyncio.sleep(60)
        assert not ours.planted
        assert here.by_name(f"made-before-{call}") is not None
    assert len(heard) == 2
    await here.close()
    await there.close()


async def test_expiry_of_offsets_goes_on_after_a_surprise():
    world = World()
    async with world:
        assert await world.commit("g", 5) == "none"
        store = world.groups._store
        assert isinstance(store, GroupZnodeStore)
        heard = reports()
        world.groups._scanner._store = Surprising(store, {"list": SURPRISE})
        await asyncio.sleep(EXPIRE_S * 2)
        assert len(heard) == 1
        await asyncio.sleep(8 * 86_400)
        assert await world.committed("g") is None


async def test_offsets_whose_removal_fails_expire_later(capfd):
    world = World()
    async with world:
        assert await world.commit("g", 5) == "none"
        heard = reports()
        lost = MetadataUnavailable("the reply was lost")
        world.groups._loaded_groups._store = Surprising(world.groups._store, {"delete": lost})
        await asyncio.sleep(9 * 86_400)
        assert await world.committed("g") is None
        assert heard == []
        assert 'expired offsets could not be removed" group=g' in capfd.readouterr().err


async def test_a_group_whose_deadline_raises_stops_no_other_group():
    world = World(initial_rebalance_delay_ms=0)
    async with world:
        members = [world.consumer(group, session_ms=6000) for group in ("g", "h")]
        await asyncio.gather(*(member.join() for member in members))
        loaded = world.groups._loaded_groups.groups
        heard = reports()
        loaded["g"].group = Surprising(loaded["g"].group, {"tick": SURPRISE})
        await asyncio.sleep(12)
        assert len(heard) == 1
        assert [len(loaded[group].group.members) for group in ("g", "h")] == [0, 0]


@pytest.mark.parametrize("call", ["surplus", "move"])
async def test_streams_are_balanced_after_a_surprise(call):
    heard, moved = reports(), []
    waiting = ["stream"]
    planted = {call}

    def surprise(name: str) -> None:
        if name in planted:
            planted.clear()
            raise SURPRISE

    def surplus(_):
        surprise("surplus")
        return list(waiting)

    async def move(key, _):
        surprise("move")
        waiting.remove(key)
        moved.append(key)

    balancer = Balancer(SimClock(), surplus, move, settle_s=5.0, at_once=8)
    balancer.set_hand_over(None)
    balancer.set_hand_over(lambda key: None)
    balancer.on_joined([2])
    await asyncio.sleep(60)
    assert moved == ["stream"]
    assert len(heard) == 1
    await balancer.stop()


@pytest.mark.parametrize("surprise", [SURPRISE, asyncio.CancelledError(), OSError("disk")])
async def test_a_part_that_fails_to_stop_keeps_no_other_part_from_stopping(surprise):
    heard, stopped = reports(), []

    async def fails() -> None:
        raise surprise

    async def closes() -> None:
        stopped.append("the session")

    stops = [closes, fails, closes, fails]
    await stop_all(stops)
    assert (stopped, stops) == (["the session"] * 2, [])
    assert len(heard) == (0 if isinstance(surprise, OSError) else 2)


async def test_a_stop_that_is_cancelled_leaves_the_session_to_the_closer():
    reached = asyncio.Event()

    async def hangs() -> None:
        reached.set()
        await asyncio.Event().wait()

    async def closes() -> None:
        raise AssertionError("it runs after the cancellation")

    stopping = asyncio.create_task(stop_all([closes, hangs]))
    await reached.wait()
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
