"""Goal: after a takeover, what requests wait for is opened first, and nothing is answered before.

Method: the pure order; then one broker that gains hundreds of written partitions from a killed one,
on virtual time, asked for some of them while the rest are due.
"""

import asyncio

from kio.schema.errors import ErrorCode

from gateway.cluster.port import Leader, StreamKey
from gateway.core.opening_order import OpeningOrder
from gateway.topics.opening_turns import (
    AWAITED_S,
    OTHERS_AT_ONCE,
    RECOVERIES_AT_ONCE,
    OpeningTurns,
    Turns,
)
from tests.gateway.paper_cluster import PaperCluster, member
from tests.gateway.stream_cluster import LIST_OFFSETS, batch, started_cluster, times_of

MANY = 400
LATEST = -1


def taken(order):
    return [order.take() for _ in range(len(order))]


def test_what_is_asked_for_goes_first_then_what_was_written_most_recently_then_the_rest():
    order = OpeningOrder()
    for key, asked, recency in (
        ("idle", False, -1),
        ("old", False, 5),
        ("new", False, 9),
        ("asked", True, -1),
        ("idle too", False, -1),
    ):
        order.add(key, asked=asked, recency=recency)
    assert taken(order) == ["asked", "new", "old", "idle", "idle too"]


def test_a_request_moves_what_it_waits_for_to_the_front():
    order = OpeningOrder()
    for recency, key in enumerate("abcd"):
        order.add(key, asked=False, recency=recency)
    assert not order.asked
    order.ask("a")
    order.ask("a")
    order.ask("unknown")
    order.discard("d")
    assert order.asked
    assert taken(order) == ["a", "c", "b"]
    assert not order.asked


def test_of_what_is_asked_for_the_one_that_waits_longest_goes_first():
    """Else newer ones that cannot be opened, and come back, keep an older one from its turn."""
    order = OpeningOrder()
    order.add("new", asked=True, recency=9)
    order.add("old", asked=False, recency=1)
    order.ask("old")
    assert order.take() == "new"  # it cannot be opened, and comes back
    order.add("new", asked=True, recency=9)
    assert taken(order) == ["old", "new"]


async def test_turns_are_bounded_and_cancelled_waiters_leave_none_behind():
    turns, under_way, most = Turns(2), 0, 0

    async def take(key):
        nonlocal under_way, most
        async with turns.turn(key, asked=False):
            under_way += 1
            most = max(most, under_way)
            try:
                await asyncio.sleep(1)
            finally:
                under_way -= 1

    tasks = [asyncio.create_task(take(key)) for key in range(9)]
    await asyncio.sleep(0.5)
    for task in tasks[1:5]:  # one that has its turn, and three that wait
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (most, len(turns._order), turns._given) == (2, 0, 0)


async def test_few_others_begin_while_a_request_waits_but_not_for_long():
    turns, under_way = OpeningTurns(), set()

    async def take(key, over):
        async with turns.recoveries.turn(key, asked=False):
            under_way.add(key)
            await over.wait()
            under_way.discard(key)

    first, second = asyncio.Event(), asyncio.Event()
    tasks = [asyncio.create_task(take(key, first)) for key in range(RECOVERIES_AT_ONCE)]
    tasks += [asyncio.create_task(take(-key, second)) for key in range(1, 100)]
    await asyncio.sleep(0)
    assert len(under_way) == RECOVERIES_AT_ONCE
    with turns.awaited():
        first.set()
        await asyncio.sleep(AWAITED_S / 2)
        assert len(under_way) == OTHERS_AT_ONCE
        with turns.awaited():
            pass
        assert len(under_way) == OTHERS_AT_ONCE
        await asyncio.sleep(AWAITED_S)
        assert len(under_way) == RECOVERIES_AT_ONCE, "one that cannot open delays nothing for long"
    second.set()
    await asyncio.gather(*tasks)


async def taken_over(cluster, count):
    """The broker has gained `count` written partitions whose owner was killed; its catalog's topic,
    and the indexes in the order in which they open.
    """
    await cluster.catalog.create("t", count, 1, {})
    for index in range(count):
        partition = await cluster.partition("t", index)
        await cluster.sent(partition, batch(records=1 + index % 3))
    await cluster.crash()
    topic = cluster.catalog.by_name("t")
    opened = []
    cluster.partitions.on_opened = lambda key, epoch: opened.append(key.partition)
    for index in range(count):
        cluster.partitions.gained(StreamKey(topic.topic_id, index))
    return opened


def clustered():
    paper = PaperCluster(1, [member(1)], leader_of_others=Leader(1, 9))
    return started_cluster(cluster=paper, zookeeper="zk", node_id=1)


async def ends(cluster, *indexes):
    asked = times_of({"t": [(index, LATEST) for index in indexes]})
    reply = await cluster.answer(LIST_OFFSETS, 5, **asked)
    rows = reply.topics[0].partitions
    assert {row.error_code for row in rows} == {ErrorCode.none}
    return [row.offset for row in rows]


async def test_a_waiting_request_overtakes_hundreds_of_partitions_that_are_due():
    async with clustered() as cluster:
        opened = await taken_over(cluster, MANY)
        while len(opened) < 70:
            await asyncio.sleep(0.001)
        before = len(opened)
        assert await ends(cluster, 75) == [1]  # written long ago: it would be among the last
        # Only those overtake it that had their turn already, and the next ones meanwhile.
        assert opened.index(75) <= before + 2 * RECOVERIES_AT_ONCE
        while len(opened) < MANY:
            await asyncio.sleep(0.01)
        assert sorted(opened) == list(range(MANY))


async def test_without_requests_the_most_recently_written_are_opened_first():
    async with clustered() as cluster:
        opened = await taken_over(cluster, MANY)
        while len(opened) < MANY:
            await asyncio.sleep(0.01)
        # Not all: one whose opening failed comes back after a pause.
        newest = set(range(MANY - 100, MANY))
        assert len(newest.intersection(opened[: MANY // 2])) >= 90


async def test_nothing_is_answered_between_the_claim_and_the_recovery():
    async with clustered() as cluster:
        bookie = await stopped_fences(cluster)
        await taken_over(cluster, 3)
        partition = cluster.partitions.led("t", 1)
        answers = cluster.send(partition, batch(records=1))
        asking = asyncio.create_task(ends(cluster, 1, 2))
        await asyncio.sleep(0.5)
        assert not asking.done()
        assert not answers
        assert partition.is_leader
        bookie.set()
        assert await asking == [2, 3]
        await asyncio.sleep(1)
        assert [(each.error, each.base_offset) for each in answers] == [(ErrorCode.none, 2)]


async def stopped_fences(cluster):
    """The bookie answers fences once the event is set."""
    going = asyncio.Event()
    fence = cluster.port.bookie.fence

    async def late_fence(ledger, key):
        await going.wait()
        return await fence(ledger, key)

    cluster.port.bookie.fence = late_fence
    return going
