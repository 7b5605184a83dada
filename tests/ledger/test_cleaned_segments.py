"""Goal: a cleaned segment keeps its place, and every reader finds what it holds now.

Method: real streams over a simulated cluster on virtual time. The tests clean segments by hand.
"""

import asyncio

import pytest

from ledger.core.segments import decode_segment
from ledger.errors import BadVersion, CorruptFormat, Truncated
from ledger.streams.segment_rewriter import CleanedRecord, SegmentRewriter
from tests.ledger.cleaning_rig import FILLER, clean, records_of, rewrite
from tests.ledger.life_rig import LEDGERS, WHOLE, has_ledger, listed, taking_over, watched_rig

GRACE_S = 61


async def rolled(rig, segments=2, records=10):
    """Return an owner of a stream with `segments` completed ones of `records` records each."""
    owner = await taking_over(rig, "a")
    for _ in range(segments):
        await owner.add(records)
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


async def test_a_segment_that_was_truncated_meanwhile_is_not_replaced():
    async with watched_rig() as rig:
        owner = await rolled(rig)
        rewritten = await rewrite(owner.stream, owner.stream.segments[0], even)
        await owner.stream.truncate(5)
        with pytest.raises(Truncated):
            await owner.stream.replace(rewritten)
        assert not has_ledger(rig, rewritten.after.ledger)
        await clean(owner.stream, 1, even)
        assert [first for first, _, _ in await everything_from(owner.stream, 5)][:3] == [5, 7, 9]


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
