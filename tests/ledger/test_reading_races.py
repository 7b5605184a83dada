"""Goal: what a process reads of a stream while others change it never leads to a wrong log.

Method: each test is a meeting of two steps that the proof of readers found by a seed.
"""

import asyncio
from random import Random

from ledger.core.segments import JUMP_LAYOUT_VERSION
from ledger.streams.segment_store import SegmentStore
from tests.ledger.follow_rig import NAME
from tests.ledger.life_rig import listed, watched_rig
from tests.ledger.lost_stream_rig import accept, reserved, telling_owner
from tests.sim.metadata import MetadataFaults, SimMetadata


async def test_an_owner_that_sees_the_mark_of_a_forced_close_knows_its_reserved_offsets():
    """A tree is read node by node, so the losses may be older than the segments."""
    marked = 0
    for seed in range(60):
        async with watched_rig() as rig:
            owner = await telling_owner(rig, "a")
            await owner.add(6)
            owner.kill()
            [segment] = listed(rig)
            draw = Random(seed)
            faults = MetadataFaults(draw, node_by_node=True)
            store = SegmentStore(SimMetadata(rig.world.tree, faults), NAME)
            loading = asyncio.ensure_future(store.load())
            await asyncio.sleep(draw.uniform(0.0, 0.02))
            await accept(rig, reserved(segment, 3, 2))
            [seen] = await loading
            if seen.layout_version == JUMP_LAYOUT_VERSION:
                marked += 1
                assert store.losses.forced_in(seen.number) is not None, seed
    assert marked
