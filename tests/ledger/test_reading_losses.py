"""Goal: a loss costs its own records only. Every reader returns an accepted loss in its place,
once, and keeps it lost; a loss that nobody accepted is an error at its own sequence ids only.

Method: real streams over a simulated cluster on virtual time. Bookies forget entries, losses are
accepted in the stored node. Owner, follower and scan read from every sequence id; a twin knows what
each of them is.
"""

import asyncio
import random

import pytest

from ledger.core.loss import EntryAwaited, EntryLost
from ledger.errors import CorruptFormat, LedgerError
from ledger.streams.accepted_losses import losses_path
from ledger.streams.config import StreamLimits
from tests.ledger.follow_rig import NAME, Owner, by_sequence_id, started_rig, timestamp_of
from tests.ledger.held_entries import (
    entry_of,
    forget,
    held,
    lost_range,
    reserved_range,
)
from tests.ledger.life_rig import WHOLE, listed, taking_over
from tests.ledger.lost_stream_rig import accept
from tests.ledger.test_scan import DENSE, read, reader, scan_of

LOST, GIVEN_UP = "lost", "given up"
SPARSE = StreamLimits(entry_bytes_max=64 * 1024, read_chunk_bytes=200)
"""Limits with one index point for each segment, and chunks of a few entries."""


async def written(rig, *counts):
    """An owner that wrote segments of so many entries of one record, then another owner."""
    first = await rig.owner("first")
    for number, count in enumerate(counts):
        if number:
            await first.roll()
        await first.add(count)
    await first.stream.close()
    return first, await taking_over(rig, "second")


async def at(stream, offset, size=WHOLE):
    """Return what a read at `offset` returns: (sequence id, data), or (sequence id, end, LOST)."""
    records = await stream.read(offset, size)
    assert records
    assert records[0].sequence_id <= offset < records[0].end_sequence_id
    return [
        (each.sequence_id, each.end_sequence_id, GIVEN_UP)
        if each.lost is not None
        else (each.sequence_id, b"".join(each.data))
        for each in records
    ]


async def every_offset(stream, first, end):
    """Return what a read of one record finds at each sequence id."""
    found = {}
    for offset in range(first, end):
        try:
            found[offset] = (await at(stream, offset, 1))[0]
        except EntryLost:
            found[offset] = LOST
    return found


async def walked(stream, first, end, size=300):
    """Return what a reader meets that goes on behind each record, and past what is not accepted."""
    found, offset = [], first
    while offset < end:
        try:
            some = await stream.read(offset, size)
        except EntryLost:
            found.append((offset, LOST))
            offset += 1
            continue
        assert some
        for each in some:
            assert each.sequence_id == offset
            found.append((offset, GIVEN_UP if each.lost is not None else b"".join(each.data)))
            offset = each.end_sequence_id
    return found


# A loss that nobody accepted


async def test_a_lost_entry_is_an_error_at_its_own_offset_and_nowhere_else():
    """The seek reads through it, because the index has one point for the whole segment."""
    async with started_rig(limits=SPARSE) as rig:
        first, owner = await written(rig, 20)
        lost = entry_of(rig, 7)
        forget(rig, 1, lost.entry)
        stored = by_sequence_id(first)
        follower = await rig.follower()
        _, scan = await scan_of(rig)
        for stream in (owner.stream, follower.stream, scan):
            found = await every_offset(stream, 0, 20)
            assert found == {n: (n, stored[n]) if n != 7 else LOST for n in range(20)}
            assert [n for n, _ in await at(stream, 3)] == [3, 4, 5, 6]
        assert follower.stream.is_open


async def test_a_long_run_of_lost_entries_costs_few_reads():
    async with started_rig(limits=SPARSE) as rig:
        await written(rig, 400)
        forget(rig, 1, *range(entry_of(rig, 50).entry, entry_of(rig, 350).entry))
        by, scan = await scan_of(rig)
        for offset in (351, 399, 49):
            scan._reads.clear()
            by.port.asked.clear()
            assert (await at(scan, offset, 1))[0][0] == offset
            assert by.port.count("read_many").total() < 150
        for offset in (50, 200, 349):
            by.port.asked.clear()
            with pytest.raises(EntryLost):
                await at(scan, offset)
            assert by.port.count("read_many").total() < 400


async def test_lost_control_records_hide_no_record():
    """Entry 0 is the head snapshot. Without it the index of the segment before is unknown."""
    async with started_rig(limits=SPARSE, control_ms=0) as rig:
        first, owner = await written(rig, 30, 30, 3)
        for number in (1, 2, 3):
            empty = [each.entry for each in held(rig, number) if not each.offsets]
            assert len(empty) > 1
            forget(rig, number, *empty)
        stored = by_sequence_id(first)
        by, scan = await scan_of(rig)
        follower = await rig.follower()
        for slice_bytes in (100, 10**6):
            assert await read(by, await scan.cut(0, 63, slice_bytes)) == stored
        for stream in (owner.stream, scan, follower.stream):
            assert await walked(stream, 0, 63) == sorted(stored.items())
            found = await every_offset(stream, 0, 63)
            assert found == {n: (n, data) for n, data in stored.items()}


async def test_an_entry_without_a_sound_copy_is_waited_for_and_stepped_over():
    """A rotten copy is no proof of a loss, and the records behind it are readable all the same."""
    async with started_rig(limits=SPARSE) as rig:
        await written(rig, 20)
        entry = entry_of(rig, 7).entry
        ledger = listed(rig)[0].ledger
        for bookie in rig.world.bookies.values():
            bookie.ledgers[ledger].entries[entry] = b"rot"
        _, scan = await scan_of(rig)
        assert (await at(scan, 12))[0][0] == 12
        with pytest.raises(EntryAwaited):
            await at(scan, 7)


async def test_a_time_is_looked_up_past_a_loss():
    async with started_rig(limits=SPARSE) as rig:
        _, owner = await written(rig, 20, 5)
        forget(rig, 1, *[entry_of(rig, n).entry for n in (4, 5, 9, 19)])
        _, scan = await scan_of(rig)
        follower = await rig.follower()
        for stream in (owner.stream, scan, follower.stream):
            for wanted, due in ((2, 2), (4, 6), (5, 6), (9, 10), (19, 20), (24, 24)):
                found = await stream.find_timestamp(1001 + wanted)
                assert found is not None
                assert found.sequence_id == due
            assert await stream.find_timestamp(1001 + 25) is None


# Followers


async def test_a_follower_passes_losses_in_the_segment_in_progress():
    async with started_rig(limits=SPARSE, control_ms=100) as rig:
        owner = await rig.owner()
        await owner.add(10)
        await asyncio.sleep(1)
        forget(rig, 1, *[entry_of(rig, n).entry for n in (3, 4, 8)])
        pulling, jumping = await rig.follower("pulling"), await rig.follower("jumping")
        jumping.stream._pulling = False
        await owner.add(10)
        await pulling.until(20)
        await jumping.until(20)
        for follower in (pulling, jumping):
            follower.stream._clear_tail()
            found = await every_offset(follower.stream, 0, 20)
            assert [n for n, what in found.items() if what == LOST] == [3, 4, 8]
            assert follower.stream.failed is None
        record = await pulling.stream.find_timestamp(1001 + 8)
        assert record.sequence_id == 9


async def test_a_follower_at_the_end_meets_a_loss_and_goes_on():
    """Its tail is at the entry that is lost: no reader hears of it, and the end moves on."""
    async with started_rig(control_ms=-1) as rig:
        owner = await rig.owner()
        follower = await rig.follower()
        await owner.add(5)
        await follower.until(4)
        forget(rig, 1, entry_of(rig, 4).entry)
        await owner.add(1)
        await asyncio.sleep(5)
        forget(rig, 1, entry_of(rig, 5).entry)
        await owner.add(3)
        await follower.until(8)
        found = await every_offset(follower.stream, 0, 8)
        assert [n for n, what in found.items() if what == LOST] == [4, 5]


async def test_the_end_is_known_up_to_the_last_readable_record_if_the_newest_ones_are_lost():
    async with started_rig(limits=SPARSE, control_ms=-1) as rig:
        owner = await rig.owner()
        await owner.add(12)
        forget(rig, 1, *[entry_of(rig, n).entry for n in (8, 9, 10)])
        follower = await rig.follower()
        _, scan = await scan_of(rig)
        assert follower.stream.end_sequence_id == scan.end_sequence_id == 8
        await owner.add(2)
        await follower.until(13)
        await scan.refresh()
        assert scan.end_sequence_id == 13
        assert [(await at(each, 11))[0][0] for each in (follower.stream, scan)] == [11, 11]


async def test_the_end_of_a_completed_segment_is_listed_though_its_last_entries_are_lost():
    async with started_rig(limits=SPARSE) as rig:
        owner = await rig.owner()
        await owner.add(12)
        await owner.stream.close()
        forget(rig, 1, *[entry_of(rig, n).entry for n in (10, 11)])
        follower = await rig.follower()
        _, scan = await scan_of(rig)
        for stream in (follower.stream, scan):
            assert stream.end_sequence_id == 12
            found = await every_offset(stream, 0, 12)
            assert [n for n, what in found.items() if what == LOST] == [10, 11]


async def test_a_follower_waits_at_an_unreachable_entry_and_its_end_moves_on():
    """One of its two bookies has lost the entry, and the other one is away."""
    async with started_rig(control_ms=100, ensemble_size=3, write_quorum=2, ack_quorum=2) as rig:
        owner = await rig.owner()
        await owner.add(6)
        follower = await rig.follower()
        await follower.until(6)
        follower.port.stalled.update(rig.world.bookies)
        await asyncio.sleep(3)
        await owner.add(6)
        entry = entry_of(rig, 8).entry
        ledger = listed(rig)[0].ledger
        one, two = rig.world.metadata_of(ledger).bookies_of(entry)
        del rig.world.bookies[one].ledgers[ledger].entries[entry]
        follower.port.stalled.clear()
        follower.port.stalled.add(two)
        await follower.until(11)
        with pytest.raises(LedgerError):
            await follower.stream.read(8, 1)
        follower.port.stalled.clear()
        assert (await follower.stream.read(8, 1))[0].sequence_id == 8


# A loss that was accepted


async def test_an_accepted_loss_is_one_record_in_its_place_for_all_readers():
    """They follow the node by watch: nothing is opened again."""
    async with started_rig(limits=SPARSE) as rig:
        first, owner = await written(rig, 20, 4)
        follower = await rig.follower()
        _, scan = await scan_of(rig)
        low, high = entry_of(rig, 5).entry, entry_of(rig, 8).entry
        gone = lost_range(rig, 1, low, high)
        forget(rig, 1, *range(low, high + 1))
        for stream in (owner.stream, follower.stream, scan):
            with pytest.raises(EntryLost):
                await at(stream, 5)
            assert len(await at(stream, 3)) == 2  # a cursor stays in front of the loss
        await accept(rig, gone)
        await asyncio.sleep(1)
        await scan.refresh()
        for stream in (owner.stream, follower.stream, scan):
            assert await at(stream, 5, 1) == [(5, 9, GIVEN_UP)]
        stored = by_sequence_id(first)
        due = [(n, stored[n]) for n in range(24) if n not in (6, 7, 8)]
        due[5] = (5, GIVEN_UP)
        for stream in (owner.stream, follower.stream, scan):
            assert await walked(stream, 0, 24) == due
            for offset in range(5, 9):
                some = await stream.read(offset, WHOLE)
                assert some[0].lost == gone
                assert (some[0].size_bytes, some[0].data) == (0, ())
                assert [each.sequence_id for each in some[:3]] == [5, 9, 10]
            assert (await stream.find_timestamp(1001 + 5)).sequence_id == 9


async def test_a_copy_that_turns_up_again_changes_nothing():
    """Not for the tail cache of a follower, a reader with a cursor, or a record that was read."""
    async with started_rig(limits=SPARSE, control_ms=100) as rig:
        first, owner = await written(rig, 20, 4)
        await owner.add(3)
        follower = await rig.follower()
        _, scan = await scan_of(rig)
        streams = (owner.stream, follower.stream, scan)
        for stream in streams:  # each has read ahead what will be lost
            assert [n for n, _ in await at(stream, 0, 60)] == [0, 1]
        await accept(rig, lost_range(rig, 1, entry_of(rig, 3).entry, entry_of(rig, 10).entry))
        await asyncio.sleep(1)
        await scan.refresh()
        for stream in streams:
            assert (await at(stream, 2, 300))[:3] == [
                (2, by_sequence_id(first)[2]),
                (3, 11, GIVEN_UP),
                (11, by_sequence_id(first)[11]),
            ]
            assert (await at(stream, 7))[0] == (3, 11, GIVEN_UP)


async def test_a_cached_tail_forgets_what_was_accepted_as_lost():
    async with started_rig(control_ms=100) as rig:
        owner = await rig.owner()
        follower = await rig.follower()
        await owner.add(10)
        await owner.roll()
        await follower.until(10)
        assert follower.stream.read_cached(4, 1) is not None
        assert owner.stream.read_cached(4, 1) is not None
        entry = entry_of(rig, 4).entry
        await accept(rig, lost_range(rig, 1, entry, entry))
        await asyncio.sleep(1)
        for stream in (follower.stream, owner.stream):
            assert stream.read_cached(4, 1) is None
            assert await at(stream, 4, 1) == [(4, 5, GIVEN_UP)]


async def test_a_loss_accepted_while_a_read_waits_is_seen_by_that_read():
    async with started_rig(limits=SPARSE) as rig:
        await written(rig, 20)
        follower = await rig.follower()
        follower.port.delays = dict.fromkeys(rig.world.bookies, 0.2)
        reading = asyncio.ensure_future(follower.stream.read(2, 600))
        await asyncio.sleep(0.1)
        await accept(rig, lost_range(rig, 1, entry_of(rig, 4).entry, entry_of(rig, 6).entry))
        records = await reading
        assert [(each.sequence_id, each.lost is not None) for each in records][:4] == [
            (2, False), (3, False), (4, True), (7, False),
        ]  # fmt: skip


async def test_a_loss_without_records_yields_nothing():
    async with started_rig(limits=SPARSE, control_ms=0) as rig:
        first, owner = await written(rig, 6)
        empty = next(each for each in held(rig, 1)[1:] if not each.offsets)
        at_end = empty.offsets.start
        await accept(rig, lost_range(rig, 1, empty.entry, empty.entry, (at_end, at_end - 1)))
        await asyncio.sleep(1)
        assert await walked(owner.stream, 0, 6) == sorted(by_sequence_id(first).items())


async def test_losses_that_cannot_be_read_end_a_follower_with_their_path():
    async with started_rig() as rig:
        owner = await rig.owner()
        follower = await rig.follower()
        await owner.session.create(losses_path(NAME), b"1 00000000 {}")
        await asyncio.sleep(1)
        assert isinstance(follower.stream.failed, CorruptFormat)
        assert losses_path(NAME) in str(follower.stream.failed)


# A ledger that was closed by force


async def test_followers_and_scans_pass_the_reserved_offsets_behind_a_forced_close():
    """A follower had shown records that are now lost; it goes on behind what is reserved."""
    async with started_rig(control_ms=100) as rig:
        owner = await rig.owner()
        await owner.add(6)
        await asyncio.sleep(1)
        pulling, jumping = await rig.follower("pulling"), await rig.follower("jumping")
        jumping.stream._pulling = False
        assert pulling.stream.end_sequence_id == 6
        owner.kill()
        last = entry_of(rig, 1).entry
        gone = reserved_range(rig, 1, last, 2)
        forget(rig, 1, *range(last + 1, last + 20))
        await accept(rig, gone)
        await asyncio.sleep(2)
        for follower in (pulling, jumping):  # before anybody closed the segment
            assert follower.stream.end_sequence_id == 1002
            assert (await at(follower.stream, 3)) == [(2, 1002, GIVEN_UP)]
            assert await follower.stream.read(1002, 1) == []
        other = await taking_over(rig, "other")
        await other.add(3)
        assert sorted(other.answers.values()) == [1002, 1003, 1004]
        await asyncio.sleep(1)
        _, scan = await scan_of(rig)
        due = {**dict(list(by_sequence_id(owner).items())[:2]), 2: GIVEN_UP}
        due |= by_sequence_id(other)
        for follower in (pulling, jumping):
            await follower.until(1005)
            assert follower.stream.failed is None
        for stream in (other.stream, pulling.stream, jumping.stream, scan):
            assert dict(await walked(stream, 0, 1005)) == due
            assert (await stream.find_timestamp(1001 + 6)).sequence_id == 1002


async def test_reserved_offsets_at_the_very_end_are_passed():
    async with started_rig(control_ms=100) as rig:
        first = await rig.owner()
        await first.add(4)
        first.kill()
        last = entry_of(rig, 3).entry
        await accept(rig, reserved_range(rig, 1, last, 4))
        await reader(rig, "closer").client.recover(listed(rig)[0].ledger)
        owner = Owner(rig, "reopened")
        await owner.stream.open()
        follower = await rig.follower()
        _, scan = await scan_of(rig)
        for stream in (owner.stream, follower.stream, scan):
            assert stream.end_sequence_id == 1004
            assert await at(stream, 4) == [(4, 1004, GIVEN_UP)]
            assert (await walked(stream, 0, 1004))[-1] == (4, GIVEN_UP)
            assert await stream.read(1004, 1) == []


async def test_a_jump_that_no_loss_explains_is_corruption():
    async with started_rig(control_ms=100) as rig:
        owner = await rig.owner()
        await owner.add(4)
        owner.kill()
        await accept(rig, reserved_range(rig, 1, entry_of(rig, 3).entry, 4))
        other = await taking_over(rig, "other")
        await other.add(2)
        await asyncio.sleep(1)
        rig.world.tree.nodes.pop(losses_path(NAME))
        _, scan = await scan_of(rig)
        with pytest.raises(CorruptFormat, match="no accepted loss holds record 4"):
            await at(scan, 4)
        with pytest.raises(CorruptFormat, match="expected record 4, read 1004"):
            await at(scan, 0)


# All at once


async def written_by_chance(rig, draw):
    """An owner that wrote and completed three segments, with several records in some entries."""
    owner = await rig.owner("first")
    for number in range(3):
        if number:
            await owner.roll()
        for _ in range(draw.randrange(2, 30)):
            owner.append()
            if draw.random() < 0.7:
                await owner.settle()
        await owner.settle()
    await owner.stream.close()
    return owner


async def lose_by_chance(rig, draw, due):
    """Lose entries and accept some of the losses. `due` follows, and has the result of each id."""
    lost_rate, accepted_rate = draw.choice([0.05, 0.3]), draw.choice([0.1, 0.6])
    ranges = []
    entries = [each for number in (1, 2, 3) for each in held(rig, number)[:-1]]
    for number, entry, ids in [each for each in entries if draw.random() < lost_rate]:
        accepted = draw.random() < accepted_rate
        due |= dict.fromkeys(ids, (ids.start, ids.stop, GIVEN_UP) if accepted else LOST)
        if accepted:
            ranges.append(lost_range(rig, number, entry, entry))
        if not accepted or draw.random() < 0.5:  # the others are found again
            forget(rig, number, entry)
    if ranges:
        await accept(rig, *ranges)


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize("limits", [SPARSE, DENSE], ids=["sparse", "dense"])
async def test_every_offset_is_a_record_a_loss_or_given_up_and_nothing_else(seed, limits):
    draw = random.Random(seed)
    async with started_rig(limits=limits, control_ms=draw.choice([-1, 0, 100])) as rig:
        owner = await written_by_chance(rig, draw)
        stored, end = by_sequence_id(owner), owner.stream.end_sequence_id
        due = {n: (n, data) for n, data in stored.items()}
        await lose_by_chance(rig, draw, due)
        met = [
            (n, what if what == LOST else what[-1])
            for n, what in sorted(due.items())
            if what == LOST or what[0] == n
        ]
        readable = {n: timestamp_of(stored[n]) for n, what in due.items() if what == (n, stored[n])}
        follower = await rig.follower()
        _, scan = await scan_of(rig)
        for stream in (follower.stream, scan):
            assert stream.end_sequence_id == end
            for offset in draw.sample(range(end), min(end, 25)):
                assert (await every_offset(stream, offset, offset + 1))[offset] == due[offset]
            assert await walked(stream, 0, end) == met
            for time in draw.sample([*map(timestamp_of, stored.values())], min(end, 6)):
                least = min((n for n, each in readable.items() if each >= time), default=None)
                record = await stream.find_timestamp(time)
                assert (record and record.sequence_id) == least
