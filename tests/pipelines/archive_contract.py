"""The contract of every archive: one suite, run on Parquet and on Iceberg.

A test class inherits `ArchiveContract` and opens its archive in `opened`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from gateway.pipelines.archives.port import Archive, Commit, LostOffsets
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import COLUMNS, OffsetRange, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2024, 2, 28, 12, tzinfo=UTC)
PER_DAY = 10
"""Records of one partition and day."""


class Row(NamedTuple):
    """A record as an archive returns it."""

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp: datetime
    timestampType: int
    headers: tuple[tuple[str, bytes | None], ...] | None
    day: date


def row(topic: str, partition: int, offset: int) -> Row:
    """Return the only record at that offset: nulls, headers and days in turn."""
    time = START + timedelta(days=offset // PER_DAY, milliseconds=offset % PER_DAY)
    key = None if offset % 5 == 0 else b"key %d" % offset
    value = None if offset % 7 == 0 else b"\x00\xff %s %d %d" % (topic.encode(), partition, offset)
    headers = (("n", b"%d" % offset), ("none", None), ("n", b"")) if offset % 3 == 0 else None
    return Row(key, value, topic, partition, offset, time, offset % 2, headers, time.date())


def rows(*ranges: OffsetRange) -> list[Row]:
    return [row(r.topic, r.partition, offset) for r in ranges for offset in range(r.start, r.end)]


def frame(spark: SparkSession, records: Iterable[Row]) -> DataFrame:
    return spark.createDataFrame([tuple(one[:-1]) for one in records], COLUMNS).coalesce(1)


def commit(
    *ranges: OffsetRange, lost: tuple[LostOffsets, ...] = (), sparse: bool = False
) -> Commit:
    topics = {each.topic for each in ranges}
    ids = {topic: f"id of {topic}" for topic in topics}
    return Commit(ranges, ids, lost, frozenset(topics) if sparse else frozenset())


def read(archive: Archive, *topics: str) -> list[Row]:
    """Read all archived records by partition and offset."""

    def binary(value: bytearray | None) -> bytes | None:
        return None if value is None else bytes(value)

    def headers(of: Any) -> Any:
        return None if of is None else tuple((one["key"], binary(one["value"])) for one in of)

    found = []
    for one in archive.read(topics).withColumn("ms", _microseconds()).collect():
        time = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=one["ms"])
        place = (one["topic"], one["partition"], one["offset"])
        kept = (time, one["timestampType"], headers(one["headers"]), one["day"])
        found.append(Row(binary(one["key"]), binary(one["value"]), *place, *kept))
    return sorted(found, key=lambda each: each[2:5])


def _microseconds() -> Any:
    from pyspark.sql.functions import expr

    return expr("unix_micros(timestamp)")


class ArchiveContract:
    """Tests of one archive. `name` differs in every test."""

    def opened(self, spark: SparkSession, name: str) -> Archive:
        """Open the archive of that name as a new process would see it."""
        raise NotImplementedError

    @pytest.fixture
    def name(self) -> str:
        raise NotImplementedError

    def append(self, spark: SparkSession, name: str, *ranges: OffsetRange, **more: Any) -> bool:
        archive = self.opened(spark, name)
        records = frame(spark, rows(*ranges))
        return archive.append(records, commit(*ranges, **more), archive.state())

    def test_a_new_archive_is_empty(self, spark: SparkSession, name: str):
        archive = self.opened(spark, name)
        state = archive.state()
        assert (dict(state.ends), dict(state.topic_ids), state.lost) == ({}, {}, ())
        assert archive.ranges() == []
        assert [(*one,) for one in archive.read().dtypes] == [
            *((each.name, each.dataType.simpleString()) for each in _schema()),
            ("day", "date"),
        ]
        assert archive.read().count() == 0

    def test_appended_records_are_read_back_exactly(self, spark: SparkSession, name: str):
        first = OffsetRange("a", 0, 3, 23), OffsetRange("a", 1, 0, 9), OffsetRange("b", 0, 5, 5)
        then = OffsetRange("a", 0, 23, 31), OffsetRange("b", 0, 5, 8)
        assert self.append(spark, name, *first)
        assert self.append(spark, name, *then)
        archive = self.opened(spark, name)
        state = archive.state()
        assert state.ends == {
            TopicPartition("a", 0): 31,
            TopicPartition("a", 1): 9,
            TopicPartition("b", 0): 8,
        }
        assert state.topic_ids == {"a": "id of a", "b": "id of b"}
        joined = OffsetRange("a", 0, 3, 31), OffsetRange("a", 1, 0, 9), OffsetRange("b", 0, 5, 8)
        assert archive.ranges() == list(joined)
        assert read(archive) == rows(*joined)
        assert read(archive, "b", "unknown") == rows(joined[2])
        proof = archive.verify()
        assert (proof.rows, proof.problems) == (40, ())
        assert archive.verify(["b", "unknown"]).rows == 3

    def test_an_empty_range_records_where_a_partition_begins(self, spark: SparkSession, name: str):
        before = self.opened(spark, name).state().version
        assert self.append(spark, name, OffsetRange("a", 0, 7, 7))
        archive = self.opened(spark, name)
        assert archive.state().ends == {TopicPartition("a", 0): 7}
        assert archive.state().version != before
        assert archive.ranges() == []

    def test_of_two_appends_on_one_state_the_second_adds_nothing(
        self, spark: SparkSession, name: str
    ):
        one, other = self.opened(spark, name), self.opened(spark, name)
        seen = one.state(), other.state()
        mine, theirs = OffsetRange("a", 0, 0, 4), OffsetRange("a", 0, 0, 6)
        assert one.append(frame(spark, rows(mine)), commit(mine), seen[0])
        assert not other.append(frame(spark, rows(theirs)), commit(theirs), seen[1])
        assert read(other) == rows(mine)
        assert other.state().ends == {TopicPartition("a", 0): 4}
        rest = OffsetRange("a", 0, 4, 6)
        assert other.append(frame(spark, rows(rest)), commit(rest), other.state())
        assert read(one) == rows(theirs)

    def test_records_that_are_not_those_of_the_ranges_are_refused(
        self, spark: SparkSession, name: str
    ):
        assert self.append(spark, name, OffsetRange("a", 0, 0, 2))
        archive = self.opened(spark, name)
        before = archive.state()
        wanted = OffsetRange("a", 0, 2, 6)
        good = rows(wanted)
        wrong = {
            "one is missing": good[:2] + good[3:],
            "one is there twice, another is missing": [*good[:3], good[2]],
            "one is below": [row("a", 0, 1), *good[1:]],
            "one is of another partition": [*good, row("a", 1, 3)],
        }
        for what, records in wrong.items():
            with pytest.raises(JobError, match="a-"):
                archive.append(frame(spark, records), commit(wanted), before)
                pytest.fail(f"{what}: and it was taken")
        assert archive.state() == before
        assert read(self.opened(spark, name)) == rows(OffsetRange("a", 0, 0, 2))

    def test_of_sparse_topics_records_may_be_missing_but_never_doubled(
        self, spark: SparkSession, name: str
    ):
        wanted = OffsetRange("a", 0, 0, 30)
        some = [one for one in rows(wanted) if one.offset % 4]
        archive = self.opened(spark, name)
        with pytest.raises(JobError, match="a-0"):
            records = frame(spark, [*some, some[0]])
            archive.append(records, commit(wanted, sparse=True), archive.state())
        records = frame(spark, some)
        assert archive.append(records, commit(wanted, sparse=True), archive.state())
        assert read(archive) == some
        assert archive.ranges() == [wanted]

    def test_lost_offsets_are_recorded_and_split_the_ranges(self, spark: SparkSession, name: str):
        first, gone, then = (OffsetRange("a", 0, *each) for each in ((0, 4), (4, 9), (9, 12)))
        early, late = gone._replace(end=6), gone._replace(start=6)
        lost = (
            LostOffsets(early, 1_700_000_000_000),
            LostOffsets(late, 1_700_000_000_000, "unrepresentable: timestamp 9 ms"),
        )
        assert self.append(spark, name, first)
        assert self.append(spark, name, then, lost=lost)
        archive = self.opened(spark, name)
        assert archive.state().lost == lost
        assert archive.state().ends == {TopicPartition("a", 0): 12}
        assert archive.ranges() == [first, then]
        assert read(archive) == rows(first, then)

    def test_a_commit_that_is_not_confirmed_adds_nothing(self, spark: SparkSession, name: str):
        def refuse() -> None:
            raise JobError("the topic was recreated", "TOPIC_CHANGED")

        wanted = OffsetRange("a", 0, 0, 4)
        archive = self.opened(spark, name)
        before = archive.state()
        given = replace(commit(wanted), confirm=refuse)
        with pytest.raises(JobError, match="recreated"):
            archive.append(frame(spark, rows(wanted)), given, before)
        again = self.opened(spark, name)
        assert again.state().ends == {}
        assert read(again) == []
        assert self.append(spark, name, wanted)

    def test_topics_of_any_name_are_kept_apart(self, spark: SparkSession, name: str):
        names = ["2024", "2024-01-01", "1.50", "1.5", "null", "true", "A", "a", "x_y-z.", "a@1"]
        ranges = [OffsetRange(each, 0, 0, 2) for each in sorted(names)]
        assert self.append(spark, name, *ranges)
        archive = self.opened(spark, name)
        assert archive.ranges() == ranges
        assert read(archive) == rows(*ranges)
        assert read(archive, "1.5") == rows(OffsetRange("1.5", 0, 0, 2))

    def test_compaction_makes_few_files_of_the_same_records(self, spark: SparkSession, name: str):
        parts = [OffsetRange("a", 0, start, start + 3) for start in range(0, 9, 3)]
        assert all(self.append(spark, name, part) for part in parts)
        assert self.append(spark, name, OffsetRange("a", 1, 0, 5))
        archive = self.opened(spark, name)
        assert archive.compact(64 * 1024 * 1024) == (4, 2)
        again = self.opened(spark, name)
        assert read(again) == rows(OffsetRange("a", 0, 0, 9), OffsetRange("a", 1, 0, 5))
        assert again.ranges() == [OffsetRange("a", 0, 0, 9), OffsetRange("a", 1, 0, 5)]
        assert again.state().topic_ids == {"a": "id of a"}
        assert again.compact(64 * 1024 * 1024) == (2, 2)
        assert self.append(spark, name, OffsetRange("a", 0, 9, 11))
        assert again.state().ends == {TopicPartition("a", 0): 11, TopicPartition("a", 1): 5}
        assert read(archive, "a")[:11] == rows(OffsetRange("a", 0, 0, 11))


def _schema() -> Any:
    from pyspark.sql.types import StructType

    return StructType.fromDDL(COLUMNS)
