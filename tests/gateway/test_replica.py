"""Goal: a follower returns what the leader does: the same batches at the same offsets and epochs,
never fewer than before, and at no cost while there is no reader.

Method: `Partition` on one host, `ReplicaPartition` on others, over a simulated cluster on virtual
time.
"""

import asyncio
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from kio.schema.errors import ErrorCode

from gateway.core.fetch_plan import FetchPlan
from gateway.core.fetch_session import FetchPartition
from gateway.topics.configs import topic_config
from gateway.topics.partition import Partition
from gateway.topics.replica import ReplicaPartition
from ledger.errors import MetadataUnavailable, NotOwner, StreamUnavailable
from ledger.streams.accepted_losses import EntryLost, accept_losses
from ledger.streams.config import StreamConfig
from ledger.streams.segment_store import create_streams
from ledger.streams.stream import StreamServices
from tests.batches import plain_batch
from tests.gateway.lossy_cluster import headers, lost_range, stored_entries
from tests.ledger.calm_cluster import cluster
from tests.sim.loop import SimClock
from tests.sim.metadata import MetadataFaults, SimMetadata

NAME = "stream"
IDLE_S = 60.0


class Leader:
    """A process that leads the partition."""

    def __init__(self, pair, host):
        self.pair = pair
        self.host = host
        services = StreamServices(pair.session(host), pair.client(host), SimClock())
        self.partition = Partition(NAME, services, lambda: topic_config({}), lambda: pair.config)

    async def open(self):
        self.partition.open()
        await self.partition.ensure_readable()
        return self

    async def produce(self, batches=1, records=2):
        """Produce batches one after the other, each durable."""
        for _ in range(batches):
            answers = []
            self.partition.append(memoryview(plain_batch([1000] * records)), 13, answers.append)
            async with asyncio.timeout(60):
                while not answers:
                    await asyncio.sleep(0.0005)
            assert answers[0].error is ErrorCode.none

    def kill(self):
        self.partition.closed = True
        self.pair.world.kill(self.host)


class Waiter:
    def __init__(self):
        self.woken = asyncio.Event()

    def on_data(self):
        self.woken.set()


class Pair:
    def __init__(self):
        self.world = cluster()
        self.config = StreamConfig(
            ensemble_size=3, write_quorum=3, ack_quorum=2, control_ms=50, segment_bytes=1 << 30
        )
        self.epoch = -1  # the leader epoch of the cluster
        self.topic = topic_config({})

    def client(self, host):
        return self.clients[host]

    def session(self, host, faults=None):
        self.clients = {**getattr(self, "clients", {}), host: self.world.client(host, faults)}
        return self.world.sessions[host]

    async def start(self):
        await create_streams(SimMetadata(self.world.tree), [NAME])
        self.leader = await Leader(self, "leader").open()
        self.replica = self.new_replica()
        return self

    def new_replica(self, host="replica", name=NAME, faults=None):
        self.replica_session = self.session(host, faults)
        services = StreamServices(self.replica_session, self.client(host), SimClock())
        return ReplicaPartition(
            name, services, lambda: self.topic, lambda: self.epoch, idle_s=IDLE_S
        )

    async def until(self, offset, replica=None):
        replica = replica or self.replica
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async with asyncio.timeout(60):
            while replica.high_watermark < offset:
                await asyncio.sleep(0.001)
        return loop.time() - began_s


async def read_all(partition):
    found, at = [], partition.log_start_offset
    while at < partition.high_watermark:
        records = partition.read_cached(at, 500) or await partition.read(at, 500)
        found += [(r.sequence_id, b"".join(r.data)) for r in records]
        at = records[-1].end_sequence_id
    return found


@asynccontextmanager
async def started_pair():
    yield await Pair().start()


async def test_batches_are_those_of_the_leader_byte_for_byte():
    async with started_pair() as pair:
        await pair.replica.ensure_readable()
        await pair.leader.produce(5)
        await pair.until(10)
        assert await read_all(pair.replica) == await read_all(pair.leader.partition)


async def replica_with_loss(pair, mode):
    """Return the replica of a log of five batches, two of which were lost and given up."""
    await pair.leader.produce(5)
    await pair.leader.partition.close()
    replica = pair.replica
    await replica.ensure_readable()
    await pair.until(10)
    entries = await stored_entries(pair.client("replica"), replica._stream.segments)
    lost = [each for each in entries if 2 <= each.first <= 5]
    await accept_losses(SimMetadata(pair.world.tree), NAME, [lost_range(lost, 2, 5)])
    pair.topic = topic_config({"gateway.loss.delivery": mode})
    await asyncio.sleep(1)
    return replica


@pytest.mark.parametrize(("mode", "delivered"), [("skip", (2, 5, 0)), ("marker", (5, 5, 1))])
@pytest.mark.parametrize("offset", [2, 4, 5])
async def test_an_accepted_loss_is_delivered_as_by_the_leader(mode, delivered, offset):
    async with started_pair() as pair:
        replica = await replica_with_loss(pair, mode)
        records = await replica.read(offset, 1)
        assert headers(b"".join(piece for each in records for piece in each.data)) == [delivered]
        assert not replica.losses.places(0)


async def test_a_topic_can_stop_its_readers_at_a_replica():
    async with started_pair() as pair:
        replica = await replica_with_loss(pair, "stop")
        with pytest.raises(EntryLost):
            await replica.read(4, 1000)
        (place,) = replica.losses.places(0)
        assert place.text == "blocked at offset 4: lost (gateway.loss.delivery=stop)"


async def test_it_opens_for_the_first_read():
    async with started_pair() as pair:
        await pair.leader.produce(3)
        await asyncio.sleep(1)
        assert not pair.replica.readable
        await pair.replica.ensure_readable()
        assert pair.replica.readable and pair.replica.high_watermark == 6


async def test_all_readers_wait_for_one_opening():
    async with started_pair() as pair:
        replica = pair.replica
        waiting = [asyncio.ensure_future(replica.ensure_readable()) for _ in range(5)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.gather(*waiting[1:])
        assert replica.readable
        assert len(pair.replica_session.watchers) <= 3


async def test_a_waiting_fetch_is_woken_by_what_comes():
    async with started_pair() as pair:
        await pair.replica.ensure_readable()
        waiter = Waiter()
        pair.replica.add_waiter(waiter)
        await asyncio.sleep(5)
        assert not waiter.woken.is_set()
        await pair.leader.produce()
        await asyncio.wait_for(waiter.woken.wait(), 0.2)
        assert pair.replica.read_cached(0, 1000) is not None


async def test_without_reads_it_closes_its_stream():
    async with started_pair() as pair:
        await pair.replica.ensure_readable()
        await pair.leader.produce(3)
        await pair.until(6)
        await asyncio.sleep(2 * IDLE_S + 1)
        assert not pair.replica.readable and not pair.replica.closed
        assert not pair.replica_session.watchers
        assert pair.replica._services.cache.bytes_held == 0


@pytest.mark.parametrize("by", ["reads", "waiter"])
async def test_it_stays_open_during_reads_and_waits(by):
    async with started_pair() as pair:
        replica = pair.replica
        await replica.ensure_readable()
        if by == "waiter":
            replica.add_waiter(Waiter())
        for _ in range(30):
            await asyncio.sleep(IDLE_S / 3)
            if by == "reads":
                await replica.read(0, 100)
            assert replica.readable


async def test_offsets_and_epoch_never_fall_while_it_idles_or_after():
    async with started_pair() as pair:
        replica, shown = pair.replica, []

        def look():
            shown.append((replica.high_watermark, replica.log_start_offset, replica.leader_epoch))

        for _ in range(3):
            await replica.ensure_readable()
            await pair.leader.produce(4)
            await pair.until(pair.leader.partition.high_watermark)
            await pair.leader.partition.stream.truncate(replica.high_watermark - 3)
            await asyncio.sleep(1)
            look()
            await asyncio.sleep(2 * IDLE_S + 1)
            look()
            await replica.ensure_readable()
            look()
        for before, after in pairwise(shown):
            assert all(x <= y for x, y in zip(before, after, strict=True))
        assert shown[-1] == (24, 21, 1)


async def test_the_first_read_after_idling_gives_what_came_meanwhile():
    async with started_pair() as pair:
        await pair.replica.ensure_readable()
        await asyncio.sleep(2 * IDLE_S + 1)
        await pair.leader.produce(4)
        await asyncio.sleep(1)
        await pair.replica.ensure_readable()
        assert await read_all(pair.replica) == await read_all(pair.leader.partition)
        assert len(await read_all(pair.replica)) == 4


def error_at(replica, offset):
    """Return the error of a fetch from `offset` on."""
    plan = FetchPlan([FetchPartition("t", 0, offset, 1)], 1, 1, 0.0)
    [result] = plan.results
    start, end, epoch = replica.log_start_offset, replica.high_watermark, replica.leader_epoch
    plan.needs_read(result, start, end, epoch, replica.is_follower)
    return plan.error_of(result)


async def test_an_offset_past_the_known_end_is_not_available_and_one_below_the_start_out_of_range():
    async with started_pair() as pair:
        await pair.replica.ensure_readable()
        await pair.leader.produce(4)
        await pair.until(8)
        await pair.leader.partition.stream.truncate(4)
        await asyncio.sleep(1)
        errors = [error_at(pair.replica, offset) for offset in (3, 4, 8, 9)]
        assert errors == [
            ErrorCode.offset_out_of_range,
            ErrorCode.none,
            ErrorCode.none,
            ErrorCode.offset_not_available,
        ]
        assert await pair.replica.read(9, 100) == []


async def test_it_reads_on_without_a_leader_and_under_the_next_one():
    async with started_pair() as pair:
        await pair.replica.ensure_readable()
        await pair.leader.produce(4)
        await pair.until(8)
        pair.leader.kill()
        assert len(await read_all(pair.replica)) == 4
        second = await Leader(pair, "second").open()
        await second.produce(4)
        await pair.until(16)
        assert await read_all(pair.replica) == await read_all(second.partition)
        epochs = [pair.replica.epoch_at(n) for n in range(16)]
        assert epochs == [second.partition.epoch_at(n) for n in range(16)]
        assert len(set(epochs)) == 2


async def test_the_leader_epoch_is_the_clusters_and_never_falls():
    async with started_pair() as pair:
        assert pair.replica.leader_epoch == -1
        pair.epoch = 3
        assert pair.replica.leader_epoch == 3
        pair.epoch = -1
        assert pair.replica.leader_epoch == 3
        pair.epoch = 5
        assert pair.replica.leader_epoch == 5


async def test_without_a_leader_the_epoch_is_that_of_the_log():
    async with started_pair() as pair:
        await pair.leader.produce(1)
        await asyncio.sleep(1)
        await pair.replica.ensure_readable()
        assert pair.replica.leader_epoch == pair.leader.partition.leader_epoch


async def test_closed_it_notifies_waiters_and_is_never_readable_again():
    async with started_pair() as pair:
        await pair.replica.ensure_readable()
        waiter = Waiter()
        pair.replica.add_waiter(waiter)
        await pair.replica.close()
        assert waiter.woken.is_set() and not pair.replica.readable
        assert not pair.replica_session.watchers
        with pytest.raises(NotOwner):
            await pair.replica.ensure_readable()
        with pytest.raises(StreamUnavailable):
            await pair.replica.read(0, 100)


async def test_closed_while_it_opens_it_holds_nothing():
    async with started_pair() as pair:
        opening = asyncio.ensure_future(pair.replica.ensure_readable())
        await asyncio.sleep(0)
        await pair.replica.close()
        with pytest.raises(NotOwner):
            await opening
        assert not pair.replica_session.watchers


async def test_a_stream_that_does_not_exist_is_not_owned_here():
    async with started_pair() as pair:
        with pytest.raises(NotOwner):
            await pair.new_replica("other", "another").ensure_readable()


async def test_an_opening_that_fails_raises_and_the_next_one_works():
    async with started_pair() as pair:
        faults = MetadataFaults(pair.world.draw)
        replica = pair.new_replica("other", faults=faults)
        faults.cut = True
        with pytest.raises(MetadataUnavailable):
            await replica.ensure_readable()
        faults.cut = False
        await replica.ensure_readable()
        assert replica.readable
