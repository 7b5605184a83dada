"""Goal: a cluster is laid out once however many try, and no ledger id is ever given twice.

Method: the real functions on the simulated store; rivals and lost calls by seed; the counters of
`idgen` and of HOB nodes set to their ends by hand.
"""

import asyncio
import random

import pytest

from ledger.errors import ForeignLayout, MetadataUnavailable
from ledger.registry import layout
from ledger.registry.ledger_ids import first_unused_ledger, next_ledger_id, take_ledger_id
from tests.sim.metadata import MetadataFaults, MetadataTree, SimMetadata

HIERARCHICAL = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"


def lossy(tree, seed):
    draw = random.Random(seed)
    return SimMetadata(tree, MetadataFaults(draw=draw, unsent=0.1, reply_lost=0.2))


async def insist(call):
    while True:
        try:
            return await call()
        except MetadataUnavailable:
            continue


def test_a_new_cluster_has_the_nodes_that_bookkeeper_expects():
    tree = MetadataTree()
    assert asyncio.run(layout.init_layout(SimMetadata(tree), lambda: "an-id")) == "an-id"
    assert {path: node.data for path, node in tree.below("/").items()} == {
        "/ledgers": b"",
        "/ledgers/LAYOUT": HIERARCHICAL,
        "/ledgers/INSTANCEID": b"an-id",
        "/ledgers/available": b"",
        "/ledgers/available/readonly": b"",
    }


@pytest.mark.parametrize("seed", range(20))
async def test_rivals_that_lose_calls_agree_on_one_instance(seed):
    tree = MetadataTree()

    stores = [lossy(tree, seed * 10 + n) for n in range(4)]
    assert set(
        await asyncio.gather(
            *(
                insist(lambda store=store, n=n: layout.init_layout(store, lambda: f"id-{n}"))
                for n, store in enumerate(stores)
            )
        )
    ) == {tree.get("/ledgers/INSTANCEID").data.decode()}
    assert tree.get("/ledgers/LAYOUT").data == HIERARCHICAL


@pytest.mark.parametrize("missing", ["LAYOUT", "INSTANCEID", "available/readonly", "available"])
def test_a_half_made_cluster_is_completed_and_the_rest_left_alone(missing):
    tree = MetadataTree()
    store = SimMetadata(tree)
    asyncio.run(layout.init_layout(store, lambda: "first"))
    before = tree.below("/")
    if missing == "available":
        tree.delete("/ledgers/available/readonly")
    tree.delete(f"/ledgers/{missing}")
    again = asyncio.run(layout.init_layout(store, lambda: "second"))
    assert again == ("second" if missing == "INSTANCEID" else "first")
    assert tree.below("/").keys() == before.keys()


@pytest.mark.parametrize(
    "data",
    [
        b"2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:1",
        b"2\norg.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory:1",
        HIERARCHICAL[:-1] + b"2",
        b"3" + HIERARCHICAL[1:],
        b"\xff",
        b"",
    ],
)
def test_another_layout_is_refused_and_nothing_is_added(data):
    tree = MetadataTree()
    tree.create("/ledgers/LAYOUT", data, parents=True)
    before = tree.below("/")
    with pytest.raises(ForeignLayout):
        asyncio.run(layout.init_layout(SimMetadata(tree), lambda: "id"))
    assert tree.below("/") == before


def test_a_store_without_a_cluster_has_no_instance():
    with pytest.raises(ForeignLayout):
        asyncio.run(layout.read_instance_id(SimMetadata()))


@pytest.mark.real_loop
async def test_ids_rise_from_zero_and_leave_nothing_behind():
    tree = MetadataTree()

    assert [await next_ledger_id(SimMetadata(tree)) for _ in range(3)] == [0, 1, 2]
    assert list(tree.below("/ledgers")) == ["/ledgers/idgen"]


def spend(tree, parent, number):
    """The next number below `parent` is `number`."""
    if parent not in tree.nodes:
        tree.create(parent, b"", parents=True)
    tree.nodes[parent].next_sequence = number


@pytest.mark.parametrize("wrapped", [2**31 - 1, -(2**31)])
def test_after_the_last_short_id_come_long_ones_for_ever(wrapped):
    tree = MetadataTree()
    store = SimMetadata(tree)
    spend(tree, "/ledgers/idgen", 2**31 - 2)
    assert asyncio.run(next_ledger_id(store)) == 2**31 - 2
    spend(tree, "/ledgers/idgen", wrapped)
    assert asyncio.run(next_ledger_id(store)) == 1 << 32
    spend(tree, "/ledgers/idgen", 5)
    assert asyncio.run(next_ledger_id(store)) == (1 << 32) + 1
    assert asyncio.run(first_unused_ledger(store)) == (1 << 32) + 2


def test_a_full_high_node_is_followed_by_the_next_and_three_are_kept():
    tree = MetadataTree()
    store = SimMetadata(tree)
    for high in range(1, 6):
        spend(tree, f"/ledgers/idgen-long/HOB-{high:010d}", 2**31 - 1)
    assert asyncio.run(next_ledger_id(store)) == 6 << 32
    assert asyncio.run(next_ledger_id(store)) == (6 << 32) + 1
    kept = tree.names("/ledgers/idgen-long")
    assert kept == ["HOB-0000000004", "HOB-0000000005", "HOB-0000000006"]


def test_names_that_are_no_high_nodes_are_passed_over():
    tree = MetadataTree()
    for name in ("HOB-", "HOB-x", "HOB-²", "other"):
        tree.create(f"/ledgers/idgen-long/{name}", b"", parents=True)
    assert asyncio.run(next_ledger_id(SimMetadata(tree))) == 1 << 32


@pytest.mark.parametrize("seed", range(30))
async def test_no_id_is_given_twice_while_counters_wrap_and_calls_are_lost(seed):
    tree = MetadataTree()
    spend(tree, "/ledgers/idgen", 2**31 - 4)
    given = []

    async def creator(number):
        store = lossy(tree, seed * 10 + number)
        for _ in range(6):
            given.append((await insist(lambda: take_ledger_id(store))).ledger)

    async def filler():
        for high in range(1, 6):
            await asyncio.sleep(0.03)
            spend(tree, f"/ledgers/idgen-long/HOB-{high:010d}", 2**31 - 2)

    await asyncio.gather(filler(), *map(creator, range(4)))
    assert len(given) == len(set(given)) == 24
    assert min(given) < 2**31 - 1
    assert max(given) >> 32 >= 1
