"""Goal: a native reader meets long runs of lost entries, and starts among reserved offsets.

Method: as test_log_reader.py.
"""

import pytest

from ledger.core.gaps import ENTRY_MAX, Gap, GapKind
from ledger.core.loss import EntryAwaited
from ledger.ids import Dlsn
from ledger.streams.stream_seek import Edge, Offset, TransactionId
from tests.ledger.held_entries import reserved_range
from tests.ledger.life_rig import listed, taking_over
from tests.ledger.log_reader_rig import Reading, lose, reading_rig
from tests.ledger.lost_stream_rig import accept
from tests.ledger.test_log_reader import gaps, offsets, written


async def test_a_long_run_of_lost_entries_is_one_gap_wherever_reading_begins():
    """More entries than a search asks for. What is known of the run does not grow with it."""
    async with reading_rig() as rig:
        owner = await written(rig, 300)
        await owner.roll()
        ledger = listed(rig)[0].ledger
        for entry in range(40, 291):
            if entry != 150:
                lose(rig, ledger, entry)
        first = (GapKind.DATALOSS, (1, 40), (1, 149), (39, 148, True))
        second = (GapKind.DATALOSS, (1, 151), (1, 290), (150, 289, True))
        for start, due, gone in (
            (Edge.EARLIEST, [*range(39), 149, *range(290, 300)], [first, second]),
            (Offset(38), [38, 149, *range(290, 300)], [first, second]),
            (Offset(289), list(range(290, 300)), [second]),
            (TransactionId(289), list(range(290, 300)), [second]),
            (Offset(295), list(range(295, 300)), []),
            (Dlsn(1, 290, 0), list(range(290, 300)), None),
        ):
            reading = await Reading(rig).start(start, Offset(299))
            found = await reading.rest()
            assert offsets(found) == due
            if gone is not None:
                assert gaps(found)[len(gaps(found)) - len(gone) :] == gone
            for gap in (each for each in found if isinstance(each, Gap)):
                assert len(gap.evidence.copies) == 3
            await reading.reader.stop()


def rot(rig, ledger, entry):
    """Damage every copy of the entry, which is no proof that it is lost."""
    for bookie in rig.world.bookies.values():
        bookie.ledgers[ledger].entries[entry] = b"rot"


@pytest.mark.parametrize("rotten", [7, 10, 11, 12])
async def test_a_start_does_not_wait_for_an_entry_before_it_that_nobody_can_read(rotten):
    """Bisection meets it. Its neighbour behind it shows that it cannot hold the start."""
    async with reading_rig() as rig:
        owner = await written(rig, 20)
        await owner.roll()
        rot(rig, listed(rig)[0].ledger, rotten)
        await owner.stream.truncate(rotten)  # entry n holds offset n - 1
        behind = rotten + 1  # a transaction id may begin in the entry before
        for first, due in (
            (Edge.EARLIEST, rotten),
            (Offset(rotten), rotten),
            (TransactionId(behind), behind),
        ):
            reading = await Reading(rig).start(first, Offset(19))
            assert offsets(await reading.rest()) == list(range(due, 20))
            await reading.reader.stop()


async def test_a_start_waits_for_the_entry_that_may_hold_it():
    async with reading_rig() as rig:
        owner = await written(rig, 20)
        await owner.roll()
        ledger = listed(rig)[0].ledger
        kept = [dict(each.ledgers[ledger].entries) for each in rig.world.bookies.values()]
        rot(rig, ledger, 11)
        for first in (Offset(10), TransactionId(10)):
            reading = Reading(rig)
            with pytest.raises(EntryAwaited):
                await reading.start(first, Offset(19))
            await reading.reader.stop()
        for bookie, entries in zip(rig.world.bookies.values(), kept, strict=True):
            bookie.ledgers[ledger].entries.update(entries)
        reading = await Reading(rig).start(Offset(10), Offset(19))
        assert offsets(await reading.rest()) == list(range(10, 20))
        await reading.reader.stop()


@pytest.mark.parametrize("first", [Edge.EARLIEST, Offset(0), Offset(700), Dlsn(1, 1, 0)])
async def test_a_stream_that_starts_among_reserved_offsets_begins_with_the_rest_of_their_loss(
    first,
):
    async with reading_rig() as rig:
        owner = await written(rig, 6)
        reading = await Reading(rig).start()
        await reading.take(records=1)
        owner.kill()
        await accept(rig, reserved_range(rig, 1, 2, 2))
        other = await taking_over(rig, "other")
        await other.add(2)
        await other.stream.truncate(700)
        fresh = await Reading(rig).start(first)
        assert fresh.entry_reads == 0, "the list of losses says where they begin"
        found = await fresh.take(records=2)
        assert gaps(found)[-1] == (GapKind.DATALOSS, (1, 3), (1, ENTRY_MAX), (700, 1001, False))
        trims = [] if first in (Edge.EARLIEST, Offset(700)) else [GapKind.TRIM]
        assert [each.kind for each in found if isinstance(each, Gap)][:-1] == trims
        assert offsets(found) == [1002, 1003]
        await fresh.reader.stop()
        await reading.reader.stop()
