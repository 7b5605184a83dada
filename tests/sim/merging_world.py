"""A `CleaningWorld` whose small segments are merged too, in gateways that crash and are taken over.

Segments are completed often, and each gateway, also a zombie, merges neighbours that are clean. It
copies their records as they are, or lets a batch cover the empty batches before it.
"""

import asyncio
from dataclasses import replace

from gateway.wire import batches
from ledger.core.segments import can_merge
from ledger.streams.segment_rewriter import CleanedRecord, SegmentRewriter
from tests.ledger.cleaning_rig import records_of
from tests.sim.cleaning_world import Cleaner, CleaningWorld, Replica


class Merger(Cleaner):
    """Cleans some segments, and merges neighbours."""

    async def clean_and_expire(self, stream):
        draw = self.world.draw
        for _ in range(draw.randint(0, 3)):
            await self.clean(stream)
        await self.merge(stream)
        if draw.random() < 0.3:
            await stream.expire()

    async def merge(self, stream):
        world, draw = self.world, self.world.draw
        segments = [each for each in stream.cleanable_segments() if each.cleaned]
        first = draw.randint(0, max(len(segments) - 2, 0))
        parts = segments[first : first + draw.randint(2, 4)]
        if not can_merge(parts):
            return
        rewriter = await SegmentRewriter.begin(stream, *parts)
        records = [record for part in parts for record in await records_of(stream, part)]
        await rewriter.add(copies(records, whole=draw.random() < 0.5))
        merged = await rewriter.finish(b"")
        await asyncio.sleep(draw.choice([0, 0.001, 0.05, 0.2]))
        await stream.replace(merged)
        world.merges += 1


def copies(records, *, whole):
    """Return the records of a merged segment. Without `whole`, no empty batch is between others."""
    found, covered = [], 0
    for _, count, data in records:
        covered += count
        if whole or batches.read_header(data).records:
            found.append(CleanedRecord(covered, batches.timestamp_max(memoryview(data)), data))
            covered = 0
    if covered:
        found.append(CleanedRecord(covered, -1, records[-1][2]))
    return found


class MergingWorld(CleaningWorld):
    """A `CleaningWorld` with more segments and fewer accidents."""

    events_max = 40

    def __init__(self, seed):
        super().__init__(seed)
        self.merges = 0
        self.stream_config = replace(self.stream_config, segment_bytes=800)
        self.groups = [Merger(self), Merger(self), Replica(self), Replica(self)]

    async def event(self):
        if self.draw.random() < 0.7:
            self.partition.stream.roll_soon()
        else:
            await super().event()
