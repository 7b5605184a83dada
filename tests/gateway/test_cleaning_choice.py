"""Goal: Kafka's rules decide what is cleaned and when; the pace of reads and writes is kept.

Method: logs of a few segments, as plain values.
"""

from __future__ import annotations

import pytest

from gateway.core.cleaning_choice import (
    NEVER_MS,
    CleaningRules,
    IoPace,
    LogSegment,
    cleanable,
)

NOW = 1_000_000
RULES = CleaningRules(0.5, 0, NEVER_MS)
CLEAN = LogSegment(0, 10, 100, cleaned=True, timestamp_max=10, first_ms=5)
DIRTY = LogSegment(10, 20, 100, cleaned=False, timestamp_max=900_000, first_ms=800_000)
NEXT = LogSegment(20, 30, 50, cleaned=False, timestamp_max=950_000, first_ms=890_000)
LOG = [CLEAN, DIRTY, NEXT]


def test_the_dirty_part_begins_behind_the_longest_prefix_of_cleaned_segments():
    found = cleanable([*LOG, CLEAN._replace(start=30, end=40)], 40, NOW, RULES)
    assert (found.first_dirty, found.end) == (10, 40)
    assert (found.clean_bytes, found.cleanable_bytes) == (100, 250)


def test_a_log_is_due_above_the_ratio_and_not_at_it():
    found = cleanable(LOG[:2], 40, NOW, RULES)
    assert found.ratio == 0.5
    assert not found.is_due(RULES)
    assert cleanable(LOG, 40, NOW, RULES).is_due(RULES)


def test_a_log_without_dirty_segments_is_never_due():
    for log in ([], [CLEAN]):
        rules = CleaningRules(0.0, 0, 1)
        assert not cleanable(log, 40, NOW, rules).is_due(rules)


@pytest.mark.parametrize(("stable", "end"), [(30, 30), (29, 20), (20, 20), (19, 10), (0, 10)])
def test_nothing_is_cleaned_past_the_last_stable_offset(stable, end):
    assert cleanable(LOG, stable, NOW, RULES).end == end


@pytest.mark.parametrize(
    ("lag", "end"), [(0, 30), (50_000, 30), (50_001, 20), (100_000, 20), (100_001, 10)]
)
def test_records_younger_than_the_minimum_lag_are_not_cleaned(lag, end):
    rules = RULES._replace(lag_ms_min=lag)
    assert cleanable(LOG, 40, NOW, rules).end == end


def test_a_young_segment_keeps_older_ones_behind_it_dirty():
    young = DIRTY._replace(timestamp_max=NOW)
    assert cleanable([CLEAN, young, NEXT], 40, NOW, RULES._replace(lag_ms_min=1000)).end == 10


@pytest.mark.parametrize(("lag", "overdue"), [(200_000, 0), (199_999, 1), (150_000, 50_000)])
def test_a_record_older_than_the_maximum_lag_makes_its_log_due(lag, overdue):
    rules = CleaningRules(1.0, 0, lag)
    found = cleanable(LOG, 40, NOW, rules)
    assert found.overdue_ms == overdue
    assert found.is_due(rules) == (overdue > 0)


def test_segments_of_unknown_age_are_not_overdue():
    rules = CleaningRules(1.0, 0, 1)
    unknown = [each._replace(first_ms=None) for each in LOG]
    assert not cleanable(unknown, 40, NOW, rules).is_due(rules)


def test_the_pace_holds_over_many_small_and_large_pieces():
    pace, now, done = IoPace(), 50.0, 0
    for size in (10, 1000, 1, 500) * 20:
        now += pace.pause_s(size, 1000, now)
        done += size
    assert now - 50 == pytest.approx(done / 1000)


def test_a_pause_is_followed_by_no_burst():
    pace = IoPace()
    pace.pause_s(100, 1000, 0)
    assert pace.pause_s(1000, 1000, 500) == pytest.approx(1)


def test_without_a_limit_nothing_waits():
    pace = IoPace()
    assert pace.pause_s(10**12, 1.7976931348623157e308, 5) == pytest.approx(0)
    assert pace.pause_s(10**12, 0, 5) == 0
