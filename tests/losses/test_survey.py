"""Goal: a loss has exact entries, exact offsets, and evidence; what may come back is no loss.

Method: entries of a simulated partition disappear; the survey is compared with what was written.
"""

import asyncio

import pytest

from ledger.core.gaps import ENTRY_MAX, OffsetRange
from ledger.core.loss import AuthoritativeStatus, CopyAnswer, Verdict
from ledger.core.records import parse_entry
from ledger.losses.place import read_places
from ledger.repair.checker import LossTerms
from tests.losses.rig import STREAM, drawn, loss_rig, summary


async def written_offsets(rig, segment):
    """The offsets of each entry, as (first, one past the last), from a sound copy."""
    reader = await rig.world.client("twin").open(segment.ledger)
    end = segment.start_sequence_id
    found = {}
    for entry, payload in await reader.read(0, segment.last_entry, 1 << 30):
        records = list(parse_entry(payload))
        first, end = end, end + sum(record.records for record in records)
        found[entry] = first, end
    return found


async def examine(rig, number=1, **how):
    storage = rig.storage()
    places = await read_places(storage.store, STREAM)
    return await storage.survey.examine(places.place(places.segments[number - 1]), **how)


async def test_a_lost_entry_has_the_offsets_between_its_neighbours(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        await rig.written([2, 3, 4, 1], [1])
        segment = rig.listed()[0]
        offsets = await written_offsets(rig, segment)
        entry = next(e for e, span in offsets.items() if span == (2, 5))
        rig.forget(segment.ledger, entry)
        [loss] = (await examine(rig)).found
        assert loss[:4] == (1, entry, entry, OffsetRange(2, 4, True))
        assert loss.evidence.verdict is Verdict.COMPLETE
        assert {copy.answer for copy in loss.evidence.copies} == {CopyAnswer.DENIED}


async def test_a_loss_at_the_end_of_a_segment_ends_where_its_node_says(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        await rig.written([2, 3, 4], [1])
        segment = rig.listed()[0]
        rig.forget(segment.ledger, segment.last_entry)
        [loss] = (await examine(rig)).found
        assert loss.offsets == OffsetRange(5, 8, True)


async def test_a_lost_head_snapshot_has_no_offsets(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        await rig.written([2, 3], [1])
        segment = rig.listed()[0]
        rig.forget(segment.ledger, 0)
        [loss] = (await examine(rig)).found
        assert loss.offsets == OffsetRange(0, -1, True)


async def test_all_entries_of_a_segment_lost(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        await rig.written([2, 3], [1])
        segment = rig.listed()[0]
        rig.forget(segment.ledger, *range(segment.last_entry + 1))
        [loss] = (await examine(rig)).found
        assert loss[:4] == (1, 0, segment.last_entry, OffsetRange(0, 4, True))


async def test_beside_an_entry_that_may_come_back_the_offsets_are_at_most_those(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        await rig.written([1, 2, 3, 4], [1])
        segment = rig.listed()[0]
        away, *here = rig.members(segment.ledger)
        last = segment.last_entry
        rig.forget(segment.ledger, last - 2)
        rig.forget(segment.ledger, last - 1, on=here)
        held = await examine(rig)
        assert [loss.offsets for loss in held.found] == [OffsetRange(1, 2, True)]
        rig.forget(segment.ledger, last)
        rig.lose(away)
        rig.world.bookies[away].ledgers[segment.ledger].entries.pop(last - 2, None)
        first, *_ = (await examine(rig)).found
        assert not first.evidence.verdict.lost, "the absent bookie may have the entry"
        assert AuthoritativeStatus.UNAVAILABLE in {c.status for c in first.evidence.copies}


async def test_an_absent_bookie_that_is_given_up_no_longer_holds_anything(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        await rig.written([1, 2, 3], [1])
        segment = rig.listed()[0]
        away, *here = rig.members(segment.ledger)
        rig.forget(segment.ledger, segment.last_entry - 1, on=here)
        rig.lose(away)
        assert not (await examine(rig)).proved
        [loss] = (await examine(rig, terms=LossTerms(frozenset({away})))).proved
        assert loss.offsets == OffsetRange(1, 2, True)
        given_up = next(copy for copy in loss.evidence.copies if copy.bookie == away)
        assert given_up[1:] == (CopyAnswer.UNKNOWN, AuthoritativeStatus.UNDERREPLICATION)


async def test_damaged_copies_are_no_proof_but_count_while_a_person_accepts(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        await rig.written([1, 2, 3], [1])
        segment = rig.listed()[0]
        entry = segment.last_entry - 1
        rig.spoil(segment.ledger, entry)
        assert (await examine(rig)).found == (), "lists do not tell"
        [loss] = (await examine(rig, deep=True)).found
        assert not loss.evidence.verdict.lost
        [loss] = (await examine(rig, deep=True, terms=LossTerms(damaged=True))).found
        assert loss.evidence.verdict is Verdict.NON_AUTHORITATIVE
        assert {copy.answer for copy in loss.evidence.copies} == {CopyAnswer.DAMAGED}


async def test_a_damaged_neighbour_is_found_because_its_offsets_are_needed(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        await rig.written([1, 2, 3, 4], [1])
        segment = rig.listed()[0]
        last = segment.last_entry
        rig.forget(segment.ledger, last - 2)
        rig.spoil(segment.ledger, last - 1)
        lost, damaged = (await examine(rig)).found
        assert (lost.offsets, lost.evidence.verdict.lost) == (OffsetRange(1, 5, False), True)
        assert (damaged.offsets.last, damaged.evidence.verdict.lost) == (5, False)


async def test_limbo_is_no_denial_but_the_entry_is_gone(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        await rig.written([1, 2, 3], [1])
        segment = rig.listed()[0]
        for name in rig.members(segment.ledger):
            rig.world.bookies[name].begin_limbo(segment.ledger + 1)
        rig.forget(segment.ledger, segment.last_entry)
        [loss] = (await examine(rig)).found
        assert loss.evidence.verdict is Verdict.NON_AUTHORITATIVE
        assert {copy.answer for copy in loss.evidence.copies} == {CopyAnswer.LOST}


@pytest.mark.parametrize("seed", range(12))
async def test_any_entries_lost_agree_with_what_was_written(monkeypatch, seed):
    draw = drawn(seed)
    async with loss_rig(monkeypatch) as rig:
        await rig.written([draw.randint(1, 5) for _ in range(12)], [1])
        segment = rig.listed()[0]
        offsets = await written_offsets(rig, segment)
        gone = {entry for entry in offsets if draw.random() < draw.choice((0.2, 0.7))}
        rig.forget(segment.ledger, *gone)
        found = (await examine(rig)).found
        assert {e for loss in found for e in range(loss.first, loss.last + 1)} == gone
        for loss in found:
            spans = [offsets[entry] for entry in range(loss.first, loss.last + 1)]
            assert loss.offsets == OffsetRange(spans[0][0], spans[-1][1] - 1, True)
            assert {loss.first - 1, loss.last + 1}.isdisjoint(gone), "neighbours are one loss"


async def test_the_gaps_of_a_topic_come_in_order_and_without_what_was_trimmed(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        owner = await rig.written([2, 3], [1, 4], [2])
        await asyncio.sleep(1)
        one, two, _ = rig.listed()
        rig.forget(one.ledger, one.last_entry)
        rig.forget(two.ledger, two.last_entry)
        assert summary(await rig.gaps()) == [
            ("DATALOSS", "lost", 2, 4, one.last_entry, one.last_entry),
            ("DATALOSS", "lost", 6, 9, two.last_entry, two.last_entry),
        ]
        await owner.stream.truncate(6)
        rows = summary(await rig.gaps(every=True))
        assert rows == [
            ("TRIM", "trimmed", 0, 5),
            ("DATALOSS", "lost", 6, 9, two.last_entry, two.last_entry),
            ("BRIDGE", None, 10, 9, two.last_entry + 1, ENTRY_MAX),
        ]
