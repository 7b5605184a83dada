"""Goal: an application keeps a log of its own, with its own transaction ids, that no other writer
can disturb, and finds each record again by its transaction id with few reads.

Method: writers and readers on a simulated cluster on virtual time; entry reads are counted at the
ports, for streams of 1 to 10,000 segments.
"""

import asyncio
from itertools import pairwise
from math import ceil, log2

import pytest

from ledger.core.segments import Segment
from ledger.errors import Fenced, InvalidArgument, LedgerError, NotOwner, WrongState
from ledger.streams.config import StreamLimits
from ledger.streams.log_writer import LogWriter, check_name
from ledger.streams.services import StreamServices
from ledger.streams.stream_seek import TransactionId
from tests.ledger.follow_rig import NAME
from tests.ledger.life_rig import LEDGERS, listed
from tests.ledger.log_reader_rig import Reading, lose, reading_rig
from tests.ledger.test_log_reader import segments_of
from tests.sim.loop import SimClock


def writer_of(rig, host="writer", name=NAME, config=None):
    client = rig.world.client(host)
    services = StreamServices(rig.world.sessions[host], client, SimClock(), rig.limits)
    return LogWriter(name, services, config)


async def opened(rig, host="writer"):
    writer = writer_of(rig, host)
    await writer.open()
    return writer


async def roll(writer):
    stream = writer._stream
    number = stream.segments[-1].number
    stream.roll_soon()
    async with asyncio.timeout(60):
        while stream.segments[-1].number == number or not stream.writable:
            await asyncio.sleep(0.0005)


async def test_records_come_back_with_the_transaction_ids_of_the_application():
    """Seed 000 D54."""
    async with reading_rig() as rig:
        writer = await opened(rig)
        txids = [0, 5, 5, 9]
        assert [await writer.append(b"data %d" % n, n) for n in txids] == [0, 1, 2, 3]
        reading = await Reading(rig).start()
        found = await reading.take(records=4)
        assert [(r.txid, bytes(r.data)) for r in found] == [(n, b"data %d" % n) for n in txids]
        await reading.reader.stop()
        await writer.close()


async def test_a_transaction_id_below_the_last_is_refused_naming_both_also_after_a_takeover():
    async with reading_rig() as rig:
        writer = await opened(rig)
        await writer.append(b"a", 7)
        with pytest.raises(InvalidArgument, match="transaction id 6 is below the last one, 7"):
            await writer.append(b"b", 6)
        await roll(writer)
        with pytest.raises(InvalidArgument, match="transaction id 6 is below the last one, 7"):
            await writer.append(b"b", 6)
        other = await opened(rig, "other")
        with pytest.raises(InvalidArgument, match="transaction id 6 is below the last one, 7"):
            await other.append(b"b", 6)
        assert await other.append(b"b", 7) == 1


async def test_a_writer_takes_over_by_fencing_and_the_one_before_acknowledges_nothing_more():
    async with reading_rig() as rig:
        first = await opened(rig, "first")
        await first.append(b"a", 1)
        second = await opened(rig, "second")
        with pytest.raises((Fenced, NotOwner, LedgerError)) as refused:
            await first.append(b"lost", 2)
        assert not isinstance(refused.value, InvalidArgument)
        assert await second.append(b"b", 3) == 1
        await first.open()
        assert await first.append(b"c", 4) == 2
        reading = await Reading(rig).start()
        found = [r for r in await reading.take(records=3) if hasattr(r, "txid")]
        assert [(r.txid, bytes(r.data)) for r in found] == [(1, b"a"), (3, b"b"), (4, b"c")]
        await reading.reader.stop()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a/b",
        ".hidden",
        "<x>",
        "x" * 201,
        "0f8fad5b-d9cb-469f-a165-70867728950e-12",
        "0F8FAD5BD9CB469FA16570867728950E-x",
        "a\0",
    ],
)
def test_a_name_that_is_no_streams_or_a_topics_is_refused(name):
    with pytest.raises(InvalidArgument, match="stream name"):
        check_name(name)


def test_other_names_are_taken():
    for name in ("orders", "0f8fad5b-d9cb-469f-a165-70867728950e", "audit.v2-7"):
        assert check_name(name) is None


async def test_wrong_use_is_refused_and_harms_nothing():
    async with reading_rig() as rig:
        writer = writer_of(rig)
        with pytest.raises(WrongState, match="is not open"):
            await writer.append(b"a", 1)
        await writer.open()
        with pytest.raises(WrongState, match="is open"):
            await writer.open()
        with pytest.raises(InvalidArgument, match="transaction id -1"):
            await writer.append(b"a", -1)
        with pytest.raises(InvalidArgument, match="a record of 1048577 bytes"):
            await writer.append(bytes(1024 * 1024 + 1), 1)
        assert await writer.append(b"a", 1) == 0
        await writer.close()


async def test_concurrent_appends_keep_their_order_and_their_memory_bound():
    async with reading_rig() as rig:
        writer = await opened(rig)
        appends = [writer.append(bytes(500_000), n) for n in range(60)]
        assert await asyncio.gather(*appends) == list(range(60))
        await writer.close()


async def test_a_small_record_does_not_overtake_a_large_one_that_waits_for_room():
    async with reading_rig() as rig:
        writer = await opened(rig)
        sizes = [*[512 * 1024] * 31, 1024 * 1024, 10]
        appends = [writer.append(bytes(size), n) for n, size in enumerate(sizes)]
        assert await asyncio.gather(*appends) == list(range(len(sizes)))
        await writer.close()


# Transaction ids found again


async def test_snapshots_between_records_do_not_mislead_the_bisection():
    """Control records repeat the transaction id of the last user record."""
    limits = StreamLimits(entry_bytes_max=64 * 1024, index_stride_bytes=200, snapshot_bytes=2_000)
    async with reading_rig(limits=limits) as rig:
        writer = await opened(rig)
        for n in range(300):
            await writer.append(bytes(30), n // 10)
        await asyncio.sleep(1)
        view = Reading(rig).reader._view
        await view.load()
        (segment,) = view.table.segments
        entries = [
            await view.records_of(segment, entry)
            for entry in range(await view.last_readable(segment) + 1)
        ]
        assert sum(records[-1].control for records in entries) > 3
        txids = [records[-1].txid for records in entries]
        assert txids == sorted(txids)
        for wanted in range(30):
            reading = await Reading(rig).start(TransactionId(wanted))
            (first,) = await reading.take(records=1)
            assert (first.txid, first.offset) == (wanted, 10 * wanted)
            await reading.reader.stop()


async def test_a_transaction_id_is_found_by_few_reads():
    """Seed 000 D26: at most ceil(log2(entries)) + 2 entry reads, in segments done and open."""
    async with reading_rig() as rig:
        writer = await opened(rig)
        txid, txids = 0, []
        for count in (1, 7, 40, 100):
            for _ in range(count):
                txid += 2
                await writer.append(b"%d" % txid, txid)
                txids.append(txid)
            if count < 100:
                await roll(writer)
        for before, after in pairwise(listed(rig)):
            assert before.last_txid == after.first_txid  # none of its own is known yet
            assert before.first_txid <= before.last_txid
        await asyncio.sleep(1)
        for wanted in (1, 2, 3, 8, 16, 17, 60, 95, 96, 97, 150, 200, 296):
            reading = await Reading(rig).start(TransactionId(wanted))
            at = next(n for n, each in enumerate(txids) if each >= wanted)
            found = await reading.take(records=1)
            assert (found[-1].txid, found[-1].offset) == (txids[at], at)
            assert reading.entry_reads <= ceil(log2(len(txids))) + 2, wanted
            await reading.reader.stop()
        reading = await Reading(rig).start(TransactionId(9999))
        await writer.append(b"below", 400)
        await writer.append(b"end", 9999)
        (found,) = await reading.take(records=1)
        assert (found.txid, found.offset) == (9999, len(txids) + 1)
        await reading.reader.stop()


@pytest.mark.parametrize("lost", [range(1, 2), range(4, 8), range(1, 9)])
async def test_lost_entries_on_the_way_to_a_transaction_id_are_stepped_over(lost):
    async with reading_rig() as rig:
        writer = await opened(rig)
        for txid in range(8):
            await writer.append(b"a", txid)
        await roll(writer)
        await writer.append(b"a", 8)
        ledger = (await segments_of(rig))[0].ledger
        for entry in lost:
            lose(rig, ledger, entry)
        for wanted in range(8):
            reading = await Reading(rig).start(TransactionId(wanted))
            found = [r for r in await reading.take(records=1) if hasattr(r, "txid")]
            readable = [n for n in range(9) if n + 1 not in lost or n == 8]
            assert found[0].txid == min(n for n in readable if n >= wanted)
            await reading.reader.stop()


@pytest.mark.parametrize("count", [1, 10, 1000, 10_000])
async def test_segments_are_bisected_by_their_metadata_alone(count):
    """Seed 000 D26: of 1 to 10,000 segments, only the ledger of the wanted one is read."""
    async with reading_rig() as rig:
        number = max(1, count * 2 // 3)
        first = 10 * (number - 1)
        writer = await opened(rig)
        for txid in range(first, first + 4):
            await writer.append(b"a", txid)
        await writer.close()
        surround(rig, count, number)
        for wanted in range(first, first + 4):
            reading = await Reading(rig).start(TransactionId(wanted))
            found = await reading.take(records=1)
            assert found[0].txid == wanted
            assert reading.ledger_reads == 1
            assert reading.entry_reads <= ceil(log2(4 * count)) + 2
            await reading.reader.stop()


def surround(rig, count, number):
    """Make the only segment number `number` of `count`; the others have no ledger to read."""
    tree = rig.world.tree
    (real,) = listed(rig)
    tree.delete(f"{LEDGERS}/{real.node_name}")
    for at in range(1, count + 1):
        segment = Segment(
            number=at,
            ledger=real.ledger if at == number else 1_000_000 + at,
            first_txid=10 * (at - 1),
            start_sequence_id=4 * (at - 1),
        ).complete(
            record_count=4,
            last_txid=10 * (at - 1) + 3,
            last_entry=real.last_entry,
            last_slot=0,
            completion_ms=0,
        )
        tree.create(f"{LEDGERS}/{segment.node_name}", segment.encode())
