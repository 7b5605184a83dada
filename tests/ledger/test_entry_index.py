"""Goal: the index returns for each entry the place where it was put last, and nothing for any
other, however entries are joined to extents, moved out of them or deleted.

Method: drawn operations on the index and on a dictionary; every look-up of both must agree. Rows of
earlier releases are among them. The same operations must find planted mistakes.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from random import Random

import pytest

from ledger.bookie import entry_index
from ledger.bookie.config import BookieConfig
from ledger.bookie.entry_index import EntryIndex
from ledger.core.extents import (
    EntryLocation,
    Extent,
    count_entries,
    decode_extent,
    encode_extent,
    extents_of,
)
from ledger.core.journal_format import LogPosition
from ledger.errors import CorruptFormat
from tests.sim.bookie_mistakes import joins_over_holes, old_extents_stay
from tests.sim.table import SimTable

SEEDS = 150
LEDGERS = 3


class Walk:
    """An index, and what it must hold."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.table = SimTable(self.draw)
        self.index = EntryIndex(self.table, BookieConfig())
        self.twin: dict[int, dict[int, EntryLocation]] = {each: {} for each in range(LEDGERS)}
        self.deleted: set[int] = set()
        self.file_id, self.position = 1, 4096

    def state(self, ledger: int):
        return self.index.state(ledger) or self.index.create(ledger, None)

    def place(self, length: int) -> EntryLocation:
        """The next place of the log, at times in another group or file."""
        chance = self.draw.random()
        if chance < 0.02:
            self.file_id, self.position = self.file_id + 1, 4096
        elif chance < 0.2:
            self.position += self.draw.choice([100, 4096, 20_000])
        location = EntryLocation(self.file_id, self.position + 24, length)
        self.position = location.position + length
        return location

    def put(self, ledger: int, entry: int) -> None:
        location = self.place(self.draw.choice([36, 100, 1000, 300_000]))
        self.index.put(self.state(ledger), entry, location)
        self.twin[ledger][entry] = location

    def put_row(self, ledger: int, entry: int) -> None:
        """A row of an earlier release, which joined nothing."""
        location = self.place(100)
        state = self.state(ledger)
        key = entry_index._ENTRY_KEY.pack(b"e", ledger, entry)
        value = location.file_id.to_bytes(8, "big") + location.position.to_bytes(4, "big")
        puts = [(key, value + location.length.to_bytes(4, "big"))]
        puts.append((entry_index._LEDGER_KEY.pack(b"l", ledger), state.encode()))
        self.table.write(puts)
        state.stored = True
        state.stored_last = max(state.stored_last, entry)
        self.twin[ledger][entry] = location

    def step(self) -> None:
        draw = self.draw
        chance = draw.random()
        ledger = draw.randrange(LEDGERS)
        known = self.twin[ledger]
        if chance < 0.02:
            self.index.delete([ledger])
            known.clear()
            self.deleted.add(ledger)
        elif chance < 0.35:
            self.index.write_batch(LogPosition(self.file_id, self.position))
        elif chance < 0.4:
            self.index.write_batch(LogPosition(self.file_id, self.position))
            self.index = EntryIndex(self.table, BookieConfig())
            self.index.load()
        elif ledger not in self.deleted:
            self._add(ledger, chance)

    def _add(self, ledger: int, chance: float) -> None:
        """Entries behind the last one, some stored before, or rows of an earlier release."""
        draw, known = self.draw, self.twin[ledger]
        if chance < 0.7:
            first = max(known, default=-1) + draw.choice([1, 1, 1, 2, 5])
            for entry in range(first, first + draw.randint(1, 30)):
                self.put(ledger, entry)
        elif chance < 0.9 and known:
            first = draw.choice(sorted(known))
            for entry in range(first, first + draw.choice([1, 1, 2, 10])):
                self.put(ledger, entry)
        elif not self.index._unindexed:
            first = max(known, default=-1) + 1
            for entry in range(first, first + draw.randint(1, 5)):
                self.put_row(ledger, entry)

    def check(self) -> None:
        assert self.index.ledger_count() == len(self.index.ledgers())
        for ledger, known in self.twin.items():
            state = self.state(ledger)
            end = max(known, default=-1) + 3
            for entry in range(end):
                assert self.index.find(state, entry) == known.get(entry)
            assert self.index.find_last_entry(state) == max(known, default=-1)
            self.check_extents(ledger, end)
        if not self.index._unindexed:
            for ledger, known in self.twin.items():
                first, limit = self.draw.randrange(50), self.draw.randint(1, 60)
                expected = [each for each in sorted(known.items()) if each[0] >= first]
                assert self.index.rows(ledger, first, limit) == expected[:limit]
                self.check_spans(ledger, first)

    def check_spans(self, ledger: int, first: int) -> None:
        """Spans from `first` on cover what is stored there, each entry once."""
        covered, at = [], first
        while spans := self.index.spans(ledger, at, self.draw.choice([2, 3, 100])):
            covered += [entry for low, high in spans for entry in range(low, high + 1)]
            at = spans[-1][1] + 1
        assert [e for e in covered if e >= first] == [
            e for e in sorted(self.twin[ledger]) if e >= first
        ]

    def check_extents(self, ledger: int, end: int) -> None:
        known = self.twin[ledger]
        first = self.draw.randrange(end)
        last = first + self.draw.choice([0, 3, 1000])
        bytes_max = self.draw.choice([0, 1, 500, 5000, 1 << 30])
        expected, left = [], bytes_max
        while (entry := first + len(expected)) in known and entry <= last:
            left -= known[entry].length
            if left < 0 and expected:
                break
            expected.append((entry, known[entry]))
        found = self.index.extents(self.state(ledger), first, last, bytes_max)
        assert [each for extent in found for each in extent.locations()] == expected


def walk(seed: int) -> None:
    it = Walk(seed)
    for _ in range(40):
        it.step()
        it.check()


def test_the_index_agrees_with_a_dictionary():
    for seed in range(SEEDS):
        walk(seed)


def test_a_run_of_entries_takes_few_rows_and_one_read():
    table = SimTable(Random(1))
    index = EntryIndex(table, BookieConfig())
    state = index.create(7, b"key")
    for entry in range(500):
        index.put(state, entry, EntryLocation(1, 4096 + 48 + 24 + entry * 1024, 1000))
    index.write_batch(LogPosition(1, 1 << 20))
    assert len(table.scan(b"e", b"f", 1000)) == 1
    assert len(index.extents(state, 100, 399, 1 << 20)) == 1


def test_entries_of_one_ledger_share_a_row_however_far_apart_they_lie():
    table = SimTable(Random(1))
    index = EntryIndex(table, BookieConfig())
    state = index.create(7, b"key")
    places = {entry: EntryLocation(1, 4096 + entry * 100_000, 1000) for entry in range(500)}
    for entry, place in places.items():
        index.put(state, entry, place)
    index.write_batch(LogPosition(1, 1 << 26))
    assert len(table.scan(b"e", b"f", 1000)) == 1
    (extent,) = index.extents(state, 100, 399, 1 << 20)
    assert list(extent.locations()) == [each for each in places.items() if 100 <= each[0] <= 399]


def test_a_reader_in_order_parses_a_row_once_and_sees_what_changes():
    table = SimTable(Random(1))
    index = EntryIndex(table, BookieConfig())
    state = index.create(7, b"key")
    places = {entry: EntryLocation(1, 4096 + entry * 200, 100) for entry in range(300)}

    def store(entries):
        for entry in entries:
            index.put(state, entry, places[entry])
        index.write_batch(LogPosition(1, 1 << 20))

    def read():
        parts = [index.extents(state, at, at + 9, 1 << 20) for at in range(0, 300, 10)]
        return {entry: it for part in parts for each in part for entry, it in each.locations()}

    store(range(300))
    scanned = table.scan_from
    calls = []
    table.scan_from = lambda *words: calls.append(words) or scanned(*words)
    assert read() == places
    assert len(calls) == 1
    places[150] = EntryLocation(2, 4096, 100)
    store([150])
    assert read() == places


@pytest.mark.parametrize("seed", range(50))
def test_the_reads_of_an_extent_are_as_few_as_their_bounds_allow(seed):
    draw = Random(seed)
    position, located = draw.randrange(1 << 20), []
    for entry in range(7, 7 + draw.randint(1, 60)):
        length = draw.randint(1, 3000)
        located.append((entry, EntryLocation(3, position, length)))
        position += length + draw.choice([24, 24, 24, 100, 101, 5000])
    (whole,) = extents_of(located)
    part = whole.part(draw.randint(7, whole.last), whole.last)
    bytes_max = draw.choice([1, 2000, 10_000, 1 << 20])
    reads = list(part.reads(100, bytes_max))
    assert [each for read in reads for each in read.locations()] == list(part.locations())
    for read in reads:
        assert len(read.lengths) == 1 or read.end - read.position <= bytes_max
        places = list(read.locations())
        for (_, one), (_, other) in pairwise(places):
            assert other.position - (one.position + one.length) <= 100
    for one, other in pairwise(reads):
        first = other.lengths[0]
        assert other.position - one.end > 100 or other.position + first - one.position > bytes_max


def _stays_whole(self, entries):
    return [self]


def _keeps_deleted(self, ledgers):
    states = [self.state(ledger) for ledger in ledgers]
    table, self._table = self._table, SimTable(Random(1))
    _delete(self, ledgers)
    self._table = table
    for state in states:
        state.stored_last = max([e for e, _ in self.rows(state.ledger, 0, 1 << 20)], default=-1)


_delete = EntryIndex.delete


@pytest.mark.parametrize(
    ("owner", "name", "mistake"),
    [
        (entry_index, "extents_of", joins_over_holes),
        (EntryIndex, "_put_entries", old_extents_stay),
        (EntryIndex, "delete", _keeps_deleted),
        (Extent, "without", _stays_whole),
        (entry_index, "_last_unchanged", lambda recent, first, last: last),
    ],
)
def test_a_planted_mistake_is_found(monkeypatch, owner, name, mistake):
    monkeypatch.setattr(owner, name, mistake)
    with pytest.raises(AssertionError):
        for seed in range(SEEDS):
            walk(seed)


# -- the form on disk ------------------------------------------------------------------------------


def drawn_extent(draw: Random) -> Extent:
    entry, position, located = draw.randrange(1 << 40), draw.randrange(1 << 20), []
    for number in range(draw.randint(1, 40)):
        length = draw.randint(0, 2000)
        located.append((entry + number, EntryLocation(3, position, length)))
        position += length + (24 if draw.random() < 0.9 else draw.randint(24, 500))
    (extent,) = extents_of(located)
    assert list(extent.locations()) == located
    return extent


def test_an_extent_is_read_as_it_was_written():
    draw = Random(3)
    forms = set()
    for _ in range(300):
        extent = drawn_extent(draw)
        if draw.random() < 0.5:  # a part of an extent keeps the anchor of the whole
            extent = extent.part(draw.randint(extent.first, extent.last), extent.last)
        value = encode_extent(extent)
        found = decode_extent(extent.first, value)
        assert count_entries(extent.first, value) == len(extent.lengths)
        assert list(found.locations()) == list(extent.locations())
        forms.add(value[12] if len(value) != 16 else 0)
    assert forms == {0, 1, 2}


def test_the_row_of_one_entry_is_that_of_earlier_releases():
    value = encode_extent(Extent(5, 2, 4096, (0,), (100,)))
    assert value == bytes.fromhex("0000000000000002 00001000 00000064")


TWO = encode_extent(Extent(0, 1, 4096, (0, 34), (10, 10))).hex()


@pytest.mark.parametrize(
    "value",
    ["", "00", "00" * 12, "00" * 13, "00" * 12 + "09" + "00" * 8, TWO[:-2], TWO[:-6], TWO + "00"],
)
def test_a_row_that_is_no_extent_is_an_error_and_no_answer(value):
    with pytest.raises(CorruptFormat):
        decode_extent(1, bytes.fromhex(value))
    with pytest.raises(CorruptFormat):
        count_entries(1, bytes.fromhex(value))
    table = SimTable(Random(1))
    index = EntryIndex(table, BookieConfig())
    state = index.create(1, None)
    index.put(state, 0, EntryLocation(1, 4096, 10))
    index.write_batch(LogPosition(1, 8192))
    table.write([(entry_index._ENTRY_KEY.pack(b"e", 1, 0), bytes.fromhex(value))])
    with pytest.raises(OSError, match="index"):
        index.find(state, 0)
    with pytest.raises(OSError, match="index"):
        index.extents(state, 0, 9, 100)
    with pytest.raises(OSError, match="index"):
        index.spans(1, 0, 2)


def test_a_flush_makes_batches_durable_with_their_extents():
    async def main() -> None:
        table = SimTable(Random(1), flush_s_max=0)
        index = EntryIndex(table, BookieConfig())
        state = index.create(1, b"key")
        for entry in range(10):
            index.put(state, entry, EntryLocation(1, 5000 + entry * 124, 100))
        index.write_batch(LogPosition(1, 8192))
        await index.flush()
        again = EntryIndex(table.crash(), BookieConfig())
        assert again.load() == LogPosition(1, 8192)
        found = again.state(1)
        assert found is not None
        assert again.find(found, 9) == EntryLocation(1, 5000 + 9 * 124, 100)

    asyncio.run(main())
