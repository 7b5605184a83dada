"""Goal: Kafka's rules decide what is cleaned and when; the pace of reads and writes is kept.

Method: logs of a few segments, as plain values.
"""

from __future__ import annotations

import pytest

from gateway.core.cleaning_choice import (
    LOOK_BYTES,
    NEVER_MS,
    REST_S_MAX,
    CleaningRules,
    IoPace,
    LogSegment,
    Rests,
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


GIB, HOUR_S = 1 << 30, 3600.0


def rewriting_s(rests, *, size, piece, late_s, work_s, duration_s_max=1200.0):
    """Return how long a segment takes that is read and written in pieces of `piece` bytes.

    The second value is the part of it in which the cleaner rested. Each turn is late by `late_s`.
    """
    now_s, rested_s = HOUR_S, 0.0
    rests.begin(size, now_s, duration_s_max)
    for _ in range(size // piece):
        rests.on_read(piece)
        for _ in ("read", "written"):
            now_s += work_s
            if rests.is_look_due(piece):
                rest_s = rests.rest_s(late_s, now_s)
                now_s, rested_s = now_s + rest_s, rested_s + rest_s
    rests.end()
    return now_s - HOUR_S, rested_s


def test_a_late_turn_is_followed_by_a_rest_four_times_as_long():
    rests = Rests()
    assert [rests.rest_s(late_s, HOUR_S) for late_s in (0, 0.005, 0.01, 10)] == [
        0,
        0,
        0.04,
        REST_S_MAX,
    ]


@pytest.mark.parametrize("batches", [500, 5000, 100_000])
def test_a_segment_of_small_batches_is_rewritten_in_time_while_each_turn_is_late(batches):
    piece = batches * 61
    took_s, rested_s = rewriting_s(Rests(), size=GIB, piece=piece, late_s=1, work_s=piece / 4e6)
    assert took_s < 1200
    assert rested_s > 60


def test_a_rewriting_that_is_slow_by_itself_rests_no_more():
    _, rested_s = rewriting_s(Rests(), size=GIB, piece=1 << 20, late_s=1, work_s=0.5)
    assert rested_s < 10


def test_small_batches_do_not_add_rests():
    size = 16 << 20
    _, tiny_s = rewriting_s(Rests(), size=size, piece=1 << 14, late_s=1, work_s=0)
    _, large_s = rewriting_s(Rests(), size=size, piece=LOOK_BYTES, late_s=1, work_s=0)
    assert tiny_s == pytest.approx(large_s)
    assert large_s == pytest.approx(2 * size / LOOK_BYTES * REST_S_MAX)


def test_a_segment_of_few_bytes_or_of_unknown_size_has_rests_too():
    for size in (0, 1000):
        rests = Rests()
        rests.begin(size, HOUR_S, 1200)
        assert rests.rest_s(1, HOUR_S + 1) == REST_S_MAX
        assert rests.rest_s(1, HOUR_S + 601) == 0


def test_without_a_rewriting_there_is_no_deadline():
    rests = Rests()
    rests.begin(1000, HOUR_S, 1200)
    rests.end()
    assert rests.rest_s(1, 2 * HOUR_S) == REST_S_MAX
