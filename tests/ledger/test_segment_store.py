"""Goal: every change of a stream's metadata happens once, or fails because of another owner.

Method: the store on simulated metadata, with lost replies, other owners and interrupted rolls.
"""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from ledger.core.segments import Segment, Truncation
from ledger.errors import BadVersion, CorruptFormat, MetadataUnavailable, NodeExists, NoNode
from ledger.streams.segment_store import (
    SegmentStore,
    create_streams,
    delete_stream,
    ledgers_of,
    list_streams,
    log_root,
)
from tests.sim.metadata import MetadataTree, SimMetadata


class LostReplies(SimMetadata):
    """The first `lost` replies to a multi do not arrive, whether it was carried out or not."""

    def __init__(self, tree, *, lost=1, unsent=False):
        super().__init__(tree)
        self.lost = lost
        self.unsent = unsent
        self.multis = 0

    async def multi(self, ops):
        self.multis += 1
        lose = self.multis <= self.lost
        if not (lose and self.unsent):
            await super().multi(ops)
        if lose:
            raise MetadataUnavailable("lost")


def segment(number, start=0):
    return Segment(number=number, ledger=100 + number, first_txid=start, start_sequence_id=start)


def completed(open_segment, count):
    return open_segment.complete(
        record_count=count,
        last_txid=open_segment.start_sequence_id + count - 1,
        last_entry=1,
        last_slot=0,
        completion_ms=1,
    )


async def opened(metadata):
    store = SegmentStore(metadata, "s")
    return store, await store.load()


@asynccontextmanager
async def stream_tree():
    tree = MetadataTree()
    await create_streams(SimMetadata(tree), ["s"])
    yield tree


async def test_a_new_stream_has_distributedlogs_nodes():
    async with stream_tree() as tree:
        nodes = {path: record.data for path, record in tree.nodes.items()}
        root = log_root("s")
        assert root == "/streams/s/<default>"
        assert nodes[f"{root}/version"] == b"\xff\xff\xff\xff"
        assert nodes[f"{root}/maxtxid"] == nodes[f"{root}/ledgers"] == b"0"
        assert {f"{root}/{name}" for name in ("lock", "allocation", "subscribers")} <= set(nodes)


async def test_streams_are_created_all_or_none():
    async with stream_tree() as tree:
        metadata = SimMetadata(tree)
        with pytest.raises(NodeExists):
            await create_streams(metadata, ["new", "s"])
        assert await list_streams(metadata) == ["s"]


async def test_two_who_create_the_first_stream_at_once_do_not_disturb_each_other():
    tree = MetadataTree()

    class Slow(SimMetadata):
        async def exists(self, path):
            found = await super().exists(path)
            await asyncio.sleep(1)
            return found

    await asyncio.gather(*(create_streams(Slow(tree), [name]) for name in "ab"))
    assert await list_streams(SimMetadata(tree)) == ["a", "b"]


async def test_a_deleted_stream_leaves_no_node():
    async with stream_tree() as tree:
        store, _ = await opened(SimMetadata(tree))
        await store.start(segment(1))
        assert await ledgers_of(SimMetadata(tree), "s") == [101]
        await delete_stream(SimMetadata(tree), "s")
        await delete_stream(SimMetadata(tree), "s")
        assert list(tree.nodes) == ["/", "/streams"]
        with pytest.raises(NoNode):
            await opened(SimMetadata(tree))


STEPS = ("start", "complete", "start again", "roll", "remove", "mark")


async def step(store, name):
    one, two, three = segment(1), segment(2, 5), segment(3, 7)
    if name == "start":
        await store.start(one)
    elif name == "complete":
        await store.complete(one, completed(one, 5))
    elif name == "start again":
        await store.start(two)
    elif name == "roll":
        await store.complete(two, completed(two, 2), three)
    elif name == "remove":
        await store.remove([completed(one, 5)], 6)
    else:
        before = completed(two, 2)
        marked = replace(before, truncation=Truncation.PARTIALLY_TRUNCATED, min_active_entry=1)
        await store.mark([(before, marked)])


def stored(tree):
    return {path: (record.data, record.version) for path, record in tree.nodes.items()}


@pytest.mark.parametrize("unsent", [False, True], ids=["reply lost", "request lost"])
@pytest.mark.parametrize("lost", [1, 4])
@pytest.mark.parametrize("name", STEPS)
async def test_a_lost_message_changes_nothing_of_what_happens(name, lost, unsent):
    async with stream_tree() as tree:
        done = STEPS[: STEPS.index(name) + 1]
        calm_tree = MetadataTree()
        await create_streams(SimMetadata(calm_tree), ["s"])
        for before in done:
            await step((await opened(SimMetadata(calm_tree)))[0], before)
        for before in done[:-1]:
            await step((await opened(SimMetadata(tree)))[0], before)
        store, _ = await opened(LostReplies(tree, lost=lost, unsent=unsent))
        await step(store, name)
        assert stored(tree) == stored(calm_tree)
        seen, _ = await opened(SimMetadata(tree))
        assert (store.number_max, store.txid_max) == (seen.number_max, seen.txid_max)
        assert store.start_sequence_id == seen.start_sequence_id


@pytest.mark.parametrize("name", STEPS[1:])
async def test_an_owner_who_lost_the_stream_changes_nothing_any_more(name):
    """Another owner has recovered the list and begun its own segment."""
    async with stream_tree() as tree:
        old, _ = await opened(SimMetadata(tree))
        for before in STEPS[: STEPS.index(name)]:
            await step(old, before)
        new, segments = await opened(SimMetadata(tree))
        if not segments[-1].completed:
            await new.complete(segments[-1], completed(segments[-1], 9))
        await new.start(segment(new.number_max + 1, 99))
        known = stored(tree)
        with pytest.raises((BadVersion, NodeExists)):
            await step(old, name)
        assert stored(tree) == known


async def test_a_zombie_does_not_move_the_start_of_a_stream_that_is_not_its_own():
    async with stream_tree() as tree:
        old, _ = await opened(SimMetadata(tree))
        new, _ = await opened(SimMetadata(tree))
        await new.start(segment(1))
        with pytest.raises(BadVersion):
            await old.remove([], 5)


async def test_of_two_rivals_one_starts_its_segment():
    async with stream_tree() as tree:
        one, _ = await opened(SimMetadata(tree))
        two, _ = await opened(LostReplies(tree, lost=3))
        await one.start(segment(1))
        with pytest.raises(BadVersion):
            await two.start(segment(1, 7))


class Overtaken(SimMetadata):
    """The first multi does not arrive; before its sender looks, a rival makes a change."""

    def __init__(self, tree, rival):
        super().__init__(tree)
        self.rival = rival

    async def multi(self, ops):
        rival, self.rival = self.rival, None
        if rival is None:
            await super().multi(ops)
            return
        await rival()
        raise MetadataUnavailable("lost")


async def rival_step(store, name):
    """A change of the same nodes to the same versions, with the content of another owner."""
    one, two, three = segment(1), segment(2, 5), replace(segment(3, 7), ledger=999)
    if name == "start":
        await store.start(replace(one, ledger=999))
    elif name == "complete":
        await store.complete(one, replace(completed(one, 5), completion_ms=2))
    elif name == "start again":
        await store.start(replace(two, ledger=999))
    elif name == "roll":
        await store.complete(two, completed(two, 2), three)
    elif name == "remove":
        await store.remove([completed(one, 5)], 7)
    else:
        before = completed(two, 2)
        marked = replace(before, truncation=Truncation.PARTIALLY_TRUNCATED, min_active_entry=0)
        await store.mark([(before, marked)])


@pytest.mark.parametrize("name", STEPS)
async def test_a_rivals_change_of_the_same_shape_is_not_taken_for_ones_own(name):
    async with stream_tree() as tree:
        for before in STEPS[: STEPS.index(name)]:
            await step((await opened(SimMetadata(tree)))[0], before)
        rival, _ = await opened(SimMetadata(tree))
        store, _ = await opened(Overtaken(tree, lambda: rival_step(rival, name)))
        with pytest.raises((BadVersion, NodeExists)):
            await step(store, name)
        rivals = stored(tree)
        assert (await opened(SimMetadata(tree)))[0].number_max == rival.number_max
        with pytest.raises((BadVersion, NodeExists)):
            await step(store, name)
        assert stored(tree) == rivals


async def test_the_same_content_at_another_version_is_a_rivals_too():
    async with stream_tree() as tree:
        rival, _ = await opened(SimMetadata(tree))

        async def moves_twice():
            await rival.remove([], 5)
            await rival.remove([], 6)

        store, _ = await opened(Overtaken(tree, moves_twice))
        with pytest.raises(BadVersion):
            await store.remove([], 6)


async def test_a_rivals_part_of_a_change_is_not_the_whole():
    """It moved the start as far, and left the segment in the list."""
    async with stream_tree() as tree:
        for before in STEPS[:3]:
            await step((await opened(SimMetadata(tree)))[0], before)
        rival, _ = await opened(SimMetadata(tree))
        store, _ = await opened(Overtaken(tree, lambda: rival.remove([], 6)))
        with pytest.raises(BadVersion):
            await store.remove([completed(segment(1), 5)], 6)


async def test_after_too_many_lost_replies_it_says_that_the_outcome_is_unknown():
    async with stream_tree() as tree:
        store, _ = await opened(LostReplies(tree, lost=99, unsent=True))
        with pytest.raises(MetadataUnavailable):
            await store.start(segment(1))


@pytest.mark.parametrize("node", ["ledgers", "maxtxid", "start", f"ledgers/{segment(1).node_name}"])
async def test_rot_is_refused_by_path(node):
    async with stream_tree() as tree:
        store, _ = await opened(SimMetadata(tree))
        await store.start(segment(1))
        tree.nodes[f"{log_root('s')}/{node}"].data = b"rot"
        with pytest.raises(CorruptFormat, match=node):
            await opened(SimMetadata(tree))


async def test_the_start_only_moves_forward():
    async with stream_tree() as tree:
        store, _ = await opened(SimMetadata(tree))
        await store.remove([], 7)
        await store.remove([], 3)
        assert store.start_sequence_id == 7
        assert (await opened(SimMetadata(tree)))[0].start_sequence_id == 7
