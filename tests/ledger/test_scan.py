"""Goal: a scan reads a bounded range completely and in order, or raises, and disturbs no owner.

Method: real streams and ledger clients over a simulated cluster on virtual time. An owner writes,
rolls, truncates and dies; a scan cuts ranges into slices and reads them. The dumb twin is the list
of acknowledged records.
"""

import asyncio
import pickle
import random
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.client.client import LedgerClient
from ledger.errors import (
    CorruptFormat,
    EntryUnknown,
    NoNode,
    NoSuchLedger,
    StreamUnavailable,
    Truncated,
)
from ledger.streams.config import StreamLimits
from ledger.streams.scan import StreamScan
from ledger.streams.segment_store import delete_stream
from ledger.streams.slice_read import read_slice
from tests.ledger.follow_rig import NAME, by_sequence_id, started_rig, timestamp_of
from tests.ledger.reader_rig import ReaderPort
from tests.sim.loop import SimClock
from tests.sim.metadata import MetadataFaults, SimMetadata
from tests.sim.network import SimBookies

DENSE = StreamLimits(
    entry_bytes_max=64 * 1024, index_stride_bytes=200, snapshot_bytes=2000, read_chunk_bytes=1000
)
"""Limits with an index point for every few records, a snapshot after every hundred."""


def reader(rig, host="reader"):
    """The services of a reader that is neither owner nor gateway."""
    store = SimMetadata(rig.world.tree, rig.world.metadata_faults)
    port = ReaderPort(SimBookies(rig.world.network, host))
    client = LedgerClient(store, port, SimClock(), rig.world.config)
    return SimpleNamespace(store=store, port=port, client=client, limits=rig.limits)


async def scan_of(rig, by=None):
    by = by or reader(rig)
    return by, await StreamScan.open(NAME, by.store, by.client, timestamp_of, rig.limits)


async def read(by, slices, chunk_bytes=300):
    """Return the data by sequence id, every slice cut to its own records."""
    found = []
    for piece in slices:
        chunks = read_slice(by.store, by.client, piece, chunk_bytes)
        records = [record async for chunk in chunks for record in chunk]
        found += [r for r in records if piece.first <= r.sequence_id < piece.end]
    data = {record.sequence_id: bytes(record.data) for record in found}
    assert len(data) == len(found), "one was read twice"
    return data


async def written(rig, *counts, mixed=False):
    """Return an owner with these counts of records in its segments, the last one in progress.

    Their timestamps rise, or else are `mixed`.
    """
    owner = await rig.owner()
    for number, count in enumerate(counts):
        if number:
            await owner.roll()
        for _ in range(count):
            owner.append(timestamp=rig.numbers * 7919 % 1000 if mixed else None)
            if owner.pending > 3:
                await owner.settle()
        await owner.settle()
    await asyncio.sleep(1)
    return owner


# Reading


async def test_the_slices_of_a_whole_stream_hold_every_record_once():
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        owner = await written(rig, 40, 70, 30)
        by, scan = await scan_of(rig)
        slices = await scan.cut(0, scan.end_sequence_id, 500)
        assert len(slices) > 6
        assert await read(by, slices) == by_sequence_id(owner)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(0, 60), min_size=1, max_size=4),
    slice_bytes=st.integers(1, 4000),
    bounds=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    stride=st.sampled_from([100, 400, 2000]),
    dies=st.booleans(),
)
async def test_any_range_is_cut_and_read_as_its_owner_wrote_it(
    counts, slice_bytes, bounds, stride, dies
):
    limits = StreamLimits(
        entry_bytes_max=64 * 1024,
        index_stride_bytes=stride,
        snapshot_bytes=2000,
        read_chunk_bytes=1000,
    )

    async with started_rig(limits=limits, control_ms=100) as rig:
        owner = await written(rig, *counts, mixed=True)
        if dies:
            owner.kill()
        by, scan = await scan_of(rig)
        assert scan.end_sequence_id == sum(counts)
        first, end = sorted(round(share * scan.end_sequence_id) for share in bounds)
        slices = await scan.cut(first, end, slice_bytes)
        edges = [first, *[piece.end for piece in slices]]
        assert [piece.first for piece in slices] == edges[:-1] and edges[-1] == end
        written_there = {at: d for at, d in by_sequence_id(owner).items() if first <= at < end}
        assert await read(by, slices) == written_there
        for piece in slices:
            greatest = max(timestamp_of(written_there[at]) for at in range(piece.first, piece.end))
            assert piece.timestamp_max is None or piece.timestamp_max >= greatest


async def test_a_slice_lies_in_one_segment_and_overlaps_no_other_slices_entries():
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        await written(rig, 50, 50)
        _, scan = await scan_of(rig)
        slices = await scan.cut(10, 90, 400)
        for before, after in pairwise(slices):
            assert (before.number, before.last_entry) < (after.number, after.first_entry)
        for piece in slices:
            segment = next(s for s in scan.segments if s.number == piece.number)
            assert segment.start_sequence_id == piece.start_sequence_id <= piece.first


async def test_slices_are_about_as_large_as_was_asked_for():
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        await written(rig, 400, 1)
        _, scan = await scan_of(rig)
        slices = await scan.cut(0, 400, 3000)
        counts = [piece.end - piece.first for piece in slices]
        assert max(counts) <= 2 * min(counts)
        (whole,) = await scan.cut(0, 400, 10**9)
        assert 0.7 < sum(piece.size_bytes for piece in slices) / whole.size_bytes < 1.3


async def test_the_smallest_slices_are_no_more_than_the_index_has_points():
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        await written(rig, 400, 1)
        by, scan = await scan_of(rig)
        slices = await scan.cut(3, 400, 1e-12)  # as a byte is small beside a very large segment
        assert 10 < len(slices) <= 400
        assert len(await read(by, slices)) == 397


async def test_a_slice_is_read_by_who_knows_nothing_but_the_slice():
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        owner = await written(rig, 30)
        _, scan = await scan_of(rig)
        slices = pickle.loads(pickle.dumps(await scan.cut(0, 30, 300)))
        scan.close()
        found = await read(reader(rig, "elsewhere"), slices)
        assert found == by_sequence_id(owner)


# The end


async def test_the_end_is_what_bookies_know_to_be_committed():
    async with started_rig() as rig:
        owner = await written(rig, 5)
        _, scan = await scan_of(rig)
        assert scan.end_sequence_id == 4  # no newer entry carries the LAC of the last one
        await owner.add()
        await scan.refresh()
        assert scan.end_sequence_id == 5


async def test_a_refresh_sees_new_records_new_segments_and_a_new_start():
    async with started_rig(control_ms=100) as rig:
        owner = await written(rig, 10)
        by, scan = await scan_of(rig)
        await owner.roll()
        await owner.add(3)
        await owner.stream.truncate(4)
        await asyncio.sleep(1)
        await scan.refresh()
        assert (scan.start_sequence_id, scan.end_sequence_id) == (4, 13)
        found = await read(by, await scan.cut(4, 13, 100))
        assert found == {at: d for at, d in by_sequence_id(owner).items() if at >= 4}


async def test_a_stream_that_was_closed_cleanly_is_read_to_its_last_record():
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        owner = await written(rig, 10, 5)
        await owner.stream.close()
        by, scan = await scan_of(rig)
        assert await read(by, await scan.cut(0, 15, 100)) == by_sequence_id(owner)


async def test_a_stream_without_records_has_no_slices():
    async with started_rig() as rig:
        _, scan = await scan_of(rig)
        assert (scan.start_sequence_id, scan.end_sequence_id) == (0, 0)
        assert await scan.cut(0, 0, 100) == []


async def test_an_end_that_too_few_bookies_can_tell_is_an_error_and_no_end():
    async with started_rig() as rig:
        await written(rig, 5)
        by = reader(rig)
        by.port.stalled = set(list(rig.world.bookies)[:2])
        with pytest.raises(EntryUnknown):
            await scan_of(rig, by)
        by.port.stalled.clear()
        _, scan = await scan_of(rig, by)
        assert scan.end_sequence_id == 4


async def test_what_is_not_known_to_be_committed_is_not_cut():
    async with started_rig() as rig:
        await written(rig, 5)
        _, scan = await scan_of(rig)
        with pytest.raises(StreamUnavailable):
            await scan.cut(0, 5, 100)


async def test_a_metadata_server_that_is_behind_hides_nothing_that_was_acknowledged():
    async with started_rig(control_ms=100) as rig:
        by = reader(rig)
        by.store = SimMetadata(rig.world.tree, MetadataFaults(random.Random(1), lag_s=3600))
        await written(rig, 10, 10)
        _, scan = await scan_of(rig, by)
        assert scan.end_sequence_id == 20


# Timestamps


async def test_the_first_record_at_or_after_a_time_is_found():
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        owner = await written(rig, 30, 30, 30)
        _, scan = await scan_of(rig)
        for wanted in (0, 1001, 1030, 1031, 1045, 1060, 1090, 1091):
            record = await scan.find_timestamp(wanted)
            least = min(
                (at for at, d in by_sequence_id(owner).items() if timestamp_of(d) >= wanted),
                default=None,
            )
            assert (None if record is None else record.sequence_id) == least


async def test_records_before_the_first_one_wanted_are_not_found_by_their_time():
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        await written(rig, 30, 30)
        _, scan = await scan_of(rig)
        record = await scan.find_timestamp(1000, 40)
        assert record is not None and record.sequence_id == 40


@pytest.mark.parametrize("seed", range(12))
async def test_falling_timestamps_and_truncated_records_are_found_as_kafka_finds_them(seed):
    """Seed 000 D26: the first record, from the log start on, with at least the timestamp."""
    draw = random.Random(seed)
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        owner = await rig.owner()
        for at in range(4):
            if at:
                await owner.roll()
            for _ in range(draw.randrange(1, 25)):
                owner.append(timestamp=draw.randrange(1000, 1050))
                await owner.settle()
        start = draw.randrange(owner.stream.end_sequence_id)
        await owner.stream.truncate(start)
        await owner.add()
        await asyncio.sleep(1)  # until a control record shows the last one
        stored = {at: timestamp_of(d) for at, d in by_sequence_id(owner).items() if at >= start}
        _, scan = await scan_of(rig)
        for wanted in range(999, 1052, 4):
            found = await scan.find_timestamp(wanted)
            least = min((at for at, each in stored.items() if each >= wanted), default=None)
            assert (found and found.sequence_id) == least
            owned = await owner.stream.find_timestamp(wanted)
            assert (owned and owned.sequence_id) == least


async def test_a_lookup_by_time_opens_the_segment_that_it_finds_and_the_next_one_for_its_index():
    """Seed 000 D26: the segments are bisected by their bounds, without reading the others."""
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        await written(rig, *[30] * 8)
        await asyncio.sleep(1)
        for wanted in (1001, 1040, 1100, 1199, 1240):
            by, scan = await scan_of(rig)
            opened = count_opened_ledgers(by)
            record = await scan.find_timestamp(wanted)
            assert record is not None and record.sequence_id == wanted - 1001
            assert len(opened) <= 2
            scan.close()


def count_opened_ledgers(by):
    """Return a set that collects the ledgers whose metadata are read."""
    get, opened = by.store.get, set()

    async def counted(path):
        if path.startswith("/ledgers/"):
            opened.add(path)
        return await get(path)

    by.store.get = counted
    return opened


# The owner is not disturbed


async def test_a_scan_writes_nothing_and_fences_nobody():
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        owner = await written(rig, 20, 20)
        by, scan = await scan_of(rig)
        before = dict(rig.world.tree.follow()[0])
        await read(by, await scan.cut(0, 40, 200))
        assert dict(rig.world.tree.follow()[0]) == before
        assert {what for what, _, _ in by.port.asked} <= {"read_many", "read_lac"}
        await owner.add(5)
        assert not owner.failures


async def test_one_chunk_is_on_its_way_while_another_is_decoded_and_never_more():
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        await written(rig, 100)
        by, scan = await scan_of(rig)
        (piece,) = await scan.cut(0, 100, 10**9)
        by.port.asked.clear()
        chunks = read_slice(by.store, by.client, piece, 300)
        await anext(chunks)
        asked = by.port.count("read_many").total()
        await asyncio.sleep(5)  # a slow caller
        assert by.port.count("read_many").total() == asked == 2
        await chunks.aclose()
        assert by.port.count("read_many").total() == 2


# Removed segments


async def test_a_range_below_the_start_is_truncated():
    async with started_rig() as rig:
        owner = await written(rig, 10)
        await owner.stream.truncate(5)
        _, scan = await scan_of(rig)
        with pytest.raises(Truncated):
            await scan.cut(4, 8, 100)


async def test_a_segment_that_retention_removes_under_the_read_is_truncated():
    async with started_rig(limits=DENSE, truncated_keep_ms=0, control_ms=100) as rig:
        owner = await written(rig, 20, 20, 20)
        by, scan = await scan_of(rig)
        slices = await scan.cut(0, 30, 200)
        chunks = read_slice(by.store, by.client, slices[0], 100)
        await anext(chunks)
        await owner.stream.truncate(25)
        await asyncio.sleep(1)
        await owner.stream.expire()
        await asyncio.sleep(1)
        with pytest.raises(Truncated):
            await read(by, slices[:1])
        with pytest.raises(Truncated):
            await read(by, slices[1:2])
        await chunks.aclose()
        assert await read(by, [piece for piece in slices if piece.number == 2])


async def test_a_stream_that_is_deleted_under_the_read_is_gone():
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        owner = await written(rig, 20)
        by, scan = await scan_of(rig)
        slices = await scan.cut(0, 20, 200)
        ledgers = [segment.ledger for segment in scan.segments]
        await owner.stream.abandon()
        await delete_stream(SimMetadata(rig.world.tree), NAME)
        for ledger in ledgers:
            await reader(rig, "deleter").client.delete(ledger)
        with pytest.raises(NoNode):
            await read(by, slices)
        with pytest.raises(NoNode):
            await scan.refresh()


async def test_a_ledger_that_is_missing_though_its_segment_is_listed_is_no_truncation():
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        await written(rig, 20, 20)
        by, scan = await scan_of(rig)
        slices = await scan.cut(0, 30, 10**6)
        await by.client.delete(slices[0].ledger)
        with pytest.raises(NoSuchLedger):
            await read(by, slices[:1])


async def test_a_slice_that_nobody_can_show_now_is_unknown_and_readable_later():
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        owner = await written(rig, 20)
        by, scan = await scan_of(rig)
        slices = await scan.cut(0, 20, 10**6)
        by.port.stalled = set(rig.world.bookies)
        with pytest.raises(EntryUnknown):
            await read(by, slices)
        by.port.stalled.clear()
        assert await read(by, slices) == by_sequence_id(owner)


async def test_a_stream_that_does_not_exist_is_said_to_be_none():
    async with started_rig() as rig:
        by = reader(rig)
        with pytest.raises(NoNode):
            await StreamScan.open("another", by.store, by.client)


@pytest.mark.parametrize("change", [{"last_entry": 3}, {"first_entry": 5}])
async def test_a_record_that_is_missing_is_an_error(change):
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        await written(rig, 20)
        by, scan = await scan_of(rig)
        (piece,) = await scan.cut(0, 20, 10**6)
        with pytest.raises(CorruptFormat):
            await read(by, [replace(piece, **change)])
