"""An archive in an Iceberg table: the properties of each snapshot record the archived ranges.

Records are written to a branch, checked against their ranges, and published in one commit.
The commit fails if another writer has changed the table. The summaries of snapshots hold the
ranges, topic ids, losses and sums up to that snapshot, so rolling back the table also rolls them
back. The table's properties hold a copy, which is used once all snapshots of the archive are
expired.
Layout: docs/formats/archive.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gateway.pipelines.archives.checking import FOLD, OffsetSummary, check_records
from gateway.pipelines.archives.history import (
    FORMAT_KEY,
    KEYS,
    OFFSETS_KEY,
    ArchiveHistory,
    ChangeCount,
    HistoryChange,
    change_from_properties,
    commit_properties,
    from_properties,
    from_ranges,
)
from gateway.pipelines.archives.iceberg_table import (
    SEQUENCE_KEY,
    SNAPSHOT_KEY,
    IcebergSnapshot,
    IcebergTable,
)
from gateway.pipelines.archives.iceberg_verifying import partition_sums, summed, verify_table
from gateway.pipelines.archives.port import (
    ArchiveProof,
    ArchiveState,
    Commit,
    CompactionResult,
    ignore_step,
)
from gateway.pipelines.archives.sums import (
    NO_RECORDS,
    SUM_FIGURES,
    RecordSum,
    add_hash,
    sum_of,
)
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import (
    COLUMN_NAMES,
    COLUMNS,
    OffsetRange,
    TopicPartition,
    partition_of,
)
from ledger.adapters.system.clock import SystemClock
from ledger.ports.clock import Clock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TRUSTED_KEY = "archive.trusted-snapshot"
"""A table property that an operator sets to accept the table's properties for a snapshot."""

_DAY_US = 86_400_000_000
_DAY = f"date_from_unix_date(CAST(floor(unix_micros(timestamp) / {_DAY_US}BD) AS INT)) AS day"
"""SQL for the day in UTC, in every time zone of the session."""


@dataclass(slots=True)
class _Lineage:
    """What the snapshots from the newest one back to a whole history describe."""

    history: ArchiveHistory | None = None
    """The whole history that was found, before `changes`."""
    changes: list[HistoryChange] = field(default_factory=list[HistoryChange])
    """The changes after `history`, the newest first."""
    newest: IcebergSnapshot | None = None
    """The newest snapshot of the archive."""
    oldest: IcebergSnapshot | None = None
    others: set[str] = field(default_factory=set[str])
    """The operations of other writers since `newest`."""


class IcebergArchive:
    """The archive in `table`, `catalog.namespace.table`. The first append creates the table.

    Each append calls `at_step` before each of its steps, with the name of the step. Nothing is
    cleaned up if `at_step` raises a BaseException that is not an Exception.
    """

    def __init__(
        self,
        spark: SparkSession,
        table: str,
        *,
        clock: Clock | None = None,
        at_step: Callable[[str], None] = ignore_step,
    ) -> None:
        self._spark = spark
        self._table = IcebergTable(spark, table, clock or SystemClock())
        self._at_step = at_step
        # The last snapshot that was read, with its history. The history of a snapshot never
        # changes.
        self._known: tuple[IcebergSnapshot | None, ArchiveHistory] = (None, ArchiveHistory())

    def state(self) -> ArchiveState:
        """Return the committed state, which is empty if the archive does not exist yet."""
        current, history = self._look()
        return history.state(_version(current))

    def ranges(self) -> list[OffsetRange]:
        """Return the archived ranges in order. Consecutive ranges are merged."""
        return self._look()[1].ranges

    def append(self, records: DataFrame, commit: Commit, on: ArchiveState) -> bool:
        """Add exactly the records of the commit's ranges, durably and atomically.

        Returns True if the records were added.
        """
        self._table.create()
        current, before = self._look()
        if _version(current) != on.version:
            return False
        before.after(HistoryChange(commit, {}))  # refuses ranges that do not follow
        for stale in self._table.stale_branches():
            self._discard(stale)
        self._at_step("branch")
        branch = self._table.branch(current)
        published = False
        try:
            published = self._append(branch, records, commit, current, before)
        except Exception:
            self._discard(branch)
            raise
        if not published:
            self._discard(branch)
        return published

    def _discard(self, branch: str) -> None:
        # A branch that stays is invisible to readers, and a later job removes it.
        with suppress(Exception):
            self._table.discard(branch)

    def _append(
        self,
        branch: str,
        records: DataFrame,
        commit: Commit,
        current: IcebergSnapshot | None,
        before: ArchiveHistory,
    ) -> bool:
        self._at_step("write")
        staged = self._table.append(branch, records.select(*COLUMN_NAMES))
        self._at_step("check")
        added = self._table.added(staged)
        found = _found(added)
        offsets = {partition: each for partition, (each, _) in found.items()}
        check_records(commit.ranges, commit.sparse, offsets, added, commit.holes)
        commit.confirm()
        self._at_step("publish")
        sums = {partition: each for partition, (_, each) in found.items()}
        change = HistoryChange(commit, sums, deleted=before.deleted)
        history = before.after(change)
        summary = commit_properties(history, change, self._changes(current))
        if not self._table.publish(branch, staged, current, summary, history.properties()):
            return False
        if OFFSETS_KEY in summary:
            with suppress(Exception):  # the commit is done; a later one expires the snapshots
                self._table.expire_snapshots()
        return True

    def _changes(self, current: IcebergSnapshot | None) -> ChangeCount | None:
        """Return the number of changes since the last whole history, or None if none is known."""
        for each in self._table.lineage(current):
            if OFFSETS_KEY in each.summary:
                return ChangeCount()
            if (change := self._change(each)) is not None:
                return change.count
        return None

    def _change(self, snapshot: IcebergSnapshot) -> HistoryChange | None:
        where = f"{self._table.name}, snapshot {snapshot.id}"
        return change_from_properties(snapshot.summary, where)

    def read(
        self, topics: Sequence[str] = (), within: Sequence[OffsetRange] | None = None
    ) -> DataFrame:
        """Return all committed records of `topics`, or of all topics: `COLUMNS` and `day DATE`.

        `within` has no effect: Iceberg itself skips files by the filters of the query.
        """
        current = self._table.current if self._table.exists() else None
        if current is None:
            records = self._spark.createDataFrame([], COLUMNS)
        else:
            records = self._table.data(current.id)
        if topics:
            records = records.where(records["topic"].isin(list(topics)))
        return records.selectExpr(*COLUMN_NAMES, _DAY)

    def compact(self, file_bytes_max: int) -> CompactionResult:
        """Merge the files of each topic, partition and day into files of about `file_bytes_max`."""
        if not self._table.exists() or self._table.current is None:
            return CompactionResult(0, 0)
        current, history = self._look()
        assert current is not None
        before = self._table.metadata("data_files", current.id).count()
        branch = self._table.branch(current)
        published = False
        try:
            head = self._table.rewrite(branch, file_bytes_max)
            if head != current:
                self._expect_same(current, head, history)
                self._at_step("checked")
                published = self._table.publish(branch, head, current)
        finally:
            if not published:
                self._discard(branch)
        return CompactionResult(before, self._table.metadata("data_files").count())

    def _expect_same(
        self, current: IcebergSnapshot, head: IcebergSnapshot, history: ArchiveHistory
    ) -> None:
        """Raise JobError unless the records as of `head` have the sums that the commits recorded.

        Partitions without recorded sums, and those of which others deleted records, are compared
        with the records as of `current`.
        """
        after = self._sums(head)
        recorded = dict(history.sums)
        if any(after.get(at, NO_RECORDS) != recorded.get(at) for at in {*after, *recorded}):
            before = self._sums(current)
            for at in {*after, *before, *recorded}:
                if at not in recorded or history.deleted:
                    recorded[at] = before.get(at, NO_RECORDS)
        for at in sorted({*after, *recorded}):
            if after.get(at, NO_RECORDS) != recorded.get(at):
                raise JobError(
                    f"{self._table.name}: the rewritten records of {at} differ from those of the"
                    " commits; nothing was changed; check the archive with an audit",
                    "WRONG_RECORDS",
                )

    def _sums(self, snapshot: IcebergSnapshot) -> dict[TopicPartition, RecordSum]:
        records = self._table.data(snapshot.id).select("*", "_file")
        return partition_sums(summed(records, "topic", "partition", "_file"))

    def verify(
        self, topics: Sequence[str] = (), within: Sequence[OffsetRange] | None = None
    ) -> ArchiveProof:
        """Read the records of `topics`, or of all topics, and compare them with the log.

        `within` has no effect.
        """
        current, history = self._look()
        if current is None:
            return ArchiveProof(0, 0, 0)
        return verify_table(self._table, current, history, topics)

    # --- contents ------------------------------------------------------------------------------

    def _look(self) -> tuple[IcebergSnapshot | None, ArchiveHistory]:
        """Return the head of the main branch and the history up to it."""
        if not self._table.exists():
            return None, ArchiveHistory()
        current = self._table.current
        if current != self._known[0]:
            self._known = (current, self._history(current))
        return self._known

    def _history(self, current: IcebergSnapshot | None) -> ArchiveHistory:
        """Return the history as of `current`. Raises JobError if the history is uncertain."""
        found = self._walk(current)
        if found.history is not None:
            history = found.history
            for change in reversed(found.changes):
                history = history.after(change)
            if found.others - {"replace", "delete"}:
                self._expect_nothing_beyond(history)
            if found.others & {"delete", "overwrite"}:
                history = replace(history, deleted=True)
            return history
        if current is None:
            return ArchiveHistory()
        if found.newest is not None:
            raise JobError(
                f"{self._table.name}: snapshot {found.newest.id} describes only its own commit, and"
                " the snapshots that describe the whole archive are expired; roll the table forward"
                " to its newest snapshot, or archive into a new table",
                "UNSURE_STATE",
            )
        oldest = found.oldest or current
        kept = None if oldest.parent_id is None else self._kept(current, oldest)
        return kept or self._adopted(current)

    def _walk(self, current: IcebergSnapshot | None) -> _Lineage:
        """Go back from `current` to a snapshot with the whole history."""
        found = _Lineage()
        for each in self._table.lineage(current):
            found.oldest = each
            change = self._change(each)
            history = from_properties(each.summary, f"{self._table.name}, snapshot {each.id}")
            if found.newest is None and (change or history):
                found.newest = each
                history = history or self._property_history(each)
            if history is not None:
                found.history = history
                break
            if change is not None:
                found.changes.append(change)
            elif found.newest is None:
                found.others.add(each.operation)
        return found

    def _property_history(self, snapshot: IcebergSnapshot) -> ArchiveHistory | None:
        """Return the history in the table's properties if it is that of this snapshot."""
        if self._table.property(SNAPSHOT_KEY) != str(snapshot.id):
            return None
        return self._properties()[1]

    def _properties(self) -> tuple[dict[str, str], ArchiveHistory | None]:
        """Return the table's properties of the archive, and the history in them."""
        properties = {key: self._table.property(key) for key in (*KEYS, SNAPSHOT_KEY, SEQUENCE_KEY)}
        present = {key: value for key, value in properties.items() if value is not None}
        return present, from_properties(present, f"{self._table.name}, properties")

    def _kept(self, current: IcebergSnapshot, oldest: IcebergSnapshot) -> ArchiveHistory | None:
        """Return the history in the table's properties.

        Returns None if the properties are missing or were written for another lineage of snapshots.
        """
        present, found = self._properties()
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
        """Raise JobError if the table contains records beyond the archive's ends.

        Other writers added such records, and an append would duplicate them.
        """
        ends = history.ends
        for partition, last in self._last_offsets().items():
            if last >= ends.get(partition, 0):
                raise JobError(
                    f"{self._table.name}: others have added records up to {partition} offset"
                    f" {last}, the archive's end is {ends.get(partition, 'unset')}; remove"
                    " those records, or archive into a new table",
                    "FOREIGN_RECORDS",
                )

    def _expect_all(self, history: ArchiveHistory, current: IcebergSnapshot) -> None:
        """Raise JobError if the last archived record of a partition is missing.

        For example, a rollback of the table may have removed the record.
        """
        there = self._last_offsets()
        for each in history.ranges:
            last = there.get(each.topic_partition, -1)
            if history.ends[each.topic_partition] == each.end != last + 1:
                raise JobError(
                    f"{self._table.name}: its archive snapshots are expired, and its properties"
                    f" name {each}, but the last record is {last}. If the properties are right, run"
                    f" ALTER TABLE {self._table.name} SET TBLPROPERTIES"
                    f" ('{TRUSTED_KEY}'='{current.id}'); otherwise archive into a new table",
                    "UNSURE_STATE",
                )

    def _last_offsets(self) -> dict[TopicPartition, int]:
        """Return an upper bound of each partition's offsets, from the metadata of the files."""
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
                return {partition_of(row): row["max(last)"] for row in rows}
        found = _found(self._table.data(current.id))
        return {partition: each.max_offset for partition, (each, _) in found.items()}

    def _adopted(self, current: IcebergSnapshot) -> ArchiveHistory:
        """Derive the history from the records of a table that lacks archive properties (a copy)."""
        records = self._table.data(current.id)
        found = _found(records)
        ranges = [
            OffsetRange(*partition, each.min_offset, each.max_offset + 1)
            for partition, (each, _) in sorted(found.items())
        ]
        try:
            check_records(ranges, frozenset(), {p: o for p, (o, _) in found.items()}, records)
        except JobError as error:
            raise JobError(
                f"{self._table.name} has no archive properties (no {FORMAT_KEY}), and its records"
                f" do not show which ranges are complete: {error}; archive into a new table",
                "UNSURE_STATE",
            ) from error
        return from_ranges(ranges, {partition: each for partition, (_, each) in found.items()})


def _version(current: IcebergSnapshot | None) -> str:
    return "" if current is None else str(current.id)


def _found(records: DataFrame) -> dict[TopicPartition, tuple[OffsetSummary, RecordSum]]:
    """Summarize the offsets and the records of each partition."""
    from pyspark.sql.functions import expr

    figures = {**SUM_FIGURES, "first": "min(offset)", "last": "max(offset)", "fold": FOLD}
    columns = [expr(sql).alias(name) for name, sql in figures.items()]
    rows = add_hash(records).groupBy("topic", "partition").agg(*columns).collect()
    return {
        partition_of(row): (
            OffsetSummary(row["rows"], row["first"], row["last"], row["fold"]),
            sum_of(row),
        )
        for row in rows
    }
