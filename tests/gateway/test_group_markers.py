"""Goal: a marker for a partition of `__consumer_offsets` ends the transaction in every group of it.

Method: two coordinators on virtual time over one metadata tree and one set of bookies. Claims and
connections are the test's: a group belongs to a broker, requests get lost. Requests are encoded and
decoded as between processes.
"""

import asyncio
from contextlib import asynccontextmanager

import pytest
from kio.schema.errors import ErrorCode

from gateway.cluster.port import ClusterMember
from gateway.cluster.single_broker import SingleBroker
from gateway.core.partition_transactions import EndMarker
from gateway.groups.transactional_groups import offsets_partition
from gateway.groups.transactional_offsets import TransactionalCommit
from gateway.transactions import group_markers
from gateway.transactions.group_markers import ClusterGroupMarkers
from gateway.transactions.local_markers import LocalMarkers
from gateway.wire.marker_request import decode_markers
from gateway.wire.messages import decode_response, encode_response
from ledger.errors import NotOwner
from subscriptions.committed_offset import CommittedOffset
from tests.gateway.group_world import World
from tests.sim.metadata import MetadataTree
from tests.subscriptions.log_world import LogWorld

ONE, TWO = 1, 2
NONE, AGAIN = ErrorCode.none, ErrorCode.coordinator_not_available
PRODUCER, EPOCH = 4_000, 3
WRITE_TXN_MARKERS, VERSION = 27, 2


def same_partition(count):
    """Return names of groups in one partition, some of them odd."""
    names = [f"g/{n} ä" for n in range(1_000)]
    return [name for name in names if offsets_partition(name) == 7][:count]


class Claims(SingleBroker):
    """The claims of one broker. `owners` is shared: the claimant of each group, by node id."""

    def __init__(self, node_id, owners):
        super().__init__(node_id)
        self.owners = owners
        self.lease = True
        self.may_claim = asyncio.Event()  # while it is cleared, a load does not end
        self.may_claim.set()

    def lease_held(self):
        return self.lease

    async def claim(self, group):
        await self.check(group)
        await self.may_claim.wait()
        self.owners[group] = self.node_id

    async def check(self, group):
        if self.owners.get(group, self.node_id) != self.node_id:
            raise NotOwner(group)

    async def release(self, group):
        if self.owners.get(group) == self.node_id:
            del self.owners[group]

    async def coordinator(self, group):
        return ClusterMember(self.owners.get(group, self.node_id), "host", 9092, "", "")


class Links:
    """The connections of one broker to the other: WriteTxnMarkers in its own bytes."""

    def __init__(self):
        self.receiver = None
        self.lost = False
        self.sent = 0

    def ask(self, node_id, key, encode, on_answer):
        assert key == WRITE_TXN_MARKERS
        self.sent += 1
        loop = asyncio.get_running_loop()
        if self.lost:
            loop.call_soon(on_answer, None)
            return
        (marker,) = decode_markers(VERSION, encode(VERSION), 0)
        (topic,) = marker.topics
        end = EndMarker(
            marker.producer_id,
            marker.epoch,
            marker.coordinator_epoch,
            marker.commit,
            marker.version,
            marker.number,
        )
        self.receiver.append(
            topic.name,
            topic.indexes[0],
            end,
            lambda code: on_answer(_reply(topic, code)),
            topic.topic_id,
        )


def _reply(topic, code):
    row = {"partition_index": topic.indexes[0], "error_code": code}
    topics = [{"name": topic.name, "partitions": [row]}]
    body = {"markers": [{"producer_id": PRODUCER, "topics": topics}]}
    whole = b"".join(encode_response(WRITE_TXN_MARKERS, VERSION, 1, body))
    return decode_response(WRITE_TXN_MARKERS, VERSION, whole).body


class Broker:
    def __init__(self, logs, tree, node_id, owners, *, enabled=True):
        self.world = World(tree=tree)
        self.world.store = logs.process().store(enabled=enabled)
        self.world.claims = self.claims = Claims(node_id, owners)
        self.links = Links()

    async def start(self):
        await self.world.__aenter__()
        groups = self.world.groups
        self.markers = ClusterGroupMarkers(
            groups.transactional_groups, groups.transactional, self.claims, self.links
        )
        self.local = LocalMarkers(None, self.markers)

    async def pend(self, group, value):
        now_ms = self.world.clock.now_ms()
        offsets = {self.world.key(): CommittedOffset(offset=value, commit_time_ms=now_ms)}
        commit = TransactionalCommit(group, PRODUCER, EPOCH, "", -1, None, offsets)

        async def verify():
            return NONE

        assert await self.world.groups.commit_in_transaction(commit, verify) is NONE

    async def end(self, *, commit=True, index=7):
        """Send a marker once, as the coordinator of the transaction."""
        answered = asyncio.get_running_loop().create_future()
        marker = EndMarker(PRODUCER, EPOCH, 0, commit, 0, 1)
        self.markers.end(index, marker, answered.set_result, self)
        return await answered


@asynccontextmanager
async def brokers(**second):
    logs, tree, owners = LogWorld(), MetadataTree(), {}
    both = Broker(logs, tree, ONE, owners), Broker(logs, tree, TWO, owners, **second)
    for each in both:
        await each.start()
    both[0].links.receiver, both[1].links.receiver = both[1].local, both[0].local
    yield both
    for each in both:
        await each.markers.close()
        await each.world.__aexit__()


@pytest.mark.parametrize(("commit", "after"), [(True, [5, 6, 7]), (False, [None] * 3)])
async def test_a_marker_ends_the_transaction_in_groups_of_both_brokers(commit, after):
    async with brokers() as (one, two):
        names = same_partition(3)
        places = list(zip((one, two, two), names, (5, 6, 7), strict=True))
        for broker, name, value in places:
            await broker.pend(name, value)
        assert await one.end(commit=commit) is NONE
        assert [await broker.world.committed(name) for broker, name, _ in places] == after
        assert not any(broker.world.groups.unstable(name) for broker, name, _ in places)


async def test_a_marker_is_not_answered_before_the_last_group_has_ended():
    async with brokers() as (one, two):
        mine, other = same_partition(2)
        await one.pend(mine, 5)
        await two.pend(other, 6)
        one.links.lost = True
        assert await one.end() is AGAIN
        assert two.world.groups.unstable(other)
        one.links.lost = False
        assert await one.end() is NONE
        assert await one.world.committed(mine) == 5
        assert await two.world.committed(other) == 6


async def test_a_group_whose_coordinator_died_is_claimed_for_its_marker():
    async with brokers() as (one, two):
        (name,) = same_partition(1)
        await two.pend(name, 6)
        two.world.groups.lost()  # its session has ended
        two.claims.owners.clear()
        await asyncio.sleep(1)
        assert await one.end() is AGAIN  # the group is loaded under another ownership now
        assert await one.end() is NONE
        assert one.claims.owners == {name: ONE}
        assert await one.world.committed(name) == 6


async def test_a_marker_of_another_broker_does_not_wait_for_the_load_of_a_group():
    async with brokers() as (one, two):
        (name,) = same_partition(1)
        await two.pend(name, 6)
        two.world.groups.lost()
        await asyncio.sleep(1)
        two.claims.may_claim.clear()
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        for _ in range(3):
            assert await one.end() is ErrorCode.coordinator_load_in_progress
        assert loop.time() - begun_s < 0.5
        assert not two.markers._running
        two.claims.may_claim.set()
        await asyncio.sleep(1)  # the load went on without a request
        assert await one.end() is AGAIN
        assert await one.end() is NONE
        assert await two.world.committed(name) == 6


async def test_groups_of_other_partitions_are_left_alone():
    async with brokers() as (one, _):
        (name,) = same_partition(1)
        await one.pend(name, 5)
        assert await one.end(index=8) is NONE
        assert one.world.groups.unstable(name)


async def test_a_broker_without_log_segments_passes_the_marker_on():
    async with brokers(enabled=False) as (one, two):
        (name,) = same_partition(1)
        await one.pend(name, 5)
        assert await two.end() is NONE
        assert await one.world.committed(name) == 5


async def test_a_marker_is_sent_again_if_the_index_cannot_be_read():
    async with brokers() as (one, _):
        one.world.metadata.closed = True
        assert await one.end() is AGAIN


async def test_after_the_end_no_marker_is_taken():
    async with brokers() as (one, _):
        await one.markers.close()
        assert await one.end() is AGAIN


async def test_a_stopped_sender_ends_nothing_later():
    async with brokers() as (one, two):
        mine, other = same_partition(2)
        await one.pend(mine, 5)
        await two.pend(other, 6)
        answers = []
        marker = EndMarker(PRODUCER, EPOCH, 0, True, 0, 1)
        for sender in (one, two):
            one.markers.end(7, marker, answers.append, sender)
        one.markers.stop(one)
        one.markers.stop(two)
        await asyncio.sleep(60)
        assert not one.markers._running
        assert one.links.sent == 0
        assert one.world.groups.unstable(mine)
        assert two.world.groups.unstable(other)


async def test_without_a_lease_no_marker_leaves_for_a_group():
    """The transaction may have been ended by another coordinator, and the next one begun."""
    async with brokers() as (one, _):
        (name,) = same_partition(1)
        await one.pend(name, 5)
        one.claims.lease = False
        assert await one.end() is AGAIN
        one.claims.lease = True
        assert one.world.groups.unstable(name)
        assert await one.end() is NONE


async def test_many_groups_of_one_partition_do_not_hold_the_loop():
    async with brokers(enabled=False) as (_, two):
        index, groups = two.world.groups.transactional_groups, 5_000
        for number in range(groups):
            path = f"/gateway/transactional/7/g{number}@{number:032x}"
            two.world.tree.create(path, b"", parents=True)
        assert len(await index.of(7)) == groups
        turns, marking = 0, asyncio.ensure_future(two.end())
        while not marking.done():
            await asyncio.sleep(0)
            turns += 1
        assert marking.result() is AGAIN  # this broker keeps no pending offsets
        assert turns > groups / 500 + groups / 200


async def test_listed_groups_of_all_markers_are_bounded(monkeypatch):
    monkeypatch.setattr(group_markers, "_LISTED_MAX", 1)
    async with brokers() as (one, _):
        (name,) = same_partition(1)
        await one.pend(name, 5)
        codes = await asyncio.gather(one.end(), one.end())
        assert sorted(codes, key=lambda code: code is AGAIN) == [NONE, AGAIN]
        assert await one.end() is NONE
