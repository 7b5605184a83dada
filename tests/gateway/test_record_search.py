"""Goal: over all its pages a search finds each match once, whatever its bounds and windows are.

Method: logs in memory with real batches, gaps and sparse matches, drawn by Hypothesis; a slow twin
filters the whole logs. Without bounds, the order of times is exact.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admin.consume_batches import split
from gateway.admin.consume_fetch import Chunk
from gateway.admin.consume_filters import by_text
from gateway.http.record_cursor import decode_cursor
from gateway.http.record_filter import Conditions
from gateway.http.record_search import BYTES, RECORDS, Bounds, Search, Span, first_matches
from gateway.http.record_source import Plan, progress_of

TOPIC = "orders"
PAGES_MAX = 2_000


class Row(NamedTuple):
    partition: int
    offset: int
    timestamp: int
    value: bytes


class Log:
    """The batches of one partition."""

    def __init__(self, partition, drawn):
        self.rows, self.batches = [], []
        offset = at_ms = 0
        for gap, count in drawn:
            offset += gap
            rows = []
            for number in range(count):
                at_ms += (offset + number) % 3
                value = b"yes" if (offset * 7 + number) % 5 < 2 else b"no"
                rows.append(Row(partition, offset + number, at_ms, value))
            if rows:
                self.batches.append((rows[0].offset, rows[-1].offset, _encoded(rows)))
            self.rows += rows
            offset += count
        self.end = offset


def _encoded(rows):
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for delta, row in enumerate(rows):
        builder.append(delta, row.timestamp, None, row.value, [])
    return rows[0].offset.to_bytes(8, "big") + bytes(builder.build())[8:]


def reader(logs):
    """What reads these logs as a leader answers: whole batches, the first with the offset."""

    async def read(ranges):
        for (topic, index), (first, end) in ranges.items():
            at = first
            for _, last, data in logs[index].batches:
                if last < at or at >= end:
                    continue
                yield Chunk((topic, index), list(split(data, at)), (), at, end)
                at = last + 1
                await asyncio.sleep(0)

    return read


logs_drawn = st.lists(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=12), min_size=1, max_size=4
)
# A machine that stands still for seconds ends no search.
UNHURRIED = Bounds(seconds=3_600.0)
bounds_drawn = st.sampled_from(
    [
        UNHURRIED,
        UNHURRIED._replace(records=5),
        UNHURRIED._replace(records=17),
        UNHURRIED._replace(bytes=1),
        UNHURRIED._replace(bytes=700),
    ]
)


async def every_page(logs, conditions, backward, limit, bounds, width):
    """The rows of all pages, and what ended them."""
    spans = [Span(index, 0, log.end) for index, log in enumerate(logs)]
    total = sum(span.length for span in spans)
    found, ends, searched = [], [], -1
    while True:
        search = Search(
            reader(logs),
            TOPIC,
            spans,
            conditions,
            lambda record: record,
            backward=backward,
            committed=True,
            bounds=bounds,
            window_max=width,
        )
        page = await first_matches(search, spans, limit)
        assert len(page) <= limit
        found += [Row(index, r.offset, r.timestamp, r.value) for index, r in page]
        progress = progress_of(Plan(spans, total, backward, []))
        assert searched < progress.searched or progress.cursor is None
        ends.append(search.ended_by)
        if progress.cursor is None:
            assert progress.sentence == f"searched all {total}"
            return found, ends
        assert progress.sentence == f"searched {progress.searched} of {total}: go on"
        assert len(page) == limit or search.ended_by in (RECORDS, BYTES)
        assert len(ends) < PAGES_MAX
        searched, spans = progress.searched, list(decode_cursor(progress.cursor).spans)


@settings(max_examples=30, deadline=None)
@given(logs_drawn, st.booleans(), st.booleans(), st.integers(1, 20), bounds_drawn)
def test_each_match_is_found_once_over_all_pages(drawn, filtered, backward, limit, bounds):
    logs = [Log(index, each) for index, each in enumerate(drawn)]
    conditions = Conditions([by_text("yes")] if filtered else [], None)
    width = 25_000 if filtered else limit
    found, _ = asyncio.run(every_page(logs, conditions, backward, limit, bounds, width))
    wanted = [row for log in logs for row in log.rows if not filtered or row.value == b"yes"]
    assert sorted(found) == sorted(wanted)
    if bounds == UNHURRIED:
        times = [row.timestamp for row in found]
        assert times == sorted(times, reverse=backward)


def test_a_window_that_ends_inside_a_batch_leaves_the_rest_of_it():
    logs = [Log(0, [(0, 40)])]
    conditions = Conditions([], None)
    found, _ = asyncio.run(every_page(logs, conditions, False, 3, UNHURRIED, 3))
    assert [row.offset for row in found] == list(range(40))


def test_a_record_larger_than_the_bound_is_found_all_the_same():
    logs = [Log(0, [(0, 12), (0, 12)])]
    bounds = UNHURRIED._replace(bytes=1)
    found, ends = asyncio.run(every_page(logs, Conditions([], None), True, 5, bounds, 5))
    assert [row.offset for row in found] == list(range(23, -1, -1))
    assert set(ends[:-1]) == {BYTES}
