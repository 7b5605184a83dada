"""Goal: a scan covers accepted losses by the loss, and stops at one that nobody accepted.

Method: the streams of `test_scan`, whose bookies lose entries. Ranges are accepted in the node, as
an operator does. The twin is the list of acknowledged records.
"""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.core.accepted_losses import LostRange
from ledger.core.gaps import ENTRY_MAX, Acceptance, Evidence, OffsetRange, Position
from ledger.core.loss import CopyAnswer, EntryLost, Verdict, state_of
from ledger.core.records import parse_entry
from ledger.errors import CorruptFormat, Truncated
from ledger.ids import EntryId
from ledger.streams.accepted_losses import accept_losses, drop_truncated, losses_path
from ledger.streams.slice_read import read_slice
from tests.ledger.follow_rig import NAME, by_sequence_id, started_rig
from tests.ledger.life_rig import listed
from tests.ledger.test_scan import DENSE, reader, scan_of, written


async def singly_written(rig, *counts):
    """Return an owner with these counts of records in its segments, each in an entry of its own."""
    owner = await rig.owner()
    for number, count in enumerate(counts):
        if number:
            await owner.roll()
        await owner.add(count)
    await asyncio.sleep(1)
    return owner


async def entries_of(rig, number):
    """Return the entries of a segment with the sequence ids of their records, if they have any."""
    segment = listed(rig)[number - 1]
    by = reader(rig, "looking")
    source = await by.client.open(segment.ledger)
    found, following = {}, 0
    while following <= segment.last_entry:
        for entry, payload in await source.read(EntryId(following), segment.last_entry, 1 << 20):
            following = entry + 1
            records = [each for each in parse_entry(payload) if not each.control]
            if records:
                first = segment.start_sequence_id - 1 + records[0].position
                last = records[-1]
                end = segment.start_sequence_id - 1 + last.position + last.records
                found[entry] = range(first, end)
    return found


def range_of(rig, number, first, last, offsets):
    """Return an accepted range of a segment, as if all of its bookies denied the entries."""
    segment = listed(rig)[number - 1]
    copies = tuple(state_of(name, CopyAnswer.DENIED) for name in sorted(rig.world.bookies))
    evidence = Evidence(segment.ledger, Verdict.COMPLETE, copies, 0, Acceptance(7, "ops"))
    return LostRange(number, EntryId(first), EntryId(last), OffsetRange(*offsets), evidence)


async def range_over(rig, number, first, last):
    """Return an accepted range of these entries, with their offsets."""
    entries = await entries_of(rig, number)
    inside = [each for entry, each in entries.items() if first <= entry <= last]
    return range_of(rig, number, first, last, (inside[0].start, inside[-1].stop - 1))


def forget(rig, number, *entries):
    """Remove the entries from all bookies."""
    ledger = listed(rig)[number - 1].ledger
    for bookie in rig.world.bookies.values():
        for entry in entries:
            if ledger in bookie.ledgers:
                bookie.ledgers[ledger].entries.pop(entry, None)


async def passed(by, slices, chunk_bytes=300):
    """Return what the slices cover: data by sequence id, and the losses in order."""
    data, losses, at = {}, [], slices[0].first
    for piece in slices:
        assert piece.first == at
        chunks = read_slice(by.store, by.client, piece, chunk_bytes)
        for each in [each async for chunk in chunks for each in chunk]:
            if each.lost is None and each.sequence_id >= piece.first:
                assert each.sequence_id == at
                data[at] = bytes(each.data)
            elif each.lost is not None and each.lost not in losses:
                assert (each.data, each.sequence_id <= at) == (b"", True)
                losses.append(each.lost)
            at = max(at, min(each.end_sequence_id, piece.end))
        assert at == piece.end
    return data, losses


async def losses_at(rig, number, chances):
    """Return ranges of a segment that begin at these entries, with so many more, kept apart."""
    entries = sorted(await entries_of(rig, number))
    found, taken = [], entries[0]
    for at, count in sorted(chances):
        if taken < at < entries[-1] and at in entries:
            taken = min(at + count, entries[-1])
            found.append(await range_over(rig, number, at, taken))
    return found


def without(owner, *losses):
    """Return the acknowledged records that no loss covers."""
    gone = {at for each in losses for at in range(each.offsets.first, each.offsets.last + 1)}
    return {at: data for at, data in by_sequence_id(owner).items() if at not in gone}


async def test_an_accepted_loss_is_passed_once_and_what_follows_is_read():
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        owner = await singly_written(rig, 40, 20)
        gone = await range_over(rig, 1, 12, 15)
        forget(rig, 1, *range(12, 16))
        await accept_losses(owner.session, NAME, [gone])
        by, scan = await scan_of(rig)
        assert scan.losses.ranges == (gone,)
        slices = await scan.cut(0, scan.end_sequence_id, 500)
        assert len(slices) > 3
        data, losses = await passed(by, slices)
        assert losses == [gone]
        assert data == without(owner, gone)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    chances=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 8)), max_size=6),
    slice_bytes=st.integers(1, 4000),
    bounds=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    chunk_bytes=st.sampled_from([1, 300, 10_000]),
    again=st.booleans(),
)
async def test_any_range_is_covered_by_records_and_losses(
    chances, slice_bytes, bounds, chunk_bytes, again
):
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        owner = await written(rig, 45, 30, 10)
        losses = [*await losses_at(rig, 1, chances), *await losses_at(rig, 2, chances)]
        await accept_losses(owner.session, NAME, losses)
        for each in losses:
            if not again:
                forget(rig, each.segment, *range(each.first, each.last + 1))
        by, scan = await scan_of(rig)
        first, end = sorted(round(share * scan.end_sequence_id) for share in bounds)
        slices = await scan.cut(first, end, slice_bytes)
        if not slices:
            return
        data, found = await passed(by, slices, chunk_bytes)
        inside = [x for x in losses if x.offsets.first < end and x.offsets.last >= first]
        assert found == inside
        wanted = without(owner, *losses)
        assert data == {at: wanted[at] for at in wanted if first <= at < end}


async def test_a_loss_that_nobody_accepted_stops_the_read_behind_the_records_before_it():
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        await singly_written(rig, 40, 20)
        offsets = (await entries_of(rig, 1))[12]
        forget(rig, 1, 12)
        by, scan = await scan_of(rig)
        (piece,) = await scan.cut(0, 40, 10**6)
        seen = []
        with pytest.raises(EntryLost) as lost:
            async for chunk in read_slice(by.store, by.client, piece, 300):
                seen += chunk
        assert seen[-1].end_sequence_id == offsets.start
        assert lost.value.entry == 12


@pytest.mark.parametrize("accepted", [False, True])
async def test_records_behind_a_loss_are_read_by_their_own_offsets(accepted):
    """The index leads to an entry before the loss, which a slice behind it need not read."""
    async with started_rig(limits=replace(DENSE, index_stride_bytes=2000), control_ms=100) as rig:
        owner = await singly_written(rig, 60, 5)
        entries = await entries_of(rig, 1)
        gone = await range_over(rig, 1, 12, 13)
        forget(rig, 1, 12, 13)
        by, scan = await scan_of(rig)
        for at in (entries[14].start, entries[15].start, 59):
            if accepted:
                await accept_losses(owner.session, NAME, [gone])
            slices = await scan.cut(at, 65, 10**6)
            assert slices[0].first_entry < 12 or at == 59
            data, losses = await passed(by, slices)
            assert losses == []
            assert data == {n: each for n, each in without(owner).items() if n >= at}
        (piece,) = await scan.cut(gone.offsets.last, 60, 10**6)
        if not accepted:
            with pytest.raises(EntryLost):
                await passed(by, [piece])


async def test_a_slice_that_ends_before_a_loss_is_read_to_its_end():
    """Without an index point between, its entries run into the loss."""
    async with started_rig(limits=replace(DENSE, index_stride_bytes=2000), control_ms=100) as rig:
        owner = await singly_written(rig, 40, 5)
        entries = await entries_of(rig, 1)
        forget(rig, 1, 12, 13)
        by, scan = await scan_of(rig)
        slices = await scan.cut(0, entries[12].start, 10**6)
        assert slices[-1].last_entry >= 13
        for chunk_bytes in (1, 300):
            data, _ = await passed(by, slices, chunk_bytes)
            assert data == {n: d for n, d in without(owner).items() if n < entries[12].start}


async def test_a_read_that_met_the_loss_goes_on_once_it_is_accepted():
    """The slice was cut and begun before the acceptance."""
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        owner = await singly_written(rig, 40, 20)
        gone = await range_over(rig, 1, 12, 13)
        by, scan = await scan_of(rig)
        slices = await scan.cut(0, 60, 10**6)
        forget(rig, 1, 12, 13)
        chunks = read_slice(by.store, by.client, slices[0], 100)
        seen = [*await anext(chunks)]
        await accept_losses(owner.session, NAME, [gone])
        seen += [each async for chunk in chunks for each in chunk]
        assert [each.lost for each in seen if each.lost is not None] == [gone]
        data = {each.sequence_id: bytes(each.data) for each in seen if each.lost is None}
        assert data == {at: d for at, d in without(owner, gone).items() if at < 40}


async def test_a_copy_that_is_found_again_is_not_delivered_by_a_read_that_runs():
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        owner = await singly_written(rig, 40, 20)
        gone = await range_over(rig, 1, 12, 14)
        by, scan = await scan_of(rig)
        slices = await scan.cut(0, 40, 10**6)
        chunks = read_slice(by.store, by.client, slices[0], 100)
        seen = [*await anext(chunks)]
        await accept_losses(owner.session, NAME, [gone])
        await asyncio.sleep(1)
        seen += [each async for chunk in chunks for each in chunk]
        data = {each.sequence_id: bytes(each.data) for each in seen if each.lost is None}
        assert data == {at: d for at, d in without(owner, gone).items() if at < 40}


async def test_a_loss_that_truncation_removes_from_the_node_stays_known_to_the_read():
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        owner = await singly_written(rig, 40, 20)
        gone = await range_over(rig, 1, 12, 14)
        await accept_losses(owner.session, NAME, [gone])
        forget(rig, 1, *range(12, 15))
        by, scan = await scan_of(rig)
        slices = await scan.cut(0, 40, 10**6)
        chunks = read_slice(by.store, by.client, slices[0], 100)
        seen = [*await anext(chunks)]
        await drop_truncated(owner.session, NAME, Position(2, EntryId(0)))
        await asyncio.sleep(1)
        seen += [each async for chunk in chunks for each in chunk]
        assert [each.lost for each in seen if each.lost is not None] == [gone]


async def test_a_slice_with_a_loss_is_not_left_out_for_its_timestamps():
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        owner = await singly_written(rig, 40, 20)
        _, scan = await scan_of(rig)
        assert all(piece.timestamp_max is not None for piece in await scan.cut(0, 40, 500))
        await accept_losses(owner.session, NAME, [await range_over(rig, 1, 12, 15)])
        await scan.refresh()
        unknown = [p for p in await scan.cut(0, 40, 500) if p.timestamp_max is None]
        assert 1 <= len(unknown) < 4


async def test_offsets_that_were_reserved_behind_a_forced_close_are_a_slice_of_their_own():
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        owner = await written(rig, 20)
        owner.kill()
        by, scan = await scan_of(rig)
        assert scan.end_sequence_id == 20
        (segment,) = listed(rig)
        by = reader(rig, "closer")
        last = (await by.client.recover(segment.ledger)).metadata.last_entry
        gone = range_of(rig, 1, last + 1, ENTRY_MAX, (20, 20 + 2**32 - 1, False))
        await accept_losses(by.store, NAME, [gone])
        other = await rig.owner("other")
        await other.add(3)
        await asyncio.sleep(1)
        by, scan = await scan_of(rig)
        behind = 20 + 2**32
        assert sorted(other.answers.values()) == [behind, behind + 1, behind + 2]
        assert scan.end_sequence_id == behind + 3
        slices = await scan.cut(0, behind + 3, 10**6)
        data, losses = await passed(by, slices)
        assert losses == [gone]
        assert data == by_sequence_id(owner) | by_sequence_id(other)
        inside = await scan.cut(100, behind + 1, 10**6)
        assert [piece.first for piece in inside] == [100, behind]
        assert [piece.end for piece in inside] == [behind, behind + 1]
        with pytest.raises(Truncated):
            await scan.cut(-1, 5, 10**6)


async def test_a_jump_that_no_loss_explains_is_corruption():
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        owner = await singly_written(rig, 40, 20)
        gone = await range_over(rig, 1, 12, 15)
        await accept_losses(owner.session, NAME, [gone])
        by, scan = await scan_of(rig)
        slices = await scan.cut(0, 40, 10**6)
        rig.world.tree.nodes.pop(losses_path(NAME))
        short = range_of(rig, 1, 12, 15, (gone.offsets.first, gone.offsets.last - 1))
        await accept_losses(owner.session, NAME, [short])
        with pytest.raises(CorruptFormat, match=f"expected record {gone.offsets.last}"):
            await passed(by, slices)


async def test_losses_that_cannot_be_read_are_an_error_that_names_their_node():
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        owner = await singly_written(rig, 40, 20)
        by, scan = await scan_of(rig)
        slices = await scan.cut(0, 40, 10**6)
        await owner.session.create(losses_path(NAME), b"1 00000000 {}")
        with pytest.raises(CorruptFormat, match=losses_path(NAME)):
            await passed(by, slices)


async def test_a_loss_at_the_known_end_is_found_after_the_end_has_moved():
    """The end was known by an entry before the loss, and then by one behind it."""
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        owner = await singly_written(rig, 5)
        ledger = listed(rig)[0].ledger
        entries = {
            each for bookie in rig.world.bookies.values() for each in bookie.ledgers[ledger].entries
        }
        forget(rig, 1, *sorted(entries)[2:-1])  # the last one is not known to be acknowledged
        _, scan = await scan_of(rig)
        first = scan.end_sequence_id
        await owner.add(3)
        await asyncio.sleep(1)
        await scan.refresh()
        assert (0 < first < 5, scan.end_sequence_id) == (True, 8)
        with pytest.raises(EntryLost):
            await scan.read(first, 1000)
        assert [each.sequence_id for each in await scan.read(5, 1000)] == [5, 6, 7]
