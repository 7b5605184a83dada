"""Goal: a tree that is read node by node misses no node that is only renamed meanwhile.

Method: the walks of the adapter of ZooKeeper over the simulated store, whose nodes are renamed
between the reads of single nodes. Then the walk that looks once is planted, which must miss some.
"""

import asyncio
from random import Random

import pytest
from kazoo.protocol import serialization as wire

from ledger.adapters.zookeeper.zookeeper_metadata import ZooKeeperMetadata
from ledger.errors import NoNode
from ledger.ports.metadata import Create, Delete, Node
from tests.sim.loop import simulate
from tests.sim.metadata import MetadataFaults, MetadataTree, SimMetadata

SEEDS = 200
STREAMS = ("a", "b")


async def missed(seed):
    """Streams whose one segment a walk did not find."""
    draw = Random(seed)
    tree = MetadataTree()
    renamer = SimMetadata(tree, MetadataFaults(draw))
    reader = SimMetadata(tree, MetadataFaults(draw, node_by_node=True))
    for stream in STREAMS:
        await renamer.create(f"/streams/{stream}/open-0", b"segment", parents=True)

    async def rename():
        for number in range(1, 40):
            stream = draw.choice(STREAMS)
            (old,) = await renamer.children(f"/streams/{stream}")
            await renamer.multi(
                [
                    Delete(f"/streams/{stream}/{old}"),
                    Create(f"/streams/{stream}/open-{number}", b"segment"),
                ]
            )

    renaming = asyncio.create_task(rename())
    found = set()
    while not renaming.done():
        nodes = await reader.read_tree("/streams")
        segments = {path for path, node in nodes.items() if node.data == b"segment"}
        found |= {one for one in STREAMS if not any(f"/{one}/" in path for path in segments)}
    await renaming
    return found


async def walk_once(self, path):
    """What was deleted after it was listed is left out."""
    tree, level = {}, [path]
    while level:
        below = [
            f"{node}/{name}"
            async for node, names in self._each(wire.GetChildren, level)
            for name in names
        ]
        async for node, (data, stat) in self._each(wire.GetData, below):
            tree[node] = Node(data, stat.version)
        level = below
    return tree


def test_a_renamed_node_is_found_under_one_of_its_names():
    assert not any(simulate(missed(seed)) for seed in range(SEEDS))


def test_a_walk_that_looks_once_is_found_out(monkeypatch):
    monkeypatch.setattr(ZooKeeperMetadata, "read_tree", walk_once)
    assert any(simulate(missed(seed)) for seed in range(SEEDS))


async def test_a_node_that_goes_between_list_and_read_is_left_out():
    tree = MetadataTree()
    store = SimMetadata(tree, MetadataFaults(Random(1), node_by_node=True))
    for name in "abc":
        await store.create(f"/above/{name}", parents=True)
    walk = asyncio.create_task(store.read_tree("/above"))
    read, store._data = store._data, lambda path: _after_delete(tree, read, path)
    assert set(await walk) == {"/above/a", "/above/c"}
    with pytest.raises(NoNode):
        await store.get("/above/b")


def _after_delete(tree, read, path):
    if path == "/above/a" and "/above/b" in tree.nodes:
        tree.delete("/above/b")
    return read(path)
