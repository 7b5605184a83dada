"""Goal: a rewriting holds a bounded amount of memory, and what took too long is not listed.

Method: real streams over one bookie, or a simulated cluster, on virtual time.
"""

import asyncio
from contextlib import aclosing, asynccontextmanager

import pytest

from gateway.cleaning import round as cleaning_round
from gateway.core import cleaning_choice
from gateway.core.cleaning_choice import Rests
from ledger.errors import StreamUnavailable
from ledger.streams.read_turns import RECORDS_PER_TURN
from ledger.streams.segment_rewriter import (
    IN_FLIGHT_BYTES_MAX,
    REWRITE_S_MAX,
    CleanedRecord,
    SegmentRewriter,
    read_segment,
)
from tests.gateway.cleaning_log import keyed_batch
from tests.gateway.cleaning_rig import started_cleaning
from tests.gateway.stream_cluster import batch, started_cluster
from tests.gateway.test_cleaned_partitions import rolled as rolled_partition
from tests.gateway.test_transaction_path import opened
from tests.ledger.cleaning_rig import rewrite
from tests.ledger.life_rig import has_ledger, listed, watched_rig
from tests.ledger.test_cleaned_segments import even, rolled

RECORD = 100_000


async def test_a_rewriting_waits_while_too_many_bytes_are_not_confirmed():
    async with started_cluster() as cluster:
        partition, _ = await opened(cluster)
        await cluster.sent(partition, *(batch(records=1) for _ in range(100)))
        await rolled_partition(partition)
        [segment] = partition.stream.cleanable_segments()
        rewriter = await SegmentRewriter.begin(partition.stream, segment)
        before = cluster.port.bytes_added
        cluster.port.hold()
        records = [CleanedRecord(1, 1, bytes(RECORD))] * segment.record_count
        adding = asyncio.ensure_future(rewriter.add(records))
        await asyncio.sleep(60)
        assert not adding.done()
        in_flight = cluster.port.bytes_added - before
        entry = partition.stream.services.limits.entry_bytes_max
        assert IN_FLIGHT_BYTES_MAX < in_flight <= IN_FLIGHT_BYTES_MAX + 2 * entry
        cluster.port.release()
        await adding
        rewritten = await rewriter.finish(b"")
        assert rewritten.size_bytes > segment.record_count * RECORD
        await partition.stream.services.delete_unlisted(rewritten.after.ledger)


@pytest.mark.parametrize("late_s", [-1, 1])
async def test_a_segment_that_was_rewritten_for_too_long_is_not_replaced(late_s):
    async with watched_rig() as rig:
        owner = await rolled(rig)
        before = listed(rig)
        rewritten = await rewrite(owner.stream, owner.stream.segments[0], even)
        await asyncio.sleep(REWRITE_S_MAX + late_s)
        if late_s < 0:
            await owner.stream.replace(rewritten)
            assert listed(rig)[0] == rewritten.after
            return
        with pytest.raises(StreamUnavailable, match="taken for an orphan"):
            await owner.stream.replace(rewritten)
        assert listed(rig) == before
        assert not has_ledger(rig, rewritten.after.ledger)


# Turns of the event loop


@asynccontextmanager
async def many_records():
    """Yield a partition whose first segment has 10,000 records of few bytes each."""
    async with started_cluster() as cluster:
        partition, _ = await opened(cluster)
        await cluster.sent(partition, *(batch(records=100) for _ in range(100)))
        await rolled_partition(partition)
        [segment] = partition.stream.cleanable_segments()
        rewriter = await SegmentRewriter.begin(partition.stream, segment)
        await rewriter.add([CleanedRecord(1, 1, b"tiny")] * segment.record_count)
        await partition.stream.replace(await rewriter.finish(b""))
        yield partition


class Turns:
    """Counts turns of the event loop, up to `left` of them: a busy loop stops virtual time."""

    def __init__(self, left=500):
        self.count, self.left = 0, left
        self._next()

    def _next(self):
        self.count += 1
        self.left -= 1
        if self.left:
            asyncio.get_running_loop().call_soon(self._next)


async def test_the_records_of_a_chunk_are_decoded_in_several_turns():
    async with many_records() as partition:
        segment = partition.stream.segments[0]
        turns, before = Turns(), 0
        async with aclosing(read_segment(partition.stream, segment)) as chunks:
            async for chunk in chunks:
                assert turns.count - before >= len(chunk) / RECORDS_PER_TURN
                before = turns.count
        assert before > 20
        assert turns.left


async def test_a_round_adds_few_records_in_each_turn():
    async with started_cleaning() as cluster:
        partition = await cluster.compacted()
        for first in (0, 1200, 2400):
            found = [keyed_batch([(b"%d" % key, b"one")]) for key in range(first, first + 1200)]
            await cluster.sent(partition, *found)
            await cluster.roll(partition)
        await cluster.sent(partition, keyed_batch([(b"last", b"one")]))
        added, turn = [], [0]

        class Counting(SegmentRewriter):
            async def add(self, records):
                if records:
                    added.append((turn[0], len(records)))
                    asyncio.get_running_loop().call_soon(lambda: turn.append(turn.pop() + 1))
                await super().add(records)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cleaning_round, "SegmentRewriter", Counting)
            await cluster.clean()
        assert sum(count for _, count in added) >= 3 * 1200
        assert max(count for _, count in added) <= RECORDS_PER_TURN
        assert len({at for at, _ in added}) == len(added), "each in a turn of its own"


class LateLoop:
    """A client that needs the event loop for 70 ms in each turn."""

    def __init__(self):
        self.loop = asyncio.get_running_loop()
        self.ended = False
        self._next()

    def _next(self):
        self.loop._now_s += 0.07
        if not self.ended:
            self.loop.call_soon(self._next)


@pytest.mark.parametrize(("duration_s_max", "rests"), [(REWRITE_S_MAX, True), (0.001, False)])
async def test_a_round_rests_by_bytes_and_only_while_its_deadline_permits(
    monkeypatch, duration_s_max, rests
):
    async with started_cleaning() as cluster:
        partition = await cluster.compacted()
        for first in (0, 1200):
            found = [keyed_batch([(b"%d" % key, b"one")]) for key in range(first, first + 1200)]
            await cluster.sent(partition, *found)
            await cluster.roll(partition)
        await cluster.sent(partition, keyed_batch([(b"last", b"one")]))
        sizes = sum(map(partition.stream.segment_bytes, partition.stream.cleanable_segments()))
        await cluster.cleaner.clean_once()  # the first look opens the gate of new forms
        await asyncio.sleep(1)
        rewriting, given = [], []

        class Noting(Rests):
            def begin(self, size_bytes, now_s, duration_s_max):
                rewriting.append(size_bytes)
                super().begin(size_bytes, now_s, duration_s_max)

            def rest_s(self, late_s, now_s):
                rest_s = super().rest_s(late_s, now_s)
                given.append((bool(self._duration_s_max), rest_s))
                return rest_s

        monkeypatch.setattr(cleaning_round, "Rests", Noting)
        monkeypatch.setattr(cleaning_round, "REWRITE_S_MAX", duration_s_max)
        monkeypatch.setattr(cleaning_choice, "LOOK_BYTES", 64 * 1024)
        late = LateLoop()
        assert await cluster.cleaner.clean_once()
        late.ended = True
        assert cluster.report().error is None
        assert sum(rewriting[:2]) == sizes  # then they are merged
        in_rewriting = [rest_s > 0 for timed, rest_s in given if timed]
        assert 1 <= len(in_rewriting) <= 4 * sizes / 65536
        assert any(in_rewriting) == rests
        assert any(rest_s > 0 for timed, rest_s in given if not timed)
