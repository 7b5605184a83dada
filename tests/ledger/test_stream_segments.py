"""Goal: segments roll, end, are truncated and expire as designed, and readers in other processes
see the last record.

Method: real streams over a simulated cluster on virtual time. The tests check the stored state.
"""

import asyncio
from dataclasses import replace

import pytest

from ledger.client import metadata_format
from ledger.core import records as log_records
from ledger.core.segments import Truncation
from ledger.errors import NoSuchLedger, Truncated
from ledger.ids import EntryId
from ledger.streams.recovery import user_records
from tests.ledger.life_rig import (
    LEDGERS,
    WHOLE,
    answered,
    everything,
    has_ledger,
    listed,
    listen,
    taking_over,
    watched_rig,
)

# Rolling


async def test_records_are_taken_and_acknowledged_while_the_next_ledger_is_being_made():
    async with watched_rig() as rig:
        owner = await taking_over(rig, "a")
        await owner.add(2)
        owner.session.gate = asyncio.Event()  # the store does not answer for now
        owner.stream.roll_soon()
        await owner.add(5)
        assert len(owner.stream.segments) == 1
        owner.session.gate.set()
        await asyncio.sleep(5)
        assert len(owner.stream.segments) == 2
        await owner.add(1)
        assert await everything(owner) == answered(owner)


async def test_a_segment_is_kept_on_while_no_ledger_can_be_made():
    async with watched_rig(segment_bytes=2000) as rig:
        owner = await taking_over(rig, "a")
        owner.session.faults = replace(owner.session.faults, cut=True)
        await owner.add(40)
        await asyncio.sleep(300)
        assert len(owner.stream.segments) == 1
        assert not owner.failures
        owner.session.faults = replace(owner.session.faults, cut=False)
        await asyncio.sleep(60)
        assert len(owner.stream.segments) == 2
        await owner.add(1)
        assert await everything(owner) == answered(owner)


async def test_a_ledger_made_for_a_roll_that_the_deletion_overtook_is_deleted():
    async with watched_rig() as rig:
        owner = await taking_over(rig, "a")
        await owner.add(2)
        owner.session.gate = asyncio.Event()  # the store does not answer for now
        owner.stream.roll_soon()
        await asyncio.sleep(1)
        deleting = asyncio.ensure_future(owner.stream.abandon())
        await asyncio.sleep(1)
        owner.session.gate.set()
        await deleting
        assert await owner.services.client.list_ledgers() == [s.ledger for s in listed(rig)]


async def test_a_segment_rolls_when_its_time_has_come_and_it_holds_records():
    async with watched_rig(segment_ms=60_000) as rig:
        owner = await taking_over(rig, "a")
        await asyncio.sleep(100)
        assert not owner.stream.roll_if_old()
        await owner.add(1)
        assert owner.stream.roll_if_old()
        await asyncio.sleep(1)
        assert [s.completed for s in owner.stream.segments] == [True, False]
        assert not owner.stream.roll_if_old()


async def test_segments_of_one_age_do_not_all_roll_at_once():
    async with watched_rig(segment_ms=60_000, segment_jitter_ms=30_000) as rig:
        owner, clock, ages_s = await taking_over(rig, "a"), asyncio.get_running_loop(), []
        for _ in range(4):
            began_s = clock.time()
            await owner.add(1)
            while not owner.stream.roll_if_old():
                await asyncio.sleep(1)
            ages_s.append(clock.time() - began_s)
            await asyncio.sleep(1)
        assert all(58 <= age_s <= 92 for age_s in ages_s)
        assert max(ages_s) - min(ages_s) > 5


async def test_a_segment_rolls_at_its_size():
    async with watched_rig(segment_bytes=4000) as rig:
        owner = await taking_over(rig, "a")
        for _ in range(20):
            await owner.add(5, size=100)
        await asyncio.sleep(1)
        sizes = [owner.stream._table.size_of(s) for s in owner.stream.segments[:-1]]
        assert len(sizes) >= 3
        assert all(4000 <= size < 8000 for size in sizes)
        assert await everything(owner) == answered(owner)


@pytest.mark.parametrize("control_ms", [-1, 100])
async def test_a_roll_a_close_and_a_recovery_leave_the_same_fields(control_ms):
    async with watched_rig(control_ms=control_ms) as rig:
        owner = await taking_over(rig, "a")
        await owner.add(5)
        await asyncio.sleep(1)
        await owner.roll()
        await owner.add(5)
        await asyncio.sleep(1)
        await owner.stream.close()
        owner.kill()
        owner = await taking_over(rig, "b")
        await owner.add(5)
        await asyncio.sleep(1)
        owner.kill()
        await taking_over(rig, "c")
        rolled, closed, recovered, _ = listed(rig)
        for segment in (rolled, closed, recovered):
            assert segment.completed
            assert segment.record_count == 5
            assert segment.last_txid == segment.end_sequence_id - 1
            assert segment.completion_ms > 0
        assert (rolled.last_entry, rolled.last_slot) == (closed.last_entry, closed.last_slot)
        assert (rolled.last_entry, rolled.last_slot) == (recovered.last_entry, recovered.last_slot)


# Control records


@pytest.mark.slow
@pytest.mark.parametrize(
    ("control_ms", "seconds_min", "seconds_max"),
    [(0, 0.0, 0.05), (400, 0.2, 0.45), (-1, 30.0, 31.0)],
    ids=["immediate", "periodic", "off"],
)
async def test_when_a_follower_sees_the_last_record(control_ms, seconds_min, seconds_max):
    """With control records off, only when the next record follows, 30 s later."""
    async with watched_rig(control_ms=control_ms) as rig:
        owner = await taking_over(rig, "a")
        follower = await rig.follower()
        await owner.add(3)
        seen = asyncio.create_task(follower.until(3))
        await asyncio.sleep(30)
        await owner.add(1)
        assert seconds_min <= await seen <= seconds_max


async def entries_of(rig, segment):
    reader = await rig.world.client("dump").open(segment.ledger)
    last = reader.last_add_confirmed
    found = []
    while len(found) <= last:
        found += [body for _, body in await reader.read(EntryId(len(found)), last, WHOLE)]
    return [list(log_records.parse_entry(body)) for body in found]


async def test_an_owner_keeps_the_indexes_of_the_segments_that_it_completed_or_loaded():
    """Otherwise the first cold read in each of them opens the next ledger for its head snapshot."""
    async with watched_rig() as rig:
        first = await taking_over(rig, "first")
        await first.add(2)
        await first.stream.close()
        owner = await taking_over(rig, "a")
        for _ in range(4):
            await owner.add(2)
            await owner.roll()
        opened = opened_ledgers(owner)
        stream = owner.stream
        indexes = [await stream._reads.index_of(segment) for segment in stream.segments[:-1]]
        assert [list(index.sequence_ids) for index in indexes] == [[0], [2], [4], [6], [8]]
        assert opened == []


def opened_ledgers(owner):
    """Return a list to which each ledger that the owner opens is appended."""
    client, opened = owner.services.client, []
    real = client.open

    async def open_ledger(ledger):
        opened.append(ledger)
        return await real(ledger)

    client.open = open_ledger
    return opened


async def test_control_records_are_stored_and_spend_no_sequence_id():
    async with watched_rig(control_ms=100) as rig:
        owner = await taking_over(rig, "a")
        for _ in range(4):
            await owner.add(1)
            await asyncio.sleep(1)
        assert sorted(answered(owner)) == [0, 1, 2, 3]
        assert await everything(owner) == answered(owner)
        await owner.stream.close()
        (segment,) = listed(rig)
        controls = [r for e in await entries_of(rig, segment) for r in e if r.data == b"control"]
        assert [(r.position, r.txid) for r in controls] == [(1, 0), (2, 1), (3, 2), (4, 3)]
        assert all(r.control for r in controls)


async def test_an_idle_stream_writes_one_control_record_and_no_more():
    async with watched_rig(control_ms=100) as rig:
        owner = await taking_over(rig, "a")
        await owner.add(3)
        await asyncio.sleep(1)
        entries = owner.stream._ledger_writer.lap
        await asyncio.sleep(60)
        assert owner.stream._ledger_writer.lap == entries


async def test_the_policy_may_change_while_the_stream_is_open():
    async with watched_rig() as rig:
        owner = await taking_over(rig, "a")
        follower = await rig.follower()
        await owner.add(3)
        await asyncio.sleep(10)
        assert follower.stream.end_sequence_id == 2
        rig.config = replace(rig.config, control_ms=0)
        owner.stream.roll_if_old()
        await owner.add(1)
        assert await follower.until(4) < 0.1


# Truncation


async def three_segments(rig, **config):
    """0-5 and 6-11 are completed, 12-17 in progress. Records of one loop turn share an entry."""
    owner = await taking_over(rig, "a")
    for number in range(3):
        for _ in range(2):
            for _ in range(3):
                owner.append()
            await owner.settle()
        if number < 2:
            await owner.roll()
    return owner


async def test_segments_below_the_start_are_truncated_and_the_one_around_it_partially():
    async with watched_rig() as rig:
        owner = await three_segments(rig)
        await owner.stream.truncate(10)
        first, second, third = listed(rig)
        assert first.truncation is Truncation.TRUNCATED
        assert second.truncation is Truncation.PARTIALLY_TRUNCATED
        assert third.truncation is Truncation.ACTIVE
        entries = await entries_of(rig, second)
        position = second.min_active_slot
        (record,) = [
            r for r in entries[second.min_active_entry] if not r.control and r.slot == position
        ]
        assert second.start_sequence_id + record.position - 1 == 10
        assert owner.stream.start_sequence_id == 10
        with pytest.raises(Truncated):
            await owner.stream.read(9, WHOLE)
        assert await everything(owner) == answered(owner, start=10)


async def test_a_start_in_the_middle_of_a_record_set_points_to_its_slot():
    async with watched_rig() as rig:
        owner = await taking_over(rig, "a")
        data = rig.new_data()
        owner.stream.append((data,), len(data), 8, 1000, lambda error: None)
        await owner.add(1)
        await owner.roll()
        await owner.stream.truncate(5)
        segment = listed(rig)[0]
        assert segment.min_active_slot == 5
        first, _ = user_records(await payload(rig, segment, segment.min_active_entry))
        assert (first.slot, first.records) == (0, 8)


async def payload(rig, segment, entry):
    reader = await rig.world.client("dump").open(segment.ledger)
    [(_, body)] = await reader.read(entry, entry, WHOLE)
    return body


async def test_the_pointer_reaches_the_end_and_the_data_are_still_there_for_a_while():
    async with watched_rig(truncated_keep_ms=60_000) as rig:
        owner = await three_segments(rig)
        await owner.stream.truncate(8)
        await owner.stream.truncate(12)
        first, second, _ = listed(rig)
        assert first.truncation is second.truncation is Truncation.TRUNCATED
        await asyncio.sleep(50)
        assert await owner.stream.expire() == 0
        assert len(await entries_of(rig, first)) == 3, "the ledgers still exist"
        await asyncio.sleep(10)
        assert await owner.stream.expire() == 1
        assert [s.number for s in listed(rig)] == [2, 3], "the newest completed one stays"
        assert not has_ledger(rig, first.ledger)
        assert has_ledger(rig, second.ledger)


async def test_a_start_in_the_segment_in_progress_is_marked_when_that_is_completed():
    async with watched_rig() as rig:
        owner = await three_segments(rig)
        await owner.stream.truncate(14)
        assert listed(rig)[-1].truncation is Truncation.ACTIVE
        await owner.roll()
        await owner.stream.expire()
        states = [s.truncation for s in listed(rig)]
        assert states == [
            Truncation.TRUNCATED,
            Truncation.TRUNCATED,
            Truncation.PARTIALLY_TRUNCATED,
            Truncation.ACTIVE,
        ]


async def test_a_truncation_is_durable_at_once_also_when_the_data_cannot_be_read():
    async with watched_rig() as rig:
        owner = await three_segments(rig)
        owner.stream._reads.clear()
        for bookie in rig.world.bookies:
            rig.world.network.cut("a", bookie)
        await owner.stream.truncate(9)
        owner.kill()
        rig.world.network.heal()
        new = await taking_over(rig, "b")
        assert new.stream.start_sequence_id == 9
        await new.stream.expire()
        assert listed(rig)[1].truncation is Truncation.PARTIALLY_TRUNCATED


async def test_a_grace_period_begins_again_with_a_new_owner():
    async with watched_rig() as rig:
        owner = await three_segments(rig)
        await owner.stream.truncate(12)
        await asyncio.sleep(59)
        owner.kill()
        new = await taking_over(rig, "b")
        await new.stream.expire()
        await asyncio.sleep(59)
        assert await new.stream.expire() == 0
        await asyncio.sleep(2)
        assert await new.stream.expire() == 2


async def test_what_ttl_removes_leaves_the_list_first_and_its_ledger_after():
    async with watched_rig(retention_ms=3_600_000) as rig:
        owner = await three_segments(rig)
        ledgers = [s.ledger for s in listed(rig)]
        gone = []
        listen(rig.world.tree, "on_delete", gone.append)
        await asyncio.sleep(3600)
        assert await owner.stream.expire() == 1
        node, ledger, *_ = [p for p in gone if p.startswith(LEDGERS) or "L" in p]
        assert node.startswith(LEDGERS)
        assert ledger == metadata_format.ledger_path(ledgers[0])
        assert owner.stream.start_sequence_id == 6
        await asyncio.sleep(100_000)
        assert await owner.stream.expire() == 0, "one in progress never expires"


async def test_ttl_counts_from_completion():
    async with watched_rig(retention_ms=3_600_000) as rig:
        owner = await taking_over(rig, "a")
        await owner.add(1)
        await asyncio.sleep(10_000)
        await owner.roll()
        await owner.add(1)
        await owner.roll()
        assert await owner.stream.expire() == 0
        await asyncio.sleep(3600)
        assert await owner.stream.expire() == 1


async def test_a_ledger_that_is_gone_already_does_not_stop_the_round():
    async with watched_rig() as rig:
        owner = await three_segments(rig)
        first = listed(rig)[0]
        await rig.world.client("admin").delete(first.ledger)
        await owner.stream.truncate(6)
        await asyncio.sleep(61)
        assert await owner.stream.expire() == 1
        with pytest.raises(NoSuchLedger):
            await rig.world.client("admin").open(first.ledger)
