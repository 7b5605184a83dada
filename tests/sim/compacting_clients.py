"""Clients of a compacted topic: producers of keys and tombstones, readers of the whole log.

Each record has a header with its transaction and its number in it, because tombstones have no
value.
"""

from __future__ import annotations

import asyncio
import struct

from aiokafka.record.default_records import DefaultRecordBatch

from gateway.wire import batches
from gateway.wire.end_markers import StoredMarker
from tests.batches import varint
from tests.sim.compacting_oracle import Stored
from tests.sim.transacting_clients import VALUE, Producer, Reader

KEYS = (b"a", b"b", b"c", b"d", b"a long key, of which the map has a hash", b"e")
_TRIES = 5
_QUIET_TRIES = 400  # gateways may still hand partitions over


def encoded(delta, key, value, identity):
    """Return one record with a header that identifies it."""
    body = b"\0" + varint(0) + varint(delta)
    for part in (key, value):
        body += varint(-1) if part is None else varint(len(part)) + part
    body += varint(1) + varint(2) + b"id" + varint(len(identity)) + identity
    return varint(len(body)) + body


def decoded(batch):
    """Return the records of a batch of clients. aiokafka reads it, not the code under test."""
    header = batches.read_header(batch)
    if header.attributes & batches.CONTROL or not header.records:
        return []
    return [
        Stored(*VALUE.unpack(dict(r.headers)["id"]), r.offset, r.key, r.value is None, r.timestamp)
        for r in DefaultRecordBatch(bytes(batch))
    ]


def read_marker(header, batch):
    """Return the marker of a batch that may have been cleaned, None for a batch of records."""
    if not header.attributes & batches.CONTROL or not header.records:
        return None
    (record,) = DefaultRecordBatch(bytes(batch))
    (commit,) = struct.unpack(">2xh", record.key)
    (coordinator_epoch,) = struct.unpack(">2xi", record.value)
    return StoredMarker(bool(commit), coordinator_epoch)


class KeyedProducer(Producer):
    """Writes batches of a few keys. A quarter of the records are tombstones."""

    def _drawn_records(self, first):
        draw = self.draw
        count = draw.choice([1, 1, 2, 4])
        self.drawn = [
            (first + at, draw.choice(self.world.keys), draw.random() < 0.25) for at in range(count)
        ]
        data = b""
        for at, (sequence, key, tombstone) in enumerate(self.drawn):
            value = None if tombstone else b"value" * draw.choice([1, 20])
            data += encoded(at, key, value, VALUE.pack(self.one.number, sequence))
        return data, count

    def _on_stored(self, index, timestamp):
        for at, (sequence, key, tombstone) in enumerate(self.drawn):
            where = self.base_offset + at
            each = Stored(self.one.number, sequence, where, key, tombstone, timestamp)
            self.world.oracle.place(index, each)


class CompactedReader(Reader):
    """Checks that each record is where it was."""

    def _marker(self, header, batch):
        return read_marker(header, batch)

    def _decoded(self, index, header, batch):
        found = decoded(batch)
        for each in found:
            self.world.oracle.place(index, each)
        return found


class Auditor(CompactedReader):
    """Reads the whole of a partition, over and over, as a consumer that begins at offset 0."""

    async def run(self):
        while not self.world.healing:
            await self.audit(self.draw.randrange(self.world.partitions))
            await asyncio.sleep(self.draw.expovariate(1 / 0.2))

    async def audit(self, index, *, quiet=False):
        """Read up to the last stable offset as it is now. Returns False if that failed."""
        world, oracle = self.world, self.world.oracle
        at, end, began_ms = 0, oracle.stable[index], world.now_ms()
        shown, failures, size = [], 0, 100_000 if quiet else None
        tries = _QUIET_TRIES if quiet else _TRIES
        while at < end and failures < tries:
            found = await self.fetch(index, at, committed=True, bytes_max=size)
            if not found or found[0] == at:
                failures += 1
                await self.pause()
                continue
            at = found[0]
            shown += found[2]
        if at < end:
            return False
        oracle.check_view(index, shown, at, began_ms, world.now_ms(), quiet=quiet)
        world.counts["audits"] += 1
        return True
