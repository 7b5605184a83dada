"""Goal: a cleaned segment keeps its place, and every reader finds what it holds now.

Method: real streams over a simulated cluster on virtual time. The tests clean segments by hand.
"""

import asyncio

import pytest

from ledger.core.gaps import Gap
from ledger.core.segment_table import SegmentTable
from ledger.core.segments import Truncation, decode_segment
from ledger.errors import (
    BadVersion,
    CorruptFormat,
    InvalidArgument,
    LedgerError,
    StreamUnavailable,
    Truncated,
    WrongState,
)
from ledger.ids import Dlsn
from ledger.streams.config import StreamLimits
from ledger.streams.scan import StreamScan
from ledger.streams.segment_rewriter import CleanedRecord, SegmentRewriter
from ledger.streams.slice_read import read_slice
from ledger.streams.stream_seek import Offset
from tests.ledger.cleaning_rig import FILLER, clean, records_of, rewrite
from tests.ledger.follow_rig import NAME, Follower, Owner, timestamp_of
from tests.ledger.life_rig import LEDGERS, WHOLE, has_ledger, listed, taking_over, watched_rig
from tests.ledger.log_reader_rig import Reading
from tests.ledger.lost_stream_rig import accept, lose_entries, lost_range, telling_owner

GRACE_S = 61
DENSE = StreamLimits(
    entry_bytes_max=64 * 1024, index_stride_bytes=2000, snapshot_bytes=2000, read_chunk_bytes=1000
)


async def rolled(rig, segments=2, records=10, size=24):
    """Return an owner of a stream with `segments` completed ones of `records` records each."""
    owner = await taking_over(rig, "a")
    for _ in range(segments):
        await owner.add(records, size)
        await owner.roll()
    return owner


def even(sequence_id):
    return sequence_id % 2 == 0


async def everything_from(stream, at):
    """Return (first, end, data) of each record from `at` on, by reads that follow each other."""
    found = []
    while at < stream.end_sequence_id:
        for record in await stream.read(at, WHOLE):
            found.append((record.sequence_id, record.end_sequence_id, b"".join(record.data)))
            at = record.end_sequence_id
    return found


async def test_a_cleaned_segment_keeps_its_offsets_and_holds_fewer_records():
    async with watched_rig() as rig:
        owner = await rolled(rig)
        before = await everything_from(owner.stream, 0)
        old = owner.stream.segments[0]
        await clean(owner.stream, 1, even)
        new = owner.stream.segments[0]
        assert (new.number, new.start_sequence_id, new.end_sequence_id) == (1, 0, 10)
        assert new.cleaned
        assert new.ledger != old.ledger
        kept = [(first, end, data) for first, end, data in before if end > 10 or even(first)]
        expected = [(max(first - 1, 0) if end <= 10 else first, end, d) for first, end, d in kept]
        expected.insert(5, (9, 10, FILLER))
        assert await everything_from(owner.stream, 0) == expected
        assert await everything_from(owner.stream, 5) == expected[3:]


async def test_the_node_of_a_cleaned_segment_is_one_that_older_releases_refuse():
    async with watched_rig() as rig:
        owner = await rolled(rig)
        await clean(owner.stream, 1, even)
        first, *rest = listed(rig)
        assert first == owner.stream.segments[0]
        assert first.encode().startswith(b"%d;" % (7 | 10 << 32))
        assert first.node_name == f"cleaned-{first.ledger}_{1:018d}"
        assert f"{LEDGERS}/{first.node_name}" in rig.world.tree.nodes
        assert [each.layout_version for each in rest] == [5, 5]
        assert decode_segment(first.encode(), where="here") == first


async def test_the_old_ledger_is_deleted_after_the_grace_period():
    async with watched_rig() as rig:
        owner = await rolled(rig)
        old = owner.stream.segments[0].ledger
        await clean(owner.stream, 1, even)
        await owner.stream.expire()
        assert has_ledger(rig, old)
        await asyncio.sleep(GRACE_S)
        await owner.stream.expire()
        assert not has_ledger(rig, old)


async def test_what_may_be_cleaned_lies_below_the_newest_snapshot():
    async with watched_rig() as rig:
        owner = await rolled(rig, segments=3)
        assert [each.number for each in owner.stream.cleanable_segments()] == [1, 2]
        await owner.add(1)  # behind the head snapshot of segment 4
        assert [each.number for each in owner.stream.cleanable_segments()] == [1, 2, 3]
        await owner.stream.close()
        after = await taking_over(rig, "b")
        await after.add(1)
        assert [each.number for each in after.stream.cleanable_segments()] == [1, 2, 3, 4]
        await after.stream.abandon()
        assert after.stream.cleanable_segments() == []


async def test_without_a_segment_of_its_own_an_owner_keeps_the_newest_snapshot():
    async with watched_rig() as rig:
        owner = await rolled(rig, segments=2)
        await owner.add(1)
        await owner.stream.close()
        await owner.stream.open()
        assert not owner.stream.writable
        assert [each.number for each in owner.stream.cleanable_segments()] == [1, 2]


async def test_records_that_do_not_cover_the_segment_are_refused():
    async with watched_rig() as rig:
        owner = await rolled(rig)
        segment = owner.stream.segments[0]
        for counts in ([9], [11], [3, 6]):
            rewriter = await SegmentRewriter.begin(owner.stream, segment)
            await rewriter.add([CleanedRecord(count, 1, b"r 1 ") for count in counts])
            with pytest.raises(CorruptFormat, match="cover"):
                await rewriter.finish(b"")
        assert await owner.services.client.list_ledgers() == [s.ledger for s in listed(rig)]


async def test_an_abandoned_rewriting_leaves_no_ledger():
    async with watched_rig() as rig:
        owner = await rolled(rig)
        rewriter = await SegmentRewriter.begin(owner.stream, owner.stream.segments[0])
        await rewriter.add([CleanedRecord(10, 1, b"r 1 ")])
        await rewriter.abandon()
        assert await owner.services.client.list_ledgers() == [s.ledger for s in listed(rig)]


async def test_a_zombie_cannot_replace_a_segment():
    async with watched_rig() as rig:
        zombie = await rolled(rig)
        rewritten = await rewrite(zombie.stream, zombie.stream.segments[0], even)
        owner = await taking_over(rig, "b")
        await owner.add(1)
        before = listed(rig)
        with pytest.raises(BadVersion):
            await zombie.stream.replace(rewritten)
        assert zombie.failures
        assert listed(rig) == before
        assert len(await everything_from(owner.stream, 0)) == 21


@pytest.mark.parametrize("truncating", ["zombie", "owner"])
async def test_a_zombie_cannot_replace_a_segment_that_was_truncated_meanwhile(truncating):
    async with watched_rig() as rig:
        zombie = await rolled(rig)
        rewritten = await rewrite(zombie.stream, zombie.stream.segments[0], even)
        if truncating == "zombie":
            await zombie.stream.truncate(5)
        owner = await taking_over(rig, "b")
        await owner.add(1)
        await owner.stream.truncate(6)
        before = listed(rig)
        with pytest.raises(BadVersion):
            await zombie.stream.replace(rewritten)
        assert zombie.failures
        assert listed(rig) == before


@pytest.mark.parametrize("start", [1, 4, 5, 9])
async def test_a_segment_that_is_truncated_within_meanwhile_is_replaced_and_keeps_its_mark(start):
    async with watched_rig() as rig:
        owner = await rolled(rig)
        rewritten = await rewrite(owner.stream, owner.stream.segments[0], even)
        await owner.stream.truncate(start)
        await owner.stream.replace(rewritten)
        new = owner.stream.segments[0]
        assert new.ledger == rewritten.after.ledger
        assert new.truncation is Truncation.PARTIALLY_TRUNCATED
        assert listed(rig)[0] == new
        for host in ("a", "b"):
            left = [end - 1 for _, end, _ in await everything_from(owner.stream, start)]
            assert left == [at for at in (2, 4, 6, 8, 9) if at >= start] + list(range(10, 20))
            with pytest.raises(Truncated):
                await owner.stream.read(start - 1, 1)
            if host == "a":
                owner.kill()
                owner = await taking_over(rig, "b")


async def test_a_segment_whose_records_are_all_truncated_meanwhile_is_not_replaced():
    async with watched_rig() as rig:
        owner = await rolled(rig)
        rewritten = await rewrite(owner.stream, owner.stream.segments[0], even)
        await owner.stream.truncate(10)
        before = listed(rig)
        with pytest.raises(Truncated):
            await owner.stream.replace(rewritten)
        assert listed(rig) == before
        assert not has_ledger(rig, rewritten.after.ledger)


async def test_a_cleaned_segment_can_be_cleaned_again():
    async with watched_rig() as rig:
        owner = await rolled(rig)
        await clean(owner.stream, 1, even)
        await clean(owner.stream, 1, lambda sequence_id: sequence_id in (4, 8))
        found = await records_of(owner.stream, owner.stream.segments[0])
        assert [(first, count) for first, count, _ in found] == [(0, 5), (5, 4), (9, 1)]


async def test_an_owner_after_a_crash_reads_the_cleaned_records():
    async with watched_rig() as rig:
        owner = await rolled(rig)
        await clean(owner.stream, 1, even)
        await owner.add(3)
        expected = await everything_from(owner.stream, 0)
        owner.kill()
        after = await taking_over(rig, "b")
        assert await everything_from(after.stream, 0) == expected


# Readers that do not own the stream


async def old_ledger_deleted(owner, number, kept):
    """Clean a segment and delete its old ledger, as after a long time."""
    old = owner.stream.segments[number - 1].ledger
    await clean(owner.stream, number, kept)
    await asyncio.sleep(GRACE_S)
    await owner.stream.expire()
    assert not has_ledger(owner.rig, old)


async def read_to(stream, at, end, bytes_max=WHOLE):
    found = []
    while at < end:
        for record in await stream.read(at, bytes_max):
            found.append(record)
            at = record.end_sequence_id
    return found


async def test_a_follower_reads_the_cleaned_records_soon():
    async with watched_rig(control_ms=100) as rig:
        owner = await rolled(rig)
        await owner.add(2)
        follower = Follower(rig, "f")
        await follower.stream.open()
        await asyncio.sleep(2)
        assert await everything_from(follower.stream, 0) == await everything_from(owner.stream, 0)
        rewrites = follower.stream.rewrites
        await clean(owner.stream, 1, even)
        await asyncio.sleep(2)
        assert follower.stream.rewrites > rewrites
        expected = await everything_from(owner.stream, 0)
        assert await everything_from(follower.stream, 0) == expected
        await follower.stream.close()


async def test_a_follower_that_notices_nothing_reads_on_when_it_loses_the_old_ledger():
    async with watched_rig() as rig:
        owner = await rolled(rig, records=40)
        await owner.add(2)
        follower = Follower(rig, "f")
        await follower.stream.open()
        await asyncio.sleep(2)
        before = await read_to(follower.stream, 0, 15, 200)
        follower.stream._list._unwatch[0]()  # the watch fires late
        await old_ledger_deleted(owner, 1, even)
        at = before[-1].end_sequence_id
        after = await read_to(follower.stream, at, 40, 200)
        ends = [record.end_sequence_id for record in (*before, *after) if record.sequence_id < 40]
        assert ends == sorted(set(ends))
        assert {end - 1 for end in ends if end <= 40} >= set(range(0, 40, 2))
        await follower.stream.close()


async def test_a_follower_knows_the_epochs_of_cleaned_segments_without_any_head():
    async with watched_rig() as rig:
        first = await rolled(rig, segments=1)
        await first.add(1)
        owner = await taking_over(rig, "b")
        await owner.add(3)
        await owner.roll()
        await owner.add(1)
        for number in (1, 2, 3):
            await clean(owner.stream, number, even)
        epochs = [owner.stream.epoch_at(at) for at in range(owner.stream.end_sequence_id)]
        follower = Follower(rig, "f")
        await follower.stream.open()
        segments = [each for each in follower.stream.segments if each.cleaned]
        table = SegmentTable()
        table.relist(segments)
        follower.stream._table = table  # as if every head snapshot were lost
        assert await follower.stream._learn_epochs(segments) is None
        assert [table.epoch_at(at) for at in range(11)] == epochs[:11]
        await follower.stream.close()


@pytest.mark.parametrize("read_chunks", [0, 1, 3])
async def test_a_slice_whose_ledger_is_gone_goes_on_in_the_cleaned_one(read_chunks):
    async with watched_rig() as rig:
        owner = await rolled(rig, records=40)
        await owner.add(1)
        by = Follower(rig, "task")
        store, client = by.session, by.services.client
        scan = await StreamScan.open(NAME, store, client)
        [piece] = await scan.cut(3, 39, WHOLE)
        found, chunks = [], read_slice(store, client, piece, 100)
        for _ in range(read_chunks):
            found += await anext(chunks)
        await old_ledger_deleted(owner, 1, even)
        by.port.gone.add(piece.ledger)
        async for chunk in chunks:
            found += chunk
        ends = [record.end_sequence_id for record in found]
        assert ends == sorted(set(ends))
        assert ends[-1] >= 39
        assert {end - 1 for end in ends} >= set(range(4, 38, 2))
        scan.close()


async def test_a_slice_of_a_segment_that_was_removed_is_truncated():
    async with watched_rig() as rig:
        owner = await rolled(rig)
        await owner.add(1)
        by = Follower(rig, "task")
        scan = await StreamScan.open(NAME, by.session, by.services.client)
        [piece] = await scan.cut(0, 10, WHOLE)
        await clean(owner.stream, 1, even)
        await owner.stream.truncate(10)
        await asyncio.sleep(GRACE_S)
        await owner.stream.expire()
        await asyncio.sleep(GRACE_S)
        await owner.stream.expire()
        with pytest.raises(Truncated):
            async for _ in read_slice(by.session, by.services.client, piece):
                pass
        scan.close()


async def test_the_index_of_a_cleaned_segment_is_that_of_its_footer():
    async with watched_rig(limits=DENSE) as rig:
        owner = await rolled(rig, records=200, size=9000)
        await clean(owner.stream, 1, lambda sequence_id: sequence_id % 7 == 0)
        segment = owner.stream.segments[0]
        owner.kill()
        after = await taking_over(rig, "b")
        index = await after.stream._reads.index_of(after.stream.segments[0])
        assert len(index) > 2
        assert index.entries[-1] <= segment.last_entry
        for at in range(0, 200, 13):
            [record, *_] = await after.stream.read(at, 1)
            assert record.sequence_id <= at < record.end_sequence_id
        found = [r.end_sequence_id - 1 for r in await read_to(after.stream, 0, 200, 500)]
        assert found[:200] == [*range(0, 200, 7), 199, *range(200, found[-1] + 1)][: len(found)]


async def test_an_index_that_is_read_while_its_segment_is_cleaned_is_not_kept():
    async with watched_rig(limits=DENSE) as rig:
        first = await rolled(rig, records=40, size=9000)
        await first.add(1)
        owner = await taking_over(rig, "b")
        await owner.add(1)
        segment = owner.stream.segments[0]
        rewritten = await rewrite(owner.stream, segment, even)
        table, reads = owner.stream._table, owner.stream._reads
        assert table.index(1) is None
        reading = asyncio.ensure_future(reads.index_of(segment))
        await asyncio.sleep(0)
        table.replace(rewritten.after, rewritten.footer, rewritten.size_bytes)
        assert list((await reading).entries) != list(rewritten.footer.index.entries)
        assert table.index(1) is rewritten.footer.index


async def test_a_search_for_a_timestamp_finds_the_first_record_that_is_left():
    async with watched_rig() as rig:
        owner = await rolled(rig, records=20)
        times = [timestamp_of(data) for _, _, data in await everything_from(owner.stream, 0)]
        await clean(owner.stream, 1, lambda sequence_id: sequence_id in (3, 11))
        for at, expected in ((0, 3), (3, 3), (4, 11), (11, 11), (12, 20)):
            record = await owner.stream.find_timestamp(times[at])
            assert record.end_sequence_id - 1 == expected


# Losses and states


@pytest.mark.parametrize("when", ["noticed", "before the step", "within the step"])
async def test_a_loss_that_is_accepted_meanwhile_keeps_the_segment_and_its_owner(when):
    async with watched_rig() as rig:
        owner = await rolled(rig)
        segment = owner.stream.segments[0]
        rewritten = await rewrite(owner.stream, segment, even)
        lost = lost_range(segment, 3, 3, 2, 2)
        if when == "noticed":
            await accept(rig, lost)
        elif when == "before the step":
            owner.stream._losses._accepted.unwatch()  # the watch fires late
            await accept(rig, lost)
        else:
            multi = owner.session.multi

            async def multi_behind_it(ops):
                owner.session.multi = multi
                await accept(rig, lost)
                await multi(ops)

            owner.session.multi = multi_behind_it
        with pytest.raises(Truncated if when == "noticed" else StreamUnavailable):
            await owner.stream.replace(rewritten)
        assert listed(rig)[0] == segment
        assert owner.failures == []
        await owner.add(1)


async def test_a_loss_of_a_ledger_that_was_replaced_is_not_accepted():
    async with watched_rig() as rig:
        owner = await rolled(rig)
        segment = owner.stream.segments[0]
        await clean(owner.stream, 1, even)
        with pytest.raises(InvalidArgument, match="was cleaned"):
            await accept(rig, lost_range(segment, 3, 3, 2, 2))
        new = owner.stream.segments[0]
        [stored] = (await accept(rig, lost_range(new, 0, 0, 0, 9))).ranges
        assert stored.evidence.ledger == new.ledger


async def test_cleaning_stops_at_an_accepted_loss():
    async with watched_rig() as rig:
        owner = await rolled(rig, segments=4)
        await owner.add(1)
        await accept(rig, lost_range(owner.stream.segments[2], 3, 3, 22, 22))
        await asyncio.sleep(1)
        assert [each.number for each in owner.stream.cleanable_segments()] == [1, 2]


async def test_a_state_that_lies_in_a_loss_is_never_built_from_cleaned_records():
    async with watched_rig() as rig:
        owner = await rolled(rig, segments=2)
        await owner.add(2)
        await clean(owner.stream, 1, even)
        await clean(owner.stream, 2, even)
        last = owner.stream.segments[-1]
        await owner.stream.close()
        lose_entries(rig, last.ledger, 0)
        await accept(rig, lost_range(last, 0, 0, 20, 19))
        after = await telling_owner(rig, "b")
        assert after.stream._state.seen == [("lost", 0, 19), 20, 21]
        epochs = {after.stream.epoch_at(at) for at in range(22)}
        assert epochs == {owner.stream.epoch_at(0)}
        assert len(await everything_from(after.stream, 0)) == 14


async def test_the_search_for_orphans_spares_ledgers_that_the_cleaner_holds():
    async with watched_rig() as rig:
        owner = await rolled(rig)
        rewriter = await SegmentRewriter.begin(owner.stream, owner.stream.segments[0])
        written = max(await owner.services.client.list_ledgers())
        assert owner.services.is_kept(written)
        await rewriter.abandon()
        assert not owner.services.is_kept(written)
        old = owner.stream.segments[0].ledger
        await clean(owner.stream, 1, even)
        assert owner.services.is_kept(old)
        await asyncio.sleep(GRACE_S)
        assert not owner.services.is_kept(old)


# Native readers


async def test_a_native_reader_ends_if_the_segment_that_it_reads_is_cleaned():
    async with watched_rig() as rig:
        owner = await rolled(rig, records=60, size=40_000)
        await owner.add(1)
        reading = await Reading(rig, buffer_bytes=1).start()
        found = await reading.take(records=5)
        await clean(owner.stream, 1, lambda sequence_id: sequence_id == 50)
        with pytest.raises(WrongState, match="was cleaned while it was read; read again from"):
            while True:
                found += await reading.take(records=1)
        ends = [each.offset + each.records for each in found if not isinstance(each, Gap)]
        assert ends == list(range(1, len(ends) + 1)), "nothing was left out before the error"
        await reading.reader.stop()
        again = await Reading(rig, "again").start(Offset(ends[-1]))
        rest = [each for each in await again.take(records=2) if not isinstance(each, Gap)]
        assert [each.offset + each.records for each in rest] == [51, 60]
        await again.reader.stop()


async def test_a_position_within_a_cleaned_segment_is_refused():
    async with watched_rig() as rig:
        owner = await rolled(rig)
        await owner.add(1)
        await clean(owner.stream, 1, even)
        reading = Reading(rig)
        with pytest.raises(InvalidArgument, match="pass an offset"):
            await reading.start(Dlsn(1, 3, 0))
        reading = await Reading(rig, "again").start(Dlsn(1, 0, 0))
        assert (await reading.take(records=1))[0].offset == 0
        await reading.reader.stop()


# Owners


async def test_an_owner_that_loses_a_ledger_to_the_owner_before_opens_the_stream_again():
    async with watched_rig() as rig:
        before = await rolled(rig)
        await before.stream.close()
        await before.stream.open()
        owner = Owner(rig, "b")
        await owner.stream.open()  # both own the stream: neither has written since
        await old_ledger_deleted(before, 1, even)
        with pytest.raises(LedgerError):
            await owner.stream.read(0, WHOLE)
        assert owner.failures
        await owner.stream.open()
        expected = await everything_from(before.stream, 0)
        assert await everything_from(owner.stream, 0) == expected


@pytest.mark.parametrize("start", [4, 5, 9])
async def test_a_cleaned_segment_is_truncated_within_a_gap_or_a_record(start):
    async with watched_rig() as rig:
        owner = await rolled(rig)
        await clean(owner.stream, 1, lambda sequence_id: sequence_id in (0, 5, 6))
        await owner.stream.truncate(start)
        await owner.stream.expire()
        marked = listed(rig)[0]
        assert marked.truncation is Truncation.PARTIALLY_TRUNCATED
        assert marked == owner.stream.segments[0]
        left = [end - 1 for _, end, _ in await everything_from(owner.stream, start)]
        assert left == [at for at in (5, 6, 9) if at >= start] + list(range(10, 20))
        with pytest.raises(Truncated):
            await owner.stream.read(start - 1, 1)
        await owner.stream.truncate(10)
        await asyncio.sleep(GRACE_S)
        assert await owner.stream.expire() == 1
        assert not has_ledger(rig, marked.ledger)
