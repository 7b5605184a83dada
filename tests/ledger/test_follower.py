"""Goal: a follower shows every committed record, in order, soon and cheaply, and does not disturb
the owner.

Method: real streams and ledger clients over a simulated cluster on virtual time. An owner writes,
rolls and dies; a follower reads through a port that counts its requests.
"""

import asyncio

import pytest

from ledger.errors import NoNode, StreamUnavailable, Truncated
from ledger.streams.config import StreamLimits
from ledger.streams.segment_store import delete_stream, log_root
from tests.ledger.follow_rig import by_sequence_id, started_rig
from tests.sim.metadata import SimMetadata

# Committed records


async def test_all_but_the_last_record_is_shown_while_nothing_newer_tells_that_it_is_committed():
    async with started_rig() as rig:
        owner = await rig.owner()
        follower = await rig.follower()
        await owner.add(5)
        await follower.until(4)
        await asyncio.sleep(5)
        assert follower.stream.end_sequence_id == 4
        await owner.add()
        await follower.until(5)


async def test_a_control_record_shows_the_last_record():
    async with started_rig(control_ms=100) as rig:
        owner = await rig.owner()
        follower = await rig.follower()
        await owner.add(5)
        assert await follower.until(5) < 0.2
        assert await follower.read_all() == by_sequence_id(owner)


async def test_records_are_read_when_the_owner_is_dead_and_nobody_took_over():
    async with started_rig() as rig:
        owner = await rig.owner()
        await owner.add(6)
        owner.kill()
        follower = await rig.follower()
        assert follower.stream.end_sequence_id == 5
        found = await follower.read_all()
        assert found == {at: d for at, d in by_sequence_id(owner).items() if at < 5}


async def test_one_bookie_alone_is_enough_for_what_is_known_to_be_committed():
    async with started_rig() as rig:
        owner = await rig.owner()
        follower = await rig.follower()
        await owner.add(6)
        await follower.until(5)
        follower.port.stalled = set(list(rig.world.bookies)[:2])
        follower.stream._clear_tail()
        assert len(await follower.read_all()) == 5


async def test_a_stream_without_any_segment_is_empty_and_begins_later():
    async with started_rig() as rig:
        follower = await rig.follower()
        assert follower.stream.end_sequence_id == 0 and await follower.stream.read(0, 100) == []
        owner = await rig.owner()
        await owner.add(3)
        await follower.until(2)


async def test_a_stream_that_does_not_exist_cannot_be_followed():
    async with started_rig() as rig:
        await delete_stream(SimMetadata(rig.world.tree), "stream")
        with pytest.raises(NoNode):
            await rig.follower()


async def test_a_stream_that_is_deleted_is_not_followed_any_more():
    async with started_rig() as rig:
        follower = await rig.follower()
        await delete_stream(SimMetadata(rig.world.tree), "stream")
        await asyncio.sleep(1)
        assert not follower.stream.is_open and isinstance(follower.stream.failed, NoNode)
        with pytest.raises(NoNode):
            await follower.stream.read(0, 100)


# Segments


async def test_no_segment_is_skipped_or_repeated_as_it_is_completed():
    async with started_rig() as rig:
        owner = await rig.owner()
        follower = await rig.follower()
        for _ in range(6):
            await owner.add(4)
            await owner.roll()
        assert await follower.until(24) < 0.1
        await asyncio.sleep(0.1)
        assert await follower.read_all() == by_sequence_id(owner)
        assert follower.ends == sorted(set(follower.ends))
        assert [s.number for s in follower.stream.segments] == [1, 2, 3, 4, 5, 6, 7]


async def test_a_reader_at_the_tail_is_served_from_memory_over_a_roll():
    async with started_rig() as rig:
        owner = await rig.owner()
        follower = await rig.follower()
        for _ in range(3):
            await owner.add(4)
            await owner.roll()
        await follower.until(12)
        await asyncio.sleep(0.5)
        assert follower.stream.read_cached(0, 10_000)[-1].end_sequence_id == 12


async def test_a_finished_segment_leaves_its_index_and_is_not_live_any_more():
    """No later segment exists yet, so no head snapshot holds the index."""
    limits = StreamLimits(
        entry_bytes_max=64 * 1024,
        snapshot_bytes=1500,
        index_stride_bytes=100,
    )

    async with started_rig(limits=limits) as rig:
        owner = await rig.owner()
        follower = await rig.follower()
        table = follower.stream._table
        await owner.add(40)
        await follower.until(39)
        assert table.live is not None
        points = list(table.live.index.sequence_ids)
        assert len(points) > 5
        await owner.stream.close()
        await follower.until(40)
        await asyncio.sleep(1)
        assert table.live is None
        [segment] = follower.stream.segments
        index = await follower.stream._reads.index_of(segment)
        assert list(index.sequence_ids)[: len(points)] == points
        await follower.stream.close()


async def test_a_closed_follower_keeps_no_live_segment():
    async with started_rig() as rig:
        owner = await rig.owner()
        follower = await rig.follower()
        await owner.add(3)
        await follower.until(2)
        assert follower.stream._table.live is not None
        await follower.stream.close()
        assert follower.stream._table.live is None
        assert follower.stream.end_sequence_id == 2


async def test_what_recovery_finds_past_the_known_end_follows_in_its_place():
    async with started_rig() as rig:
        owner = await rig.owner()
        follower = await rig.follower()
        await owner.add(5)
        await follower.until(4)
        for _ in range(3):  # acknowledged or not, some bookie has them
            owner.append()
        await asyncio.sleep(0.002)
        owner.kill()
        await asyncio.sleep(2)
        known = follower.stream.end_sequence_id
        second = await rig.owner("second")
        end = second.stream.end_sequence_id
        assert end > known
        await follower.until(end)
        await second.add(3)
        await follower.until(end + 2)
        found = await follower.read_all()
        assert by_sequence_id(owner).items() <= found.items()
        assert (
            by_sequence_id(second).items() >= {a: d for a, d in found.items() if a >= end}.items()
        )
        assert sorted(found) == list(range(end + 2))


async def test_an_empty_segment_of_a_takeover_is_passed():
    async with started_rig() as rig:
        follower = await rig.follower()
        for number in range(4):
            await rig.owner(f"owner {number}")
        owner = await rig.owner("last")
        await owner.add(3)
        await follower.until(2)
        assert len(await follower.read_all()) == 2


async def test_a_change_of_the_list_costs_two_reads_of_nodes_and_a_quiet_hour_none():
    async with started_rig() as rig:
        owner = await rig.owner()
        for _ in range(20):
            await owner.add(1)
            await owner.roll()
        follower = await rig.follower()
        await follower.until(20)
        await asyncio.sleep(5)
        follower.calls.clear()
        await asyncio.sleep(3600)
        quiet = len(follower.calls)
        await owner.add(1)
        await owner.roll()
        await follower.until(21)
        await asyncio.sleep(5)
        quiet, calls = quiet, len(follower.calls)
    assert quiet == 0
    assert calls <= 10  # names, the two new ones, start, the ledgers' own metadata


async def test_a_new_session_hears_of_segments_again():
    async with started_rig() as rig:
        owner = await rig.owner()
        follower = await rig.follower()
        follower.session.expire()
        await owner.add(2)
        await owner.roll()
        await owner.add(3)
        await follower.until(4)
        assert len(follower.stream.segments) == 2


async def test_metadata_out_of_reach_for_a_minute_delay_the_next_segment_only():
    async with started_rig() as rig:
        owner = await rig.owner()
        follower = await rig.follower()
        follower.session.faults = faults = type(rig.world.metadata_faults)()
        await owner.add(3)
        await follower.until(2)
        faults.cut = True
        await owner.add(3)
        await follower.until(5)
        await owner.roll()
        await owner.add(3)
        await asyncio.sleep(60)
        faults.cut = False
        await follower.until(8, timeout_s=5)
        assert len(await follower.read_all()) == 8


# Truncation


async def test_the_start_follows_a_truncation_and_never_falls():
    async with started_rig() as rig:
        owner = await rig.owner()
        follower = await rig.follower()
        await owner.add(4)
        await owner.roll()
        await owner.add(4)
        await follower.until(7)
        await owner.stream.truncate(5)
        await asyncio.sleep(0.1)
        assert follower.stream.start_sequence_id == 5
        with pytest.raises(Truncated):
            await follower.stream.read(4, 100)
        assert list(await follower.read_all()) == [5, 6]
        await follower.stream.close()
        await follower.stream.open()
        assert (follower.stream.start_sequence_id, follower.stream.end_sequence_id) == (5, 7)


async def test_truncated_records_are_not_served_from_memory():
    async with started_rig() as rig:
        owner = await rig.owner()
        follower = await rig.follower()
        await owner.add(8)
        await follower.until(7)
        assert follower.stream.read_cached(4, 100) is not None
        await owner.stream.truncate(5)
        await asyncio.sleep(0.1)
        assert follower.stream.read_cached(4, 100) is None
        assert follower.stream.read_cached(5, 100) is not None


async def test_a_start_past_the_known_end_moves_the_end():
    async with started_rig() as rig:
        owner = await rig.owner()
        follower = await rig.follower()
        await owner.add(4)
        await follower.until(3)
        await owner.stream.truncate(4)
        await follower.until(4)
        assert await follower.stream.read(4, 100) == []


# Idling


async def test_a_closed_follower_asks_and_watches_nothing_and_opens_again_where_it_was():
    async with started_rig() as rig:
        owner = await rig.owner()
        follower = await rig.follower()
        await owner.add(5)
        await follower.until(4)
        await follower.stream.close()
        assert not follower.session.watchers
        assert follower.services.cache.bytes_held == 0
        follower.port.asked.clear()
        follower.calls.clear()
        await owner.add(5)
        await asyncio.sleep(60)
        assert not follower.port.asked and not follower.calls
        assert follower.stream.end_sequence_id == 4
        with pytest.raises(StreamUnavailable):
            await follower.stream.read(0, 100)
        await follower.stream.open()
        assert follower.stream.end_sequence_id == 9
        assert len(await follower.read_all()) == 9


async def test_opening_while_bookies_are_silent_shows_no_less_than_before():
    async with started_rig() as rig:
        owner = await rig.owner()
        follower = await rig.follower()
        follower.stream._on_retry = (troubles := []).append
        await owner.add(5)
        await follower.until(4)
        await follower.stream.close()
        follower.port.stalled = set(rig.world.bookies)
        await follower.stream.open()
        assert follower.stream.end_sequence_id == 4
        with pytest.raises(StreamUnavailable):
            await follower.stream.read(2, 100)
        await asyncio.sleep(40)
        assert troubles
        follower.port.stalled = set()
        await owner.add(2)
        await follower.until(6)
        assert len(await follower.read_all()) == 6


# Epochs, positions, times


async def test_epochs_are_those_of_the_owners_and_stay_over_rolls():
    async with started_rig() as rig:
        follower = await rig.follower()
        expected, at = {}, 0
        for number in range(3):
            owner = await rig.owner(f"owner {number}")
            epoch = owner.stream.epoch
            at = owner.stream.end_sequence_id
            for _ in range(2):
                await owner.add(2)
                await owner.roll()
            expected |= dict.fromkeys(range(at, owner.stream.end_sequence_id), epoch)
            await owner.stream.close()
        await follower.until(12)
        assert {n: follower.stream.epoch_at(n) for n in range(12)} == expected
        late = await rig.follower("late")
        assert {n: late.stream.epoch_at(n) for n in range(12)} == expected
        assert sorted(set(expected.values())) == sorted(expected.values())[::4]


async def test_the_epoch_of_a_segment_in_progress_is_known_to_one_who_comes_late():
    async with started_rig() as rig:
        first = await rig.owner()
        await first.add(2)
        await first.stream.close()
        second = await rig.owner("second")
        await second.add(1)
        await second.roll()
        await second.add(3)
        follower = await rig.follower()
        epochs = [follower.stream.epoch_at(n) for n in range(5)]
        assert epochs == [1, 1, 2, 2, 2] == [second.stream.epoch_at(n) for n in range(5)]


@pytest.mark.parametrize("late", [False, True])
async def test_a_timestamp_is_looked_up_as_a_scan_would(late):
    limits = StreamLimits(
        entry_bytes_max=64 * 1024,
        snapshot_bytes=1500,
        index_stride_bytes=300,
        read_chunk_bytes=500,
    )

    async with started_rig(limits=limits) as rig:
        owner = await rig.owner()
        follower = None if late else await rig.follower()
        for number in range(120):
            owner.append(timestamp=1000 + (number * 37) % 101)
            await owner.settle()
            if number % 30 == 29:
                await owner.roll()
        owner.append()
        await owner.settle()
        follower = follower or await rig.follower()
        await follower.until(120)
        log = await follower.read_all()
        for asked in range(995, 1105, 3):
            due = next((at for at, d in log.items() if int(d.split()[1]) >= asked), None)
            got = await follower.stream.find_timestamp(asked)
            assert (got and got.sequence_id) == due


async def test_names_that_change_between_listing_and_reading_are_listed_again():
    async with started_rig() as rig:
        owner = await rig.owner()
        for _ in range(3):
            await owner.add(2)
            await owner.roll()
        follower = await rig.follower()
        children, rolled = follower.session.children, []

        async def children_then_roll(path):
            names = await children(path)
            if path == log_root("stream") + "/ledgers" and len(rolled) < 3:
                rolled.append(True)
                await owner.add(1)
                await owner.roll()
            return names

        follower.session.children = children_then_roll
        await owner.add(1)
        await owner.roll()
        await follower.until(owner.stream.end_sequence_id)
        await asyncio.sleep(1)
        assert await follower.read_all() == by_sequence_id(owner)
        assert len(rolled) == 3
