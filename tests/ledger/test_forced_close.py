"""Goal: no offset that was acknowledged or shown is assigned again after a ledger was closed by
force, and releases that would do so refuse the stream.

Method: owners of one stream on a simulated cluster; the loss is accepted by hand, as a command
stores it, and the ledger is then closed below entries that were acknowledged.
"""

import asyncio
from dataclasses import replace
from random import Random

import pytest

from ledger.core.accepted_losses import RESERVED_OFFSETS
from ledger.core.segments import JUMP_LAYOUT_VERSION, decode_segment
from ledger.errors import BadVersion, InvalidArgument, MetadataUnavailable, NotOwner
from ledger.streams.accepted_losses import losses_path
from ledger.streams.segment_store import SegmentStore
from ledger.streams.writer import SEGMENT_RECORDS_MAX
from tests.ledger.follow_rig import NAME, Owner
from tests.ledger.life_rig import LEDGERS, fails, listed, taking_over, watched_rig
from tests.ledger.lost_stream_rig import (
    TellingState,
    accept,
    close_by_force,
    lost_range,
    reserved,
    telling_owner,
)
from tests.sim.metadata import SimMetadata

RESERVED_END = 2 + RESERVED_OFFSETS


async def forced(rig, *, closed=True):
    """Six offsets are acknowledged. The ledger is given up behind entry 2, which holds offset 1."""
    owner = await telling_owner(rig, "a")
    await owner.add(6)
    owner.kill()
    [segment] = listed(rig)
    await accept(rig, reserved(segment, 3, 2))
    if closed:
        await close_by_force(rig, segment.ledger, 2)
    return owner


def test_more_is_reserved_than_a_segment_can_hold():
    assert RESERVED_OFFSETS >= SEGMENT_RECORDS_MAX - 1 + 2**31 - 1


async def test_the_next_owner_begins_above_everything_that_was_acknowledged():
    """Seed 002 L16: a DATALOSS lies between."""
    async with watched_rig() as rig:
        owner = await forced(rig)
        new = await taking_over(rig, "b")
        await new.add(4)
        assert not set(new.answers.values()) & set(owner.answers.values())
        assert min(new.answers.values()) == RESERVED_END
        first, second = listed(rig)
        assert (first.record_count, first.last_entry) == (2, 2)
        assert second.start_sequence_id == RESERVED_END


async def test_a_stream_without_a_next_segment_ends_behind_the_reserved_offsets():
    async with watched_rig() as rig:
        await forced(rig)
        idle = Owner(rig, "b")
        await idle.stream.open()
        assert idle.stream.end_sequence_id == RESERVED_END
        await idle.stream.begin()
        await idle.add(1)
        assert list(idle.answers.values()) == [RESERVED_END]


async def test_a_later_owner_keeps_the_start_of_a_segment_behind_a_jump():
    """Without records too: then only the node of the segment in progress has the start."""
    async with watched_rig() as rig:
        await forced(rig)
        (await taking_over(rig, "b")).kill()
        new = await taking_over(rig, "c")
        await new.add(1)
        assert list(new.answers.values()) == [RESERVED_END]


async def test_all_segments_at_a_jump_have_a_layout_that_other_releases_refuse():
    async with watched_rig() as rig:
        await forced(rig)
        versions = [s.layout_version for s in listed(rig)]
        assert versions == [JUMP_LAYOUT_VERSION], "from the acceptance on, before the next segment"
        new = await taking_over(rig, "b")
        await new.add(1)
        await new.roll()
        assert [s.layout_version for s in listed(rig)] == [6, 6, 5]
        nodes = rig.world.tree.nodes
        first = next(r.data for p, r in nodes.items() if p.startswith(f"{LEDGERS}/logrecs_"))
        assert int(first.split(b";")[0]) & 0xFF == 6


async def test_an_owner_that_lives_ends_when_its_segment_is_given_up():
    async with watched_rig() as rig:
        owner = await taking_over(rig, "a")
        await owner.add(3)
        [segment] = listed(rig)
        await accept(rig, reserved(segment, 3, 2))
        async with asyncio.timeout(60):
            while not owner.failures:
                await asyncio.sleep(0.01)
        assert isinstance(owner.failures[0], NotOwner)
        await owner.stream.open(begin=True)
        await owner.add(1)
        assert sorted(owner.answers.values())[-1] == RESERVED_END


async def test_an_owner_that_did_not_hear_of_it_cannot_change_the_list():
    """Neither can one of another release, which knows no losses."""
    async with watched_rig() as rig:
        owner = await taking_over(rig, "a")
        await owner.add(3)
        store = SegmentStore(SimMetadata(rig.world.tree), NAME)
        [segment] = await store.load()
        await accept(rig, reserved(segment, 3, 2))
        completed = segment.complete(
            record_count=3, last_txid=2, last_entry=3, last_slot=0, completion_ms=1
        )
        with pytest.raises(BadVersion):
            await store.complete(segment, completed)
        assert [s.completed for s in listed(rig)] == [False]


async def test_a_crash_between_the_acceptance_and_the_close_reserves_the_offsets_all_the_same():
    """All bookies are back and the next owner recovers all entries, which stay lost."""
    async with watched_rig() as rig:
        owner = await forced(rig, closed=False)
        state = TellingState()
        new = Owner(rig, "b", state=state)
        await new.stream.open(begin=True)
        await new.add(2)
        assert sorted(new.answers.values()) == [RESERVED_END, RESERVED_END + 1]
        assert sorted(owner.answers.values()) == list(range(6))
        assert (listed(rig)[0].record_count, listed(rig)[0].last_entry) == (2, 2)
        assert state.seen == [("all below", 0), 0, 1, ("lost", 2, RESERVED_END - 1)]


async def test_an_acceptance_that_is_repeated_changes_nothing():
    async with watched_rig() as rig:
        owner = await forced(rig)
        [segment] = listed(rig)
        before = dict(rig.world.tree.nodes)
        await accept(rig, reserved(segment, 3, 2))
        assert rig.world.tree.nodes == before
        assert len(owner.answers) == 6


async def test_only_the_rest_of_the_last_segment_can_be_reserved():
    async with watched_rig() as rig:
        owner = await taking_over(rig, "a")
        await owner.add(2)
        await owner.roll()
        first, _ = listed(rig)
        with pytest.raises(InvalidArgument, match="segment 1 is not the last one"):
            await accept(rig, reserved(first, 1, 0))
        assert losses_path(NAME) not in rig.world.tree.nodes
        await accept(rig, lost_range(first, 1, 1, 0, 0))
        assert owner.failures == []


async def test_reserved_offsets_are_truncated_like_others():
    async with watched_rig(truncated_keep_ms=1) as rig:
        await forced(rig)
        new = await taking_over(rig, "b")
        await new.add(2)
        await new.roll()
        await new.stream.truncate(1000)  # among the reserved ones
        await new.stream.expire()
        assert [s.number for s in listed(rig)] == [1, 2, 3], "its start is still in segment 1"
        await new.stream.truncate(RESERVED_END + 1)
        await new.stream.expire()
        await asyncio.sleep(1.0)
        assert await new.stream.expire() == 1
        assert [s.number for s in listed(rig)] == [2, 3]
        losses = rig.world.tree.nodes[losses_path(NAME)].data
        assert b'"ranges": []' in losses or b'"ranges":[]' in losses
        new.kill()
        last = await taking_over(rig, "c")
        await last.add(1)
        assert list(last.answers.values()) == [RESERVED_END + 2]


async def test_an_unreadable_node_of_losses_is_an_error_with_its_path():
    async with watched_rig() as rig:
        owner = await forced(rig)
        assert owner.answers
        metadata = SimMetadata(rig.world.tree)
        node = await metadata.get(losses_path(NAME))
        await metadata.set(losses_path(NAME), node.data[:-9], node.version)
        error = await fails(Owner(rig, "b").stream.open())
        assert losses_path(NAME) in str(error)


def test_a_segment_keeps_its_layout_through_all_changes():
    data = b"6;77;5;1;0;0;1000"
    segment = decode_segment(data, where="here")
    assert segment.encode() == data
    completed = segment.complete(
        record_count=3, last_txid=7, last_entry=4, last_slot=0, completion_ms=9
    )
    assert decode_segment(completed.encode(), where="here") == completed
    assert replace(completed, min_active_slot=1).layout_version == 6


@pytest.mark.parametrize("seed", range(60))
async def test_no_offset_is_ever_given_twice(seed):
    """Owners come and go; a segment in progress is closed by force at any of its entries.

    The node is written, and the ledger may be closed, while the owner lives, is dead, or was
    followed by another one.
    """
    draw = Random(seed)
    async with watched_rig(truncated_keep_ms=1) as rig:
        given, owners = [], []
        for round_number in range(8):
            owner = Owner(rig, f"o{round_number}", state=TellingState())
            await owner.stream.open(begin=draw.random() < 0.7)
            if not owner.stream.writable:
                await owner.stream.begin()
            owners.append(owner)
            await owner.add(draw.randrange(5))
            if draw.random() < 0.3:
                await owner.roll()
                await owner.add(draw.randrange(3))
            if draw.random() < 0.3:
                await owner.stream.truncate(owner.stream.end_sequence_id - draw.randrange(2))
                await owner.stream.expire()
            if draw.random() < 0.7:
                owner.kill()
            if draw.random() < 0.6:
                await give_up_the_rest(rig, draw, owner)
        for owner in owners:
            given += owner.answers.values()
        assert len(given) == len(set(given))


async def give_up_the_rest(rig, draw, owner):
    """Close the ledger of the last segment behind any of its entries, or only say so."""
    segment = listed(rig)[-1]
    if segment.completed or rig.world.metadata_of(segment.ledger).closed:
        return
    records = owner.stream.end_sequence_id - segment.start_sequence_id
    kept = draw.randrange(records + 1) if records > 0 else 0  # entry 0 is the head snapshot
    low = max(segment.start_sequence_id, 0) + kept
    try:
        await accept(rig, reserved(segment, kept + 1, low))
    except (BadVersion, MetadataUnavailable):
        return
    if draw.random() < 0.7:
        await close_by_force(rig, segment.ledger, kept)
