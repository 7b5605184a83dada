"""Goal: cleaned segments become one, and each reader goes on where it was, or gets an error.

Method: real streams over a simulated cluster on virtual time. The tests clean and merge by hand.
"""

import asyncio

import pytest

from ledger.core.epoch_table import EpochStart
from ledger.core.gaps import Gap
from ledger.core.segment_footer import SegmentFooter, decode_footer
from ledger.core.segment_table import SegmentTable
from ledger.core.segments import Truncation, decode_segment
from ledger.core.sparse_index import SparseIndex
from ledger.errors import (
    BadVersion,
    CorruptFormat,
    InvalidArgument,
    StreamUnavailable,
    Truncated,
    WrongState,
)
from ledger.ids import Dlsn
from ledger.streams.scan import StreamScan
from ledger.streams.slice_read import read_slice
from ledger.streams.stream_seek import Offset
from tests.ledger.cleaning_rig import clean, copied, merge
from tests.ledger.follow_rig import NAME, Follower, timestamp_of
from tests.ledger.life_rig import LEDGERS, WHOLE, has_ledger, listed, taking_over, watched_rig
from tests.ledger.log_reader_rig import Reading
from tests.ledger.lost_stream_rig import accept, lost_range
from tests.ledger.test_cleaned_segments import (
    DENSE,
    GRACE_S,
    even,
    everything_from,
    read_to,
    rolled,
)


async def cleaned_owner(rig, segments=4, records=10, size=24, kept=even):
    """Return an owner of a stream whose completed segments are clean."""
    owner = await rolled(rig, segments, records, size)
    await owner.add(1)
    for number in range(1, segments + 1):
        await clean(owner.stream, number, kept)
    return owner


async def test_merged_segments_have_one_ledger_and_the_same_records():
    async with watched_rig() as rig:
        owner = await cleaned_owner(rig)
        expected = await everything_from(owner.stream, 0)
        old = [each.ledger for each in owner.stream.segments[:3]]
        await merge(owner.stream, 1, 3)
        one, four, five = owner.stream.segments
        assert (one.first_number, one.number, one.start_sequence_id, one.record_count) == (
            1,
            3,
            0,
            30,
        )
        assert (four.number, five.number) == (4, 5)
        assert listed(rig) == [one, four, five]
        for at in range(31):
            assert (await everything_from(owner.stream, at))[-1] == expected[-1]
        assert await everything_from(owner.stream, 0) == expected
        assert all(has_ledger(rig, ledger) for ledger in old)
        await asyncio.sleep(GRACE_S)
        await owner.stream.expire()
        assert not any(has_ledger(rig, ledger) for ledger in old)
        assert await everything_from(owner.stream, 0) == expected


async def test_the_node_of_a_merged_segment_is_one_that_older_releases_refuse():
    async with watched_rig() as rig:
        owner = await cleaned_owner(rig)
        await merge(owner.stream, 2, 4)
        merged = listed(rig)[1]
        assert merged.encode().startswith(b"%d;" % (9 | 30 << 32))
        assert merged.encode().endswith(b";2")
        assert merged.node_name == f"merged-{merged.ledger}-{2:018d}_{4:018d}"
        assert f"{LEDGERS}/{merged.node_name}" in rig.world.tree.nodes
        assert decode_segment(merged.encode(), where="here") == merged


async def test_merged_segments_are_cleaned_and_merged_again():
    async with watched_rig() as rig:
        owner = await cleaned_owner(rig)
        await merge(owner.stream, 1, 2)
        await merge(owner.stream, 3, 4)
        await clean(owner.stream, 4, lambda sequence_id: sequence_id in (20, 34))
        expected = await everything_from(owner.stream, 0)
        await merge(owner.stream, 1, 4)
        assert await everything_from(owner.stream, 0) == expected
        merged = owner.stream.segments[0]
        assert (merged.first_number, merged.number, merged.end_sequence_id) == (1, 4, 40)
        await clean(owner.stream, 4, lambda sequence_id: sequence_id == 34)
        assert owner.stream.segments[0].first_number == 1
        assert [end - 1 for _, end, _ in await everything_from(owner.stream, 0)] == [34, 39, 40]


async def test_an_owner_after_a_crash_reads_the_merged_records():
    async with watched_rig(limits=DENSE) as rig:
        owner = await cleaned_owner(rig, records=40, size=2000)
        await merge(owner.stream, 1, 3)
        await owner.add(3)
        expected = await everything_from(owner.stream, 0)
        owner.kill()
        after = await taking_over(rig, "b")
        for at in (0, 1, 39, 40, 77, 80, 119, 120):
            [record, *_] = await after.stream.read(at, 1)
            assert record.sequence_id <= at < record.end_sequence_id
        assert await everything_from(after.stream, 0) == expected
        assert len(await after.stream._reads.index_of(after.stream.segments[0])) > 1


async def test_a_search_for_a_timestamp_knows_the_times_of_all_parts():
    async with watched_rig() as rig:
        owner = await cleaned_owner(rig)
        found = [(end, data) for _, end, data in await everything_from(owner.stream, 0)]
        times = [(timestamp_of(data), end) for end, data in found if timestamp_of(data) > 0]
        await merge(owner.stream, 1, 3)
        owner.kill()  # the newest snapshot has the times of the parts
        after = await taking_over(rig, "b")
        by = Follower(rig, "f")
        await by.stream.open()
        for stream in (after.stream, by.stream):
            for asked, end in times:
                assert (await stream.find_timestamp(asked)).end_sequence_id == end
        await by.stream.close()


# What may not be merged, and when


async def test_a_zombie_cannot_merge():
    async with watched_rig() as rig:
        zombie = await cleaned_owner(rig)
        merged = await copied(zombie.stream, *zombie.stream.segments[:3])
        owner = await taking_over(rig, "b")
        await owner.add(1)
        before = listed(rig)
        with pytest.raises(BadVersion):
            await zombie.stream.replace(merged)
        assert zombie.failures
        assert listed(rig) == before


@pytest.mark.parametrize("change", ["cleaned", "truncated", "merged", "lost"])
async def test_segments_that_changed_meanwhile_are_not_merged(change):
    async with watched_rig() as rig:
        owner = await cleaned_owner(rig)
        segments = owner.stream.segments[:3]
        merged = await copied(owner.stream, *segments)
        if change == "cleaned":
            await clean(owner.stream, 2, lambda sequence_id: False)
        elif change == "truncated":
            await owner.stream.truncate(1)
        elif change == "merged":
            await merge(owner.stream, 3, 4)
        else:
            await accept(rig, lost_range(segments[1], 0, 0, 10, 19))
        before = listed(rig)
        with pytest.raises(StreamUnavailable if change == "lost" else Truncated):
            await owner.stream.replace(merged)
        assert listed(rig) == before
        assert owner.failures == []
        await owner.add(1)


async def test_a_crash_before_the_swap_leaves_one_ledger_that_no_stream_lists():
    async with watched_rig() as rig:
        owner = await cleaned_owner(rig)
        before = listed(rig)
        merged = await copied(owner.stream, *owner.stream.segments[:3])
        owner.kill()
        after = await taking_over(rig, "b")
        assert listed(rig)[:4] == before[:4]
        assert has_ledger(rig, merged.after.ledger)
        assert merged.after.ledger not in [each.ledger for each in after.stream.segments]


async def test_a_part_whose_epoch_is_not_known_is_not_merged():
    async with watched_rig() as rig:
        owner = await cleaned_owner(rig)
        merged = await copied(owner.stream, *owner.stream.segments[:2])
        owner.stream._table._summaries._by_number.pop(2)
        with pytest.raises(StreamUnavailable, match="epoch"):
            await owner.stream.replace(merged)


async def test_a_loss_in_a_part_that_was_merged_is_not_accepted():
    async with watched_rig() as rig:
        owner = await cleaned_owner(rig)
        two = owner.stream.segments[1]
        await merge(owner.stream, 1, 3)
        with pytest.raises(InvalidArgument, match="was cleaned"):
            await accept(rig, lost_range(two, 0, 0, 10, 19))
        merged = owner.stream.segments[0]
        [stored] = (await accept(rig, lost_range(merged, 0, 0, 0, 29))).ranges
        assert stored.evidence.ledger == merged.ledger


# Epochs


async def epochs_of_owners(rig):
    """Return an owner behind two others, all of whose segments are clean, and its epochs."""
    for name in ("a", "b"):
        owner = await taking_over(rig, name)
        await owner.add(5)
        await owner.roll()
        await owner.add(5)
    owner = await taking_over(rig, "c")
    await owner.add(5)
    await owner.roll()
    await owner.add(1)
    for segment in owner.stream.cleanable_segments():
        await clean(owner.stream, segment.number, even)
    return owner, [owner.stream.epoch_at(at) for at in range(owner.stream.end_sequence_id)]


async def test_the_epochs_of_merged_segments_survive_each_owner_and_snapshot():
    async with watched_rig() as rig:
        owner, expected = await epochs_of_owners(rig)
        assert len(set(expected)) == 3
        await merge(owner.stream, 1, 4)
        for name in ("d", "e"):
            epochs = [owner.stream.epoch_at(at) for at in range(len(expected))]
            assert epochs == expected
            ends = [owner.stream.epoch_end(epoch) for epoch in sorted(set(expected))]
            assert [end.end_sequence_id for end in ends][:2] == [10, 20]
            owner.kill()
            owner = await taking_over(rig, name)
            await owner.add(1)
            await owner.roll()


@pytest.mark.parametrize("heads", ["before the merge", "behind the merge", "lost"])
async def test_a_follower_knows_the_epochs_of_merged_segments(heads):
    async with watched_rig() as rig:
        owner, expected = await epochs_of_owners(rig)
        await merge(owner.stream, 1, 2)
        await merge(owner.stream, 1, 4)
        if heads == "behind the merge":
            await owner.roll()
            await owner.add(1)
        follower = Follower(rig, "f")
        await follower.stream.open()
        if heads == "lost":
            table = follower.stream._table = SegmentTable()
            segments = [each for each in owner.stream.segments if each.cleaned]
            assert await follower.stream._learn_epochs(segments) is None
            table.relist(segments)
        table = follower.stream._table
        assert [table.epoch_at(at) for at in range(20)] == expected[:20]
        assert table.epochs_between(0, 20) == owner.stream.epochs_between(0, 20)
        await follower.stream.close()


def test_a_footer_has_a_later_version_only_with_further_epochs():
    plain = SegmentFooter(SparseIndex(), 5, 3, b"aborted")
    assert plain.encode()[0] == 1
    assert decode_footer(plain.encode()).epochs == ()
    merged = SegmentFooter(SparseIndex(), 5, 3, b"aborted", (EpochStart(4, 10), EpochStart(7, 12)))
    whole = merged.encode()
    assert whole[0] == 2
    found = decode_footer(whole)
    assert (found.epochs, found.epoch, found.aborted) == (merged.epochs, 3, b"aborted")
    for end in range(len(whole)):
        with pytest.raises(CorruptFormat):
            decode_footer(whole[:end])
    with pytest.raises(CorruptFormat, match="version"):
        decode_footer(b"\x03" + whole[1:])


# Readers that do not own the stream


async def test_a_follower_goes_on_in_the_merged_segment():
    async with watched_rig(control_ms=100) as rig:
        owner = await cleaned_owner(rig, records=40)
        follower = Follower(rig, "f")
        await follower.stream.open()
        await asyncio.sleep(2)
        expected = await read_to(owner.stream, 0, 160, 100)
        found = await read_to(follower.stream, 0, 60, 100)
        await merge(owner.stream, 1, 3)
        await asyncio.sleep(2)
        assert len(follower.stream.segments) == 3
        found += await read_to(follower.stream, found[-1].end_sequence_id, 160, 100)
        assert [each[:2] for each in found] == [each[:2] for each in expected]
        await follower.stream.close()


async def test_a_follower_that_notices_nothing_reads_on_when_it_loses_the_parts():
    async with watched_rig() as rig:
        owner = await cleaned_owner(rig, records=40)
        follower = Follower(rig, "f")
        await follower.stream.open()
        await asyncio.sleep(2)
        expected = [each[:2] for each in await read_to(owner.stream, 0, 160)][:-1]
        found = await read_to(follower.stream, 0, 60, 100)
        follower.stream._list._unwatch[0]()  # the watch fires late
        await merge(owner.stream, 1, 3)
        await asyncio.sleep(GRACE_S)
        await owner.stream.expire()
        found += await read_to(follower.stream, found[-1].end_sequence_id, 160, 100)
        assert [each[:2] for each in found] == expected
        await follower.stream.close()


@pytest.mark.parametrize("first", [0, 45, 85])
async def test_a_slice_of_a_part_goes_on_in_the_merged_segment(first):
    async with watched_rig() as rig:
        owner = await cleaned_owner(rig, records=40)
        by = Follower(rig, "task")
        store, client = by.session, by.services.client
        scan = await StreamScan.open(NAME, store, client)
        [piece] = await scan.cut(first, first + 30, WHOLE)
        found, chunks = [], read_slice(store, client, piece, 100)
        found += await anext(chunks)
        await merge(owner.stream, 1, 3)
        await asyncio.sleep(GRACE_S)
        await owner.stream.expire()
        by.port.gone.add(piece.ledger)
        async for chunk in chunks:
            found += chunk
        ends = [record.end_sequence_id for record in found]
        read = [record.end_sequence_id for record in await read_to(owner.stream, 0, 120)]
        assert ends == [end for end in read if first < end <= min(found[-1].end_sequence_id, 120)]
        assert ends[-1] >= first + 30
        await scan.refresh()
        pieces = await scan.cut(0, 120, 300)
        ends = []
        for piece in pieces:
            async for chunk in read_slice(store, client, piece):
                ends += [record.end_sequence_id for record in chunk]
        assert sorted(set(ends)) == [end for end in read if end <= 120]
        scan.close()


async def test_a_merged_segment_is_truncated_within_a_part_and_then_removed():
    async with watched_rig() as rig:
        owner = await cleaned_owner(rig)
        await merge(owner.stream, 1, 3)
        await owner.stream.truncate(15)
        await owner.stream.expire()
        marked = listed(rig)[0]
        assert (marked.first_number, marked.truncation) == (1, Truncation.PARTIALLY_TRUNCATED)
        assert [first for first, _, _ in await everything_from(owner.stream, 15)][:2] == [15, 17]
        await owner.stream.truncate(30)
        await asyncio.sleep(GRACE_S)
        assert await owner.stream.expire() == 1
        assert not has_ledger(rig, marked.ledger)
        assert owner.stream.segments[0].number == 4


# Native readers


def offsets(found):
    return [each.offset + each.records for each in found if not isinstance(each, Gap)]


async def test_a_native_reader_passes_a_merged_segment():
    async with watched_rig() as rig:
        owner = await cleaned_owner(rig)
        expected = [end for _, end, _ in await everything_from(owner.stream, 0)][:-1]
        await merge(owner.stream, 2, 3)
        reading = await Reading(rig).start()
        assert offsets(await reading.take(records=len(expected))) == expected
        await reading.reader.stop()
        again = await Reading(rig, "again").start(Offset(14))
        assert offsets(await again.take(records=2)) == [15, 17]
        await again.reader.stop()


async def test_a_native_reader_that_begins_at_a_truncated_start_passes_a_merged_segment():
    async with watched_rig() as rig:
        owner = await cleaned_owner(rig)
        await merge(owner.stream, 1, 3)
        await owner.stream.truncate(15)
        reading = await Reading(rig).start(Offset(0))
        assert offsets(await reading.take(records=4)) == [17, 19, 20, 21]
        await reading.reader.stop()


@pytest.mark.parametrize("records", [1, 3, 6, 7, 12])
async def test_a_native_reader_loses_and_repeats_nothing_if_its_segment_is_merged(records):
    async with watched_rig() as rig:
        owner = await cleaned_owner(rig, size=40_000)
        expected = [end for _, end, _ in await everything_from(owner.stream, 0)][:-1]
        reading = await Reading(rig, buffer_bytes=1).start()
        found = offsets(await reading.take(records=records))
        await merge(owner.stream, 1, 3)
        try:
            while len(found) < len(expected):
                found += offsets(await reading.take(records=1))
        except WrongState as error:
            assert f"read again from offset {found[-1]}" in str(error)
        await reading.reader.stop()
        again = await Reading(rig, "again").start(Offset(found[-1]))
        while len(found) < len(expected):
            found += offsets(await again.take(records=1))
        assert found == expected
        await again.reader.stop()


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_position_in_a_merged_segment_is_refused(number):
    async with watched_rig() as rig:
        owner = await cleaned_owner(rig)
        await merge(owner.stream, 1, 3)
        with pytest.raises(InvalidArgument, match="pass an offset"):
            await Reading(rig).start(Dlsn(number, 0, 0))
