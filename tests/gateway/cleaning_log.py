"""A log in memory for tests of the cleaner: batches in segments, a reader, and rounds of cleaning.

`Log.read` asks for offsets one after the other, as a consumer does, by the places that the stored
records cover. It decodes batches by aiokafka's reader, and not by the code under test.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from gateway.core.cleaning import Cleaning
from gateway.core.cleaning_results import NOT_FULL
from gateway.core.partition_transactions import AbortedTransaction
from gateway.wire.batches import read_header
from gateway.wire.end_markers import encode_marker

ROOM = 1 << 20
DAY_MS = 86_400_000


def keyed_batch(records, *, base=0, at=1000, codec=0, producer=-1, transactional=False, sequence=0):
    """A batch with these (key, value) records; the timestamp of each is one more than the last."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=int(transactional),
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=sequence if producer >= 0 else -1,
        batch_size=1 << 24,
    )
    for delta, (key, value) in enumerate(records):
        builder.append(delta, at + delta, key, value, [("h", b"header")])
    return at_offset(bytes(builder.build()), base)


def at_offset(batch, base, leader_epoch=3):
    return struct.pack(">q", base) + batch[8:12] + struct.pack(">i", leader_epoch) + batch[16:]


@dataclass
class StoredSegment:
    """The stored records of a segment: (first offset, count, batch)."""

    start: int
    end: int
    stored: list = field(default_factory=list)
    aborted: list = field(default_factory=list)  # of transactions whose marker lies here
    cleaned: bool = False


class Log:
    """A partition. `live` is the model: the records that were committed, by offset."""

    def __init__(self):
        self.segments = [StoredSegment(0, 0)]
        self.end = 0
        self.live = {}
        self.open = {}  # producer: [first offset, {offset: (key, value)}]
        self.cleaning = Cleaning()

    # -- writing --------------------------------------------------------------------------------

    def append(self, records, *, producer=-1, transactional=False, codec=0, at=1000):
        settings = {"codec": codec, "producer": producer, "transactional": transactional}
        batch = keyed_batch(records, base=self.end, at=at, **settings)
        numbered = {self.end + at: record for at, record in enumerate(records)}
        if transactional:
            self.open.setdefault(producer, [self.end, {}])[1].update(numbered)
        else:
            self.live.update(numbered)
        self._store(batch, len(records))

    def end_transaction(self, producer, *, commit):
        if producer not in self.open:
            return
        first, records = self.open.pop(producer)
        if commit:
            self.live.update(records)
        else:
            one = AbortedTransaction(producer, first, self.end, self.stable_offset)
            self.segments[-1].aborted.append(one)
        marker = encode_marker(producer, 0, 0, 5000, commit=commit)
        self._store(at_offset(marker, self.end), 1)

    def _store(self, batch, count):
        self.segments[-1].stored.append((self.end, count, batch))
        self.end += count
        self.segments[-1].end = self.end

    def roll(self):
        if self.segments[-1].stored:
            self.segments.append(StoredSegment(self.end, self.end))

    @property
    def stable_offset(self):
        return min((first for first, _ in self.open.values()), default=self.end)

    # -- reading --------------------------------------------------------------------------------

    def read(self, *, at=0):
        """Return {offset: (key, value)} as a consumer of committed records gets them."""
        found = {}
        stable = self.stable_offset
        while at < stable:
            segment = next(s for s in self.segments if s.start <= at < s.end)
            batch = next(b for first, count, b in segment.stored if first <= at < first + count)
            header = read_header(batch)
            if header.records and not header.attributes & 0x20 and not self._is_aborted(header):
                records = DefaultRecordBatch(bytes(batch))
                found.update((r.offset, (r.key, r.value)) for r in records if r.offset >= at)
            behind = header.base_offset + header.last_offset_delta + 1
            assert behind > at, f"offset {at} gets the batch of {header.base_offset} for ever"
            at = behind
        return found

    def _is_aborted(self, header):
        if not header.attributes & 0x10:
            return False
        return any(
            one.producer_id == header.producer_id
            and one.first_offset <= header.base_offset <= one.last_offset
            for segment in self.segments
            for one in segment.aborted
        )

    def newest(self):
        """Return the last committed value of each key, by the model. Deleted keys are missing."""
        return last_values({at: r for at, r in self.live.items() if at < self.stable_offset})

    # -- cleaning -------------------------------------------------------------------------------

    def aborted_in(self, start, end):
        return [
            one
            for segment in self.segments
            for one in segment.aborted
            if one.last_offset >= start and one.first_offset < end
        ]

    def cleanable(self):
        return [s for s in self.segments[:-1] if s.end <= self.stable_offset]

    def round(self, *, now=0, room=ROOM, retention=DAY_MS, after_swap=lambda: None):
        """Run one round, as the shell does. Returns False if nothing was dirty."""
        cleaning, segments = self.cleaning, self.cleanable()
        dirty = [s for s in segments if not s.cleaned]
        if not dirty:
            return False
        clean = segments[: segments.index(dirty[0])]
        full_at = NOT_FULL
        mapped, first = [], dirty[0]
        cleaning.begin_map(room, first.start)
        for segment in dirty:
            full_at = self._map(segment)
            if full_at != NOT_FULL:
                break
            mapped.append(segment)
        cleaning.drop_marks()
        while not mapped:
            cleaning.begin_marks(first.start, first.end)
            for _, _, batch in first.stored:
                cleaning.mark_batches(batch)
            self._rewrite(clean, now, retention, after_swap)
            cleaning.begin_map(room, full_at)
            full_at = self._map(first)
            mapped = [first] if full_at == NOT_FULL else []
        self._rewrite(clean + mapped, now, retention, after_swap)
        return True

    def _map(self, segment):
        aborted = self.aborted_in(segment.start, segment.end)
        self.cleaning.begin_segment(segment.start, segment.end, aborted)
        for _, _, batch in segment.stored:
            full_at = self.cleaning.map_batches(batch)
            if full_at != NOT_FULL:
                return full_at
        return NOT_FULL

    def _rewrite(self, segments, now, retention, after_swap):
        self.cleaning.begin_filter(now, retention)
        for segment in segments:
            aborted = self.aborted_in(segment.start, segment.end)
            self.cleaning.begin_segment(segment.start, segment.end, aborted)
            found = []
            for _, _, batch in segment.stored:
                found += self.cleaning.filter_batches(batch)
            ended = self.cleaning.end_segment()
            found += ended.batches
            self._swap(segment, found, ended.aborted)
            after_swap()

    def _swap(self, segment, found, aborted):
        stored, at = [], segment.start
        for one in found:
            stored.append((at, one.offsets, one.data))
            at += one.offsets
        assert at == segment.end, "the counts add up to those of the segment"
        segment.stored, segment.aborted, segment.cleaned = stored, aborted, True

    def clean(self, **settings):
        """Run rounds until nothing is dirty."""
        while self.round(**settings):
            pass

    def redirty(self):
        """Let all segments be dirty again, as after a lost checkpoint."""
        for segment in self.segments:
            segment.cleaned = False


def last_values(records):
    """Return {key: (offset, value)} of {offset: (key, value)}, without deleted keys."""
    found = {}
    for at in sorted(records):
        key, value = records[at]
        found[key] = at, value
    return {key: each for key, each in found.items() if each[1] is not None}
