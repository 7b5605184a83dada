"""A broker with a cleaner, on real streams and virtual time.

The work of the cleaner process runs inside the test, by the code of the child, without its pipe.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from aiokafka.record.default_records import DefaultRecordBatch
from kio.schema.errors import ErrorCode

from gateway.cleaning.child import answer
from gateway.cleaning.cleaner import Cleaner
from gateway.cleaning.frames import OFFSET, Kind
from gateway.cleaning.process import CleanerEnded
from gateway.cleaning.settings import CleanerSettings
from gateway.core.cleaning import Cleaning
from gateway.core.cleaning_results import PoisonedBatch
from gateway.wire.batches import read_header
from tests.gateway.cleaning_log import keyed_batch, last_values
from tests.gateway.slot_replies import SlotReplies
from tests.gateway.stream_cluster import StreamCluster
from tests.gateway.test_transaction_path import Coordinator, marked, sent


class InsideProcess:
    """The cleaner process without a process. `dies_at` requests of a kind end it."""

    def __init__(self):
        self.cleaning = None
        self.starts = 0
        self.asked = []
        self.dies_at = None  # (kind, how many of it are answered before)
        self.before_answer = None
        self.one_at_a_time = asyncio.Lock()
        self.replies = SlotReplies()

    async def start(self):
        if self.cleaning is None:
            self.cleaning = Cleaning()
            self.starts += 1

    async def ask(self, kind, *payload):
        try:
            with self.replies.of_request() as keep:
                async with self.one_at_a_time:
                    return keep(await self._answered(kind, b"".join(payload)))
        except asyncio.CancelledError:
            self.cleaning = None  # as the real one ends
            raise

    async def _answered(self, kind, payload):
        await asyncio.sleep(0.001)
        if self.before_answer is not None:
            await self.before_answer(kind)
        if self.cleaning is None:
            raise CleanerEnded("the cleaner process does not run")
        self.asked.append(kind)
        if self.dies_at == (kind, self.asked.count(kind)):
            self.cleaning = None
            raise CleanerEnded("killed")
        try:
            return answer(self.cleaning, kind, payload)
        except PoisonedBatch as poisoned:
            found = OFFSET.pack(poisoned.offset) + poisoned.reason.encode()
            offset = OFFSET.unpack_from(found)[0]
            raise PoisonedBatch(offset, found[OFFSET.size :].decode()) from None

    def succeeded(self):
        pass

    async def stop(self):
        self.cleaning = None


class CleaningCluster(StreamCluster):
    """One broker and its cleaner."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.settings = CleanerSettings()
        self.written = {}  # by partition name: {offset: (key, value)}

    async def start_gateway(self):
        await super().start_gateway()
        self.partitions.verifier = Coordinator()
        self.cleaner = Cleaner(
            self.catalog,
            self.partitions,
            self.context.features,
            self.clock,
            lambda: self.settings,
        )
        self.cleaner.process = self.process = InsideProcess()
        self.context.cleaner = self.cleaner

    async def compacted(self, name="t", **configs):
        """Create a compacted topic and return its partition, open."""
        configs.setdefault("min_cleanable_dirty_ratio", 0)
        configs.setdefault("cleanup_policy", "compact")
        return await self.topic(name, **configs)

    async def write(self, partition, *records, at=None, **settings):
        """Write one batch of (key, value) records, now or with timestamps from `at` on."""
        at = self.clock.now_ms() if at is None else at
        (produced,) = await self.sent(partition, keyed_batch(records, at=at, **settings))
        assert not produced.error, produced
        model = self.written.setdefault(partition.name, {})
        for delta, record in enumerate(records):
            model[produced.base_offset + delta] = record

    async def write_in_transaction(self, partition, *records, producer=7, sequence=0):
        """Write one batch of an open transaction, which counts as not written."""
        batch = keyed_batch(records, producer=producer, transactional=True, sequence=sequence)
        assert await sent(partition, batch) == [ErrorCode.none]

    async def abort(self, partition, producer=7):
        """Append the marker that aborts the transaction of the producer."""
        assert await marked(partition, producer=producer, commit=False) is ErrorCode.none

    async def roll(self, partition):
        """Complete the segment in progress, so that a new one follows."""
        before = len(partition.stream.segments)
        partition.stream.roll_soon()
        async with asyncio.timeout(60):
            while len(partition.stream.segments) == before:
                await asyncio.sleep(0.001)

    async def fill(self, partition, *values, keys=3):
        """Write a segment for each value, with all keys."""
        for value in values:
            await self.write(partition, *((b"%d" % key, value) for key in range(keys)))
            await self.roll(partition)

    async def clean(self):
        """Clean until nothing is due. The first look of a cluster opens the gate of new forms."""
        for _ in range(3):
            while await self.cleaner.clean_once():
                pass
            await asyncio.sleep(1)

    def report(self, name="t"):
        return next(each for each in self.cleaner.reports() if each.topic == name)

    async def read_records(self, partition, offset=None):
        """Return {offset: (key, value)} as a consumer that asks for each next offset finds them."""
        at = partition.log_start_offset if offset is None else offset
        found = {}
        while at < partition.high_watermark:
            for stored in await partition.read(at, 10_000):
                batch = b"".join(stored.data)
                header = read_header(batch)
                behind = header.base_offset + header.last_offset_delta + 1
                assert behind > at, f"offset {at} gets the batch of {header.base_offset} for ever"
                if header.records and not header.attributes & 0x20:
                    records = DefaultRecordBatch(batch)
                    found.update((r.offset, (r.key, r.value)) for r in records if r.offset >= at)
                at = behind
        return found

    async def check(self, partition):
        """Check that readers find the last value of each key where it was written."""
        found = await self.read_records(partition)
        written = self.written[partition.name]
        assert last_values(found) == last_values(written)
        assert found.items() <= written.items()
        return found


@asynccontextmanager
async def started_cleaning(**settings):
    cluster = CleaningCluster(**settings)
    await cluster.start()
    yield cluster


__all__ = ["CleaningCluster", "InsideProcess", "Kind", "started_cleaning"]
