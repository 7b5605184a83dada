"""Goal: a committed read of format("ledger") never takes a transaction for committed because the
end of it was lost.

Method: a gateway on virtual time writes transactions, an entry with a marker is lost, and an
operator accepts the loss. The reader sees the log alone, and the gateway knew the marker before.
"""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from gateway.pipelines.direct.committed import AbortedPart, CommittedView
from gateway.wire import batches
from ledger.core.loss import EntryLost
from ledger.errors import StreamUnavailable
from ledger.ports.bookies import Status
from ledger.streams.scan import StreamScan
from tests.gateway.lossy_cluster import lost_range, stored_entries
from tests.gateway.replica_pair import replica_pair
from tests.gateway.stream_cluster import batch
from tests.gateway.test_rebuilt_lists import lose_head
from tests.gateway.test_transaction_path import marked, part, sent


@asynccontextmanager
async def view_of(pair):
    """Open a committed view of the partition, as a new Spark query does."""
    services = pair.leader.services
    scan = await StreamScan.open(
        pair.partition.name, services.metadata, services.client, batches.timestamp_max
    )
    try:
        yield CommittedView(scan), scan
    finally:
        scan.close()


async def scanned(scan, end):
    """Wait until the reader sees the log up to `end`."""
    async with asyncio.timeout(60):
        while scan.end_sequence_id < end:
            await asyncio.sleep(0.1)
            await scan.refresh(synced=True)


async def hide(pair, offset):
    """Let the bookie answer that it lacks the entry with the offset. Returns the entry."""
    client, found = pair.leader.services.client, []
    for segment in pair.partition.stream.segments:
        reader = await client.open(segment.ledger)
        readable = replace(segment, last_entry=reader.last_add_confirmed)
        found += await stored_entries(client, [readable], pair.leader.port.missing)
    [entry] = [each for each in found if each.first == offset]
    pair.leader.port.missing[entry.ledger, entry.entry] = Status.NO_ENTRY
    return entry


async def lose(pair, offset):
    """Lose the entry with one offset, and accept that."""
    entry = await hide(pair, offset)
    await pair.leader.store(pair.partition, lost_range([entry], offset, offset))


async def test_a_transaction_that_was_open_at_a_loss_holds_the_read_until_a_later_snapshot():
    async with replica_pair() as pair:
        await sent(pair.partition, part(0))
        await marked(pair.partition, commit=False)  # offset 1, which is lost
        await sent(pair.partition, part(0, epoch=1))
        await marked(pair.partition, 2)
        await pair.again(pair.leader.restart)
        await lose(pair, 1)
        async with view_of(pair) as (view, scan):
            await view.advance()
            assert (view.stable_offset, scan.end_sequence_id) == (0, 4)
            assert "a lost range may have held the end" in view.undecided
            await pair.partition.stream.begin()  # the leader stores its state behind the loss
            await pair.leader.sent(pair.partition, batch(records=1))
            await scanned(scan, 5)
            await view.advance()
            assert view.stable_offset == 5
            assert await view.aborted(0, 5) == [AbortedPart(5, 0, 1)]


async def test_a_loss_while_no_transaction_is_open_does_not_hold_the_read():
    async with replica_pair() as pair:
        await sent(pair.partition, part(0))
        await marked(pair.partition, commit=False)
        await pair.leader.sent(pair.partition, batch(records=1))
        await sent(pair.partition, part(0, epoch=1))
        await marked(pair.partition, 2)
        await pair.again(pair.leader.restart)
        await lose(pair, 2)
        async with view_of(pair) as (view, _):
            await view.advance()
            assert view.stable_offset == 5
            assert await view.aborted(0, 5) == [AbortedPart(5, 0, 1)]


async def test_an_outcome_that_was_known_before_a_loss_is_not_guessed_after_it():
    async with replica_pair() as pair:
        await sent(pair.partition, part(0))
        await marked(pair.partition, commit=False)
        await sent(pair.partition, part(0, epoch=1))
        await marked(pair.partition, 2)
        async with view_of(pair) as (view, scan):
            await scanned(scan, 4)
            await view.advance()
            assert (view.stable_offset, await view.aborted(0, 4)) == (4, [AbortedPart(5, 0, 1)])
            await lose(pair, 1)
            await pair.leader.sent(pair.partition, batch(records=1))
            await scanned(scan, 5)
            newest = await hide(pair, 4)
            with pytest.raises(EntryLost):
                await view.advance()
            del pair.leader.port.missing[newest.ledger, newest.entry]
            await view.advance()
            assert view.stable_offset == 4
            with pytest.raises(StreamUnavailable, match="at 0 a lost range may have held"):
                await view.aborted(0, 4)


@pytest.mark.parametrize("accepted", [True, False])
async def test_a_lost_head_of_an_older_segment_fails_no_read(accepted):
    async with replica_pair() as pair:
        await sent(pair.partition, part(0))
        await marked(pair.partition, commit=False)
        for _ in range(3):
            pair.partition.stream.roll_soon()
            await asyncio.sleep(1)
            await pair.leader.sent(pair.partition, batch(records=1))
        await lose_head(pair.leader, pair.partition, 2, accepted=accepted)
        async with view_of(pair) as (view, scan):
            await scanned(scan, 5)
            await view.advance()
            assert view.stable_offset == 5
            assert await view.aborted(0, 5) == [AbortedPart(5, 0, 1)]


@pytest.mark.parametrize("accepted", [True, False])
async def test_a_lost_head_of_the_newest_segment_fails_no_read(accepted):
    async with replica_pair() as pair:
        await sent(pair.partition, part(0))
        await marked(pair.partition, commit=False)
        pair.partition.stream.roll_soon()
        await asyncio.sleep(1)
        await pair.leader.sent(pair.partition, batch(records=1))
        await lose_head(pair.leader, pair.partition, 2, accepted=accepted)
        async with view_of(pair) as (view, scan):
            await scanned(scan, 3)
            await view.advance()
            assert view.stable_offset == 3
            assert await view.aborted(0, 3) == [AbortedPart(5, 0, 1)]
