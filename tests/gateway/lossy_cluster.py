"""Takes entries of a partition from its bookie, and accepts the loss, on `StreamCluster`."""

import struct
from contextlib import asynccontextmanager
from typing import NamedTuple

from ledger.core.accepted_losses import LostRange
from ledger.core.gaps import ENTRY_MAX, Acceptance, Evidence, OffsetRange
from ledger.core.loss import CopyAnswer, Verdict, state_of
from ledger.core.records import parse_entry
from ledger.ids import BookieId, EntryId
from ledger.ports.bookies import Status
from ledger.streams.accepted_losses import accept_losses
from tests.gateway.stream_cluster import StreamCluster

ACCEPTED_MS = 1_767_225_600_123
ACCEPTED_AT = "2026-01-01T00:00:00.123Z"


class Batch(NamedTuple):
    """The header of a batch in a response that tests look at."""

    first: int
    last: int
    records: int


def headers(data):
    """Return the batches in the bytes of a response."""
    found, at = [], 0
    while at < len(data):
        base, length = struct.unpack_from(">qi", data, at)
        (delta,) = struct.unpack_from(">i", data, at + 23)
        (count,) = struct.unpack_from(">i", data, at + 57)
        found.append(Batch(base, base + delta, count))
        at += 12 + length
    assert at == len(data), "a batch is cut"
    return found


class Entry(NamedTuple):
    """One stored entry and the offsets of its records."""

    segment: int
    ledger: int
    entry: int
    first: int
    last: int


async def stored_entries(client, segments, missing=()):
    """Return the entries of completed segments that have user records, except the missing ones."""
    found = []
    for segment in segments:
        reader = await client.open(segment.ledger)
        for entry in range(segment.last_entry + 1):
            if (segment.ledger, entry) in missing:
                continue
            ((_, body),) = await reader.read(EntryId(entry), EntryId(entry), 1)
            users = [record for record in parse_entry(body) if not record.control]
            base = segment.start_sequence_id - 1
            if users:
                first, last = base + users[0].position, base + users[-1].position
                last += users[-1].records - 1
                found.append(Entry(segment.number, segment.ledger, entry, first, last))
    return found


class LossyCluster(StreamCluster):
    """A cluster whose bookie may lose entries."""

    async def entries(self, partition):
        """Return the readable entries of the segments, all completed, that have user records."""
        client, segments = self.services.client, partition.stream.segments
        return await stored_entries(client, segments, self.port.missing)

    async def lose(self, partition, first, last, status=Status.NO_ENTRY):
        """Lose the entries of the offsets from `first` to `last`, after all else was closed.

        Returns the partition, opened anew, so that nothing is cached, and the entries.
        """
        partition = await self.reopened(partition)
        lost = [e for e in await self.entries(partition) if first <= e.first and e.last <= last]
        assert (lost[0].first, lost[-1].last) == (first, last)
        for each in lost:
            self.port.missing[each.ledger, each.entry] = status
        return partition, lost

    async def accept(self, partition, first, last):
        """Lose these offsets, and accept the loss. Returns the partition, opened anew."""
        partition, lost = await self.lose(partition, first, last)
        await self.store(partition, lost_range(lost, first, last))
        return await self.reopened(partition)

    async def store(self, partition, *ranges):
        await accept_losses(self.metadata, partition.name, ranges)

    async def reopened(self, partition):
        """Restart the gateway, so that all segments are completed and nothing is cached."""
        places = {each.name: place for place, each in self.partitions._by_name.items()}
        await self.restart()
        return await self.partition(*places[partition.name])


def lost_range(entries, first, last):
    """Return the accepted loss of neighbouring entries of one segment."""
    one, other = entries[0], entries[-1]
    return LostRange(
        one.segment,
        EntryId(one.entry),
        EntryId(other.entry),
        OffsetRange(first, last),
        evidence_of(one.ledger),
    )


def evidence_of(ledger):
    copies = (state_of(BookieId("bookie"), CopyAnswer.DENIED),)
    return Evidence(ledger, Verdict.COMPLETE, copies, 0, Acceptance(ACCEPTED_MS, "operator"))


def reserved_range(segment, first, count):
    """Return the reserved rest of a ledger that was closed by force."""
    return LostRange(
        segment.number,
        EntryId(segment.last_entry + 1),
        ENTRY_MAX,
        OffsetRange(first, first + count - 1, exact=False),
        evidence_of(segment.ledger),
    )


@asynccontextmanager
async def lossy_cluster(**settings):
    cluster = LossyCluster(**settings)
    await cluster.start()
    yield cluster
