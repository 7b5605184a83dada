"""Goal: the simulated table keeps the same promises as RocksDB, so that proofs over it count.
Method: one suite on both, and random operations against a sorted dict.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from tempfile import mkdtemp

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledger.adapters.rocksdb.rocks_table import RocksTable
from tests.peers.copies import copy_at_work
from tests.sim.table import SimTable


@pytest.fixture(params=["rocks", "simulated"])
def make_table(request, tmp_path):
    if request.param == "simulated":
        return lambda: SimTable(Random(1))
    return lambda: RocksTable(tmp_path / "table")


def test_a_written_row_is_seen_and_a_missing_one_is_not(make_table):
    table = make_table()
    table.write([(b"a", b"1"), (b"b", b"")])
    assert (table.get(b"a"), table.get(b"b"), table.get(b"c")) == (b"1", b"", None)
    table.close()


def test_a_scan_is_ordered_bounded_and_stops_before_its_end(make_table):
    table = make_table()
    table.write([(bytes([key]), b"v%d" % key) for key in (5, 1, 9, 3, 7)])
    assert [key[0] for key, _ in table.scan(b"\x01", b"\x07", 10)] == [1, 3, 5]
    assert table.scan(b"\x02", b"\xff", 2) == [(b"\x03", b"v3"), (b"\x05", b"v5")]
    assert table.scan(b"\x07", b"\x02", 5) == []
    assert table.scan(b"\x00", b"\xff", 0) == []
    table.close()


def test_the_last_row_of_a_range_is_found(make_table):
    table = make_table()
    table.write([(b"a1", b"x"), (b"b1", b"y"), (b"b7", b"z"), (b"c1", b"w")])
    assert table.last(b"b", b"c") == (b"b7", b"z")
    assert table.last(b"b8", b"c") is None
    assert table.last(b"d", b"c") is None
    table.close()


def test_a_scan_from_begins_with_the_row_at_or_before_its_first_key(make_table):
    table = make_table()
    table.write([(key, key) for key in (b"a1", b"b1", b"b5", b"b9", b"c1")])
    assert [key for key, _ in table.scan_from(b"b", b"b7", b"c", 9)] == [b"b5", b"b9"]
    assert [key for key, _ in table.scan_from(b"b", b"b5", b"c", 1)] == [b"b5"]
    assert [key for key, _ in table.scan_from(b"b", b"b0", b"c", 9)] == [b"b1", b"b5", b"b9"]
    assert [key for key, _ in table.scan_from(b"b", b"b9", b"b91", 9)] == [b"b9"]
    assert table.scan_from(b"b6", b"b7", b"b8", 9) == []
    assert table.scan_from(b"d", b"d1", b"e", 9) == []
    table.close()


def test_in_one_write_ranges_go_first_then_deletes_then_puts(make_table):
    table = make_table()
    table.write([(b"a", b"1"), (b"b", b"1"), (b"c", b"1")])
    table.write([(b"b", b"2")], [b"b", b"c"], [(b"a", b"c")])
    assert [table.get(key) for key in (b"a", b"b", b"c")] == [None, b"2", None]
    table.close()


def test_what_was_flushed_is_there_after_a_clean_close(tmp_path):
    table = RocksTable(tmp_path / "table")
    table.write([(b"a", b"1")])
    asyncio.run(table.flush())
    table.close()
    again = RocksTable(tmp_path / "table")
    assert again.get(b"a") == b"1"
    again.close()


def test_a_copy_taken_without_a_flush_holds_a_prefix_of_the_writes(tmp_path):
    """The files as a crash would leave them: what was flushed is there, the rest is lost."""
    table = RocksTable(tmp_path / "table")
    table.write([(b"a", b"1"), (b"m", b"1")])
    asyncio.run(table.flush())
    table.write([(b"b", b"2"), (b"m", b"2")])
    copy_at_work(tmp_path / "table", tmp_path / "crashed")
    table.close()
    crashed = RocksTable(tmp_path / "crashed")
    assert crashed.scan(b"", b"z", 9) == [(b"a", b"1"), (b"m", b"1")]
    crashed.close()


def test_a_second_opening_is_refused_with_an_os_error(tmp_path):
    table = RocksTable(tmp_path / "table")
    with pytest.raises(OSError, match="index"):
        RocksTable(tmp_path / "table")
    table.close()


def test_a_crash_of_the_simulated_table_keeps_a_prefix_of_whole_writes():
    kept = set()
    for seed in range(40):
        table = SimTable(Random(seed), flush_s_max=0)
        table.write([(b"a", b"1"), (b"m", b"1")])
        asyncio.run(table.flush())
        for number in (b"2", b"3"):
            table.write([(b"x" + number, number), (b"m", number)])
        after = table.crash()
        mark = after.get(b"m")
        assert (after.get(b"x2") is not None) == (mark >= b"2")
        assert (after.get(b"x3") is not None) == (mark >= b"3")
        kept.add(mark)
    assert kept == {b"1", b"2", b"3"}


KEYS = st.binary(min_size=1, max_size=3)
WRITES = st.tuples(
    st.lists(st.tuples(KEYS, st.binary(max_size=3)), max_size=5),
    st.lists(KEYS, max_size=3),
    st.lists(st.tuples(KEYS, KEYS), max_size=2),
)


@given(st.lists(WRITES, max_size=8), KEYS, KEYS, st.integers(0, 6))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_both_tables_agree_with_a_sorted_dict(tmp_path, writes, first, end, limit):
    twin: dict[bytes, bytes] = {}
    tables = [RocksTable(Path(mkdtemp(dir=tmp_path))), SimTable(Random(1))]
    for puts, deletes, ranges in writes:
        ranges = [(low, high) for low, high in ranges if low <= high]
        for low, high in ranges:
            twin = {key: value for key, value in twin.items() if not low <= key < high}
        for key in deletes:
            twin.pop(key, None)
        twin.update(puts)
        for table in tables:
            table.write(puts, deletes, ranges)
    rows = sorted((key, value) for key, value in twin.items() if first <= key < end)
    for table in tables:
        assert table.scan(first, end, limit) == rows[:limit]
        assert table.last(first, end) == (rows[-1] if rows else None)
        if first < end:
            low = first[:1]
            before = [row for row in sorted(twin.items()) if low <= row[0] < first]
            at_or_before = [] if first in twin else before[-1:]
            assert table.scan_from(low, first, end, limit) == (at_or_before + rows)[:limit]
        assert table.get(first) == twin.get(first)
        table.close()
