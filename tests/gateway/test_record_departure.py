"""Goal: when a record goes is what `SegmentTable.expired` then does, and a cause is never guessed.

Method: the pure core, beside the ledger's own rule: before the earliest time, or with one byte too
few, it keeps the segment, and at it the segment is removed. Settings, segments and sizes are drawn.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.record_departure import (
    COMPACTION,
    RETENTION_BYTES,
    RETENTION_MS,
    TRUNCATION,
    RecordFacts,
    SegmentFacts,
    StartFacts,
    TopicRules,
    cause_of_deletion,
    departures,
    read_rules,
)
from ledger.core.segment_table import SegmentTable
from ledger.core.segments import Segment

NOW_MS = 1_000_000
RULES = TopicRules(True, False, 1_000, 5_000, 600, 0, 100)
CLOSED = SegmentFacts(NOW_MS - 400, newest=False, later_bytes=2_000)
RECORD = RecordFacts(has_key=True, tombstone=False, marker=False, timestamp_max=NOW_MS - 500)


def ways(rules=RULES, segment=CLOSED, record=RECORD):
    return {each.by: each for each in departures(rules, segment, record, NOW_MS)}


def test_all_four_ways_are_listed_in_a_fixed_order():
    assert list(ways()) == [RETENTION_MS, RETENTION_BYTES, COMPACTION, TRUNCATION]


def test_a_closed_segment_goes_its_time_after_it_was_closed():
    assert ways()[RETENTION_MS].earliest_ms == NOW_MS + 600
    assert ways()[RETENTION_MS].condition == ""


def test_a_segment_whose_time_is_over_goes_now():
    assert ways(segment=CLOSED._replace(closed_ms=1))[RETENTION_MS].earliest_ms == NOW_MS


def test_an_open_segment_goes_its_time_from_now_at_the_earliest():
    found = ways(segment=SegmentFacts(None, newest=True, later_bytes=0))
    assert found[RETENTION_MS].earliest_ms == NOW_MS + 1_000
    assert "closed" in found[RETENTION_MS].condition
    assert found[RETENTION_BYTES].bytes_to_come == 5_000


def test_the_newest_closed_segment_waits_for_a_later_one():
    found = ways(segment=CLOSED._replace(newest=True))
    assert "later segment" in found[RETENTION_MS].condition
    assert "later segment" in found[RETENTION_BYTES].condition


def test_the_bytes_to_come_are_those_that_the_later_segments_lack():
    assert ways()[RETENTION_BYTES].bytes_to_come == 3_000
    assert ways(segment=CLOSED._replace(later_bytes=9_000))[RETENTION_BYTES].bytes_to_come == 0


@pytest.mark.parametrize(
    "rules", [RULES._replace(deletes=False), RULES._replace(retention_ms=-1, retention_bytes=-1)]
)
def test_without_a_limit_retention_never_removes_it(rules):
    for by in (RETENTION_MS, RETENTION_BYTES):
        assert not ways(rules)[by].applies
        assert ways(rules)[by].earliest_ms is ways(rules)[by].bytes_to_come is None


def test_compaction_needs_the_policy_and_a_key():
    assert not ways()[COMPACTION].applies
    compacts = RULES._replace(compacts=True)
    assert ways(compacts)[COMPACTION].applies
    assert not ways(compacts, record=RECORD._replace(has_key=False))[COMPACTION].applies


def test_compaction_waits_for_its_lag():
    compacts = RULES._replace(compacts=True, compaction_lag_ms=700)
    assert ways(compacts)[COMPACTION].earliest_ms == NOW_MS + 200
    old = RECORD._replace(timestamp_max=5)
    assert ways(compacts, record=old)[COMPACTION].earliest_ms == NOW_MS


def test_a_tombstone_and_a_marker_name_their_own_condition():
    compacts = RULES._replace(compacts=True)
    tombstone = ways(compacts, record=RECORD._replace(tombstone=True))[COMPACTION]
    marker = ways(compacts, record=RECORD._replace(marker=True, has_key=False))[COMPACTION]
    assert "tombstone" in tombstone.condition
    assert marker.applies
    assert "transaction" in marker.condition


def test_settings_are_read_by_kafkas_names():
    found = read_rules(
        {
            "cleanup.policy": "compact, delete",
            "retention.ms": "5",
            "retention.bytes": "6",
            "segment.ms": "7",
            "min.compaction.lag.ms": "8",
            "delete.retention.ms": "9",
        }
    )
    assert found == TopicRules(True, True, 5, 6, 7, 8, 9)
    assert read_rules({}) == TopicRules(True, False, -1, -1, 0, 0, 0)


# -- the twin: the rule by which the owner removes segments ----------------------------------------


def table_of(closed_ms, sizes, *, open_bytes):
    """A table of completed segments, and one in progress at its end."""
    segments = [
        Segment(
            number=number,
            ledger=number,
            first_txid=0,
            start_sequence_id=10 * number,
            completed=True,
            completion_ms=at_ms,
            record_count=10,
            last_entry=0,
            last_slot=0,
        )
        for number, at_ms in enumerate(closed_ms, 1)
    ]
    count = len(segments)
    segments.append(
        Segment(number=count + 1, ledger=99, first_txid=0, start_sequence_id=10 * count + 10)
    )
    by_number = dict(enumerate([*sizes, open_bytes], 1))
    return SimpleNamespace(segments=segments, size_of=lambda segment: by_number[segment.number])


def removed(rig, rules, now_ms):
    return SegmentTable.expired(
        rig,
        now_ms=now_ms,
        ttl_ms=rules.retention_ms if rules.deletes else -1,
        bytes_max=rules.retention_bytes if rules.deletes else -1,
    )


def facts_of(rig, at):
    later = rig.segments[at + 1 :]
    return SegmentFacts(
        max(each.completion_ms for each in rig.segments[: at + 1]),
        newest=not any(each.completed for each in later),
        later_bytes=sum(map(rig.size_of, later)),
    )


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(1, 90)), min_size=2, max_size=6),
    st.integers(0, 400),
    st.data(),
)
def test_no_segment_goes_before_the_time_that_is_named_and_goes_at_it(drawn, ttl_ms, data):
    closed_ms = sorted(at for at, _ in drawn)
    rig = table_of(closed_ms, [size for _, size in drawn], open_bytes=5)
    rules = RULES._replace(retention_ms=ttl_ms, retention_bytes=-1)
    at = data.draw(st.integers(0, len(drawn) - 2))
    (by_time, *_) = departures(rules, facts_of(rig, at), RECORD, 0)
    assert removed(rig, rules, by_time.earliest_ms) > at
    if by_time.earliest_ms > 0:
        assert removed(rig, rules, by_time.earliest_ms - 1) <= at


@given(st.lists(st.integers(1, 90), min_size=2, max_size=6), st.integers(0, 300), st.data())
def test_no_segment_goes_before_the_bytes_that_are_named_and_goes_after_them(sizes, limit, data):
    rules = RULES._replace(retention_ms=-1, retention_bytes=limit)
    rig = table_of([0] * len(sizes), sizes, open_bytes=5)
    at = data.draw(st.integers(0, len(sizes) - 2))
    _, by_size, *_ = departures(rules, facts_of(rig, at), RECORD, 0)
    left = by_size.bytes_to_come
    assert removed(table_of([0] * len(sizes), sizes, open_bytes=5 + left), rules, 0) > at
    if left:
        fewer = table_of([0] * len(sizes), sizes, open_bytes=5 + left - 1)
        assert removed(fewer, rules, 0) <= at


# -- why it went -----------------------------------------------------------------------------------

REMOVED = StartFacts(listed=False, inside=False, oldest_began_ms=NOW_MS - 2_000, bytes_left=1_000)


def cause(rules=RULES, **changes):
    return cause_of_deletion(rules, REMOVED._replace(**changes), NOW_MS)


def test_a_segment_that_is_still_listed_was_truncated():
    assert cause(listed=True) == TRUNCATION


def test_the_one_limit_that_can_have_removed_it_is_named():
    assert cause() == RETENTION_MS
    assert cause(oldest_began_ms=NOW_MS - 10, bytes_left=5_000) == RETENTION_BYTES


def test_no_cause_is_named_if_two_are_possible_or_none_is():
    assert cause(bytes_left=5_000) is None
    assert cause(inside=True) is None
    assert cause(oldest_began_ms=NOW_MS - 10) is None


def test_what_is_not_known_rules_nothing_out():
    assert cause(oldest_began_ms=None, bytes_left=None) is None
    only_time = RULES._replace(retention_bytes=-1)
    assert cause(only_time, oldest_began_ms=None) == RETENTION_MS


def test_a_topic_that_never_deletes_lost_it_by_a_truncation_inside_a_segment_only():
    kept = RULES._replace(deletes=False)
    assert cause(kept, inside=True) == TRUNCATION
    assert cause(kept) is None
