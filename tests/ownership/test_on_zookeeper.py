"""Goal: what clusters promise holds on a real ZooKeeper: sessions that end, cuts, large nodes.

Method: each gateway is a session of its own behind a proxy, in this process; no gateway here opens
anything, it only says at once that it did.
"""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from gateway.cluster.lease import Lease
from gateway.cluster.port import StreamKey
from gateway.cluster.zookeeper_cluster import ZooKeeperCluster
from gateway.topics.catalog import Catalog
from ledger.adapters.system.clock import SystemClock
from ledger.adapters.zookeeper.zookeeper_metadata import connect_zookeeper
from ledger.errors import NotOwner
from tests.ledger.zookeeper_rig import end_session, in_some_try
from tests.peers.processes import until
from tests.peers.proxy import BOTH, Proxy

pytestmark = pytest.mark.real_loop

SESSION_MS = 1_000
LASTING_MS = 20_000  # outlasts what a busy machine makes thousands of requests wait for


class Gateway:
    """One gateway on its own session."""

    def __init__(self, server, proxy, store, node_id, session_ms):
        self.server, self.proxy, self.store = server, proxy, store
        self.epochs = {}
        self.catalog = Catalog(store, bookies=lambda: 3)
        clock = SystemClock()
        self.cluster = ZooKeeperCluster(
            store,
            self.catalog,
            clock,
            node_id=node_id,
            host="127.0.0.1",
            port=9092,
            rack="",
            session_ms=session_ms,
            lease=Lease(clock, lambda: store.confirmed_s, lambda: store.negotiated_session_ms),
            balance_settle_s=0.3,
        )
        self.cluster.set_hand_over(self.hand_over)
        self.held = set()
        self.expired = []  # what was held, and whether the lease was, each time
        self.cluster.on_expired(
            lambda: self.expired.append((set(self.held), self.cluster.lease_held()))
        )

    def gained(self, key):
        self.held.add(key)
        self.epochs[key] = self.epochs.get(key, 0) + 1
        self.cluster.note_opened(key, self.epochs[key])

    def lost(self, key):
        self.held.discard(key)

    async def hand_over(self, key):
        pass

    def owned(self, topic):
        return {
            p for p in range(topic.partitions) if self.cluster.owns(StreamKey(topic.topic_id, p))
        }

    def sees_led(self, topic):
        return self.cluster._partitions.state.is_led(topic.topic_id)


@pytest.fixture
def gateways(zookeeper):
    """Opens a cluster: a function that starts the gateway of a node id."""

    @asynccontextmanager
    async def starter():
        root = zookeeper.unused_chroot()
        async with AsyncExitStack() as stack:

            async def start(node_id, session_ms=SESSION_MS):
                proxy = stack.enter_context(Proxy(zookeeper.port))
                store = await connect_zookeeper(
                    proxy.address, session_ms=session_ms, chroot=root, prove_session=True
                )
                stack.push_async_callback(store.close)
                made = Gateway(zookeeper, proxy, store, node_id, session_ms)
                await made.catalog.load()
                stack.push_async_callback(made.catalog.close)
                await made.cluster.start(made)
                stack.push_async_callback(made.cluster.stop)
                return made

            yield start

    return starter


async def all_led(topic, *gateways, timeout_s=30):
    def led():
        owned = [one.owned(topic) for one in gateways]
        return sum(map(len, owned)) == topic.partitions == len(set().union(*owned))

    await until(
        lambda: led() and all(one.sees_led(topic) for one in gateways), "all are led", timeout_s
    )


async def test_a_killed_owner_is_followed_when_its_session_ends(gateways, zookeeper):
    async def followed_in_time():
        async with gateways() as start:
            one, two = await start(1), await start(2)
            topic = await one.catalog.create("events", 8, 2, {})
            await all_led(topic, one, two)
            for way in BOTH:
                two.proxy.freeze(way)
            cut_s = time.monotonic()
            await until(lambda: len(one.owned(topic)) == 8, "taken over")
            took_s = time.monotonic() - cut_s
            assert not two.cluster.lease_held()
            two.proxy.heal()
            await until(lambda: two.expired, "it hears of it")
            await all_led(topic, one, two)
            return 0.5 * SESSION_MS / 1000 < took_s < 3 * SESSION_MS / 1000

    assert await in_some_try(followed_in_time, zookeeper)


async def test_a_lease_ends_before_the_session_of_who_is_cut_off(gateways, zookeeper):
    async def ends_before():
        async with gateways() as start:
            one, two = await start(1), await start(2)
            topic = await one.catalog.create("events", 8, 2, {})
            await all_led(topic, one, two)
            for way in BOTH:
                two.proxy.freeze(way)
            await until(lambda: not two.cluster.lease_held(), "the lease ends")
            before = len(one.owned(topic)) < 8
            await until(lambda: len(one.owned(topic)) == 8, "taken over")
            assert not two.cluster.lease_held()
            two.proxy.heal()
            return before

    # A server that stands still keeps a session longer, so it is no excuse here.
    assert await in_some_try(ends_before, zookeeper, late_s=math.inf)


async def test_a_cut_shorter_than_the_session_changes_no_owner(gateways):
    async with gateways() as start:
        one, two = await start(1, LASTING_MS), await start(2, LASTING_MS)
        topic = await one.catalog.create("events", 8, 2, {})
        await all_led(topic, one, two)
        owned = one.owned(topic), two.owned(topic)
        accepted = two.proxy.accepted
        two.proxy.cut()
        await until(lambda: two.proxy.accepted > accepted, "connected again")
        await two.store.sync("/")
        other = await one.catalog.create("others", 8, 2, {})
        await all_led(other, one, two)
        assert (one.owned(topic), two.owned(topic)) == owned
        assert not two.expired


async def test_who_lost_its_session_comes_back_with_nothing(gateways):
    async with gateways() as start:
        one, two = await start(1, LASTING_MS), await start(2, LASTING_MS)
        topic = await one.catalog.create("events", 8, 2, {})
        await all_led(topic, one, two)
        old = two.cluster._membership.incarnation
        end_session(two.server, two.proxy, two.store)
        await until(lambda: two.expired, "it hears of it")
        assert two.expired == [(set(), False)]
        await until(two.cluster.lease_held, "it is back")
        assert two.cluster._membership.incarnation != old
        await all_led(topic, one, two)


async def test_a_hand_over_leaves_every_stream_with_the_other_one(gateways):
    async with gateways() as start:
        one, two = await start(1, LASTING_MS), await start(2, LASTING_MS)
        topic = await one.catalog.create("events", 100, 2, {})
        await all_led(topic, one, two)
        await two.cluster.hand_over_all(two.hand_over)
        assert two.owned(topic) == set()
        await all_led(topic, one)


async def test_a_second_process_of_one_node_id_is_refused(gateways, zookeeper):
    async with gateways() as start:
        await start(1, LASTING_MS)

        async def refused():
            with pytest.raises(NotOwner, match="gateway 1"):
                await start(1)
            return True

        assert await in_some_try(refused, zookeeper)


async def test_ten_thousand_partitions_of_one_topic_are_led_and_taken_over(gateways):
    async with gateways() as start:
        one, two = await start(1, LASTING_MS), await start(2, LASTING_MS)
        topic = await one.catalog.create("events", 10_000, 2, {})
        await all_led(topic, one, two, timeout_s=60)
        await two.cluster.stop()
        await all_led(topic, one, timeout_s=60)
        assert len(one.owned(topic)) == 10_000


async def test_thousands_of_claims_are_found_by_one_read_and_claimed_again(gateways):
    async with gateways() as start:
        one, two = await start(1, LASTING_MS), await start(2, LASTING_MS)
        await until(lambda: len(two.cluster._partitions.state.ring.nodes) == 2, "both know both")
        ring = two.cluster._partitions.state.ring
        names = [f"group-{n}" for n in range(6_000) if ring.candidate(f"group-{n}") == 2]
        await asyncio.gather(*map(two.cluster.claim, names))
        await two.cluster.stop()
        await until(lambda: one.cluster._partitions.state.ring.nodes == (1,), "one is alone")
        orphans = await one.cluster.orphans()
        assert orphans == sorted(names)
        await asyncio.gather(*map(one.cluster.claim, orphans))
        assert await one.cluster.orphans() == []


async def test_no_lease_is_held_between_the_loss_of_a_session_and_its_news(gateways):
    async with gateways() as start:
        one = await start(1, LASTING_MS)
        held = []

        def on_renewed():  # told before the cluster is told: it must not answer any more
            held.append(one.cluster.lease_held())

        watchers = one.store._session_watchers
        one.store.watch_session(on_renewed)
        watchers.insert(0, watchers.pop())
        end_session(one.server, one.proxy, one.store)
        await until(lambda: held, "the loss is told")
        assert held == [False]
        await until(one.cluster.lease_held, "it is back")
