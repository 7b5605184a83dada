"""Goal: what a process reads of a stream while others change it never leads to a wrong log.

Method: each test is a meeting of two steps that the proof of readers found by a seed.
"""

import asyncio
from random import Random

import pytest

from ledger.core.accepted_losses import RESERVED_OFFSETS
from ledger.core.gaps import GapKind
from ledger.core.segments import JUMP_LAYOUT_VERSION
from ledger.errors import EntryUnknown
from ledger.ids import Dlsn
from ledger.streams.scan import StreamScan
from ledger.streams.segment_store import SegmentStore
from ledger.streams.stream_seek import After, Offset
from tests.ledger.follow_rig import NAME, started_rig
from tests.ledger.life_rig import listed, taking_over, watched_rig
from tests.ledger.log_reader_rig import Reading, lose, reading_rig
from tests.ledger.lost_stream_rig import (
    accept,
    close_by_force,
    lost_range,
    reserved,
    telling_owner,
)
from tests.ledger.test_log_reader import written
from tests.sim.metadata import MetadataFaults, SimMetadata


async def test_an_owner_that_sees_the_mark_of_a_forced_close_knows_its_reserved_offsets():
    """A tree is read node by node, so the losses may be older than the segments."""
    marked = 0
    for seed in range(60):
        async with watched_rig() as rig:
            owner = await telling_owner(rig, "a")
            await owner.add(6)
            owner.kill()
            [segment] = listed(rig)
            draw = Random(seed)
            faults = MetadataFaults(draw, node_by_node=True)
            store = SegmentStore(SimMetadata(rig.world.tree, faults), NAME)
            loading = asyncio.ensure_future(store.load())
            await asyncio.sleep(draw.uniform(0.0, 0.02))
            await accept(rig, reserved(segment, 3, 2))
            [seen] = await loading
            if seen.layout_version == JUMP_LAYOUT_VERSION:
                marked += 1
                assert store.losses.forced_in(seen.number) is not None, seed
    assert marked


async def test_a_refresh_of_a_scan_that_fails_leaves_its_known_end_readable():
    """The list is newer than the end that was found for it: the segments must not be mixed."""
    async with started_rig() as rig:
        owner = await rig.owner()
        await owner.add(5)
        client = rig.world.client("scan")
        scan = await StreamScan.open(NAME, rig.world.sessions["scan"], client)
        await scan.refresh()
        known = scan.end_sequence_id
        assert known >= 4
        await owner.roll()
        await owner.add(3)
        for name in rig.world.bookies:
            rig.world.network.cut("scan", name)
        with pytest.raises(EntryUnknown):
            await scan.refresh()
        rig.world.network.mend()
        pieces = await scan.cut(0, known, 1 << 20)
        assert sum(each.end - each.first for each in pieces) == known
        scan.close()


async def test_a_saved_position_behind_a_forced_close_goes_on_in_its_loss():
    """The reader received entry 4 before the operator closed the ledger behind entry 2."""
    async with reading_rig() as rig:
        owner = await written(rig, 6)
        await asyncio.sleep(1)
        owner.kill()
        [segment] = listed(rig)
        await accept(rig, reserved(segment, 3, 2))
        await close_by_force(rig, segment.ledger, 2)
        await (await taking_over(rig, "other")).add(1)
        reading = await Reading(rig).start(After(Dlsn(1, 4, 0)))
        gap, record = await reading.take(records=1, gaps=1)
        assert (gap.kind, tuple(gap.first)) == (GapKind.DATALOSS, (1, 4))
        assert record.offset == 2 + RESERVED_OFFSETS
        await reading.reader.stop()


async def test_an_accepted_loss_begins_at_the_start_of_the_stream_if_that_lies_in_it():
    """The lost entry has three offsets, and the start is the second one."""
    async with reading_rig() as rig:
        owner = await three_in_an_entry(rig)
        await accept(rig, lost_range(listed(rig)[0], 1, 1, 0, 2))
        await owner.stream.truncate(1)
        reading = await Reading(rig).start(Offset(0))
        trim, loss = (await reading.take(gaps=2))[:2]
        assert (trim.kind, tuple(trim.offsets)) == (GapKind.TRIM, (0, 0, True))
        assert (loss.kind, tuple(loss.offsets)) == (GapKind.DATALOSS, (1, 2, True))
        await reading.reader.stop()


async def three_in_an_entry(rig):
    """An owner whose first segment has offsets 0 to 2 in entry 1, and whose second has two."""
    owner = await rig.owner()
    for _ in range(3):
        owner.append()
    await owner.settle()
    await owner.roll()
    await owner.add(2)
    return owner


@pytest.mark.parametrize("accepted", [False, True])
async def test_a_loss_does_not_claim_records_of_its_first_entry_that_were_delivered(accepted):
    """An entry of three offsets; its first record was received, and then its copies were lost."""
    async with reading_rig() as rig:
        await three_in_an_entry(rig)
        segment = listed(rig)[0]
        lose(rig, segment.ledger, 1)
        if accepted:
            await accept(rig, lost_range(segment, 1, 1, 0, 2))
        reading = await Reading(rig).start(After(Dlsn(1, 1, 0)))
        loss = (await reading.take(gaps=1))[0]
        assert (loss.kind, loss.offsets.exact) == (GapKind.DATALOSS, False)
        await reading.reader.stop()


async def test_a_follower_opens_where_an_accepted_loss_hides_a_damaged_head_snapshot():
    async with started_rig() as rig:
        owner = await rig.owner()
        await owner.add(4)
        await owner.roll()
        await owner.add(1)
        await owner.stream.close()
        segment = listed(rig)[1]
        for bookie in rig.world.bookies.values():
            bookie.rotten[segment.ledger, 0] = "payload"
        await accept(rig, lost_range(segment, 0, 0, 4, 3))
        follower = await rig.follower()
        assert sorted(await follower.read_all()) == [0, 1, 2, 3, 4]


async def test_a_reader_finds_its_start_beside_damaged_copies_of_an_accepted_loss():
    async with reading_rig() as rig:
        owner = await written(rig, 9, 1)
        segment = listed(rig)[0]
        for bookie in rig.world.bookies.values():
            for entry in (5, 6):
                bookie.rotten[segment.ledger, entry] = "payload"
        await accept(rig, lost_range(segment, 5, 6, 4, 5))
        await owner.stream.truncate(7)
        reading = await Reading(rig).start()
        assert [each.offset for each in await reading.take(records=1)] == [7]
        await reading.reader.stop()


async def test_a_reader_that_resumes_in_an_accepted_loss_gets_no_truncated_offsets_of_it():
    """The saved position is the lost entry itself, whose first offset was truncated meanwhile."""
    async with reading_rig() as rig:
        owner = await three_in_an_entry(rig)
        await accept(rig, lost_range(listed(rig)[0], 1, 1, 0, 2))
        await owner.stream.truncate(1)
        reading = await Reading(rig).start(Dlsn(1, 1, 0))
        loss = (await reading.take(records=1, gaps=1))[0]
        assert (loss.kind, loss.offsets.first) == (GapKind.DATALOSS, 1)
        await reading.reader.stop()
