"""A partition whose segments are cleaned while gateways crash, are taken over and truncate it.

A cleaner drops batches at random, as if later ones superseded them. It runs in any gateway, also in
a zombie. A replica reads the log beside the owner. Beside what `StreamsWorld` reports:

    lost        a batch that no cleaning dropped is not in the log
    back        a batch that was dropped for certain is read again from the owner
    changed     a gap lies behind a batch, or a batch covers other offsets than its own
"""

import asyncio
import struct
from dataclasses import replace
from itertools import pairwise

from gateway.topics.timestamp_search import SearchBudget
from gateway.wire import batches
from gateway.wire.lost_batches import empty_batches
from ledger.client.client import LedgerClient
from ledger.errors import CorruptFormat, LedgerError
from ledger.streams.follower import FollowedStream
from ledger.streams.segment_rewriter import CleanedRecord, SegmentRewriter
from ledger.streams.stream import StreamServices
from tests.ledger.cleaning_rig import records_of
from tests.sim.loop import SimClock
from tests.sim.machines import Port
from tests.sim.metadata import SimMetadata
from tests.sim.streams_world import StreamsWorld

_STUCK_S = 5.0  # virtual seconds after which a cleaning in a dead gateway is given up


class Cleaner:
    """Cleans one segment after another, in any gateway that is alive."""

    def __init__(self, world):
        self.world = world

    async def run(self):
        draw = self.world.draw
        while not self.world.healing:
            await asyncio.sleep(draw.expovariate(1 / 0.005))
            gateway = self.world.any_gateway()
            if gateway is None or not gateway.partition.readable:
                continue
            try:
                async with asyncio.timeout(_STUCK_S):
                    await self.clean_and_expire(gateway.partition.stream)
            except (LedgerError, TimeoutError):
                pass

    async def clean_and_expire(self, stream):
        await self.clean(stream)
        if self.world.draw.random() < 0.5:
            await stream.expire()

    async def clean(self, stream):
        world, draw = self.world, self.world.draw
        segments = stream.cleanable_segments()
        if not segments:
            return
        dirty = [each for each in segments if not each.cleaned]
        segment = draw.choice(segments) if not dirty or draw.random() < 0.3 else dirty[0]
        share = draw.choice([0.0, 0.3, 0.7, 1.0])
        kept, dropped = [], []
        for record in await records_of(stream, segment):
            sent = world.sent.get(record[2][16:])
            if sent is not None:
                (dropped if draw.random() < share else kept).append((record, sent))
        rewriter = await SegmentRewriter.begin(stream, segment)
        await rewriter.add(covering(segment, kept, stream.epoch_at(segment.start_sequence_id)))
        rewritten = await rewriter.finish(b"")
        await asyncio.sleep(draw.choice([0, 0.001, 0.05, 0.2]))
        world.droppable.update(sent.number for _, sent in dropped)
        await stream.replace(rewritten)
        world.gone.update(sent.number for _, sent in dropped)
        world.cleanings += 1


def covering(segment, kept, epoch):
    """Return the records of a cleaned segment that keeps these batches."""
    found, covered = [], segment.start_sequence_id
    for (first, count, data), sent in kept:
        found.append(CleanedRecord(first + count - covered, sent.timestamp, data))
        covered = first + count
    while covered < segment.end_sequence_id:
        [filler], end = empty_batches(covered, segment.end_sequence_id - 1, covered, epoch, 1)
        found.append(CleanedRecord(end - covered, -1, filler))
        covered = end
    return found


class Replica:
    """A follower in a process of its own, which may lag but never mixes old and new."""

    def __init__(self, world):
        self.world = world

    def follower(self):
        world = self.world
        session = SimMetadata(world.tree, world.metadata_faults)
        client = LedgerClient(session, Port(world.storage.bookies), SimClock(), world.client_config)
        services = StreamServices(session, client, SimClock(), world.limits)
        return FollowedStream("stream", services, batches.timestamp_max, lambda end: None)

    async def run(self):
        draw, stream = self.world.draw, self.follower()
        while not self.world.healing:
            await asyncio.sleep(draw.expovariate(1 / 0.01))
            try:
                async with asyncio.timeout(_STUCK_S):
                    await self.read(stream)
            except CorruptFormat as error:
                self.world.report("gap", f"the replica: {error}")
            except (LedgerError, TimeoutError):
                pass
        await stream.close()

    async def read(self, stream):
        draw = self.world.draw
        await stream.open()
        at = draw.randint(stream.start_sequence_id, stream.end_sequence_id)
        for _ in range(draw.randint(1, 5)):
            records = await stream.read(at, draw.choice([1, 300, 3000]))
            if not records:
                return
            self.world.judge_records(at, records)
            at = records[-1].end_sequence_id


class CleaningWorld(StreamsWorld):
    """A `StreamsWorld` with a cleaner and a replica."""

    def __init__(self, seed):
        super().__init__(seed)
        # Numbers of batches that a cleaning may have dropped, and of those that one dropped.
        self.droppable = set()
        self.gone = set()
        self.cleanings = 0
        keep_ms = self.draw.choice([0, 0, 20, 60_000])
        size = self.draw.choice([1000, 1000, 8000])
        self.stream_config = replace(
            self.stream_config, truncated_keep_ms=keep_ms, segment_bytes=size
        )
        self.groups = [Cleaner(self), Cleaner(self), Replica(self)]

    async def expire(self):
        keep_ms = self.stream_config.truncated_keep_ms
        await super().expire()
        self.stream_config = replace(self.stream_config, truncated_keep_ms=keep_ms)

    async def read_once(self, offset, bytes_max):
        self.gone_before = set(self.gone)
        return await super().read_once(offset, bytes_max)

    def judge(self, partition, offset, bytes_max, records):
        gone = self.gone_before
        for sent in self.judge_records(offset, records):
            if sent.number in gone and not self.zombies:
                self.report("back", f"batch {sent.number} was dropped, and is read at {offset}")
        if records and records[-1].end_sequence_id > partition.high_watermark and not self.zombies:
            self.report("lost", f"{records[-1].end_sequence_id} is read above the watermark")

    def judge_records(self, offset, records):
        """Check that the records follow each other and hold what was sent. Return the batches."""
        found = []
        if records and not records[0].sequence_id <= offset < records[0].end_sequence_id:
            self.report("gap", f"asked {offset}, got {records[0][:2]}")
        for before, after in pairwise(records):
            if after.sequence_id != before.end_sequence_id:
                self.report("gap", f"{after.sequence_id} comes behind {before.end_sequence_id}")
        for record in records:
            found += self.judge_record(record)
        return found

    def judge_record(self, record):
        data = b"".join(record.data)
        (base,) = struct.unpack_from(">q", data)
        header, sent = batches.read_header(data), self.sent.get(data[16:])
        if base + header.last_offset_delta + 1 != record.end_sequence_id:
            self.report("changed", f"the batch at {base} of {record[:2]} has a gap behind it")
        for at in range(record.sequence_id, base if header.records else record.end_sequence_id):
            missing = self.seen.get(at)
            if missing is not None and missing.number not in self.droppable:
                self.report("lost", f"batch {missing.number} at {at} is in a gap")
        if sent is None:
            if header.records:
                self.report("changed", f"{base} holds what nobody sent")
            return []
        if record.timestamp_max != sent.timestamp:
            self.report("changed", f"batch {sent.number}: {record[:4]}")
        self.put(base, sent)
        return [sent]

    async def check(self):
        """The whole log, read from its start, lacks only what was dropped."""
        self.watch()
        partition, log = self.partition, []
        at = partition.log_start_offset
        while at < partition.high_watermark and not self.violations:
            records = await self.read_once(at, 100_000)
            if not records:
                self.report("gap", f"{at} cannot be read")
                return
            log += records
            at = records[-1].end_sequence_id
        found = {}
        for record in log:
            sent = self.sent.get(b"".join(record.data)[16:])
            if sent is not None:
                found[sent.offset] = sent
        for offset, sent in self.acked.items():
            above = offset + sent.records > partition.log_start_offset
            if above and sent.number not in self.droppable and found.get(offset) is not sent:
                self.report("lost", f"batch {sent.number} was acknowledged at {offset}")
        self.check_epochs(log)
        if not self.violations:
            await self.check_what_is_left(found)

    def check_epochs(self, log):
        epoch = 0
        for record in log:
            (now,) = struct.unpack_from(">i", b"".join(record.data), 12)
            if now < epoch or now != self.partition.epoch_at(record.end_sequence_id - 1):
                self.report("order", f"epoch {now} at {record.sequence_id} after {epoch}")
            epoch = now

    async def check_what_is_left(self, found):
        """Timestamps are found as a scan of what is left finds them, and no sequence falls."""
        start, last = self.partition.log_start_offset, {}
        left = [found[offset] for offset in sorted(found)]
        for sent in left:
            attempt = last.get(sent.producer)
            if sent.producer >= 0 and attempt is not None and sent.number <= attempt:
                self.report("order", f"batch {sent.number} of {sent.producer} follows {attempt}")
            last[sent.producer] = sent.number
        times = sorted({sent.timestamp for sent in left})
        for asked in [0, *times[:: max(1, len(times) // 8)], times[-1] + 1 if times else 1]:
            due = next(
                ((s.timestamp, max(s.offset, start)) for s in left if s.timestamp >= asked), None
            )
            got = await self.partition.search(SearchBudget()).first_at_or_after(asked)
            if got != due:
                self.report("times", f"{asked} is looked up as {got}, a scan finds {due}")
