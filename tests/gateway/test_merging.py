"""Goal: the cleaner merges small clean segments, and clients find the same records as before.

Method: the choice of groups by itself, over random sizes. Then real streams and ledgers on virtual
time, with the code of the cleaner process without its pipe.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cleaning.report import Progress
from gateway.cleaning.round import LogRound
from gateway.core.cleaning_choice import MergePart, MergeRules, merge_groups
from ledger.errors import LedgerError, MetadataUnavailable, NotOwner
from ledger.streams.segment_store import SegmentStore
from tests.gateway.cleaning_rig import started_cleaning

SIZES = st.lists(st.integers(1, 400), max_size=60)
RULES = MergeRules(1000, 10_000)


def parts(sizes, offsets=10):
    return [MergePart(size, offsets) for size in sizes]


@given(SIZES, st.integers(1, 500))
def test_groups_are_apart_in_order_and_within_the_bounds(sizes, offsets):
    groups = merge_groups(parts(sizes, offsets), RULES)
    for before, after in pairwise(groups):
        assert before.stop <= after.start
    for group in groups:
        assert 2 <= len(group) <= RULES.parts_max
        assert sum(sizes[at] for at in group) <= RULES.size_bytes_max
        assert len(group) * offsets <= RULES.offsets_max


@given(SIZES)
def test_what_is_left_after_all_merges_is_little(sizes):
    while groups := merge_groups(parts(sizes), RULES):
        for group in reversed(groups):
            sizes[group.start : group.stop] = [sum(sizes[group.start : group.stop])]
    # Each run of neighbours that fit together falls by halves, from a side to the other.
    assert len(sizes) <= 20 * (1 + 2 * sum(sizes) // RULES.size_bytes_max)


def test_a_log_that_gets_small_segments_for_ever_copies_each_byte_a_few_times():
    sizes, copied, rules = [], 0, MergeRules(1 << 40, 1 << 40)
    for _ in range(1000):
        sizes.append(10)
        while groups := merge_groups(parts(sizes), rules):
            for group in reversed(groups):
                copied += sum(sizes[group.start : group.stop])
                sizes[group.start : group.stop] = [sum(sizes[group.start : group.stop])]
    assert len(sizes) <= 20
    assert copied <= 10 * 10_000


def test_the_middle_of_three_is_merged_although_its_neighbours_are_too_large():
    assert merge_groups(parts([900, 100, 100, 900]), RULES) == [range(1, 3)]
    assert merge_groups(parts([900, 1001, 100, 900]), RULES) == []
    most = merge_groups(parts([10] * 200), RULES._replace(size_bytes_max=10_000))
    assert most == [range(64), range(64, 128), range(128, 192), range(192, 200)]


# On real streams


async def test_small_clean_segments_become_one_and_every_offset_stays_readable():
    async with started_cleaning() as cluster:
        partition = await cluster.compacted()
        for number in range(8):
            await cluster.write(partition, (b"%d" % number, b"one"), (b"same", b"one"))
            await cluster.roll(partition)
        await cluster.write(partition, (b"same", b"two"))
        await cluster.clean()
        segments = partition.stream.segments
        assert (segments[0].first_number, segments[0].number) == (1, 8)
        assert len(segments) == 2
        every = [*range(0, 16, 2), 15, 16]
        for offset in range(17):
            left = [at for at in every if at >= offset]
            assert list(await cluster.read_records(partition, offset)) == left
        await cluster.check(partition)
        assert cluster.report().last.segments_merged == 8


async def test_merging_stops_at_segment_bytes():
    async with started_cleaning() as cluster:
        partition = await cluster.compacted(segment_bytes=1_048_576)
        for number in range(6):
            await cluster.write(partition, (b"%d" % number, bytes(400_000)))
            await cluster.roll(partition)
        await cluster.clean()
        merged = partition.stream.cleanable_segments()
        assert [each.number - each.first_number for each in merged] == [1, 1, 1]
        assert all(partition.stream.segment_bytes(each) <= 1_048_576 for each in merged)
        await cluster.check(partition)


async def test_months_of_rounds_leave_few_segments():
    async with started_cleaning() as cluster:
        partition = await cluster.compacted()
        for number in range(60):
            await cluster.write(partition, (b"%d" % number, b"one"), (b"same", b"%d" % number))
            await cluster.roll(partition)
            await cluster.clean()
        await cluster.check(partition)
        assert len(partition.stream.segments) <= 12


@asynccontextmanager
async def clean_log(segments=4):
    """Yield a cluster, a partition whose segments are clean and not merged, and its next merge."""
    async with started_cleaning() as cluster:
        partition = await cluster.compacted()
        for number in range(segments):
            await cluster.write(partition, (b"%d" % number, b"one"), (b"same", b"%d" % number))
            await cluster.write_in_transaction(partition, (b"same", b"aborted"), producer=number)
            await cluster.roll(partition)
            await cluster.abort(partition, producer=number)
        await cluster.roll(partition)
        await cluster.write(partition, (b"last", b"one"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LogRound, "merge", unmerged)
            await cluster.clean()
        work = LogRound(
            partition,
            cluster.process,
            cluster.cleaner._pace,
            lambda: cluster.settings,
            cluster.clock,
            Progress(),
            lambda: True,
        )
        yield cluster, partition, work


async def unmerged(self, segment_bytes):
    pass


async def every_list(partition):
    """Return the aborted transactions of each range of offsets."""
    end = partition.stable_offset
    return {
        (first, last): set(await partition.aborted(first, last))
        for first in range(end)
        for last in range(first + 1, end + 1)
    }


async def test_readers_learn_of_every_aborted_transaction_of_the_parts():
    async with clean_log() as (cluster, partition, work):
        before = await every_list(partition)
        named = set().union(*before.values())
        assert len(named) == 4
        await work.merge(1 << 30)
        assert len(partition.stream.segments) == 2
        overlap = {
            (first, last): {
                each for each in named if each.last_offset >= first and each.first_offset < last
            }
            for first, last in before
        }
        assert all(before[bounds] <= overlap[bounds] for bounds in before)
        assert await every_list(partition) == overlap
        await cluster.crash()
        assert await every_list(await cluster.partition()) == overlap


async def test_a_merge_that_fails_leaves_the_list_as_it_was():
    async with clean_log() as (_, partition, work):
        before = partition.stream.segments
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SegmentStore, "_version_of", refused)
            with pytest.raises(MetadataUnavailable):
                await work.merge(1 << 30)
        assert partition.stream.segments == before
        await work.merge(1 << 30)
        assert len(partition.stream.segments) == 2


async def refused(self, segment):
    raise MetadataUnavailable("the store does not answer")


async def test_a_merge_that_cannot_write_deletes_its_ledger():
    async with clean_log() as (cluster, partition, work):
        before, ledgers = partition.stream.segments, await cluster.services.client.list_ledgers()
        cluster.port.refuse()
        with pytest.raises(LedgerError):
            await work.merge(1 << 30)
        cluster.port.accept()
        assert partition.stream.segments == before
        assert await cluster.services.client.list_ledgers() == ledgers


async def test_a_lost_partition_is_not_merged():
    async with clean_log() as (_, partition, work):
        before = partition.stream.segments
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(partition), "is_leader", property(lambda self: False))
            with pytest.raises(NotOwner):
                await work.merge(1 << 30)
        assert partition.stream.segments == before


async def test_the_parts_of_a_merged_segment_are_deleted_after_the_delay():
    async with clean_log() as (cluster, partition, work):
        parts_of = [each.ledger for each in partition.stream.cleanable_segments()]
        await work.merge(1 << 30)
        assert set(parts_of) <= set(await cluster.services.client.list_ledgers())
        await asyncio.sleep(61)
        await partition.expire()
        listed = [each.ledger for each in partition.stream.segments]
        assert await cluster.services.client.list_ledgers() == sorted(listed)
        await cluster.check(partition)


async def test_a_crash_before_the_swap_leaves_the_parts_and_one_orphan():
    async with clean_log() as (cluster, partition, work):
        ledgers = await cluster.services.client.list_ledgers()
        before = partition.stream.segments

        async def crash(self, before, after):
            await cluster.crash()
            raise MetadataUnavailable("the process ended")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SegmentStore, "replace", crash)
            with pytest.raises(LedgerError):
                await work.merge(1 << 30)
        partition = await cluster.partition()
        assert partition.stream.segments[: len(before) - 1] == before[:-1]
        assert len(set(await cluster.services.client.list_ledgers()) - set(ledgers)) == 1
        await cluster.check(partition)
