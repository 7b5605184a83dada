"""Goal: Spark's queries show up as groups to whoever asks, in Kafka's words, and give way to real
groups of their name.

Method: Fetch in Kafka's bytes over simulated streams, group requests over the coordinator on
virtual time; gateways ask each other over real sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager

import pytest
from kio.schema.errors import ErrorCode

from gateway.cluster import peers
from gateway.cluster.port import ClusterMember
from gateway.cluster.single_broker import SingleBroker
from gateway.config import ConnectionLimits, ReaderLimits
from gateway.core.group_members import State
from gateway.server.listener import Server
from tests.gateway import stream_cluster
from tests.gateway.group_world import World
from tests.gateway.test_fetch import batch, fetch, one
from tests.peers.processes import until

QUERY = "spark-kafka-source-0f8fad5b-d9cb-469f-a165-70867728950e--12345-executor"
CLIENT = f"consumer-{QUERY}-1"
REST_S = 120  # a group that nobody asks for is out of memory by then
OTHER = f"consumer-{QUERY}-2"
LONG_S = 30  # no stall of the machine lasts as long


@asynccontextmanager
async def new_world(**settings):
    async with World(**settings) as world:
        yield world


# --- from fetches --------------------------------------------------------------------------------


def positions(cluster):
    """{group: {(topic, partition): offset}}, as this gateway knows them."""
    return {
        group.name: {
            (cluster.catalog.by_id(topic_id).name, index): at.offset
            for (topic_id, index), at in group.fetches.items()
        }
        for group in cluster.context.read_only_groups.known()
    }


@pytest.mark.parametrize("version", [4, 12, 13, 18])
async def test_a_fetch_of_an_executor_tells_where_its_query_stands(version):
    async with stream_cluster.started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch(2), batch(3))
        cluster.client_id = CLIENT
        await one(cluster, 2, version=version)
        assert positions(cluster) == {QUERY: {("t", 0): 2}}


async def test_a_session_that_goes_on_tells_only_what_has_changed_and_keeps_the_rest():
    async with stream_cluster.started_cluster() as cluster:
        await cluster.topic(partitions=2)
        for index in range(2):
            await cluster.sent(await cluster.partition("t", index), batch(2))
        cluster.client_id = CLIENT
        both = {"t": {0: (0, {}), 1: (0, {})}}
        first = await fetch(cluster, both, session_epoch=0)
        follow = {"session_id": first.session_id, "session_epoch": 1}
        await fetch(cluster, {"t": {1: (2, {})}}, **follow)
        assert positions(cluster) == {QUERY: {("t", 0): 0, ("t", 1): 2}}


async def test_a_fetch_of_anybody_else_tells_nothing():
    async with stream_cluster.started_cluster() as cluster:
        await cluster.sent(await cluster.topic(), batch(2))
        for client in ("test", "consumer-g-1", "consumer-my-executor-1", "", None):
            cluster.client_id = client
            await one(cluster, 0)
        assert positions(cluster) == {}


async def test_what_no_partition_has_is_not_kept():
    async with stream_cluster.started_cluster() as cluster:
        await cluster.sent(await cluster.topic(), batch(2))
        cluster.client_id = CLIENT
        await fetch(cluster, {"t": {99: (0, {}), 0: (-3, {})}, "absent": {0: (0, {})}}, wait_ms=0)
        assert positions(cluster) == {}


async def test_a_deleted_topic_takes_its_positions_along():
    async with stream_cluster.started_cluster() as cluster:
        await cluster.sent(await cluster.topic(), batch(2))
        cluster.client_id = CLIENT
        await one(cluster, 0)
        await cluster.catalog.delete("t")
        assert positions(cluster) == {}


# --- to whoever asks -----------------------------------------------------------------------------


async def listed(world, version=5, **filters):
    body = {"states_filter": [], "types_filter": [], **filters}
    return (await world.ask(16, version, body)).groups


async def described(world, group=QUERY):
    (found,) = (await world.ask(15, 6, {"groups": [group]})).groups
    return found


async def offsets(world, group=QUERY, version=9, topics=None, client="c"):
    asked = {"group_id": group, "topics": topics, "member_epoch": -1}
    answer = await world.ask(9, version, {"groups": [asked]}, client)
    return {
        (topic.name if version < 10 else topic.topic_id, each.partition_index): (
            each.committed_offset,
            each.metadata,
        )
        for topic in answer.groups[0].topics
        for each in topic.partitions
    }


async def test_it_is_listed_as_read_only():
    async with new_world() as world:
        world.fetched(CLIENT, 5)
        (group,) = await listed(world)
        assert (group.group_id, group.group_type, group.group_state) == (
            QUERY,
            "read-only",
            "Stable",
        )


@pytest.mark.parametrize(
    ("filters", "shown"),
    [
        ({"types_filter": ["Classic", "Consumer"]}, True),
        ({"types_filter": ["read-only"]}, True),
        ({"types_filter": ["Share"]}, False),
        ({"states_filter": ["Stable"]}, True),
        ({"states_filter": ["Empty"]}, False),
    ],
)
async def test_filters_take_it_for_a_classic_group_with_members(filters, shown):
    async with new_world() as world:
        world.fetched(CLIENT, 5)
        assert bool(await listed(world, **filters)) == shown


async def test_its_clients_are_members_that_hold_what_they_fetched_last():
    async with new_world() as world:
        world.fetched(CLIENT, 5, partition=0)
        world.fetched(CLIENT, 5, partition=2)
        world.fetched(OTHER, 7, partition=1)
        world.fetched(OTHER, 7, partition=2)
        group = await described(world)
        assert (group.group_state, group.protocol_type) == (State.STABLE.value, "consumer")
        assert group.protocol_data == "read-only"
        assert {(m.client_id, m.client_host) for m in group.members} == {
            (CLIENT, "/127.0.0.1"),
            (OTHER, "/127.0.0.1"),
        }
        assert held(group) == {CLIENT: [("t", [0])], OTHER: [("t", [1, 2])]}


def held(group):
    """What each member holds, decoded as consumers do."""
    from kio._kio_native import entity_reader
    from kio.schema.consumer_protocol_assignment import v0

    read = entity_reader(v0.ConsumerProtocolAssignment)
    return {
        member.client_id: [
            (topic.topic, list(topic.partitions))
            for topic in read(member.member_assignment, 2)[0].assigned_partitions
        ]
        for member in group.members
    }


@pytest.mark.parametrize("version", [8, 9, 10])
async def test_its_offsets_are_what_its_clients_fetch_next(version):
    async with new_world() as world:
        world.fetched(CLIENT, 5)
        world.fetched(CLIENT, 6)
        topic = world.catalog.by_name("t")
        named = "t" if version < 10 else topic.topic_id
        assert await offsets(world, version=version) == {(named, 0): (6, "")}


async def test_a_partition_that_it_never_fetched_has_no_offset():
    async with new_world() as world:
        world.fetched(CLIENT, 5)
        asked = [{"name": "t", "partition_indexes": [0, 1]}]
        found = await offsets(world, topics=asked)
        assert found == {("t", 0): (5, ""), ("t", 1): (-1, "")}


async def test_it_cannot_be_deleted_while_it_is_known():
    async with new_world() as world:
        world.fetched(CLIENT, 5)
        answer = await world.ask(42, 2, {"groups_names": [QUERY, "absent"]})
        assert [each.error_code for each in answer.results] == [
            ErrorCode.non_empty_group,
            ErrorCode.group_id_not_found,
        ]


async def test_a_commit_makes_a_real_group_which_goes_first():
    async with new_world() as world:
        world.fetched(CLIENT, 5)
        world.fetched(CLIENT, 8, partition=1)
        await world.commit(QUERY, 2)
        assert await offsets(world) == {("t", 0): (2, "")}
        (group,) = await listed(world)
        assert (group.group_type, group.group_state) == ("classic", "Empty")
        assert (await described(world)).group_state == "Empty"


async def test_a_real_group_goes_first_also_when_it_rests():
    async with new_world() as world:
        world.fetched(CLIENT, 5)
        await world.commit(QUERY, 2)
        await asyncio.sleep(REST_S)
        assert not world.loaded
        assert [group.group_type for group in await listed(world)] == ["classic"]


async def test_a_member_makes_a_real_group_without_any_offset():
    async with new_world() as world:
        world.fetched(CLIENT, 5)
        member = world.consumer(QUERY)
        await member.join()
        assert await offsets(world) == {}
        assert [group.group_type for group in await listed(world)] == ["classic"]


async def test_a_real_group_that_is_deleted_lets_the_read_only_one_show_again():
    async with new_world() as world:
        world.fetched(CLIENT, 5)
        await world.commit(QUERY, 2)
        await world.ask(42, 2, {"groups_names": [QUERY]})
        assert await offsets(world) == {("t", 0): (5, "")}


async def test_who_assigns_itself_partitions_is_not_told_its_last_fetch_as_a_commit():
    """It would go on there after a restart, where Kafka lets `auto.offset.reset` decide."""
    async with new_world() as world:
        client = "consumer-g-1"  # of any Java consumer of group g, and of Spark's with that group
        world.fetched(client, 5)
        assert await offsets(world, group="g", client=client) == {}
        assert (await described(world, "g")).error_code is ErrorCode.group_id_not_found
        assert not await listed(world)


# --- over several gateways -----------------------------------------------------------------------


class Cluster(SingleBroker):
    """Gateways on sockets of this process; each coordinates whatever it is asked about."""

    def __init__(self, node_id, members):
        super().__init__(node_id)
        self._members = members

    def members(self):
        return self._members


@contextlib.asynccontextmanager
async def gateways(ask_s_max, count=2):
    """Gateways that share their metadata and know of each other."""
    members = []
    async with contextlib.AsyncExitStack() as stack:
        worlds = []
        for node_id in range(count):
            world = World(delay_s=0) if not worlds else World(delay_s=0, tree=worlds[0].tree)
            world.cluster = Cluster(node_id, members)
            world.reader_limits = ReaderLimits(ask_s_max=ask_s_max)
            worlds.append(await stack.enter_async_context(world))
            server = Server(world.dispatcher, ConnectionLimits())
            await server.start("127.0.0.1", 0)
            stack.push_async_callback(server.stop)
            members.append(ClusterMember(node_id, "127.0.0.1", server.port, "", ""))
        yield worlds, members


@asynccontextmanager
async def over_sockets(ask_s_max=LONG_S):
    """Yield two gateways that wait this long for each other's answers."""
    async with asyncio.timeout(2 * LONG_S), gateways(ask_s_max) as (worlds, members):
        yield worlds, members


@pytest.mark.real_loop
async def test_whoever_is_asked_puts_together_what_all_gateways_know():
    async with over_sockets() as (worlds, _):
        worlds[0].fetched(CLIENT, 5, partition=0)
        worlds[1].fetched(OTHER, 7, partition=1)
        for world in worlds:
            assert await offsets(world) == {("t", 0): (5, ""), ("t", 1): (7, "")}
            assert held(await described(world)) == {CLIENT: [("t", [0])], OTHER: [("t", [1])]}


@pytest.mark.real_loop
async def test_each_gateway_lists_what_fetches_from_it():
    async with over_sockets() as (worlds, _):
        worlds[1].fetched(OTHER, 7)
        assert [len(await listed(world)) for world in worlds] == [0, 1]


@pytest.mark.real_loop
async def test_a_gateway_that_cannot_be_reached_is_left_out():
    async with over_sockets() as (worlds, members):
        worlds[0].fetched(CLIENT, 5)
        members.append(ClusterMember(9, "127.0.0.1", 1, "", ""))
        assert await offsets(worlds[0]) == {("t", 0): (5, "")}


@pytest.mark.real_loop
async def test_a_gateway_that_does_not_answer_holds_nobody_up_for_long(monkeypatch):
    monkeypatch.setattr(peers, "AWAY_S", 20 * LONG_S)
    async with over_sockets(ask_s_max=0.2) as (worlds, members):
        asked = 0

        async def say_nothing(reader, writer):
            nonlocal asked
            asked += 1
            await reader.read()
            writer.close()

        silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
        members.append(ClusterMember(9, *silent.sockets[0].getsockname(), "", ""))
        worlds[0].fetched(CLIENT, 5)
        async with asyncio.timeout(LONG_S):
            for _ in range(3):
                assert await offsets(worlds[0]) == {("t", 0): (5, "")}
        await until(lambda: asked, "the silent gateway to be asked")
        assert asked == 1
        silent.close()
