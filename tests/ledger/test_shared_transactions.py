"""Goal: callers that share a transaction each get their own outcome; few serve many callers.

Method: callers at once on the simulated metadata store; some are refused or cancelled, or get no
reply.
"""

import asyncio
from random import Random

import pytest

from ledger.errors import BadVersion, EntryTooLarge, LedgerError, MetadataUnavailable, NodeExists
from ledger.ports.metadata import Create, Delete, Set
from ledger.streams.shared_transactions import BYTES_MAX, TOGETHER_MAX, SharedTransactions
from tests.sim.metadata import MetadataFaults, SimMetadata


class World:
    """A store that counts its transactions, and its callers."""

    def __init__(self, **faults):
        self.store = SimMetadata(faults=MetadataFaults(draw=Random(1), latency_s=0.01, **faults))
        self.sizes = []
        multi = self.store.multi

        async def counted(ops):
            self.sizes.append(len(ops))
            await multi(ops)

        self.store.multi = counted
        self.shared = SharedTransactions(self.store)

    @property
    def names(self):
        return sorted(path[1:] for path in self.store.tree.nodes if path != "/")

    async def all(self, *callers):
        """Return how each of the callers ended: None or an error."""
        ended = await asyncio.gather(*map(self.shared.multi, callers), return_exceptions=True)
        assert all(one is None or isinstance(one, LedgerError) for one in ended)
        return ended


async def test_a_caller_alone_makes_its_own_transaction():
    world = World()
    assert await world.all([Create("/a", b"1"), Create("/b")]) == [None]
    assert world.sizes == [2]


async def test_many_callers_need_few_transactions():
    world = World()
    names = [f"{number:04}" for number in range(1_000)]
    assert set(await world.all(*([Create(f"/{name}")] for name in names))) == {None}
    assert world.names == names
    assert len(world.sizes) == -(-1_000 // TOGETHER_MAX)


async def test_a_refused_caller_has_its_own_error_and_the_others_are_served():
    world = World()
    await world.store.create("/old", b"")
    callers = [[Create("/a")], [Create("/old")], [Set("/old", b"2", 7)], [Create("/b")]]
    ended = await world.all(*callers)
    assert [type(one) for one in ended] == [type(None), NodeExists, BadVersion, type(None)]
    assert world.names == ["a", "b", "old"]


async def test_a_caller_is_served_whole_or_not_at_all():
    world = World()
    await world.store.create("/old", b"")
    callers = [[Create("/a"), Create("/old")], [Delete("/old", 5), Create("/b")], [Create("/c")]]
    ended = await world.all(*callers)
    assert [type(one) for one in ended] == [NodeExists, BadVersion, type(None)]
    assert world.names == ["c", "old"]


@pytest.mark.parametrize("reply_lost", [0.0, 1.0])
async def test_nobody_is_told_that_a_transaction_without_a_reply_failed_or_succeeded(reply_lost):
    world = World(reply_lost=reply_lost)
    if not reply_lost:
        world.store.expire()  # the call does not reach the store
    ended = await world.all([Create("/a")], [Create("/b")])
    assert [type(one) for one in ended] == [MetadataUnavailable] * 2
    assert world.names == (["a", "b"] if reply_lost else [])


async def test_what_a_cancelled_caller_waited_with_is_not_sent():
    world = World()
    first = [asyncio.create_task(world.shared.multi([Create(f"/{n}")])) for n in range(600)]
    await asyncio.sleep(0)
    late = asyncio.create_task(world.shared.multi([Create("/late")]))
    await asyncio.sleep(0.001)
    late.cancel()
    await asyncio.gather(*first)
    assert "late" not in world.names
    assert len(world.names) == 600


async def test_large_nodes_share_no_transaction():
    world = World()
    size = BYTES_MAX // 2 + 1
    ended = await world.all(*([Create(f"/{name}", bytes(size))] for name in "abc"))
    assert ended == [None] * 3
    assert world.sizes == [1, 1, 1]


async def test_what_the_store_finds_too_large_together_goes_alone():
    world = World()
    multi = world.store.multi

    async def bounded(ops):
        if len(ops) > 1:
            raise EntryTooLarge("a test")
        await multi(ops)

    world.store.multi = bounded
    assert await world.all([Create("/a")], [Create("/b")]) == [None, None]
    assert world.names == ["a", "b"]


async def test_an_error_that_nobody_expects_leaves_no_caller_waiting():
    world = World()

    async def broken(ops):
        raise RuntimeError("a bug")

    world.store.multi = broken
    ended = await world.all([Create("/a")], [Create("/b")])
    assert [type(one) for one in ended] == [MetadataUnavailable] * 2
