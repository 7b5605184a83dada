"""Loses entries of an embedded gateway for good, and accepts the loss, while it is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from gateway.native import EARLIEST, Logs, Offset, connect
from gateway.topics.catalog import Catalog
from gateway.topics.partitions import stream_name
from ledger.adapters.rocksdb.rocks_table import RocksTable
from ledger.adapters.sqlite.sqlite_metadata import SqliteMetadata
from ledger.core.accepted_losses import RESERVED_OFFSETS, LostRange
from ledger.core.extents import decode_extent, encode_extent
from ledger.core.gaps import ENTRY_MAX, Acceptance, Evidence, OffsetRange
from ledger.core.loss import CopyAnswer, Verdict, state_of
from ledger.ids import BookieId, EntryId
from ledger.streams.accepted_losses import accept_losses
from ledger.streams.segment_list import SegmentList
from tests.peers.gateway import Gateway

ACCEPTED_MS = 1_767_225_600_123
ACCEPTED_AT = "2026-01-01T00:00:00.123Z"

_ENTRY_KEY = Struct(">cQQ")  # as in ledger/bookie/entry_index.py


class Loss(NamedTuple):
    """The offsets of one partition to lose. Each must be a batch of its own."""

    topic: str
    first: int
    last: int
    accepted: bool = True
    found_again: bool = False  # the bookies keep their copies


def lose(gateway: Gateway, losses: Sequence[Loss]) -> None:
    """Restart the gateway without the entries of these offsets, in partition 0 of their topics."""
    entries = asyncio.run(entries_of(gateway.ledgers, losses))
    assert gateway.stop() == 0
    ranges = asyncio.run(_accept(gateway.data, losses, entries))
    for loss, each in zip(losses, ranges, strict=True):
        indexes = () if loss.found_again else gateway.data.glob("bookie-*/index")
        for index in indexes:
            forget(index, each.evidence.ledger, each.first, each.last)
    gateway.start()


async def entries_of(address: str, losses: Sequence[Loss]) -> list[tuple[int, int, int]]:
    """Return the segment and the first and last entry of each loss."""
    async with connect(address) as logs:
        return [await _entries_of(logs, loss) for loss in losses]


async def _entries_of(logs: Logs, loss: Loss) -> tuple[int, int, int]:
    found = {}
    reader = await logs.topic_reader(loss.topic, 0)
    await reader.start(EARLIEST, Offset(loss.last))
    while not reader.ended:
        records, _ = await reader.read(100, 1.0)
        found.update({record.offset: record.dlsn for record in records})
    await reader.stop()
    first, last = found[loss.first], found[loss.last]
    assert first.segment == last.segment
    return first.segment, first.entry, last.entry


async def _accept(
    data: Path, losses: Sequence[Loss], entries: Sequence[tuple[int, int, int]]
) -> list[LostRange]:
    """Store the accepted losses, and return all of them."""
    metadata = SqliteMetadata(data / "metadata.sqlite")
    ranges: list[LostRange] = []
    try:
        catalog = Catalog(metadata)
        await catalog.load()
        for loss, (segment, first, last) in zip(losses, entries, strict=True):
            topic = catalog.by_name(loss.topic)
            assert topic is not None
            stream = stream_name(topic.topic_id, 0)
            listed = SegmentList(metadata, stream)
            await listed.load()
            (ledger,) = [each.ledger for each in listed.segments if each.number == segment]
            copies = (state_of(BookieId("bookie-1"), CopyAnswer.DENIED),)
            acceptance = Acceptance(ACCEPTED_MS, "tests")
            evidence = Evidence(ledger, Verdict.COMPLETE, copies, 0, acceptance)
            offsets = OffsetRange(loss.first, loss.last)
            ranges.append(LostRange(segment, first, last, offsets, evidence))
            if loss.accepted:
                await accept_losses(metadata, stream, ranges[-1:])
    finally:
        await metadata.close()
    return ranges


def reserve(gateway: Gateway, topic: str) -> None:
    """Restart the gateway with reserved offsets behind the log, as after a forced close."""
    assert gateway.stop() == 0
    asyncio.run(_reserve(gateway.data, topic))
    gateway.start()


async def _reserve(data: Path, topic: str) -> None:
    metadata = SqliteMetadata(data / "metadata.sqlite")
    try:
        catalog = Catalog(metadata)
        await catalog.load()
        known = catalog.by_name(topic)
        assert known is not None
        stream = stream_name(known.topic_id, 0)
        listed = SegmentList(metadata, stream)
        await listed.load()
        segment = listed.segments[-1]
        first, end = EntryId(segment.last_entry + 1), segment.end_sequence_id
        copies = (state_of(BookieId("bookie-1"), CopyAnswer.DENIED),)
        acceptance = Acceptance(ACCEPTED_MS, "tests")
        evidence = Evidence(segment.ledger, Verdict.COMPLETE, copies, 0, acceptance)
        offsets = OffsetRange(end, end + RESERVED_OFFSETS - 1, exact=False)
        lost = LostRange(segment.number, first, ENTRY_MAX, offsets, evidence)
        await accept_losses(metadata, stream, [lost])
    finally:
        await metadata.close()


def forget(index: Path, ledger: int, first: int, last: int) -> None:
    """Remove entries from the index of a bookie that does not run."""
    table = RocksTable(index)
    key, end = (_ENTRY_KEY.pack(b"e", ledger, entry) for entry in (first, last + 1))
    held = table.scan_from(_ENTRY_KEY.pack(b"e", ledger, 0), key, end, 1 << 20)
    extents = [decode_extent(_ENTRY_KEY.unpack(row)[2], value) for row, value in held]
    left = [part for each in extents for part in each.without(range(first, last + 1))]
    puts = [(_ENTRY_KEY.pack(b"e", ledger, part.first), encode_extent(part)) for part in left]
    table.write(puts, [row for row, _ in held])
    table.close()
