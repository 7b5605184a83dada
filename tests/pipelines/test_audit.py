"""Goal: an audit finds each kind of damage with its position and reason, and nothing else.

Method: both sides are frames made here, each partition damaged in its own way, so that one audit
judges all of them. The expected findings are written by hand.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from gateway.pipelines.audits.audit_job import AuditRequest, audit
from gateway.pipelines.audits.columns import BUCKET
from gateway.pipelines.audits.counting import TimeRange
from gateway.pipelines.audits.model import (
    Align,
    AuditReport,
    CleanupRules,
    LossReason,
    PartitionComparison,
    Side,
)
from gateway.pipelines.audits.report import as_data, as_text
from gateway.pipelines.audits.sides import filter_ranges
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from gateway.pipelines.shared.topics import OffsetBounds
from ledger.adapters.system.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.proof]

START_MS = 1_760_000_000_000
COUNT = 40
SCHEMA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, ms BIGINT,"
    " headers ARRAY<STRUCT<key: STRING, value: BINARY>>, timestampType INT"
)


class One(NamedTuple):
    """A record of the frames."""

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_type: int = 0


def log(topic: str, partition: int, first: int = 0, count: int = COUNT) -> list[One]:
    return [
        One(b"k%d" % (n % 5), b"v%d" % n, topic, partition, first + n, START_MS + n)
        for n in range(count)
    ]


def side(
    spark: SparkSession,
    name: str,
    records: Iterable[One],
    bounds: dict[TopicPartition, OffsetBounds],
    **more: Any,
) -> Side:
    rows = [(*one[:6], list(one.headers) or None, one.timestamp_type) for one in records]
    frame = spark.createDataFrame(rows, SCHEMA).selectExpr(
        "key", "value", "topic", "partition", "offset",
        "timestamp_millis(ms) AS timestamp", "timestampType", "headers",
    )  # fmt: skip
    return Side(name, bounds, lambda ranges: filter_ranges(spark, frame, ranges), **more)


class Damage:
    """Two copies of a log, damaged record by record."""

    def __init__(self) -> None:
        self.left: list[One] = []
        self.right: list[One] = []
        self.left_bounds: dict[TopicPartition, OffsetBounds] = {}
        self.right_bounds: dict[TopicPartition, OffsetBounds] = {}

    def partition(self, topic: str, number: int, start: int = 0) -> None:
        """Add a partition, equal on both sides, but the right one begins at `start`."""
        records = log(topic, number)
        self.left += records
        self.right += records[start:]
        self.left_bounds[TopicPartition(topic, number)] = OffsetBounds(0, COUNT)
        self.right_bounds[TopicPartition(topic, number)] = OffsetBounds(start, COUNT)

    def change(self, topic: str, number: int, at_offset: int, **fields: Any) -> None:
        at = next(n for n, one in enumerate(self.right) if one[2:5] == (topic, number, at_offset))
        self.right[at] = self.right[at]._replace(**fields)

    def remove(self, topic: str, number: int, *offsets: int, left: bool = False) -> None:
        gone = {(topic, number, offset) for offset in offsets}
        self.right = [one for one in self.right if one[2:5] not in gone]
        if left:
            self.left = [one for one in self.left if one[2:5] not in gone]


EQUAL, HOLE, VALUE, TWICE, NULLS, HEADERS, BOTH, CUT, TAIL = range(9)


def damaged() -> Damage:
    """Make topic `plain` with one fault per partition, and `old`, `large` and `tidy`.

    The last three are named after their topic settings.
    """
    found = Damage()
    for number in range(9):
        found.partition("plain", number, start=12 if number == CUT else 0)
    found.remove("plain", HOLE, 7, 8)
    found.change("plain", VALUE, 3, value=b"other", ms=START_MS)
    found.change("plain", TWICE, 10, offset=9, value=b"v9", ms=START_MS + 9, key=b"k4")
    found.change("plain", NULLS, 5, key=None, value=b"k0")
    found.left = [
        one._replace(value=None) if one[2:5] == ("plain", NULLS, 5) else one for one in found.left
    ]
    found.change("plain", HEADERS, 6, headers=(("h", None),))
    found.remove("plain", BOTH, 20, left=True)
    found.remove("plain", TAIL, COUNT - 1)
    found.partition("old", 0, start=30)
    found.partition("large", 0, start=30)
    found.partition("tidy", 0)
    found.remove("tidy", 0, 2, 3, COUNT - 1)  # the last is the only one of its key from then on
    found.left_bounds[TopicPartition("plain", 9)] = OffsetBounds(0, COUNT)
    found.left += log("plain", 9)
    return found


RULES = {
    "plain": CleanupRules(),
    "old": CleanupRules(retention_ms=1000),
    "large": CleanupRules(retention_bytes=100),
    "tidy": CleanupRules(compact=True, delete=False),
}


@pytest.fixture(scope="module")
def report(spark: SparkSession) -> AuditReport:
    """Audit with an archive on the left and the topic on the right."""
    found = damaged()
    left = side(spark, "archive", found.left, found.left_bounds)
    right = side(spark, "topic", found.right, found.right_bounds, rules=RULES, ordered=True)
    return audit(spark, left, right, AuditRequest(examples=100))


def partition(report: AuditReport, number: int, topic: str = "plain") -> PartitionComparison:
    (found,) = [each for each in report.partitions if each.topic_partition == (topic, number)]
    return found


def losses(
    report: AuditReport, number: int, topic: str = "plain"
) -> dict[str, tuple[int, int, int]]:
    """Return per reason the number, first and last of the right side's missing records."""
    here = [each for each in report.missing if each.topic_partition == (topic, number)]
    assert all(each.on == "right" for each in here)
    return {str(each.loss): (each.records, each.first, each.last) for each in here}


def what(report: AuditReport, number: int) -> dict[int, tuple[str, ...]]:
    here = [each for each in report.examples if each.topic_partition == ("plain", number)]
    return {each.position: each.what for each in here}


def test_equal_partitions_have_equal_checksums_and_no_findings(report: AuditReport) -> None:
    found = partition(report, EQUAL)
    assert found.left.checksum == found.right.checksum != 0
    assert (found.left.records, found.left.gaps, found.right.duplicates) == (COUNT, 0, 0)
    assert (found.right.disorder, found.right.back, found.left.back) == (0, 0, None)
    assert (found.left.first_ms, found.left.last_ms) == (START_MS, START_MS + COUNT - 1)
    assert not losses(report, EQUAL) and not what(report, EQUAL)


def test_records_missing_inside_the_log_are_lost(report: AuditReport) -> None:
    assert losses(report, HOLE) == {"LOST": (2, 7, 8)}
    assert what(report, HOLE) == dict.fromkeys((7, 8), ("missing on the right",))
    assert partition(report, HOLE).right.gaps == 2


def test_the_differing_columns_of_a_record_are_named(report: AuditReport) -> None:
    assert what(report, VALUE) == {3: ("value", "timestamp")}
    assert partition(report, VALUE).differ == 1


def test_a_duplicate_record_is_found_even_if_the_count_is_right(
    report: AuditReport,
) -> None:
    found = partition(report, TWICE)
    assert (found.left.records, found.right.records) == (COUNT, COUNT)
    assert (found.right.duplicates, found.left.duplicates) == (1, 0)
    assert found.right.disorder == 1
    assert what(report, TWICE) == {9: ("2 times on the right",), 10: ("missing on the right",)}


def test_a_null_key_is_no_null_value(report: AuditReport) -> None:
    assert what(report, NULLS) == {5: ("key", "value")}


def test_headers_count(report: AuditReport) -> None:
    assert what(report, HEADERS) == {6: ("headers",)}


def test_an_offset_that_neither_side_has_is_a_gap(report: AuditReport) -> None:
    found = partition(report, BOTH)
    assert (found.gaps, found.unexplained_gaps) == (1, 1)
    assert not losses(report, BOTH)


def test_records_below_the_log_start_are_truncated(report: AuditReport) -> None:
    assert losses(report, CUT) == {"truncated": (12, 0, 11)}


def test_records_older_than_retention_ms_are_expired(report: AuditReport) -> None:
    assert losses(report, 0, "old") == {"expired": (30, 0, 29)}


def test_records_beyond_retention_bytes_are_expired(report: AuditReport) -> None:
    assert losses(report, 0, "large") == {"expired": (30, 0, 29)}


def test_a_repeated_key_is_compacted_and_any_other_is_lost(
    report: AuditReport,
) -> None:
    assert losses(report, 0, "tidy") == {"compacted": (2, 2, 3), "LOST": (1, 39, 39)}


def test_a_missing_last_record_is_lost_and_so_is_a_whole_partition(report: AuditReport) -> None:
    assert losses(report, TAIL) == {"LOST": (1, COUNT - 1, COUNT - 1)}
    assert losses(report, 9) == {"LOST": (COUNT, 0, COUNT - 1)}


def test_all_that_is_not_explained_counts_as_a_difference(report: AuditReport) -> None:
    lost = 2 + 1 + 1 + COUNT + 1  # a hole, one for another, a tail, a partition, a last of its key
    differ, twice, disorder, gaps = 3, 1, 1, 1
    assert report.losses[LossReason.LOST] == lost
    assert report.differences == lost + differ + twice + disorder + gaps
    assert report.verdict == "differs"


def test_text_and_json_report_the_same(report: AuditReport) -> None:
    data, text = as_data(report), as_text(report)
    assert data["losses"]["LOST"] == report.losses[LossReason.LOST]
    assert len(data["partitions"]) == len(report.partitions)
    assert f"{report.losses[LossReason.LOST]} LOST" in text
    assert "plain-3 at 9: 2 times on the right" in text
    assert str(partition(report, EQUAL).left.checksum) in text


# --- reasons for missing records ------------------------------------------------------------------

HOUR_MS = 3_600_000


def tidy(
    spark: SparkSession,
    records: list[One],
    missing: set[int],
    rules: CleanupRules,
    wanted: AuditRequest | None = None,
    end: int = COUNT,
    **more: Any,
) -> AuditReport:
    """Audit all records against a compacted topic that ends at `end` and lacks some."""
    left = side(spark, "all", records, {TopicPartition("t", 0): OffsetBounds(0, COUNT)})
    kept = [one for one in records if one.offset not in missing and one.offset < end]
    bounds = {TopicPartition("t", 0): OffsetBounds(0, end)}
    right = side(spark, "topic", kept, bounds, rules={"t": rules}, **more)
    return audit(spark, left, right, wanted or AuditRequest())


def aged(hours: dict[int, int], keys: dict[int, bytes], nulls: set[int]) -> list[One]:
    """Make a recent log with some older records. All keys differ, except for some."""
    now_ms = SystemClock().now_ms()
    return [
        one._replace(
            key=keys.get(one.offset, b"only %d" % one.offset),
            value=None if one.offset in nulls else one.value,
            ms=now_ms - hours.get(one.offset, 1) * HOUR_MS,
        )
        for one in log("t", 0)
    ]


COMPACT = CleanupRules(compact=True, delete=False)


def test_a_deletion_may_be_removed_after_delete_retention_ms(spark: SparkSession) -> None:
    records = aged({3: 50, 4: 20}, {}, nulls={3, 4})
    for keeps_hours, told in (
        (24, {"compacted": (1, 3, 3), "LOST": (1, 4, 4)}),
        (51, {"LOST": (2, 3, 4)}),
        (0, {"compacted": (2, 3, 4)}),
    ):
        rules = COMPACT._replace(tombstone_ms=keeps_hours * HOUR_MS)
        assert losses(tidy(spark, records, {3, 4}, rules), 0, "t") == told


def test_a_deletion_whose_key_is_repeated_may_be_removed_at_once(spark: SparkSession) -> None:
    records = aged({}, {3: b"k", 9: b"k"}, nulls={3})
    assert losses(tidy(spark, records, {3}, COMPACT), 0, "t") == {"compacted": (1, 3, 3)}


def test_a_record_too_new_for_compaction_is_lost_and_supersedes_no_other(
    spark: SparkSession,
) -> None:
    """Offset 3 and its successor are old, 4 is new, 5 has only a new successor."""
    hours = {3: 9, 13: 8, 4: 2, 14: 2, 5: 9, 15: 2, 6: 6}
    keys = {3: b"a", 13: b"a", 4: b"b", 14: b"b", 5: b"c", 15: b"c"}
    records = aged(hours, keys, nulls={6})
    rules = COMPACT._replace(lag_ms=5 * HOUR_MS, tombstone_ms=2 * HOUR_MS)
    told = losses(tidy(spark, records, {3, 4, 5, 6}, rules), 0, "t")
    assert told == {"compacted": (1, 3, 3), "LOST": (3, 4, 6)}


def test_records_that_were_never_in_a_log_compact_nothing_there(spark: SparkSession) -> None:
    records = aged({}, {3: b"k", 30: b"k"}, nulls=set())
    report = tidy(spark, records, {3}, COMPACT, AuditRequest(common=True), end=20)
    assert losses(report, 0, "t") == {"LOST": (1, 3, 3), "outside": (20, 20, 39)}


def test_records_outside_the_requested_offsets_still_compact_others(spark: SparkSession) -> None:
    records = aged({}, {3: b"k", 30: b"k"}, nulls=set())
    wanted = AuditRequest(
        left_offsets={TopicPartition("t", 0): OffsetBounds(0, 20)},
        right_offsets={TopicPartition("t", 0): OffsetBounds(0, 20)},
    )
    report = tidy(spark, records, {3}, COMPACT, wanted)
    assert losses(report, 0, "t") == {"compacted": (1, 3, 3)}


def test_records_appended_during_an_audit_may_compact_others(spark: SparkSession) -> None:
    """The archive ends where the log ended at first; afterwards a cleaner removed 3."""
    records = aged({}, {3: b"k", 30: b"k"}, set())
    bounds = {TopicPartition("t", 0): OffsetBounds(0, 20)}
    left = side(spark, "archive", records[:20], bounds)
    kept = [one for one in records if one.offset not in (3, 4)]
    grown = {TopicPartition("t", 0): OffsetBounds(0, COUNT)}
    right = side(spark, "topic", kept, bounds, rules={"t": COMPACT}, now=lambda: grown)
    report = audit(spark, left, right, AuditRequest())
    assert losses(report, 0, "t") == {"compacted": (1, 3, 3), "LOST": (1, 4, 4)}


def test_a_record_without_a_key_does_not_outlive_compaction(spark: SparkSession) -> None:
    """The topic was not always compacted. A record that is too new stays."""
    records = aged({3: 9, 4: 2, 5: 9}, {}, nulls=set())
    records = [one._replace(key=None) if one.offset in (3, 4) else one for one in records]
    rules = COMPACT._replace(lag_ms=5 * HOUR_MS)
    told = losses(tidy(spark, records, {3, 4, 5}, rules), 0, "t")
    assert told == {"compacted": (1, 3, 3), "LOST": (2, 4, 5)}


def test_nothing_is_compacted_in_a_log_that_the_other_side_reads_as_never_compacted(
    spark: SparkSession,
) -> None:
    records, bounds = (
        aged({}, {3: b"k", 30: b"k"}, set()),
        {TopicPartition("t", 0): OffsetBounds(0, COUNT)},
    )
    ids = {"t": "one"}
    left = side(spark, "segments", records, bounds, rules={"t": CleanupRules()}, topic_ids=ids)
    kept = [one for one in records if one.offset != 3]
    right = side(spark, "topic", kept, bounds, rules={"t": COMPACT}, topic_ids=ids)
    assert losses(audit(spark, left, right, AuditRequest()), 0, "t") == {"LOST": (1, 3, 3)}


def test_a_gap_on_both_sides_is_only_explained_if_both_are_compacted(spark: SparkSession) -> None:
    kept = [one for one in log("t", 0) if one.offset != 7]
    bounds = {TopicPartition("t", 0): OffsetBounds(0, COUNT)}
    for left_rules, unexplained in ((CleanupRules(), 1), (COMPACT, 0)):
        left = side(spark, "left", kept, bounds, rules={"t": left_rules})
        right = side(spark, "right", kept, bounds, rules={"t": COMPACT})
        (found,) = audit(spark, left, right, AuditRequest()).partitions
        assert (found.gaps, found.unexplained_gaps) == (1, unexplained)


def test_another_record_of_an_aborted_transaction_explains_nothing(spark: SparkSession) -> None:
    records, bounds = log("t", 0), {TopicPartition("t", 0): OffsetBounds(0, COUNT)}
    left = side(spark, "archive", records, bounds)
    aborted = [one._replace(value=b"other") if one.offset == 4 else one for one in records]
    shown = [one for one in records if one.offset not in (4, 5)]
    right = side(
        spark,
        "topic",
        shown,
        bounds,
        rules={"t": CleanupRules()},
        uncommitted=side(spark, "uncommitted", aborted, bounds).read,
    )
    report = audit(spark, left, right, AuditRequest())
    assert losses(report, 0, "t") == {"aborted": (1, 5, 5), "LOST": (1, 4, 4)}


@pytest.mark.parametrize("base", [0, BUCKET - 10], ids=["one bucket", "two buckets"])
def test_offsets_that_were_accepted_as_lost_explain_no_others(
    spark: SparkSession, base: int
) -> None:
    """Both sides have the accepted offsets, and both lack as many others."""
    gone, accepted = {base + 20, base + 21}, OffsetRange("t", 0, base + 4, base + 6)
    records = [one for one in log("t", 0, base) if one.offset not in gone]
    bounds = {TopicPartition("t", 0): OffsetBounds(base, base + COUNT)}
    left = side(spark, "archive", records, bounds, accepted=(accepted,))
    right = side(spark, "topic", records, bounds, rules={"t": CleanupRules()})
    (found,) = audit(spark, left, right, AuditRequest()).partitions
    assert (found.gaps, found.unexplained_gaps) == (2, 2)


def test_offsets_that_were_accepted_as_lost_and_are_gone_are_explained(
    spark: SparkSession,
) -> None:
    records = [one for one in log("t", 0) if one.offset not in (4, 5, 20)]
    bounds = {TopicPartition("t", 0): OffsetBounds(0, COUNT)}
    accepted = (OffsetRange("t", 0, 5, 6), OffsetRange("t", 0, 19, 21), OffsetRange("t", 1, 4, 5))
    left = side(spark, "archive", records, bounds, accepted=accepted)
    right = side(spark, "topic", records, bounds, rules={"t": CleanupRules()})
    (found,) = audit(spark, left, right, AuditRequest()).partitions
    assert (found.gaps, found.unexplained_gaps) == (3, 1)


def test_nothing_is_explained_by_another_topic_of_that_name(spark: SparkSession) -> None:
    """Its log start and settings explain nothing about the old topic."""
    records = log("t", 0)
    left = side(
        spark,
        "archive",
        records[:6] + records[10:],
        {TopicPartition("t", 0): OffsetBounds(0, COUNT)},
        topic_ids={"t": "old"},
        accepted=(OffsetRange("t", 0, 6, 10),),
    )
    right = side(
        spark,
        "topic",
        records[5:],
        {TopicPartition("t", 0): OffsetBounds(5, COUNT)},
        topic_ids={"t": "new"},
        rules={"t": CleanupRules()},
    )
    report = audit(spark, left, right, AuditRequest())
    assert report.losses[LossReason.LOST] == 5 + 4 and report.verdict == "differs"
    assert "topic t has two ids (old, new)" in report.notes[0]


def test_a_copy_in_another_cluster_is_explained_by_its_own_log(spark: SparkSession) -> None:
    """Two live logs of one name belong to two clusters, so neither topic was recreated."""
    records = aged(dict.fromkeys(range(8), 30), {3: b"k", 9: b"k"}, nulls=set())
    bounds = {TopicPartition("t", 0): OffsetBounds(0, COUNT)}
    left = side(spark, "here", records, bounds, topic_ids={"t": "one"}, rules={"t": CleanupRules()})
    right = side(
        spark,
        "there",
        records[5:20] + records[21:],
        {TopicPartition("t", 0): OffsetBounds(5, COUNT)},
        topic_ids={"t": "two"},
        rules={"t": CleanupRules(retention_ms=24 * HOUR_MS)},
    )
    report = audit(spark, left, right, AuditRequest())
    assert losses(report, 0, "t") == {"expired": (5, 0, 4), "LOST": (1, 20, 20)}
    assert "a copy; " in report.notes[0]


# --- other ways to compare -----------------------------------------------------------------------


def test_records_that_may_be_missing_are_no_difference(spark: SparkSession) -> None:
    records = log("t", 0)
    place = TopicPartition("t", 0)
    left = side(
        spark, "left", records, {place: OffsetBounds(0, COUNT)}, rules={"t": CleanupRules()}
    )
    right = side(
        spark,
        "right",
        records[5:7] + records[9:30],
        {place: OffsetBounds(5, 30)},
        accepted=(OffsetRange("t", 0, 7, 8), OffsetRange("t", 0, 8, 9)),
    )
    report = audit(spark, left, right, AuditRequest(common=True))
    assert losses(report, 0, "t") == {"outside": (15, 0, 39), "accepted": (2, 7, 8)}
    assert (report.verdict, report.differences, report.examples) == ("explained", 0, ())


def test_aborted_records_are_visible_to_read_uncommitted(
    spark: SparkSession,
) -> None:
    records, bounds = log("t", 0), {TopicPartition("t", 0): OffsetBounds(0, COUNT)}
    everything = side(spark, "all", records, bounds)
    shown = [one for one in records if one.offset not in (4, 5)]
    committed = side(
        spark, "committed", shown, bounds, rules={"t": CleanupRules()}, uncommitted=everything.read
    )
    report = audit(spark, everything, committed, AuditRequest())
    assert losses(report, 0, "t") == {"aborted": (2, 4, 5)}
    assert report.verdict == "explained"


def test_a_copy_with_other_offsets_and_name_is_equal_by_rank(spark: SparkSession) -> None:
    first, again, holes = (log("t", 0), log("u", 0, 700), log("u", 1, 700))
    source = [*first, *(one._replace(partition=1) for one in first if one.offset not in (3, 4))]
    left = side(
        spark, "t", source, {TopicPartition("t", n): OffsetBounds(0, COUNT) for n in (0, 1)}
    )
    copies = [*again, *(one for one in holes if one.offset not in (710, 711))]
    ends = {TopicPartition("u", n): OffsetBounds(700, 700 + COUNT) for n in (0, 1)}
    right = side(spark, "u", copies, ends, ordered=True)
    report = audit(spark, left, right, AuditRequest(Align.rank, examples=1))
    dense, gappy = report.partitions
    assert (dense.differ, dense.left.checksum) == (0, dense.right.checksum)
    # Numbered, records 3 to 9 of the one stand beside 5 to 11 of the other.
    assert (gappy.differ, gappy.left.gaps, gappy.right.gaps) == (7, 2, 2)
    (example,) = report.examples
    assert example.what == ("key", "value", "timestamp")
    assert example.left is not None and example.right is not None
    assert (example.left["offset"], example.right["offset"]) == (5, 703)


def test_another_timestamp_type_is_another_record(spark: SparkSession) -> None:
    records, bounds = log("t", 0), {TopicPartition("t", 0): OffsetBounds(0, COUNT)}
    left = side(spark, "topic", records, bounds)
    stamped = [*records[:7], records[7]._replace(timestamp_type=1), *records[8:]]
    right = side(spark, "copy", stamped, bounds)
    report = audit(spark, left, right, AuditRequest())
    assert (report.differences, report.examples[0].what) == (1, ("timestampType",))
    assert audit(spark, left, right, AuditRequest(any_timestamp_type=True)).verdict == "equal"


def test_records_out_of_order_are_a_difference_though_none_is_missing(spark: SparkSession) -> None:
    records, bounds = log("t", 0), {TopicPartition("t", 0): OffsetBounds(0, COUNT)}
    swapped = [*records[:4], records[5], records[4], *records[6:]]
    left = side(spark, "archive", records, bounds)
    right = side(spark, "topic", swapped, bounds, ordered=True)
    report = audit(spark, left, right, AuditRequest())
    assert (report.verdict, report.differences) == ("differs", 1)
    assert report.partitions[0].right.disorder == 1 and not report.missing


def test_only_the_wanted_offsets_and_times_are_compared(spark: SparkSession) -> None:
    records, bounds = log("t", 0), {TopicPartition("t", 0): OffsetBounds(0, COUNT)}
    left = side(spark, "left", records, bounds)
    right = side(spark, "right", records[10:20], bounds)
    ranges = {TopicPartition("t", 0): OffsetBounds(10, 30)}
    wanted = AuditRequest(times=TimeRange(None, START_MS + 20), left_offsets=ranges)
    report = audit(spark, left, right, wanted)
    assert (report.verdict, report.partitions[0].left.records) == ("equal", 10)


def test_records_outside_the_requested_offsets_are_not_called_truncated(
    spark: SparkSession,
) -> None:
    records = log("t", 0)
    left = side(
        spark,
        "topic",
        records[5:],
        {TopicPartition("t", 0): OffsetBounds(5, COUNT)},
        rules={"t": CleanupRules()},
    )
    right = side(spark, "archive", records, {TopicPartition("t", 0): OffsetBounds(0, COUNT)})
    wanted = AuditRequest(
        examples=0, left_offsets={TopicPartition("t", 0): OffsetBounds(10, COUNT)}
    )
    report = audit(spark, left, right, wanted)
    assert (report.losses[LossReason.truncated], report.losses[LossReason.LOST]) == (5, 5)


def test_offsets_of_a_missing_partition_are_refused(spark: SparkSession) -> None:
    left = side(spark, "left", log("t", 0), {TopicPartition("t", 0): OffsetBounds(0, COUNT)})
    wanted = AuditRequest(left_offsets={TopicPartition("typo", 0): OffsetBounds(0, 10)})
    with pytest.raises(JobError, match="left has no typo-0"):
        audit(spark, left, left, wanted)
