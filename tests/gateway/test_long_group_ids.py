"""Goal: a group with the longest id that a request can name harms no other group.

Method: group claims and committed offsets on a real ZooKeeper, which closes the connection of a
request of more than 1 MiB. A "/" takes three bytes in the name of a node, so one id takes 98,301.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from gateway.cluster.coordinator_ownership import COORDINATORS, CoordinatorOwnership
from gateway.cluster.membership import ClusterMembership
from gateway.core.ring import Ring
from gateway.wire.bounds_check import STRING_BYTES_MAX
from ledger.errors import EntryTooLarge
from ledger.ids import Dlsn
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition
from subscriptions.znodes.znode_store import GroupZnodeStore
from tests.gateway.group_world import World
from tests.ledger.zookeeper_rig import connected
from tests.peers.proxy import Proxy
from tests.sim.loop import SimClock

pytestmark = pytest.mark.real_loop

OFFSET_COMMIT = 8


TOPIC = UUID(int=7)


def offsets_of(partitions):
    return {
        TopicIdPartition(TOPIC, n): CommittedOffset(Dlsn(1, n, 0), n, 3, "", 1_700_000_000_000)
        for n in range(partitions)
    }


def long_id(number):
    return f"{number:02}" + "/" * (STRING_BYTES_MAX - 2)


@asynccontextmanager
async def store_of(zookeeper):
    """A store, and the number of its connections so far."""
    with Proxy(zookeeper.port) as proxy:
        async with connected(proxy.address, zookeeper.unused_chroot()) as store:
            yield store, lambda: proxy.accepted


@asynccontextmanager
async def claims_on(store):
    membership = ClusterMembership(
        store,
        SimClock(),
        node_id=1,
        host="host",
        port=9092,
        rack="",
        session_ms=10_000,
        new_token=lambda: "token",
    )
    await membership.register()
    await membership.refresh()
    try:
        yield CoordinatorOwnership(store, membership, lambda: Ring([1]))
    finally:
        await membership.close()


async def test_many_long_ids_are_looked_up_at_once_on_one_connection(zookeeper):
    """As FindCoordinator and DescribeGroups do for the ids of one request."""
    async with store_of(zookeeper) as (store, connections), claims_on(store) as claims:
        found = await asyncio.gather(*(claims.coordinator(long_id(n)) for n in range(16)))
        assert [member.node_id for member in found] == [1] * 16
        assert connections() == 1


async def test_groups_whose_names_exceed_a_transaction_are_claimed_in_several(zookeeper):
    groups = ["short", *map(long_id, range(8))]
    async with store_of(zookeeper) as (store, connections), claims_on(store) as claims:
        await asyncio.gather(*map(claims.claim, groups))
        assert len(await store.children(COORDINATORS)) == len(groups)
        assert connections() == 1


async def test_a_commit_that_is_too_large_fails_without_those_that_share_its_transaction(zookeeper):
    async with store_of(zookeeper) as (store, connections):
        groups = GroupZnodeStore(store)
        for group in ("short", long_id(0)):
            await groups.load(group)
        writes = [
            groups.advance("short", offsets_of(1)),
            groups.advance(long_id(0), offsets_of(12)),
        ]
        short, long = await asyncio.gather(*writes, return_exceptions=True)
        assert short is None
        assert isinstance(long, EntryTooLarge)
        assert (await groups.read("short")).offsets == offsets_of(1)
        await groups.close()
        assert connections() == 1


async def test_a_client_learns_that_its_commit_is_too_large(zookeeper):
    async with store_of(zookeeper) as (store, _):
        world = World()
        world.metadata = store
        async with world:
            await world.catalog.create("many", 12, 1, {})

            async def commit(group, partitions):
                body = {
                    "group_id": group,
                    "generation_id_or_member_epoch": -1,
                    "member_id": "",
                    "topics": [
                        {
                            "name": "many",
                            "partitions": [
                                {"partition_index": n, "committed_offset": 5}
                                for n in range(partitions)
                            ],
                        }
                    ],
                }
                reply = await world.ask(OFFSET_COMMIT, 8, body)
                return {each.error_code for each in reply.topics[0].partitions}

            assert await commit(long_id(0), 12) == {ErrorCode.invalid_commit_offset_size}
            assert await commit(long_id(0), 2) == {ErrorCode.none}
            assert await commit("short", 12) == {ErrorCode.none}
