"""Goal: each broker describes the whole cluster: members, addresses, leaders and coordinators; a
new topic is returned when it has leaders.

Method: the handlers with real requests, in a cluster that the test sets up; this broker is 3.
"""

import asyncio
from contextlib import asynccontextmanager

import pytest
from kio.schema.errors import ErrorCode

from gateway.cluster.port import Leader
from gateway.handlers import (
    k03_metadata,
    k10_find_coordinator,
    k19_create_topics,
    k37_create_partitions,
    k60_describe_cluster,
    k75_describe_topic_partitions,
)
from ledger.errors import MetadataUnavailable
from tests.gateway.handler_cluster import loaded_cluster
from tests.gateway.paper_cluster import PaperCluster, member
from tests.gateway.test_topic_handlers import new_topic

OK = ErrorCode.none
HERE, THERE = 3, 5


@asynccontextmanager
async def paper_cluster(**settings):
    async with loaded_cluster(**settings) as cluster:
        cluster.brokers = PaperCluster(
            HERE,
            [member(1, "r1"), member(HERE, "r3"), member(THERE)],
            leader_of_others=Leader(THERE, 4),
        )
        cluster.context.cluster = cluster.brokers
        cluster.catalog._bookies = lambda: 3
        yield cluster


def now_s():
    return asyncio.get_running_loop().time()


# -- who lives ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", k03_metadata.API.versions)
async def test_metadata_names_every_gateway_and_this_one_where_the_client_came_to(version):
    async with paper_cluster() as cluster:
        answer = await cluster.ask(k03_metadata, version, topics=[])
        assert [(each.node_id, each.host, each.port) for each in answer.brokers] == [
            (1, "host1", 9001),
            (HERE, "127.0.0.1", 19092),
            (THERE, "host5", 9005),
        ]
        if version >= 1:
            assert [each.rack for each in answer.brokers] == ["r1", "r3", None]
            assert answer.controller_id == 1


@pytest.mark.parametrize("version", k60_describe_cluster.API.versions)
async def test_the_cluster_is_described_as_in_metadata(version):
    async with paper_cluster() as cluster:
        answer = await cluster.ask(k60_describe_cluster, version)
        assert [(each.broker_id, each.host, each.port, each.rack) for each in answer.brokers] == [
            (1, "host1", 9001, "r1"),
            (HERE, "127.0.0.1", 19092, "r3"),
            (THERE, "host5", 9005, None),
        ]
        assert answer.controller_id == 1


async def test_the_controller_is_a_gateway_that_lives_and_stays():
    async with paper_cluster() as cluster:

        async def controller(*members):
            cluster.brokers.alive = list(members)
            return (await cluster.ask(k03_metadata, 12, topics=[])).controller_id

        assert await controller(member(3), member(5)) == 3
        assert await controller(member(3, leaving=True), member(5)) == 5
        assert await controller(member(3, leaving=True)) == 3


async def test_a_broker_without_a_member_list_names_itself():
    async with paper_cluster() as cluster:
        cluster.brokers.alive = []
        answer = await cluster.ask(k03_metadata, 12, topics=[])
        (broker,) = answer.brokers
        assert (broker.node_id, broker.host, broker.port) == (HERE, "127.0.0.1", 19092)
        assert answer.controller_id == HERE


# -- who leads ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", k03_metadata.API.versions)
async def test_metadata_names_leaders_and_replicas(version):
    async with paper_cluster() as cluster:
        await cluster.catalog.create("orders", 2, 2, {})
        cluster.brokers.leaders[1] = Leader(HERE, 9)
        answer = await cluster.ask(k03_metadata, version, topics=[{"name": "orders"}])
        (topic,) = answer.topics
        assert topic.error_code is OK
        rows = [(p.error_code, p.leader_id, p.replica_nodes, p.isr_nodes) for p in topic.partitions]
        assert rows == [(OK, THERE, (5, 1), (5, 1)), (OK, HERE, (3, 1), (3, 1))]
        if version >= 7:
            assert [p.leader_epoch for p in topic.partitions] == [4, 9]


@pytest.mark.parametrize("version", k03_metadata.API.versions)
async def test_only_a_partition_without_a_leader_has_an_error(version):
    async with paper_cluster() as cluster:
        await cluster.catalog.create("orders", 2, 1, {})
        cluster.brokers.leaders[0] = Leader()
        answer = await cluster.ask(k03_metadata, version, topics=[{"name": "orders"}])
        (topic,) = answer.topics
        orphan, led = topic.partitions
        assert topic.error_code is OK
        assert (orphan.error_code, orphan.leader_id) == (ErrorCode.leader_not_available, -1)
        assert (led.error_code, led.leader_id) == (OK, THERE)


async def test_a_gateway_without_the_lease_does_not_call_itself_a_leader():
    async with paper_cluster() as cluster:
        await cluster.catalog.create("orders", 2, 1, {})
        cluster.brokers.leaders[0] = Leader(HERE, 9)
        cluster.brokers.lease = False
        answer = await cluster.ask(k03_metadata, 12, topics=[{"name": "orders"}])
        unsure, led = answer.topics[0].partitions
        assert (unsure.error_code, unsure.leader_id, unsure.leader_epoch) == (
            ErrorCode.leader_not_available,
            -1,
            9,
        )
        assert (led.error_code, led.leader_id) == (OK, THERE)


async def test_topics_are_described_as_in_metadata():
    async with paper_cluster() as cluster:
        await cluster.catalog.create("orders", 2, 2, {})
        cluster.brokers.leaders[0] = Leader()
        answer = await cluster.ask(
            k75_describe_topic_partitions,
            0,
            topics=[{"name": "orders"}],
            response_partition_limit=10,
            cursor=None,
        )
        orphan, led = answer.topics[0].partitions
        assert (orphan.error_code, orphan.leader_id) == (ErrorCode.leader_not_available, -1)
        assert (led.error_code, led.leader_id, led.leader_epoch) == (OK, THERE, 4)
        assert led.replica_nodes == led.isr_nodes == (5, 1)


# -- who coordinates ------------------------------------------------------------------------------


async def coordinators(cluster, version, *groups):
    if version >= 4:
        answer = await cluster.ask(
            k10_find_coordinator, version, key_type=0, coordinator_keys=list(groups)
        )
        return list(answer.coordinators)
    settings = {"key_type": 0} if version else {}
    return [
        await cluster.ask(k10_find_coordinator, version, key=group, **settings) for group in groups
    ]


@pytest.mark.parametrize("version", k10_find_coordinator.API.versions)
async def test_each_group_is_sent_to_its_coordinator(version):
    async with paper_cluster() as cluster:
        cluster.brokers.coordinators = {"ours": member(HERE), "theirs": member(1)}
        found = await coordinators(cluster, version, "ours", "theirs")
        assert [(each.error_code, each.node_id, each.host, each.port) for each in found] == [
            (OK, HERE, "127.0.0.1", 19092),
            (OK, 1, "host1", 9001),
        ]


@pytest.mark.parametrize("version", k10_find_coordinator.API.versions)
@pytest.mark.parametrize("known", [None, MetadataUnavailable("away")], ids=["none", "unknown"])
async def test_a_group_without_a_coordinator_gets_a_retriable_error(version, known):
    async with paper_cluster() as cluster:
        cluster.brokers.coordinators = {"g": known, "theirs": member(1)}
        found, theirs = await coordinators(cluster, version, "g", "theirs")
        assert found.error_code is ErrorCode.coordinator_not_available
        assert (found.node_id, found.host, found.port) == (-1, "", -1)
        assert theirs.error_code is OK


async def test_a_coordinator_is_not_looked_for_for_long():
    async with paper_cluster() as cluster:
        cluster.brokers.silent = {"g"}
        (found,) = await coordinators(cluster, 6, "g")
        assert found.error_code is ErrorCode.coordinator_not_available
        assert now_s() < 3


# -- new topics -----------------------------------------------------------------------------------


def create(cluster, timeout=30_000):
    return cluster.ask(
        k19_create_topics,
        7,
        topics=[new_topic("orders", 1, 1)],
        timeout=timeout,
        validate_only=False,
    )


async def grow(cluster, timeout=30_000):
    await cluster.catalog.create("orders", 1, 1, {})
    return await cluster.ask(
        k37_create_partitions,
        3,
        topics=[{"name": "orders", "count": 2, "assignments": None}],
        timeout=timeout,
        validate_only=False,
    )


@pytest.mark.parametrize("change", [create, grow])
async def test_a_new_partition_is_returned_when_it_has_a_leader(change):
    async with paper_cluster() as cluster:
        cluster.brokers.led.clear()
        waiting = asyncio.ensure_future(change(cluster))
        await asyncio.sleep(2)
        assert not waiting.done()
        cluster.brokers.led.set()
        await waiting
        assert now_s() < 2.1


@pytest.mark.parametrize(
    ("change", "timeout", "longest_s"),
    [(create, 1500, 1.5), (create, 0, 0), (create, 2**31 - 1, 10), (grow, 700, 0.7)],
)
async def test_the_wait_for_leaders_is_bounded_and_the_topic_is_there(change, timeout, longest_s):
    async with paper_cluster() as cluster:
        cluster.brokers.led.clear()
        begun_s = now_s()
        answer = await change(cluster, timeout)
        assert longest_s <= now_s() - begun_s < longest_s + 0.1
        rows = getattr(answer, "topics", None) or answer.results
        assert rows[0].error_code is OK
        assert cluster.catalog.by_name("orders") is not None


# -- assignments by hand --------------------------------------------------------------------------


async def assigned(cluster, *broker_ids):
    topic = new_topic("orders", assignments=list(enumerate(broker_ids)))
    answer = await cluster.ask(
        k19_create_topics, 7, topics=[topic], timeout=1000, validate_only=False
    )
    return answer.topics[0]


async def test_an_assignment_to_gateways_that_live_sets_the_sizes():
    async with paper_cluster() as cluster:
        made = await assigned(cluster, (1, 3), (5, 1))
        assert (made.error_code, made.num_partitions, made.replication_factor) == (OK, 2, 2)


@pytest.mark.parametrize(
    ("broker_ids", "message"),
    [
        ([(1, 7)], "includes broker 7, but no such broker is registered."),
        ([(1, 1)], "includes the broker 1 more than once."),
        ([()], "includes an empty replica list."),
        (
            [(1, 3), (5,)],
            "includes a partition with 1 replica(s), but this is not consistent with previous "
            "partitions, which have 2 replica(s).",
        ),
    ],
)
async def test_an_assignment_that_makes_no_sense_is_refused(broker_ids, message):
    async with paper_cluster() as cluster:
        refused = await assigned(cluster, *broker_ids)
        assert refused.error_code is ErrorCode.invalid_replica_assignment
        assert refused.error_message == f"The manual partition assignment {message}"
        assert cluster.catalog.all() == []
