"""Goal: a stream whose state lies in a loss is readable before the loss is accepted, and opens for
writing after it, without a producer's state that the loss may contradict.

Method: owners of one stream on a simulated cluster. Bookies forget chosen entries; a state of the
owner tells from which snapshot and which records it was built.
"""

import asyncio

import pytest

from ledger.core.accepted_losses import RESERVED_OFFSETS
from ledger.core.loss import EntryAwaited, EntryLost
from ledger.errors import StreamUnavailable
from ledger.streams.accepted_losses import losses_path
from ledger.streams.config import StreamLimits
from tests.ledger.calm_cluster import cluster
from tests.ledger.follow_rig import NAME, FollowRig, Owner
from tests.ledger.life_rig import fails, listed
from tests.ledger.lost_stream_rig import (
    TellingState,
    accept,
    entries_of,
    lose_entries,
    lost_range,
    reserved,
    telling_owner,
)

SMALL = StreamLimits(
    entry_bytes_max=64 * 1024, snapshot_bytes=64 * 1024, index_stride_bytes=16 * 1024
)
THIRD = 22 * 1024  # three records of this size make a snapshot due


async def rig_of(**config):
    return await FollowRig(cluster(), limits=SMALL, **config).start()


async def written(rig, *counts, size=24):
    """Completed segments with this many records each."""
    owner = Owner(rig, "first", state=TellingState())
    await owner.open()
    for at, count in enumerate(counts):
        await owner.add(count, size)
        if at + 1 < len(counts):
            await owner.roll()
    await owner.stream.close()
    owner.kill()
    return listed(rig)


async def opened(rig, host="next"):
    owner = Owner(rig, host, state=TellingState())
    await owner.stream.open()
    return owner, owner.stream._state.seen


async def test_without_a_loss_the_newest_snapshot_counts():
    rig = await rig_of()
    await written(rig, 3, 2)
    _, seen = await opened(rig)
    assert seen == [("all below", 3), 3, 4]


async def test_a_lost_head_snapshot_is_replaced_by_one_of_the_segment_before():
    rig = await rig_of()
    _, second = await written(rig, 3, 2)
    lose_entries(rig, second.ledger, 0)
    await accept(rig, lost_range(second, 0, 0, 3, 2))
    owner, seen = await opened(rig)
    assert seen == [("all below", 0), 0, 1, 2, 3, 4], "no record was lost"
    await owner.stream.begin()
    await owner.add(1)
    assert list(owner.answers.values()) == [5]


async def test_a_lost_snapshot_is_replaced_by_an_older_one_of_its_segment():
    rig = await rig_of()
    [segment] = await written(rig, 10, size=THIRD)
    held = await entries_of(rig, segment)
    snapshots = [entry for entry, what in held.items() if what == "control"]
    assert len(snapshots) >= 3, held
    newest = snapshots[-1]
    following = next(held[entry] for entry in range(newest, len(held)) if held[entry] != "control")
    lose_entries(rig, segment.ledger, newest)
    await accept(rig, lost_range(segment, newest, newest, following[0], following[0] - 1))
    _, seen = await opened(rig)
    before = held[snapshots[-2] - 1][-1] + 1
    assert seen == [("all below", before), *range(before, 10)]


async def test_a_replay_passes_a_loss_and_tells_the_state_which_offsets_lie_in_it():
    rig = await rig_of()
    [segment] = await written(rig, 6)
    lose_entries(rig, segment.ledger, 3, 4)
    await accept(rig, lost_range(segment, 3, 4, 2, 3))
    _, seen = await opened(rig)
    assert seen == [("all below", 0), 0, 1, ("lost", 2, 3), 4, 5]


async def test_an_accepted_entry_stays_lost_for_the_state_if_it_is_found_again():
    rig = await rig_of()
    [segment] = await written(rig, 6)
    await accept(rig, lost_range(segment, 3, 4, 2, 3))
    _, seen = await opened(rig)
    assert seen == [("all below", 0), 0, 1, ("lost", 2, 3), 4, 5]


async def test_the_end_of_a_completed_segment_may_be_lost():
    rig = await rig_of()
    [segment] = await written(rig, 6)
    lose_entries(rig, segment.ledger, 5, 6)
    await accept(rig, lost_range(segment, 5, 6, 4, 5))
    owner, seen = await opened(rig)
    assert seen == [("all below", 0), 0, 1, 2, 3, ("lost", 4, 5)]
    await owner.stream.begin()
    await owner.add(1)
    assert list(owner.answers.values()) == [6]


async def test_without_any_snapshot_all_that_is_listed_is_replayed():
    rig = await rig_of()
    segments = await written(rig, 3, 2)
    for segment, low in zip(segments, (0, 3), strict=True):
        lose_entries(rig, segment.ledger, 0)
        await accept(rig, lost_range(segment, 0, 0, low, low - 1))
    _, seen = await opened(rig)
    assert seen == [0, 1, 2, 3, 4]


async def test_without_what_precedes_the_oldest_segment_its_producers_are_unknown():
    rig = await rig_of(retention_ms=0)
    owner = await Owner(rig, "first", state=TellingState()).open()
    for _ in range(3):
        await owner.add(2)
        await owner.roll()
    await asyncio.sleep(0.1)
    assert await owner.stream.expire() > 0
    await owner.stream.close()
    owner.kill()
    for segment in listed(rig):
        lose_entries(rig, segment.ledger, 0)
        low = segment.start_sequence_id
        await accept(rig, lost_range(segment, 0, 0, low, low - 1))
    oldest = listed(rig)[0].start_sequence_id
    assert oldest > 0
    _, seen = await opened(rig)
    assert seen == [("lost", 0, oldest - 1), *range(oldest, 6)]


async def test_epochs_go_on_if_their_snapshots_are_lost():
    """A client that knows an epoch must not be told that it ended early."""
    rig = await rig_of()
    first, second = await written(rig, 3, 2)
    lose_entries(rig, second.ledger, 0)
    await accept(rig, lost_range(second, 0, 0, 3, 2))
    owner, _ = await opened(rig)
    assert [owner.stream.epoch_at(at) for at in (0, 4)] == [first.number, first.number]


# Before the acceptance


@pytest.mark.parametrize("lost", [0, 2])
async def test_a_state_that_waits_for_a_silent_bookie_leaves_the_stream_readable(lost):
    """Two of three bookies lost an entry that the state is built from, and the third is silent."""
    rig = await rig_of()
    _, second = await written(rig, 3, 4)
    silent, *others = rig.world.metadata_of(second.ledger).bookies_of(lost)
    for name in others:
        del rig.world.bookies[name].ledgers[second.ledger].entries[lost]
    rig.world.bookies[silent].crash()
    owner = Owner(rig, "next", state=TellingState())
    assert isinstance(await fails(owner.stream.open()), EntryAwaited)
    await owner.stream.open(whole=False)
    stream = owner.stream
    assert (stream.start_sequence_id, stream.end_sequence_id) == (0, 7)
    for offset in (0, 6):
        assert (await stream.read(offset, 1))[0].sequence_id == offset
    follower = await rig.follower()
    assert (follower.stream.end_sequence_id, follower.stream.is_open) == (7, True)
    assert (await follower.stream.read(0, 1))[0].sequence_id == 0
    for _ in range(2):
        assert isinstance(await fails(stream.begin()), EntryAwaited)
    assert not stream.writable
    await rig.world.bookies[silent].start()
    await stream.begin()
    await owner.add(1)
    assert list(owner.answers.values()) == [7]
    assert owner.failures == []
    assert stream._state.seen == [("all below", 3), 3, 4, 5, 6]
    async with asyncio.timeout(60):
        while follower.stream.epoch_at(3) != stream.epoch_at(3):
            await asyncio.sleep(0.1)


async def test_before_the_acceptance_the_stream_is_readable_and_takes_nothing():
    rig = await rig_of()
    _, second = await written(rig, 3, 2)
    lose_entries(rig, second.ledger, 0)
    owner, _ = await opened(rig)
    stream = owner.stream
    assert (stream.start_sequence_id, stream.end_sequence_id) == (0, 5)
    assert [record.sequence_id for record in await stream.read(0, 1 << 20)][:3] == [0, 1, 2]
    for _ in range(2):
        assert isinstance(await fails(stream.begin()), EntryLost)
    assert not stream.writable
    assert owner.failures == []


async def test_before_the_acceptance_timestamps_are_found_behind_the_loss():
    rig = await rig_of()
    _, second = await written(rig, 3, 4)
    lose_entries(rig, second.ledger, 2)
    owner, _ = await opened(rig)
    assert not owner.stream.writable
    first = await owner.stream.find_timestamp(1002)  # record n has timestamp 1000 + n
    assert first is not None
    assert first.sequence_id == 1
    assert owner.stream.timestamp_max is None
    table = owner.stream._table
    assert table.timestamp_max == 1003, "the bound of what is known"
    assert [s.number for s in table.with_timestamp(1007, 0)] == [second.number]


async def test_an_owner_that_waited_opens_again_after_the_acceptance():
    rig = await rig_of()
    _, second = await written(rig, 3, 2)
    lose_entries(rig, second.ledger, 0)
    owner, _ = await opened(rig)
    await accept(rig, lost_range(second, 0, 0, 3, 2))
    async with asyncio.timeout(60):
        while not owner.failures:
            await asyncio.sleep(0.01)
    assert isinstance(owner.failures[0], StreamUnavailable)
    await owner.stream.open()
    await owner.stream.begin()
    await owner.add(1)
    assert list(owner.answers.values()) == [5]


async def test_a_takeover_with_a_lost_state_completes_the_segment_and_begins_none():
    rig = await rig_of()
    owner = await telling_owner(rig, "a")
    await owner.add(4)
    owner.kill()
    [segment] = listed(rig)
    await rig.world.client("repair").recover(segment.ledger)
    lose_entries(rig, segment.ledger, 2)
    new = Owner(rig, "b")
    await new.stream.open(begin=True)
    assert not new.stream.writable
    assert [(s.completed, s.record_count) for s in listed(rig)] == [(True, 4)]


async def test_an_end_in_a_loss_is_an_error_until_its_rest_is_reserved():
    rig = await rig_of()
    owner = await telling_owner(rig, "a")
    await owner.add(4)
    owner.kill()
    [segment] = listed(rig)
    await rig.world.client("repair").recover(segment.ledger)
    lose_entries(rig, segment.ledger, 4)
    assert isinstance(await fails(Owner(rig, "b").stream.open()), EntryLost)
    await accept(rig, reserved(segment, 4, 3))
    owner, seen = await opened(rig)
    assert seen == [("all below", 0), 0, 1, 2, ("lost", 3, 2 + RESERVED_OFFSETS)]
    assert owner.stream.end_sequence_id == 3 + RESERVED_OFFSETS


# Truncation and retention over a loss


@pytest.mark.parametrize("accepted", [False, True])
async def test_a_start_behind_or_inside_of_a_loss_is_marked_at_its_first_entry(accepted):
    rig = await rig_of()
    _, second = await written(rig, 3, 6)
    lose_entries(rig, second.ledger, 3, 4)
    if accepted:
        await accept(rig, lost_range(second, 3, 4, 5, 6))
    owner = Owner(rig, "keeper")
    await owner.stream.open()
    for start in (6, 8):
        await owner.stream.truncate(start)
        assert [(s.truncation.name, s.min_active_entry) for s in listed(rig)] == [
            ("TRUNCATED", 0),
            ("PARTIALLY_TRUNCATED", 3),
        ]
    assert owner.stream.start_sequence_id == 8


async def test_ranges_are_dropped_when_their_segment_is_gone_and_not_before():
    rig = await rig_of(truncated_keep_ms=1000)
    first, second = await written(rig, 3, 6)
    lose_entries(rig, first.ledger, 2)
    await accept(rig, lost_range(first, 2, 2, 1, 1), lost_range(second, 2, 2, 4, 4))
    owner, _ = await opened(rig)
    await owner.stream.begin()
    await owner.add(1)

    def kept():
        return [each.segment for each in owner.stream._table.losses.ranges]

    await owner.stream.truncate(2)
    await owner.stream.expire()
    assert kept() == [1, 2]
    await owner.stream.truncate(5)
    await owner.stream.expire()
    assert kept() == [1, 2]
    await asyncio.sleep(1.5)
    assert await owner.stream.expire() == 1
    assert kept() == [2], "the state may be replayed across the loss that is left"
    stored = rig.world.tree.nodes[losses_path(NAME)].data
    assert stored.count(b'"segment"') == 1


async def test_retention_removes_segments_with_losses():
    rig = await rig_of(retention_ms=1000)
    first, second, third = await written(rig, 3, 3, 3)
    lose_entries(rig, first.ledger, 2)
    lose_entries(rig, second.ledger, 0)
    owner, _ = await opened(rig)
    await asyncio.sleep(2.0)
    assert await owner.stream.expire() == 2
    assert [s.number for s in listed(rig)] == [third.number]
    assert owner.stream.start_sequence_id == 6
