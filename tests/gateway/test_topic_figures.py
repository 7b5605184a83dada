"""Goal: figures of topics are sums that never claim more than is known; lag is measured in time.

Method: pure functions by example; batches as clients encode them.
"""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from gateway.admin.group_lag import NEVER_MS, _portions, lag_row, record_time
from gateway.admin.topic_figures import Figures, figures_of, total
from gateway.admin.topic_list import in_order

T = 1_600_000_000_000


@pytest.mark.parametrize(
    ("start", "end", "recent", "found"),
    [
        (0, 600, 300, (600, 5.0)),
        (0, 600, -1, (600, 0.0)),
        (590, 600, 0, (10, round(10 / 60, 3))),  # those that retention removed are not counted
        (None, 600, 0, (None, None)),
        (0, 600, None, (600, None)),
        (5, 3, 3, (0, 0.0)),  # it was truncated between the requests
    ],
)
def test_records_and_rate_of_a_partition(start, end, recent, found):
    assert figures_of(7, start, end, recent) == Figures(7, *found)


def test_a_sum_is_unknown_if_a_part_is():
    assert total([Figures(1, 2, 0.5), Figures(3, 4, 1.0)]) == Figures(4, 6, 1.5)
    assert total([Figures(1, 2, 0.5), Figures(None, 4, None)]) == Figures(None, 6, None)
    assert total([]) == Figures(0, 0, 0.0)


def test_the_largest_is_first_and_the_unknown_last():
    rows = [{"name": name, "size_bytes": size} for name, size in zip("abcd", [1, None, 5, 5])]  # noqa: B905
    assert [row["name"] for row in in_order(rows, "size")] == ["c", "d", "a", "b"]
    assert [row["name"] for row in in_order(rows, "name")] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("offset", "start", "end", "lag"),
    [(5, 0, 9, 4), (5, 7, 9, 2), (9, 0, 9, 0), (12, 0, 9, 0), (5, None, 9, 4), (5, 0, None, None)],
)
def test_a_committed_offset_below_the_start_counts_from_the_start(offset, start, end, lag):
    assert lag_row("g", ("t", 0), offset, start, end)["lag"] == lag


def batch(base, times, *, codec=0, control=False, transactional=False):
    builder = DefaultRecordBatchBuilder(2, codec, transactional, 1, 0, 0, 1 << 20)
    for at, time_ms in enumerate(times):
        builder.append(at, time_ms, None, b"x", [])
    built = bytearray(builder.build())
    built[0:8] = base.to_bytes(8, "big")
    if control:
        built[22] |= 0x20
    return bytes(built)


@pytest.mark.parametrize("codec", [0, 1, 2, 3])
def test_the_time_is_that_of_the_first_record_not_yet_read(codec):
    data = batch(0, [T, T + 10, T + 20], codec=codec) + batch(3, [T + 30], codec=codec)
    for offset, time_ms in ((0, T), (1, T + 10), (2, T + 20), (3, T + 30)):
        assert record_time(data, offset, 4) == time_ms


def test_a_gap_before_the_next_record_is_passed():
    assert record_time(batch(10, [T]), 5, 11) == T


def test_markers_are_passed_and_alone_they_are_no_lag():
    marker = batch(0, [T], control=True, transactional=True)
    assert record_time(marker + batch(1, [T + 9]), 0, 2) == T + 9
    assert record_time(marker, 0, 1) == NEVER_MS
    assert record_time(marker, 0, 50) is None, "there may be more"
    assert record_time(b"", 0, 50) is None
    assert record_time(b"\xff" * 80, 0, 50) is None


def test_two_groups_at_one_partition_are_asked_one_after_the_other():
    positions = [("t", 0, 5), ("t", 1, 0), ("t", 0, 9)]
    assert list(_portions(positions)) == [[("t", 0, 5), ("t", 1, 0)], [("t", 0, 9)]]
