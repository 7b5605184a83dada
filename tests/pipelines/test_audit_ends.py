"""Goal: an audit compares the ends of one moment, and hides no record that is missing in truth.

Method: sides without records, whose logs grow by script at each look; a clock that only waiting
moves. And reports made here, for what the verdict counts; sources and settings in words.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gateway.pipelines.audits.ends import EndSettler, SettledSides, same_log_topics
from gateway.pipelines.audits.model import (
    Align,
    AuditReport,
    CleanupRules,
    LossReason,
    MissingRecords,
    PartitionComparison,
    PartitionTotals,
    Ranges,
    Side,
)
from gateway.pipelines.audits.sides import cleanup_rules
from gateway.pipelines.audits.sources import parse_source
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import TopicPartition
from gateway.pipelines.shared.topics import OffsetBounds
from ledger.adapters.system.clock import SystemClock

PLACE = TopicPartition("t", 0)


class HandClock(SystemClock):
    """A clock that only `wait` moves."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def monotonic_s(self) -> float:
        return self._now_s

    def wait(self, wait_s: float) -> None:
        self._now_s += wait_s


def side(start: int, end: int, *looks: int, **more: Any) -> Side:
    """Make a side whose log has these ends at later looks, and then the last of them."""
    ends = iter(looks)
    last = end

    def now() -> Ranges:
        nonlocal last
        last = next(ends, last)
        return {PLACE: OffsetBounds(start, last)} if looks else {}

    def read(ranges: Ranges) -> Any:
        raise AssertionError(f"nobody reads {ranges}")

    return Side("side", {PLACE: OffsetBounds(start, end)}, read, now=now, **more)


def settled(
    left: Side, right: Side, align: Align = Align.offset, same: bool = True
) -> SettledSides:
    clock = HandClock()
    topics = frozenset({"t"}) if same else frozenset[str]()
    return EndSettler(left, right, align, topics, clock, clock.wait).settle()


def ends(found: SettledSides) -> tuple[int, int, int, int]:
    """Return both ends, and what is after them."""
    left, right = found.left.bounds[PLACE].latest, found.right.bounds[PLACE].latest
    return left, right, found.later["left"], found.later["right"]


def test_a_log_that_was_looked_at_first_is_compared_up_to_the_end_of_the_second() -> None:
    assert ends(settled(side(0, 100, 130), side(0, 120, 140))) == (120, 120, 0, 0)
    assert ends(settled(side(0, 120, 130), side(0, 100, 110, 125))) == (120, 120, 0, 0)


def test_a_log_that_ends_early_for_good_lacks_the_records_in_truth() -> None:
    assert ends(settled(side(0, 120, 120), side(0, 100, 110, 110))) == (120, 100, 0, 0)


def test_a_topic_is_compared_up_to_the_end_of_its_archive() -> None:
    found = settled(side(0, 150, 150), side(0, 100))
    assert ends(found) == (100, 100, 50, 0)
    assert found.left.log(PLACE) == OffsetBounds(0, 150)


def test_an_archive_with_more_than_its_topic_shows_what_the_topic_lost() -> None:
    assert ends(settled(side(0, 100, 100), side(0, 150))) == (100, 150, 0, 0)


def test_a_copy_that_is_no_archive_of_the_topic_is_not_excused() -> None:
    """A replay that wrote the records twice, or an archive of another topic of that name."""
    assert ends(settled(side(0, 200), side(0, 400, 400), same=False)) == (200, 400, 0, 0)
    ranked = settled(side(5, 205), side(0, 400, 400), Align.rank, same=False)
    assert ends(ranked) == (205, 400, 0, 0)


def test_a_copy_may_follow_a_log_that_grows() -> None:
    """Ranks are compared: the left side has 200 records, the right one 300 and more."""
    found = settled(side(50, 250, 250), side(10, 310, 320, 330), Align.rank, same=False)
    assert ends(found) == (250, 210, 0, 100)


def test_an_end_below_the_log_start_leaves_nothing_to_compare() -> None:
    assert ends(settled(side(150, 200, 200), side(0, 100))) == (150, 100, 50, 0)


def test_a_log_that_never_catches_up_is_not_waited_for_without_end() -> None:
    growing: Iterator[int] = iter(range(101, 1_000_000))
    slow = side(0, 100, *(next(growing) for _ in range(2_000)))
    assert ends(settled(slow, side(0, 10_000, 10_000)))[:2] == (100, 10_000)


def test_sides_show_one_log_unless_both_ids_are_known_and_differ() -> None:
    one, other = ({"topic_ids": {"t": each}} for each in ("one", "other"))
    assert same_log_topics(side(0, 1, **one), side(0, 1, **one)) == {"t"}
    assert same_log_topics(side(0, 1, **one), side(0, 1)) == {"t"}
    assert same_log_topics(side(0, 1, **one), side(0, 1, **other)) == frozenset()


# --- the verdict ----------------------------------------------------------------------------------

EMPTY = PartitionTotals(0, 9, 9)


def report(
    *missing: LossReason,
    left: PartitionTotals = EMPTY,
    right: PartitionTotals = EMPTY,
    strict: bool = False,
    **found: int,
) -> AuditReport:
    lines = tuple(MissingRecords(PLACE, "right", each, 2, 0, 1, 0, 0) for each in missing)
    partitions = (PartitionComparison(PLACE, left, right, **found),)
    return AuditReport("l", "r", Align.offset, partitions, lines, strict=strict)


@pytest.mark.parametrize(
    ("found", "differences"),
    [
        (report(), 0),
        (report(LossReason.LOST), 2),
        (report(differ=3), 3),
        (report(gaps=5, unexplained_gaps=4), 4),
        (report(left=PartitionTotals(0, 9, 9, duplicates=1)), 1),
        (report(right=PartitionTotals(0, 9, 9, duplicates=2)), 2),
        (report(left=PartitionTotals(0, 9, 9, disorder=1)), 1),
        (report(right=PartitionTotals(0, 9, 9, disorder=2)), 2),
        (report(right=PartitionTotals(0, 9, 9, disorder=None, back=7)), 0),
    ],
)
def test_each_kind_of_damage_counts(found: AuditReport, differences: int) -> None:
    assert found.differences == differences
    assert found.verdict == ("differs" if differences else "equal")


def test_only_a_strict_audit_counts_what_was_removed_legitimately() -> None:
    removed = (LossReason.truncated, LossReason.expired, LossReason.compacted, LossReason.outside)
    assert (report(*removed).differences, report(*removed).verdict) == (0, "explained")
    strict = report(*removed, strict=True)
    assert (strict.differences, strict.verdict) == (4, "differs")


# --- words ---------------------------------------------------------------------------------------


def test_a_source_is_a_kind_a_location_and_sometimes_a_topic() -> None:
    assert parse_source("topic:a") == ("topic", "a", None)
    assert parse_source("archive:/x/#1#t") == ("archive", "/x/#1", "t")
    assert parse_source("iceberg:lake.db.t") == ("iceberg", "lake.db.t", None)


@pytest.mark.parametrize("text", ["", "t", "topic:", "archive:#t", "archive:/x#", "kafka:t"])
def test_an_invalid_source_is_refused_with_the_grammar(text: str) -> None:
    with pytest.raises(JobError, match=r"archive:PATH\[#TOPIC\]") as refused:
        parse_source(text)
    assert refused.value.code == "USAGE"


def test_the_settings_of_a_topic_determine_the_cleanup_rules() -> None:
    assert cleanup_rules({}) == CleanupRules()
    told = {"cleanup.policy": "compact,delete", "retention.ms": "5", "retention.bytes": "-1"}
    assert cleanup_rules(told) == CleanupRules(compact=True, delete=True, retention_ms=5)
    told = {"cleanup.policy": "compact", "delete.retention.ms": "0", "min.compaction.lag.ms": "7"}
    assert cleanup_rules(told) == CleanupRules(compact=True, delete=False, tombstone_ms=0, lag_ms=7)
