"""Goal: records that are removed while their log is cleaned end no round, and come back nowhere.

Method: real streams on virtual time, as in `test_cleaner`. Retention or DeleteRecords removes the
oldest records at one request of the cleaner process.
"""

from __future__ import annotations

import asyncio

import pytest

from gateway.cleaning import round as cleaning_round
from gateway.cleaning.frames import Kind
from gateway.core.cleaning_keys import KEY_BYTES
from ledger.streams.segment_rewriter import SegmentRewriter
from tests.gateway.cleaning_rig import started_cleaning


def drop_oldest_at(cluster, partition, kind, *, end=None):
    """Remove the segments that are old, or those below `end`, at the next request of a kind."""

    async def drop(asked):
        if asked is kind:
            cluster.process.before_answer = None
            if end is not None:
                await partition.truncate(end)
            else:
                assert await partition.expire() == 2

    cluster.process.before_answer = drop


_DROPPED_AT = [
    Kind.DROP_MARKS,
    Kind.BEGIN_MAP,
    Kind.BEGIN_SEGMENT,
    Kind.MAP_BATCHES,
    Kind.BEGIN_FILTER,
    Kind.FILTER_BATCHES,
    Kind.END_SEGMENT,
]


async def four_segments(cluster, **configs):
    """Return a partition with four segments, two of which are old, before its first round."""
    partition = await cluster.compacted(
        cleanup_policy="compact,delete", retention_ms=60_000, **configs
    )
    await cluster.fill(partition, b"one", b"two")
    await asyncio.sleep(61)
    await cluster.fill(partition, b"three", b"four")
    await cluster.cleaner.clean_once()  # the first look opens the gate of new forms
    await asyncio.sleep(1)
    return partition


@pytest.mark.parametrize("kind", _DROPPED_AT)
async def test_a_round_goes_on_behind_segments_that_retention_removes_meanwhile(kind):
    async with started_cleaning() as cluster:
        partition = await four_segments(cluster)
        drop_oldest_at(cluster, partition, kind)
        assert await cluster.cleaner.clean_once()
        assert (cluster.report().state, cluster.report().error) == ("idle", None)
        assert partition.log_start_offset == 6
        left = partition.stream.cleanable_segments()
        assert left and all(segment.cleaned for segment in left)
        await cluster.clean()
        assert list(await cluster.check(partition)) == [9, 10, 11]


@pytest.mark.parametrize("end", [1, 6, 7])
@pytest.mark.parametrize("kind", _DROPPED_AT)
async def test_a_round_goes_on_if_records_are_deleted_meanwhile(kind, end):
    async with started_cleaning() as cluster:
        partition = await four_segments(cluster)
        drop_oldest_at(cluster, partition, kind, end=end)
        assert await cluster.cleaner.clean_once()
        assert (cluster.report().state, cluster.report().error) == ("idle", None)
        left = partition.stream.cleanable_segments()
        assert left and all(segment.cleaned for segment in left)
        assert list(await cluster.check(partition)) == [9, 10, 11]


@pytest.mark.parametrize("kind", [Kind.BEGIN_MARKS, Kind.MARK_BATCHES, Kind.BEGIN_FILTER])
async def test_a_segment_that_is_mapped_in_parts_may_be_removed_meanwhile(kind):
    async with started_cleaning() as cluster:
        cluster.settings = cluster.settings._replace(map_bytes=2 * KEY_BYTES)
        partition = await four_segments(cluster)
        drop_oldest_at(cluster, partition, kind)
        assert await cluster.cleaner.clean_once()
        assert (cluster.report().state, cluster.report().error) == ("idle", None)
        await cluster.clean()
        assert all(segment.cleaned for segment in partition.stream.cleanable_segments())
        assert list(await cluster.check(partition)) == [9, 10, 11]


async def test_a_transaction_whose_first_records_are_removed_meanwhile_stays_aborted():
    async with started_cleaning() as cluster:
        partition = await cluster.compacted(cleanup_policy="compact,delete", retention_ms=60_000)
        await cluster.fill(partition, b"one")
        await cluster.write_in_transaction(partition, (b"0", b"aborted"), (b"new", b"aborted"))
        await cluster.roll(partition)
        await asyncio.sleep(61)
        await cluster.write_in_transaction(
            partition, (b"1", b"aborted"), (b"more", b"aborted"), sequence=2
        )
        await cluster.roll(partition)
        await cluster.abort(partition)
        await cluster.fill(partition, b"two", b"three")
        await cluster.cleaner.clean_once()
        await asyncio.sleep(1)
        drop_oldest_at(cluster, partition, Kind.FILTER_BATCHES)
        await cluster.clean()
        assert cluster.report().error is None
        assert partition.log_start_offset == 5
        assert list(await cluster.check(partition)) == [11, 12, 13]


@pytest.mark.parametrize("step", ["begin", "finish"])
@pytest.mark.parametrize("end", [None, 6, 4])
async def test_neighbours_of_which_one_is_removed_meanwhile_are_not_merged(step, end, monkeypatch):
    async with started_cleaning() as cluster:
        partition = await four_segments(cluster)
        dropped = []

        async def drop():
            if not dropped:
                dropped.append(step)
                await (partition.expire() if end is None else partition.truncate(end))

        class Dropping(SegmentRewriter):
            @classmethod
            async def begin(cls, stream, *segments):
                if step == "begin" and len(segments) > 1:
                    await drop()
                return await super().begin(stream, *segments)

            async def finish(self, aborted):
                if step == "finish" and len(self._segments) > 1:
                    await drop()
                return await super().finish(aborted)

        monkeypatch.setattr(cleaning_round, "SegmentRewriter", Dropping)
        assert await cluster.cleaner.clean_once()
        assert dropped
        assert (cluster.report().state, cluster.report().error) == ("idle", None)
        assert list(await cluster.check(partition)) == [9, 10, 11]
