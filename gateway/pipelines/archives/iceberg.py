"""An archive in an Iceberg table: each commit a snapshot that says what it holds.

Records are written to a branch, counted there against their ranges, and published in one commit
that fails when anybody has changed the table since. The ranges, topic ids and losses up to a
snapshot stand in its summary, so that they go with it when somebody rolls back; and in the table's
properties, for the day when all snapshots of ours are expired. Layout: docs/formats/archive.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from gateway.pipelines.archives.checking import FOLD, OffsetSummary, check_records
from gateway.pipelines.archives.history import (
    FORMAT_KEY,
    KEYS,
    ArchiveHistory,
    from_properties,
    from_ranges,
)
from gateway.pipelines.archives.iceberg_table import IcebergSnapshot, IcebergTable
from gateway.pipelines.archives.port import ArchiveState, Commit, CompactionResult
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import COLUMNS, OffsetRange, TopicPartition
from ledger.adapters.system.clock import SystemClock
from ledger.ports.clock import Clock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SNAPSHOT_KEY = "archive.snapshot"
SEQUENCE_KEY = "archive.sequence-number"
"""Table properties: the snapshot that the other ones were written with."""
TRUSTED_KEY = "archive.trusted-snapshot"
"""A table property that people set: at this snapshot the properties are right."""

_NAMES = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
_DAY_US = 86_400_000_000
_DAY = f"date_from_unix_date(CAST(floor(unix_micros(timestamp) / {_DAY_US}BD) AS INT)) AS day"
"""In UTC, whatever the session's time zone."""


def _nothing(_: str) -> None:
    pass


class IcebergArchive:
    """The archive in `table`, `catalog.namespace.table`; made by the first append.

    `at_step` is told each step of an append, before it is done; when it raises what is no
    Exception, nothing is cleaned up.
    """

    def __init__(
        self,
        spark: SparkSession,
        table: str,
        *,
        clock: Clock | None = None,
        at_step: Callable[[str], None] = _nothing,
    ) -> None:
        self._spark = spark
        self._table = IcebergTable(spark, table, clock or SystemClock())
        self._at_step = at_step
        self._known: tuple[IcebergSnapshot | None, ArchiveHistory] = (None, ArchiveHistory())

    def state(self) -> ArchiveState:
        """As committed now; of an archive that does not exist yet: empty."""
        current, history = self._look()
        return history.state(_version(current))

    def ranges(self) -> list[OffsetRange]:
        """What is archived, joined where it is consecutive, in order."""
        return self._look()[1].ranges

    def append(self, records: DataFrame, commit: Commit, on: ArchiveState) -> bool:
        """True: exactly the records of the commit's ranges are in it, durably, all or nothing."""
        self._table.create()
        current, before = self._look()
        if _version(current) != on.version:
            return False
        history = before.after(commit)
        for stale in self._table.stale_branches():
            self._discard(stale)
        self._at_step("branch")
        branch = self._table.branch(current)
        published = False
        try:
            published = self._append(branch, records, commit, current, history)
        except Exception:
            self._discard(branch)
            raise
        if not published:
            self._discard(branch)
        return published

    def _discard(self, branch: str) -> None:
        with suppress(Exception):  # what stays nobody reads, and it is removed a day later
            self._table.discard(branch)

    def _append(
        self,
        branch: str,
        records: DataFrame,
        commit: Commit,
        current: IcebergSnapshot | None,
        history: ArchiveHistory,
    ) -> bool:
        properties = history.properties()
        self._at_step("write")
        staged = self._table.append(branch, records.select(*_NAMES), properties)
        self._at_step("check")
        added = self._table.added(staged)
        check_records(commit.ranges, commit.sparse, _found(added), added)
        self._at_step("publish")
        where = {SNAPSHOT_KEY: str(staged.id), SEQUENCE_KEY: str(staged.sequence)}
        return self._table.publish(branch, staged, current, {**properties, **where})

    def read(
        self, topics: Sequence[str] = (), within: Sequence[OffsetRange] | None = None
    ) -> DataFrame:
        """All that is committed, of these topics or of all: `COLUMNS` and `day DATE`.

        `within` changes nothing: Iceberg itself leaves out files by what Spark asks for.
        """
        current = self._table.current if self._table.exists() else None
        if current is None:
            records = self._spark.createDataFrame([], COLUMNS)
        else:
            records = self._table.data(current.id)
        if topics:
            records = records.where(records["topic"].isin(list(topics)))
        return records.selectExpr(*_NAMES, _DAY)

    def compact(self, file_bytes_max: int) -> CompactionResult:
        """Files of one topic, partition and day are few, of about that size; same records."""
        if not self._table.exists() or self._table.current is None:
            return CompactionResult(0, 0)
        before = self._table.metadata("data_files").count()
        self._table.rewrite(file_bytes_max)
        return CompactionResult(before, self._table.metadata("data_files").count())

    # --- what is in it -------------------------------------------------------------------------

    def _look(self) -> tuple[IcebergSnapshot | None, ArchiveHistory]:
        """The head of the main line, and what is in it."""
        if not self._table.exists():
            return None, ArchiveHistory()
        current = self._table.current
        if current != self._known[0]:
            self._known = (current, self._history(current))
        return self._known

    def _history(self, current: IcebergSnapshot | None) -> ArchiveHistory:
        """What is in it as of `current`. Raises JobError when that cannot be told for sure."""
        oldest: IcebergSnapshot | None = None
        foreign = False
        for each in self._table.lineage(current):
            found = from_properties(each.summary, f"{self._table.name}, snapshot {each.id}")
            if found is not None:
                if foreign:
                    self._expect_nothing_beyond(found)
                return found
            # Compactions and deletions of others add no records.
            foreign = foreign or each.operation not in ("replace", "delete")
            oldest = each
        if current is None or oldest is None:
            return ArchiveHistory()
        if oldest.parent_id is not None and (kept := self._kept(current, oldest)) is not None:
            return kept
        return self._adopted(current)

    def _kept(self, current: IcebergSnapshot, oldest: IcebergSnapshot) -> ArchiveHistory | None:
        """As the table's properties say; None: they are of another line of snapshots."""
        properties = {key: self._table.property(key) for key in (*KEYS, SNAPSHOT_KEY, SEQUENCE_KEY)}
        present = {key: value for key, value in properties.items() if value is not None}
        found = from_properties(present, f"{self._table.name}, properties")
        if found is None:
            return None
        if self._table.property(TRUSTED_KEY) == str(current.id):
            return found
        if oldest.sequence <= int(present[SEQUENCE_KEY]):
            return None
        self._expect_nothing_beyond(found)
        if present[SNAPSHOT_KEY] != str(oldest.parent_id):
            self._expect_all(found, current)
        return found

    def _expect_nothing_beyond(self, history: ArchiveHistory) -> None:
        """Raises JobError when others have added records that an append would double."""
        ends = history.ends
        for place, last in self._last_offsets().items():
            if last >= ends.get(place, 0):
                raise JobError(
                    f"{self._table.name}: others have added records up to {place} offset {last},"
                    f" the archive's end is {ends.get(place, 'nowhere')}; remove theirs, or archive"
                    " into a new table",
                    "FOREIGN_RECORDS",
                )

    def _expect_all(self, history: ArchiveHistory, current: IcebergSnapshot) -> None:
        """Raises JobError when the last records are not there: perhaps a rollback took them."""
        there = self._last_offsets()
        for each in history.ranges:
            last = there.get(each.place, -1)
            if history.ends[each.place] == each.end != last + 1:
                raise JobError(
                    f"{self._table.name}: its archive snapshots are expired, and its properties say"
                    f" {each}, but the last record is {last}. If they are right: ALTER TABLE"
                    f" {self._table.name} SET TBLPROPERTIES ('{TRUSTED_KEY}'='{current.id}');"
                    " else archive into a new table",
                    "UNSURE_STATE",
                )

    def _last_offsets(self) -> dict[TopicPartition, int]:
        """The greatest offset there may be of each place, by what is known of the files."""
        current = self._table.current
        assert current is not None
        files = self._table.metadata("data_files")
        partitions = files.select("partition.*").columns
        if {"topic", "partition"} <= set(partitions):
            rows = (
                files.selectExpr(
                    "partition.topic AS topic",
                    "partition.partition AS partition",
                    "coalesce(readable_metrics.offset.upper_bound, -1) AS last",
                    "readable_metrics.offset.upper_bound IS NULL AS unknown",
                )
                .groupBy("topic", "partition")
                .agg({"last": "max", "unknown": "max"})
                .collect()
            )
            if not any(row["topic"] is None or row["max(unknown)"] for row in rows):
                return {
                    TopicPartition(row["topic"], row["partition"]): row["max(last)"] for row in rows
                }
        found = _found(self._table.data(current.id))
        return {place: each.max_offset for place, each in found.items()}

    def _adopted(self, current: IcebergSnapshot) -> ArchiveHistory:
        """By the records alone, of a table that nothing says anything about (a copy)."""
        records = self._table.data(current.id)
        found = _found(records)
        ranges = [
            OffsetRange(*place, each.min_offset, each.max_offset + 1)
            for place, each in sorted(found.items())
        ]
        try:
            check_records(ranges, frozenset(), found, records)
        except JobError as error:
            raise JobError(
                f"{self._table.name} does not say what it holds ({FORMAT_KEY} is nowhere), and its"
                f" records do not tell: {error}; archive into a new table",
                "UNSURE_STATE",
            ) from error
        return from_ranges(ranges)


def _version(current: IcebergSnapshot | None) -> str:
    return "" if current is None else str(current.id)


def _found(records: DataFrame) -> dict[TopicPartition, OffsetSummary]:
    """What is there of each place."""
    from pyspark.sql.functions import expr

    rows = (
        records.groupBy("topic", "partition")
        .agg(
            expr("count(*) AS count"),
            expr("min(offset) AS first"),
            expr("max(offset) AS last"),
            expr(f"{FOLD} AS fold"),
        )
        .collect()
    )
    return {
        TopicPartition(row["topic"], row["partition"]): OffsetSummary(
            row["count"], row["first"], row["last"], row["fold"]
        )
        for row in rows
    }
