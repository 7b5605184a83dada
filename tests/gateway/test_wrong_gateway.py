"""Goal: a broker that does not lead a partition, or has lost the lease, does not answer as leader
and names the leader. Followers serve their own rack only, and never reset a client's offset.

Method: two brokers on the same streams and bookie, in Kafka's bytes on virtual time; the test sets
members and leaders.
"""

import asyncio
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from gateway.cluster.port import Leader, StreamKey
from tests.gateway.paper_cluster import PaperCluster, member
from tests.gateway.stream_cluster import LIST_OFFSETS, PRODUCE, StreamCluster, batch, times_of
from tests.gateway.test_fetch import fetch, flat, offsets, one
from tests.peers.processes import until

OK = ErrorCode.none
NOT_LEADER = ErrorCode.not_leader_or_follower
HERE, THERE = 0, 1
EPOCH = 7


class Pair:
    """Two brokers: `owner` is node 0 in rack r0, `other` is node 1 in rack r1. The topic is `t`."""

    async def start(self, *, replicas=2):
        alive = [member(HERE, "r0"), member(THERE, "r1"), member(2, "r2")]
        self.clusters = [
            PaperCluster(n, alive, leader_of_others=Leader(HERE, EPOCH)) for n in (0, 1)
        ]
        self.owner = StreamCluster(cluster=self.clusters[0], node_id=HERE, rack="r0")
        await self.owner.start()
        self.owner.catalog._bookies = lambda: 3
        await self.owner.catalog.create("t", 2, replicas, {})
        self.other = await self.owner.beside(self.clusters[1], node_id=THERE, rack="r1")
        return self


@asynccontextmanager
async def started_pair(**settings):
    yield await Pair().start(**settings)


async def produce(gateway, version=13, indexes=(0,), topic="t"):
    known = gateway.catalog.by_name(topic)
    named = {"name": topic}
    if version >= 13:
        named = {"topic_id": known.topic_id if known else UUID(int=99)}
    data = [{"index": index, "records": batch()} for index in indexes]
    return await gateway.answer(
        PRODUCE,
        version,
        transactional_id=None,
        acks=-1,
        timeout=1000,
        topic_data=[{**named, "partition_data": data}],
    )


def places(answer):
    return [(node.node_id, node.host, node.port, node.rack) for node in answer.node_endpoints]


def named(partition):
    return partition.current_leader.leader_id, partition.current_leader.leader_epoch


NOBODY = (-1, -1)
OWNER = (HERE, "host0", 9000, "r0")


# -- produce --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3, 14))
async def test_a_produce_to_the_wrong_gateway_is_sent_to_the_right_one(version):
    async with started_pair() as pair:
        answer = await produce(pair.other, version)
        (partition,) = answer.responses[0].partition_responses
        assert partition.error_code is NOT_LEADER
        if version >= 10:
            assert named(partition) == (HERE, EPOCH)
            assert places(answer) == [OWNER]


async def test_a_produce_to_the_leader_names_no_leader():
    async with started_pair() as pair:
        answer = await produce(pair.owner)
        (partition,) = answer.responses[0].partition_responses
        assert (partition.error_code, named(partition), places(answer)) == (OK, NOBODY, [])


async def test_of_many_partitions_each_is_answered_for_itself():
    async with started_pair() as pair:
        for cluster in pair.clusters:
            cluster.leaders[1] = Leader(THERE, 3)
        answer = await produce(pair.owner, indexes=(0, 1, 2))
        mine, theirs, none = answer.responses[0].partition_responses
        assert (mine.error_code, named(mine)) == (OK, NOBODY)
        assert (theirs.error_code, named(theirs)) == (NOT_LEADER, (THERE, 3))
        assert none.error_code is ErrorCode.unknown_topic_or_partition
        assert named(none) == NOBODY
        assert places(answer) == [(THERE, "host1", 9001, "r1")]


@pytest.mark.parametrize(
    "leader", [Leader(), Leader(HERE, -1), Leader(9, 3)], ids=["nobody", "opening", "dead"]
)
async def test_a_leader_that_cannot_take_it_is_not_named(leader):
    async with started_pair() as pair:
        pair.clusters[1].leaders[0] = leader
        answer = await produce(pair.other)
        (partition,) = answer.responses[0].partition_responses
        assert (partition.error_code, named(partition)) == (NOT_LEADER, NOBODY)
        assert places(answer) == []


async def test_an_unknown_partition_is_not_that_of_another_broker():
    async with started_pair() as pair:
        (missing,) = (await produce(pair.other, 12, topic="none")).responses
        assert missing.partition_responses[0].error_code is ErrorCode.unknown_topic_or_partition
        (missing,) = (await produce(pair.other, 13, topic="none")).responses
        assert missing.partition_responses[0].error_code is ErrorCode.unknown_topic_id


async def test_an_owner_whose_lease_is_over_takes_nothing_and_names_not_itself():
    async with started_pair() as pair:
        assert (await produce(pair.owner)).responses[0].partition_responses[0].error_code is OK
        pair.clusters[0].lease = False
        answer = await produce(pair.owner)
        (partition,) = answer.responses[0].partition_responses
        assert (partition.error_code, named(partition)) == (NOT_LEADER, NOBODY)


async def test_what_was_accepted_when_the_lease_ended_is_not_acknowledged_and_the_new_owner_named():
    async with started_pair() as pair:
        await produce(pair.owner)
        pair.owner.port.hold()
        waiting = asyncio.ensure_future(produce(pair.owner))
        await asyncio.sleep(1)
        pair.clusters[0].lease = False
        pair.clusters[0].leaders[0] = Leader(THERE, EPOCH + 1)
        pair.owner.port.release()
        answer = await waiting
        (partition,) = answer.responses[0].partition_responses
        assert (partition.error_code, named(partition)) == (NOT_LEADER, (THERE, EPOCH + 1))


# -- fetch ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4, 19))
async def test_a_fetch_from_the_wrong_gateway_is_sent_to_the_right_one(version):
    async with started_pair() as pair:
        await produce(pair.owner)
        answer = await fetch(pair.other, {"t": {0: (0, {})}}, version)
        (partition,) = flat(answer).values()
        assert partition.error_code is NOT_LEADER
        assert not partition.records
        if version >= 12:
            assert named(partition) == ((HERE, EPOCH) if version >= 16 else NOBODY)
        if version >= 16:
            assert places(answer) == [OWNER]


async def test_a_fetch_with_an_older_leader_epoch_gets_the_present_leader():
    async with started_pair() as pair:
        await produce(pair.owner)
        await pair.owner.crash()
        partition = await pair.owner.partition()
        pair.clusters[0].leaders[0] = Leader(HERE, partition.leader_epoch)
        answer = await fetch(pair.owner, {"t": {0: (0, {"current_leader_epoch": 0})}})
        (found,) = flat(answer).values()
        assert found.error_code is ErrorCode.fenced_leader_epoch
        assert named(found) == (HERE, partition.leader_epoch)
        assert places(answer) == [
            (HERE, "127.0.0.1", 9092, "r0")
        ]  # the address to which the client connected


async def test_an_owner_whose_lease_is_over_reads_nothing_out():
    async with started_pair() as pair:
        await produce(pair.owner)
        pair.clusters[0].lease = False
        found, took_s = await one(pair.owner, 0)
        assert (found.error_code, took_s) == (NOT_LEADER, 0)


async def test_a_fetch_that_waits_when_the_lease_ends_is_refused():
    async with started_pair() as pair:
        await produce(pair.owner)
        waiting = asyncio.ensure_future(one(pair.owner, 2, wait_ms=500))
        await asyncio.sleep(0.1)
        pair.clusters[0].lease = False
        found, _ = await waiting
        assert found.error_code is NOT_LEADER


async def test_a_fetch_that_reads_from_disk_when_the_lease_ends_is_refused():
    async with started_pair() as pair:
        await produce(pair.owner)
        await pair.owner.restart()
        await pair.owner.partition()
        pair.owner.port.read_delay_s = 0.2
        waiting = asyncio.ensure_future(one(pair.owner, 0))
        await asyncio.sleep(0.1)
        pair.clusters[0].lease = False
        found, _ = await waiting
        assert (found.error_code, found.records or b"") == (NOT_LEADER, b"")


async def test_a_waiting_fetch_is_answered_at_once_when_another_broker_takes_over():
    async with started_pair() as pair:
        await produce(pair.owner)
        waiting = asyncio.ensure_future(one(pair.owner, 2, wait_ms=30_000))
        await asyncio.sleep(1)
        topic = pair.owner.catalog.by_name("t")
        pair.clusters[0].leaders[0] = Leader(THERE, EPOCH + 1)
        pair.owner.partitions.lost((topic.topic_id, 0))
        found, took_s = await waiting
        assert (found.error_code, named(found)) == (NOT_LEADER, (THERE, EPOCH + 1))
        assert took_s < 1.1


# -- replicas -------------------------------------------------------------------------------------


async def show(pair, **settings):
    """Produce a batch that followers can read, because a later entry confirms it."""
    await produce(pair.owner, **settings)
    await produce(pair.owner, **settings)


@pytest.mark.parametrize("version", range(11, 19))
async def test_a_gateway_reads_for_clients_of_its_own_rack(version):
    async with started_pair() as pair:
        await show(pair)
        found, _ = await one(pair.other, 0, version=version, rack_id="r1")
        assert (found.error_code, offsets(found)) == (OK, [0])
        assert found.high_watermark == 2


@pytest.mark.parametrize("rack", ["", "r0", "r2", "R1"])
async def test_a_gateway_reads_for_no_other_rack(rack):
    async with started_pair() as pair:
        await produce(pair.owner)
        found, _ = await one(pair.other, 0, rack_id=rack)
        assert (found.error_code, named(found)) == (NOT_LEADER, (HERE, EPOCH))


async def test_a_broker_without_a_rack_serves_no_replica_reads():
    async with started_pair() as pair:
        await produce(pair.owner)
        nowhere = await pair.owner.beside(pair.clusters[1], node_id=THERE, rack="")
        found, _ = await one(nowhere, 0, rack_id="")
        assert found.error_code is NOT_LEADER


async def test_a_replica_has_what_was_written_while_the_fetch_waited():
    async with started_pair() as pair:
        await produce(pair.owner)
        waiting = asyncio.ensure_future(one(pair.other, 2, rack_id="r1", wait_ms=30_000))
        await asyncio.sleep(1)
        await show(pair)
        found, took_s = await waiting
        assert (found.error_code, offsets(found)[:1]) == (OK, [2])
        assert took_s < 10


async def test_a_replica_waits_for_an_offset_that_it_does_not_know_and_never_calls_it_wrong():
    async with started_pair() as pair:
        await produce(pair.owner)
        found, took_s = await one(pair.other, 1000, rack_id="r1", wait_ms=700)
        assert found.error_code is ErrorCode.offset_not_available
        assert 0.7 <= took_s < 1.3
        found, _ = await one(pair.other, 1000, rack_id="r1", wait_ms=0)
        assert found.error_code is ErrorCode.offset_not_available


async def test_what_a_replica_does_not_know_yet_does_not_spoil_the_rest_of_the_answer():
    async with started_pair() as pair:
        await show(pair, indexes=(0, 1))
        asked = {"t": {0: (0, {}), 1: (1000, {})}}
        await fetch(pair.other, asked, rack_id="r1", wait_ms=0)
        answer = await fetch(pair.other, asked, rack_id="r1", wait_ms=700)
        known, ahead = flat(answer).values()
        assert (known.error_code, offsets(known)) == (OK, [0])
        assert (ahead.error_code, ahead.records or b"") == (OK, b"")


async def test_a_replica_reads_on_without_a_leader():
    async with started_pair() as pair:
        await show(pair)
        pair.clusters[1].leaders[0] = Leader()
        settings = {"current_leader_epoch": 0}
        found, _ = await one(pair.other, 0, rack_id="r1", settings=settings)
        assert (found.error_code, offsets(found)) == (OK, [0])


@pytest.mark.parametrize("version", range(11, 19))
async def test_the_leader_sends_a_client_to_the_replica_of_its_rack(version):
    async with started_pair() as pair:
        await produce(pair.owner)
        found, took_s = await one(pair.owner, 0, version=version, rack_id="r1")
        assert (found.error_code, found.preferred_read_replica) == (OK, THERE)
        assert (found.records or b"", found.high_watermark, took_s) == (b"", 2, 0)


@pytest.mark.parametrize("rack", ["", "r0", "r9"])
async def test_the_leader_keeps_clients_of_its_own_rack_and_of_none(rack):
    async with started_pair() as pair:
        await produce(pair.owner)
        found, _ = await one(pair.owner, 0, rack_id=rack)
        assert (found.preferred_read_replica, offsets(found)) == (-1, [0])


async def test_the_leader_names_no_broker_that_is_not_a_replica_or_is_leaving():
    async with started_pair() as pair:
        await produce(pair.owner)
        found, _ = await one(pair.owner, 0, rack_id="r2")  # two replicas: 0 and 1
        assert (found.preferred_read_replica, offsets(found)) == (-1, [0])
        pair.clusters[0].alive = [member(HERE, "r0"), member(THERE, "r1", leaving=True)]
        found, _ = await one(pair.owner, 0, rack_id="r1")
        assert (found.preferred_read_replica, offsets(found)) == (-1, [0])


async def test_an_error_comes_before_the_way_to_a_replica():
    async with started_pair() as pair:
        await produce(pair.owner)
        found, _ = await one(pair.owner, 1000, rack_id="r1")
        assert found.error_code is ErrorCode.offset_out_of_range
        assert found.preferred_read_replica == -1


async def test_a_session_names_the_preferred_replica_in_every_response():
    async with started_pair() as pair:
        await produce(pair.owner)
        first = await fetch(pair.owner, {"t": {0: (0, {})}}, session_epoch=0, rack_id="r1")
        again = await fetch(
            pair.owner, {}, session_id=first.session_id, session_epoch=1, rack_id="r1"
        )
        assert flat(again)[0, 0].preferred_read_replica == THERE


# -- list offsets ---------------------------------------------------------------------------------


async def listed(gateway, timestamp, topic="t", version=11):
    asked = times_of({topic: [(0, timestamp)]})
    answer = await gateway.answer(LIST_OFFSETS, version, **asked)
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize("timestamp", [-1, -2, 5])
async def test_offsets_are_asked_of_the_owner(timestamp):
    async with started_pair() as pair:
        await produce(pair.owner)
        assert (await listed(pair.owner, timestamp)).error_code is OK
        assert (await listed(pair.other, timestamp)).error_code is NOT_LEADER
        missing = await listed(pair.other, timestamp, topic="none")
        assert missing.error_code is ErrorCode.unknown_topic_or_partition
        pair.clusters[0].lease = False
        assert (await listed(pair.owner, timestamp)).error_code is NOT_LEADER


async def test_an_offset_that_was_searched_when_the_lease_ended_is_not_returned():
    async with started_pair() as pair:
        await produce(pair.owner)
        await pair.owner.restart()
        await pair.owner.partition()
        pair.owner.port.read_delay_s = 0.2
        waiting = asyncio.ensure_future(listed(pair.owner, 5))
        await asyncio.sleep(0.1)
        pair.clusters[0].lease = False
        assert (await waiting).error_code is NOT_LEADER


async def test_who_gains_a_partition_follows_it_no_more():
    async with started_pair() as pair:
        partitions, known = pair.other.partitions, pair.other.catalog.by_name("t")
        follower = partitions.replica("t", 0)
        await follower.ensure_readable()
        pair.clusters[THERE].leaders[0] = Leader(THERE, EPOCH + 1)
        partitions.gained(StreamKey(known.topic_id, 0))
        await until(lambda: follower.closed, "it is closed")
        assert partitions.replica("t", 0) is None


# -- epochs that are not published ----------------------------------------------------------------


async def shown_epochs(gateway):
    """Return the code and the epoch in the answers of ListOffsets and OffsetForLeaderEpoch."""
    shown = []
    for timestamp in (-1, -2, 1000):
        fields = {**times_of({"t": [(0, timestamp)]})}
        fields["timeout_ms"] = fields.pop("timeout")
        reply = await gateway.answer(LIST_OFFSETS, 10, **fields)
        found = reply.topics[0].partitions[0]
        shown.append((found.error_code, found.leader_epoch))
    row = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    asked = {"replica_id": -1, "topics": [{"topic": "t", "partitions": [row]}]}
    reply = await gateway.answer(23, 4, **asked)
    found = reply.topics[0].partitions[0]
    return [*shown, (found.error_code, found.leader_epoch)]


async def test_no_answer_names_an_epoch_before_it_is_published():
    async with started_pair() as pair:
        await produce(pair.owner)
        pair.clusters[0].leaders[0] = Leader(HERE, -1)
        assert await shown_epochs(pair.owner) == [(NOT_LEADER, -1)] * 4
        pair.clusters[0].leaders[0] = Leader(HERE, 0)
        assert await shown_epochs(pair.owner) == [(OK, 0)] * 4


async def test_a_partition_that_opens_for_the_answer_names_no_unpublished_epoch():
    async with started_pair() as pair:
        await produce(pair.owner)
        await pair.owner.restart()
        pair.clusters[0].leaders[0] = Leader(HERE, 0)
        assert pair.owner.partitions.find("t", 0).leader_epoch < 0
        assert await shown_epochs(pair.owner) == [(NOT_LEADER, -1)] * 4
