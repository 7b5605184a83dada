"""Goal: a native reader delivers every position of a stream once and in order, by records or a gap
with a type; it waits where a loss is not proved; and a seek costs few, counted reads.

Method: real streams and ledger clients over a simulated cluster on virtual time. An owner writes,
rolls and truncates; entries are taken from bookies; the reader's ports count its requests.
"""

import asyncio
import random
from itertools import pairwise

import pytest

from ledger.core.gaps import ENTRY_MAX, Gap, GapKind
from ledger.core.loss import CopyAnswer, Verdict
from ledger.errors import CorruptFormat, InvalidArgument, NoNode, WrongState
from ledger.ids import Dlsn
from ledger.ports.bookies import Status
from ledger.streams.accepted_losses import losses_path
from ledger.streams.config import StreamLimits
from ledger.streams.segment_store import delete_stream
from ledger.streams.stream_seek import After, Edge, Offset, Time, TransactionId
from tests.ledger.follow_rig import NAME, by_sequence_id, timestamp_of
from tests.ledger.held_entries import forget, lost_range, reserved_range
from tests.ledger.life_rig import taking_over
from tests.ledger.log_reader_rig import Reading, lose, reading_rig
from tests.ledger.lost_stream_rig import accept
from tests.sim.loop import SimClock
from tests.sim.metadata import SimMetadata


def offsets(found):
    return [each.offset for each in found if not isinstance(each, Gap)]


def gaps(found):
    return [
        (each.kind, tuple(each.first), tuple(each.last), tuple(each.offsets))
        for each in found
        if isinstance(each, Gap)
    ]


async def written(rig, *segments):
    """An owner that wrote segments of so many records, each record in an entry of its own.

    In each segment entry 0 is the head snapshot, so record n of it is entry n.
    """
    owner = await rig.owner()
    for at, count in enumerate(segments):
        if at:
            await owner.roll()
        await owner.add(count)
    return owner


# In order


async def test_records_and_the_ends_of_segments_arrive_once_and_in_order():
    """Seed 002 L6, L26: a BRIDGE at the end of each completed segment, and no other gap."""
    async with reading_rig() as rig:
        owner = await written(rig, 3, 2, 1)
        reading = await Reading(rig).start()
        found = await reading.take(records=6)
        assert offsets(found) == [0, 1, 2, 3, 4, 5]
        assert gaps(found) == [
            (GapKind.BRIDGE, (1, 4), (1, ENTRY_MAX), (3, 2, True)),
            (GapKind.BRIDGE, (2, 3), (2, ENTRY_MAX), (5, 4, True)),
        ]
        await owner.add(2)
        assert offsets(await reading.take(records=2)) == [6, 7]
        await reading.reader.stop()


async def test_nothing_above_the_lac_is_delivered():
    """Seed 002 L7: the last record arrives only once a further entry carries its LAC."""
    async with reading_rig(control_ms=-1) as rig:
        owner = await written(rig, 4)
        reading = await Reading(rig).start()
        assert offsets(await reading.take(records=3)) == [0, 1, 2]
        assert await reading.reader.read(1, 50.0) == ([], None)
        await owner.add(1)
        assert offsets(await reading.take(records=1)) == [3]
        await reading.reader.stop()


async def test_a_read_returns_records_up_to_a_gap_then_the_gap_once_then_on():
    async with reading_rig() as rig:
        await written(rig, 3, 1)
        reading = await Reading(rig).start()
        await reading.take(records=1)
        await asyncio.sleep(1)
        shapes = []
        for _ in range(3):
            records, gap = await reading.reader.read(2, 10.0)
            shapes.append((len(records), gap and gap.kind))
        assert shapes == [(2, None), (0, GapKind.BRIDGE), (1, None)]
        await reading.reader.stop()


# Losses


async def test_a_lost_entry_is_one_gap_with_exact_bounds_and_reading_goes_on():
    """Seed 002 L16: neighbours join; the evidence names the answer of each bookie."""
    async with reading_rig() as rig:
        await written(rig, 6, 1)
        segment = (await segments_of(rig))[0]
        for entry in (3, 4):
            lose(rig, segment.ledger, entry)
        reading = await Reading(rig).start()
        found = await reading.take(records=5)
        assert offsets(found) == [0, 1, 4, 5, 6]
        loss = next(each for each in found if isinstance(each, Gap))
        assert loss[:4] == (GapKind.DATALOSS, (1, 3), (1, 4), (2, 3, True))
        assert loss.evidence.verdict is Verdict.COMPLETE
        assert {c.answer for c in loss.evidence.copies} == {CopyAnswer.DENIED}
        assert len(loss.evidence.copies) == 3
        await reading.reader.stop()


async def segments_of(rig):
    reading = Reading(rig, "lister")
    await reading.reader._view.load()
    return reading.reader._view.table.segments


async def test_a_loss_at_the_end_of_a_segment_has_its_bound_from_the_segments_node():
    async with reading_rig() as rig:
        await written(rig, 4, 1)
        lose(rig, (await segments_of(rig))[0].ledger, 4)
        reading = await Reading(rig).start()
        found = await reading.take(records=4)
        assert gaps(found)[0] == (GapKind.DATALOSS, (1, 4), (1, 4), (3, 3, True))
        await reading.reader.stop()


async def test_an_entry_that_may_exist_is_waited_for_without_a_limit_and_named():
    """Seed 002 L17: no gap for hours, the bookie is named, one answer releases the reader."""
    async with reading_rig() as rig:
        await written(rig, 4, 1)
        ledger = (await segments_of(rig))[0].ledger
        holder = next(iter(rig.world.bookies))
        lose(rig, ledger, 2, set(rig.world.bookies) - {holder})
        reading = Reading(rig)
        reading.port.stalled.add(holder)
        await reading.start()
        assert offsets(await reading.take(records=1)) == [0]
        assert await reading.reader.read(1, 10_800.0) == ([], None)
        assert reading.reader.waiting.bookies == (holder,)
        assert reading.reader.waiting.position == (1, 2, 0)
        reading.port.stalled.clear()
        assert offsets(await reading.take(records=3)) == [1, 2, 3]
        await reading.reader.stop()


async def test_a_loss_without_a_known_left_side_reads_the_entry_before_it():
    async with reading_rig() as rig:
        await written(rig, 4, 1)
        lose(rig, (await segments_of(rig))[0].ledger, 3)
        reading = await Reading(rig).start(Dlsn(1, 3, 0))
        found = await reading.take(records=2)
        assert gaps(found)[0] == (GapKind.DATALOSS, (1, 3), (1, 3), (2, 2, True))
        await reading.reader.stop()


async def test_a_loss_with_no_readable_side_says_at_most():
    async with reading_rig() as rig:
        await written(rig, 4, 1)
        ledger = (await segments_of(rig))[0].ledger
        lose(rig, ledger, 2)
        lose(rig, ledger, 3)
        reading = await Reading(rig).start(Dlsn(1, 3, 0))
        found = await reading.take(records=2)
        assert gaps(found)[0] == (GapKind.DATALOSS, (1, 3), (1, 3), (0, 2, False))
        await reading.reader.stop()


async def test_an_accepted_loss_is_one_gap_with_the_stored_evidence_and_stays_lost():
    """The list of segments brings it; that a copy is readable changes nothing."""
    async with reading_rig() as rig:
        await written(rig, 5, 1)
        gone = lost_range(rig, 1, 2, 3)
        await accept(rig, gone)
        reading = await Reading(rig).start()
        found = await reading.take(records=4)
        assert offsets(found) == [0, 3, 4, 5]
        assert gaps(found)[0] == (GapKind.DATALOSS, (1, 2), (1, 3), (1, 2, True))
        assert next(each for each in found if isinstance(each, Gap)).evidence == gone.evidence
        await reading.reader.stop()


async def test_a_loss_accepted_while_reading_is_followed_by_watch():
    async with reading_rig() as rig:
        await written(rig, 9, 1)
        reading = Reading(rig)
        reading.port.stalled.update(rig.world.bookies)
        await reading.start()
        await accept(rig, lost_range(rig, 1, 4, 6))
        await asyncio.sleep(1)
        reading.port.stalled.clear()
        found = await reading.take(records=7)
        assert offsets(found) == [0, 1, 2, 6, 7, 8, 9]
        assert gaps(found)[0] == (GapKind.DATALOSS, (1, 4), (1, 6), (3, 5, True))
        await reading.reader.stop()


async def test_a_reader_starts_within_an_accepted_loss():
    async with reading_rig() as rig:
        await written(rig, 9, 1)
        await accept(rig, lost_range(rig, 1, 3, 6))
        for first, gap in (
            (Offset(4), (GapKind.DATALOSS, (1, 3), (1, 6), (2, 5, True))),
            (Dlsn(1, 5, 0), (GapKind.DATALOSS, (1, 5), (1, 6), (2, 5, False))),
        ):
            reading = await Reading(rig).start(first)
            found = await reading.take(records=4)
            assert gaps(found)[0] == gap
            assert offsets(found) == [6, 7, 8, 9]
            await reading.reader.stop()


async def test_a_ledger_closed_by_force_is_a_gap_up_to_the_next_segment():
    """The jump of the offsets between the segments is in the gap; there is no BRIDGE behind it."""
    async with reading_rig() as rig:
        owner = await written(rig, 6)
        await asyncio.sleep(1)
        early, late = await Reading(rig).start(), await Reading(rig).start(until=Dlsn(1, 4, 0))
        assert offsets(await early.take(records=6)) == [0, 1, 2, 3, 4, 5]
        assert len(await late.rest()) == 4
        owner.kill()
        gone = reserved_range(rig, 1, 2, 2)
        await accept(rig, gone)
        other = await taking_over(rig, "other")
        await other.add(2)
        loss = (GapKind.DATALOSS, (1, 3), (1, ENTRY_MAX), (2, 1001, False))
        reading = await Reading(rig).start()
        found = await reading.take(records=4)
        assert (offsets(found), gaps(found)) == ([0, 1, 1002, 1003], [loss])
        assert next(each for each in found if isinstance(each, Gap)).evidence == gone.evidence
        found = await early.take(records=2)
        assert offsets(found) == [1002, 1003]
        ((kind, first, last, lost),) = gaps(found)
        assert (kind, first[0], last) == (GapKind.DATALOSS, 1, (1, ENTRY_MAX))
        assert lost == (6, 1001, False)
        for offset in (2, 700, 1001):
            reading = await Reading(rig).start(Offset(offset))
            found = await reading.take(records=2)
            assert (gaps(found), offsets(found)) == ([loss], [1002, 1003])


async def test_a_jump_that_no_loss_explains_is_corruption():
    async with reading_rig() as rig:
        owner = await written(rig, 6)
        owner.kill()
        await accept(rig, reserved_range(rig, 1, 2, 2))
        await (await taking_over(rig, "other")).add(2)
        rig.world.tree.nodes.pop(losses_path(NAME))
        reading = await Reading(rig).start()
        with pytest.raises(CorruptFormat, match="begins at offset 1002, and the one before it"):
            await reading.take(records=4)


async def test_a_time_is_looked_up_past_lost_entries():
    async with reading_rig() as rig:
        await written(rig, 9, 5, 3)
        for number, entry in ((1, 4), (1, 9), (2, 0), (3, 0)):
            forget(rig, number, entry)
        for wanted, due in ((3, 4), (8, 9), (10, 10), (15, 15)):
            reading = await Reading(rig).start(Time(1001 + wanted))
            assert offsets(await reading.take(records=1)) == [due]
            await reading.reader.stop()


# Positions


async def test_a_dlsn_costs_one_read_of_metadata_and_one_of_an_entry():
    """Seed 000 D25: counted at the ports, once the segment list is loaded."""
    async with reading_rig() as rig:
        await written(rig, 5, 5, 5)
        for first in (Dlsn(2, 3, 0), Dlsn(1, 1, 0), Dlsn(3, 2, 0)):
            reading = Reading(rig)
            await reading.reader._view.load()
            reading.gets.clear()
            await reading.start(first, first)
            (found,) = await reading.rest()
            assert found.dlsn == first
            assert reading.ledger_reads == 1
            assert [path for path in reading.gets if "/ledgers/logrecs" in path] == []
            assert reading.entry_reads == 1
            await reading.reader.stop()


async def test_a_position_below_the_start_is_advanced_to_it_and_one_trim_reports_it():
    """Seed 000 D47: also if the marks of the segments lag behind the start."""
    async with reading_rig() as rig:
        owner = await written(rig, 5, 5, 5)
        await owner.stream.truncate(7)
        trim = (GapKind.TRIM, (1, 0), (2, 2), (0, 6, True))
        for first in (Dlsn(1, 0, 0), Offset(0)):
            reading = await Reading(rig).start(first)
            found = await reading.take(records=8)
            assert (gaps(found)[0], offsets(found)) == (trim, list(range(7, 15)))
            assert sum(each[0] is GapKind.TRIM for each in gaps(found)) == 1
            await reading.reader.stop()
        await SimMetadata(rig.world.tree).set("/streams/stream/<default>/start", b"8", -1)
        reading = await Reading(rig).start(Dlsn(1, 2, 0))
        found = await reading.take(records=7)
        assert gaps(found)[0] == (GapKind.TRIM, (1, 2), (2, 3), (0, 7, False))
        assert offsets(found) == list(range(8, 15))
        await reading.reader.stop()


async def test_a_dlsn_below_the_start_within_its_segment_is_advanced():
    async with reading_rig() as rig:
        owner = await written(rig, 5, 5)
        await owner.stream.truncate(3)
        reading = await Reading(rig).start(Dlsn(1, 2, 0))
        found = await reading.take(records=7)
        assert gaps(found)[0] == (GapKind.TRIM, (1, 2), (1, 3), (0, 2, False))
        assert offsets(found) == list(range(3, 10))
        await reading.reader.stop()


async def test_truncation_passes_a_reader_that_lags():
    async with reading_rig() as rig:
        owner = await written(rig, 5, 5)
        reading = await Reading(rig, buffer_bytes=1).start(until=Dlsn(1, 1, 0))
        assert offsets(await reading.rest()) == [0]
        await reading.reader.stop()
        await owner.stream.truncate(5)
        reading = await Reading(rig).start(After(Dlsn(1, 1, 0)))
        found = await reading.take(records=5)
        assert gaps(found)[0][:3] == (GapKind.TRIM, (1, 1), (1, ENTRY_MAX))
        assert offsets(found) == [5, 6, 7, 8, 9]
        await reading.reader.stop()


@pytest.mark.parametrize("offset", range(16))
async def test_an_offset_begins_at_its_record(offset):
    async with reading_rig() as rig:
        owner = await written(rig, 5, 5, 5)
        reading = await Reading(rig).start(Offset(offset))
        await owner.add(1)
        assert offsets(await reading.take(records=16 - offset)) == list(range(offset, 16))
        await reading.reader.stop()


async def test_a_time_begins_where_a_broker_finds_it_and_past_the_end_at_the_end():
    async with reading_rig() as rig:
        owner = await written(rig, 5, 5)
        reading = await Reading(rig).start(Time(1004))
        assert offsets(await reading.take(records=7)) == list(range(3, 10))
        await reading.reader.stop()
        reading = await Reading(rig).start(Time(5000))
        await owner.add(1)
        assert offsets(await reading.take(records=1)) == [10]
        await reading.reader.stop()


async def test_a_time_costs_one_head_snapshot_and_one_stride():
    """Seed 000 D26: counted at the port, for every segment, where timestamps follow the clock."""
    limits = StreamLimits(
        entry_bytes_max=64 * 1024, index_stride_bytes=200, snapshot_bytes=2000, read_chunk_bytes=300
    )
    async with reading_rig(limits=limits) as rig:
        owner, clock, times = await rig.owner(), SimClock(), []
        for number in range(6):
            if number:
                await owner.roll()
            for _ in range(20):
                times.append(clock.now_ms())
                owner.append(timestamp=times[-1])
                await owner.settle()
                await asyncio.sleep(1)
        await asyncio.sleep(1)
        for due in (0, 19, 20, 45, 79, 99, 100, 119):
            reading = await Reading(rig).start(Time(times[due]), Offset(due))
            heads = [ledger for ledger, *batch in reading.port.batches if batch == [0, 0]]
            assert len(heads) == 1
            assert reading.entry_reads <= 12
            assert offsets(await reading.rest()) == [due]
            await reading.reader.stop()


@pytest.mark.parametrize("seed", range(6))
async def test_a_time_is_found_as_a_broker_finds_it_whatever_the_timestamps_are(seed):
    draw = random.Random(seed)
    async with reading_rig() as rig:
        owner = await rig.owner()
        for number in range(4):
            if number:
                await owner.roll()
            for _ in range(draw.randrange(1, 8)):
                owner.append(timestamp=max(0, SimClock().now_ms() + draw.randrange(-9000, 9000)))
                await owner.settle()
                await asyncio.sleep(draw.random())
        await owner.stream.truncate(draw.randrange(owner.stream.end_sequence_id))
        await owner.add()
        await asyncio.sleep(1)
        start, stored = owner.stream.start_sequence_id, by_sequence_id(owner)
        times = {n: timestamp_of(data) for n, data in stored.items() if n >= start}
        for wanted in sorted(times.values()):
            due = min(n for n, time in times.items() if time >= wanted)
            reading = await Reading(rig).start(Time(wanted))
            assert offsets(await reading.take(records=1)) == [due]
            await reading.reader.stop()


async def test_an_earlier_record_with_a_later_timestamp_is_found_first():
    async with reading_rig() as rig:
        owner = await rig.owner()
        owner.append(timestamp=SimClock().now_ms() + 60_000)
        await owner.settle()
        for _ in range(3):
            await owner.roll()
            await asyncio.sleep(10)
            owner.append(timestamp=SimClock().now_ms())
            await owner.settle()
        await owner.roll()
        reading = await Reading(rig).start(Time(SimClock().now_ms() - 15_000))
        assert offsets(await reading.take(records=1)) == [0]
        await reading.reader.stop()


async def test_latest_begins_with_the_next_record():
    async with reading_rig() as rig:
        owner = await written(rig, 5)
        await asyncio.sleep(1)
        reading = await Reading(rig).start(Edge.LATEST)
        await owner.add(1)
        assert offsets(await reading.take(records=1)) == [5]
        await reading.reader.stop()


async def test_after_a_dlsn_reading_resumes_with_the_following_record():
    async with reading_rig() as rig:
        await written(rig, 3, 2)
        reading = await Reading(rig).start()
        every = await reading.take(records=5)
        await reading.reader.stop()
        records = [each for each in every if not isinstance(each, Gap)]
        for at, record in enumerate(records[:-1]):
            reading = await Reading(rig).start(After(record.dlsn))
            assert offsets(await reading.take(records=4 - at)) == list(range(at + 1, 5))
            await reading.reader.stop()


# Wrong use


@pytest.mark.parametrize(
    ("first", "until", "message"),
    [
        (Dlsn(1, -1, 0), None, r"entry and slot at least 0"),
        (Dlsn(0, 0, 0), None, r"the segment is at least 1"),
        (Dlsn(1, 2, 1), None, r"DLSN \(1, 2, 1\): the last slot of this entry is 0"),
        (Dlsn(9, 0, 0), None, r"DLSN \(9, 0, 0\): the last segment is 2"),
        (Dlsn(1, 9, 0), None, r"the last entry of this segment is 3"),
        (Dlsn(2, 1, 0), Dlsn(1, 1, 0), r"is past until \(1, 1, 0\)"),
        (Offset(4), Offset(3), r"is past until"),
        (Offset(-1), None, r"offset -1 is negative"),
        (TransactionId(-1), None, r"transaction id -1 is negative"),
    ],
)
async def test_a_position_that_cannot_be_is_refused_by_name(first, until, message):
    async with reading_rig() as rig:
        await written(rig, 3, 2)
        reading = Reading(rig)
        with pytest.raises(InvalidArgument, match=message):
            await reading.start(first, until)
        await reading.start()  # and nothing is broken by it
        assert offsets(await reading.take(records=5)) == [0, 1, 2, 3, 4]
        await reading.reader.stop()


async def test_an_offset_past_the_end_is_refused_where_the_end_is_certain():
    """While a segment is in progress it is waited for: entries above the LAC may have it."""
    async with reading_rig() as rig:
        owner = await written(rig, 3)
        reading = await Reading(rig).start(Offset(5))
        await owner.add(4)
        assert offsets(await reading.take(records=2)) == [5, 6]
        await reading.reader.stop()
        await owner.stream.close()
        with pytest.raises(InvalidArgument, match="offset 8 is past the end 7"):
            await Reading(rig).start(Offset(8))


async def test_a_reader_is_started_once_and_read_until_it_is_stopped():
    async with reading_rig() as rig:
        await written(rig, 1)
        reader = Reading(rig).reader
        with pytest.raises(WrongState, match="was not started"):
            await reader.read()
        await reader.start()
        with pytest.raises(WrongState, match="started once"):
            await reader.start()
        with pytest.raises(InvalidArgument, match="count is 0, expected at least 1"):
            await reader.read(0)
        await reader.stop()
        with pytest.raises(WrongState, match="was stopped"):
            await reader.read()


async def test_a_stream_that_is_deleted_ends_the_reader_with_a_gap():
    async with reading_rig() as rig:
        owner = await written(rig, 2)
        await owner.stream.close()
        reading = await Reading(rig).start()
        await reading.take(records=2, gaps=1)
        await delete_stream(SimMetadata(rig.world.tree), "stream")
        (end,) = await reading.rest()
        assert (end.kind, end.first) == (GapKind.NOTINCONFIG, (2, 0))
        assert await reading.reader.read() == ([], None)
        await reading.reader.stop()
        with pytest.raises(NoNode):
            await Reading(rig).start()


async def test_a_bookie_that_refuses_the_key_ends_the_reader_with_a_gap():
    async with reading_rig() as rig:
        await written(rig, 3, 1)
        reading = Reading(rig)
        reading.port.answers = dict.fromkeys(rig.world.bookies, Status.UNAUTHORIZED)
        await reading.reader.start(Edge.EARLIEST, Dlsn(2, 5, 0))
        (end,) = await reading.rest()
        assert (end.kind, end.first, end.last) == (GapKind.ACCESS, (1, 0), (2, 5))
        await reading.reader.stop()


# Memory and callbacks


async def test_memory_is_bounded_while_the_application_takes_nothing():
    async with reading_rig() as rig:
        owner = await rig.owner()
        for _ in range(40):
            await owner.add(size=60_000)
        reading = await Reading(rig, buffer_bytes=200_000).start()
        await asyncio.sleep(5)
        held = reading.reader._ready_bytes
        assert held <= 200_000 + 1024 * 1024 + 64 * 1024
        assert offsets(await reading.take(records=40)) == list(range(40))
        await reading.reader.stop()


async def test_a_refused_delivery_is_repeated_after_a_second_doubling_to_thirty():
    async with reading_rig() as rig:
        await written(rig, 2)
        reading = await Reading(rig).start(until=Offset(1))
        loop, asked, taken = asyncio.get_running_loop(), [], []

        def on_records(records):
            asked.append(loop.time())
            taken.append(records)
            return len(asked) > 8

        await reading.reader.deliver(on_records, lambda gap: True)
        pauses = [after - before for before, after in pairwise(asked)][:8]
        assert pauses == pytest.approx([1, 2, 4, 8, 16, 30, 30, 30])
        assert all(each == taken[0] for each in taken[:9])
        await reading.reader.stop()
