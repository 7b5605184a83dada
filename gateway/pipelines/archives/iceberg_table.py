"""An Iceberg table, accessed through Iceberg's library in Spark's JVM.

New files go to a separate branch, which no reader sees. `publish` makes the branch the main branch
in one commit. The commit fails if the main branch has moved since the separate branch was created.
Iceberg retries most failed commits on newer metadata. It refuses to retry a commit that moves
references, because the references that the commit was based on have changed.

Source: Apache Iceberg 1.11, BaseTransaction and UpdateSnapshotReferencesOperation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from gateway.pipelines.archives.history import CHANGE_KEYS, KEYS, OFFSETS_KEY
from gateway.pipelines.archives.iceberg_markers import RunMarkers
from gateway.pipelines.archives.port import ROW_GROUP_BYTES
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import COLUMNS
from gateway.pipelines.shared.session import expect_strict_reads
from ledger.ports.clock import Clock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RUN_KEY = "archive.run"
"""Snapshot property: the branch to which the snapshot was written."""
_SUMMARY_KEYS = tuple(dict.fromkeys((*KEYS, *CHANGE_KEYS, RUN_KEY)))
SNAPSHOT_KEY = "archive.snapshot"
SEQUENCE_KEY = "archive.sequence-number"
"""Table properties that identify the snapshot whose history the table's properties contain."""
SNAPSHOTS_KEY = "archive.max-snapshots"
SNAPSHOT_AGE_KEY = "archive.max-snapshot-age-ms"
"""Table properties that bound the snapshots. Without the first one, no snapshot expires."""
SNAPSHOTS_KEPT_MIN = 10
SUMMARY_CHARS_MAX = 8 * 1024 * 1024
"""The size of the properties that the kept snapshots may have in the table's metadata."""
COMMIT_TRIES_MAX = 20
STAGING_AGE_MS_MAX = 24 * 3600 * 1000
"""A branch older than this was left by a run that has died."""

_FOREVER_MS = 2**62
_BRANCH = "archive_"
_BRANCH_NAME = re.compile(rf"{_BRANCH}(\d+)_[0-9a-f]+")
_PROPERTIES = {
    "format-version": "2",
    "write.parquet.row-group-size-bytes": str(ROW_GROUP_BYTES),
    "write.distribution-mode": "none",  # each task writes the records that it read, unshuffled
    "write.metadata.metrics.column.key": "counts",
    "write.metadata.metrics.column.value": "counts",
    "write.metadata.delete-after-commit.enabled": "true",
    SNAPSHOTS_KEY: "500",
    SNAPSHOT_AGE_KEY: str(5 * 24 * 3600 * 1000),
}


class IcebergSnapshot(NamedTuple):
    """A snapshot of the table.

    The first snapshot has no `parent_id`. The parent of a later snapshot may be expired.
    """

    id: int
    parent_id: int | None
    sequence: int
    operation: str
    at_ms: int
    summary: Mapping[str, str]
    """The properties of an archive from the snapshot's summary."""


class IcebergTable:
    """The table `name`, as `catalog.namespace.table`. Raises JobError for other names."""

    def __init__(self, spark: SparkSession, name: str, clock: Clock) -> None:
        parts = name.split(".")
        if len(parts) < 3 or not all(parts):
            raise JobError(f"{name!r}: must be catalog.namespace.table for Iceberg", "USAGE")
        catalog = f"spark.sql.catalog.{parts[0]}"
        if spark.conf.get(catalog, None) is None:
            raise JobError(
                f"there is no catalog {parts[0]!r}: configure it with"
                f" --conf {catalog}=org.apache.iceberg.spark.SparkCatalog and its other settings",
                "USAGE",
            )
        self.name = name
        self._spark = spark
        self._clock = clock
        self._quoted = [f"`{part}`" for part in parts]
        # Iceberg's Table object in the JVM. None until `exists` finds the table.
        self._loaded: Any = None

    @property
    def sql_name(self) -> str:
        return ".".join(self._quoted)

    def exists(self) -> bool:
        """Return whether the table exists. Refreshes the metadata that later calls use."""
        if self._loaded is None:
            if not self._spark.catalog.tableExists(self.sql_name):
                return False
            self._loaded = self._load()
        self._loaded.refresh()
        return True

    def create(self) -> None:
        """Create the table for archived records, unless it exists."""
        if self.exists():
            return  # an existing table keeps the properties of its creator
        properties = ", ".join(f"'{key}'='{value}'" for key, value in _PROPERTIES.items())
        columns = COLUMNS.replace("offset BIGINT", "`offset` BIGINT")
        self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {'.'.join(self._quoted[:-1])}")
        try:
            self._spark.sql(
                f"CREATE TABLE IF NOT EXISTS {self.sql_name} ({columns}) USING iceberg"
                f" PARTITIONED BY (topic, partition, days(timestamp)) TBLPROPERTIES ({properties})"
            )
        except Exception:  # another job may have created it meanwhile
            if not self.exists():
                raise
        if self.exists() and self._loaded.sortOrder().isUnsorted():
            # Tasks sort their records, on disk if necessary, so each keeps only one file open.
            jvm: Any = self._spark.sparkContext._jvm  # pyright: ignore[reportPrivateUsage]
            offset = jvm.org.apache.iceberg.expressions.Expressions.ref("offset")
            first = jvm.org.apache.iceberg.NullOrder.NULLS_FIRST
            self._loaded.replaceSortOrder().asc(offset, first).commit()
            self._loaded.refresh()

    def _load(self) -> Any:
        jvm: Any = self._spark.sparkContext._jvm  # pyright: ignore[reportPrivateUsage]
        util = jvm.org.apache.iceberg.spark.Spark3Util
        session = self._spark._jsparkSession  # pyright: ignore[reportPrivateUsage]
        loaded = util.loadIcebergTable(session, self.sql_name)
        wanted = [part.split(" ", 1) for part in re.split(r", (?![^<]*>)", COLUMNS)]
        found = self._spark.table(self.sql_name).dtypes
        there = {name: kind.replace(" ", "").lower() for name, kind in found}
        for name, kind in wanted:
            if there.pop(name, None) != kind.replace(" ", "").lower():
                raise self._foreign(f"column {name} {kind} is missing")
        if there:
            raise self._foreign(f"it has other columns: {', '.join(there)}")
        return loaded

    def _foreign(self, problem: str) -> JobError:
        return JobError(f"{self.name} is no archive: {problem}; name a new table", "NO_ARCHIVE")

    @property
    def _markers(self) -> RunMarkers:
        return RunMarkers(self._spark, self._loaded)

    # --- reading -------------------------------------------------------------------------------

    @property
    def current(self) -> IcebergSnapshot | None:
        """The head of the main branch, or None if the table has no snapshot."""
        return _snapshot(self._loaded.currentSnapshot())

    def lineage(self, newest: IcebergSnapshot | None) -> Iterator[IcebergSnapshot]:
        """Yield `newest` and its ancestors, as far back as the table keeps them."""
        while newest is not None:
            yield newest
            if newest.parent_id is None:
                return
            newest = self.snapshot(newest.parent_id)

    def snapshot(self, snapshot_id: int) -> IcebergSnapshot | None:
        return _snapshot(self._loaded.snapshot(snapshot_id))

    def property(self, key: str) -> str | None:
        """Return a property of the table, or None if it is not set."""
        return self._loaded.properties().get(key)

    def data(self, snapshot_id: int) -> DataFrame:
        """Read all records as of a snapshot."""
        return self._read("", {"snapshot-id": str(snapshot_id)})

    def added(self, snapshot: IcebergSnapshot) -> DataFrame:
        """Read only the records that this snapshot added."""
        since = {"start-snapshot-id": str(snapshot.parent_id)}
        return self._read("", {**since, "end-snapshot-id": str(snapshot.id)})

    def metadata(self, table: str, snapshot_id: int | None = None) -> DataFrame:
        """Read one of Iceberg's metadata tables (files, ...), as of a snapshot if one is given."""
        options = {} if snapshot_id is None else {"snapshot-id": str(snapshot_id)}
        return self._read(f".{table}", options)

    def data_files(self, snapshot_id: int, topics: Sequence[str] = ()) -> list[str]:
        """Return the locations of the data files as of a snapshot: of these topics, or all."""
        listed = self.metadata("data_files", snapshot_id)
        if topics:
            listed = listed.where(listed["partition.topic"].isin(list(topics)))
        return [row["file_path"] for row in listed.select("file_path").collect()]

    def fetch(self, location: str) -> bool:
        """Read all bytes of a file and discard them. Returns False if the file does not exist.

        Raises JobError if the store does not deliver them.
        """
        from py4j.protocol import Py4JJavaError

        jvm: Any = self._spark.sparkContext._jvm  # pyright: ignore[reportPrivateUsage]
        try:
            stream = self._loaded.io().newInputFile(location).newStream()
            try:
                stream.transferTo(jvm.java.io.OutputStream.nullOutputStream())
            finally:
                stream.close()
        except Py4JJavaError as error:
            java: Any = error.java_exception
            if java.getClass().getSimpleName() == "NotFoundException":
                return False
            raise JobError(f"{location}: {java.toString()}", "FILE_SYSTEM") from error
        return True

    def _read(self, suffix: str, options: dict[str, str]) -> DataFrame:
        expect_strict_reads(self._spark)
        self._invalidate_cache()
        return self._spark.read.format("iceberg").options(**options).load(self.sql_name + suffix)

    def _invalidate_cache(self) -> None:
        """Make Spark load the table again, because Spark's cached copy may be out of date."""
        self._spark.catalog.refreshTable(self.sql_name)

    # --- writing -------------------------------------------------------------------------------

    def branch(self, on: IcebergSnapshot | None) -> str:
        """Create a branch that begins at the snapshot `on`, and return the name of the branch."""
        name = f"{_BRANCH}{self._clock.now_ms()}_{uuid4().hex[:12]}"

        def change(transaction: Any) -> None:
            manage = transaction.manageSnapshots()
            if on is None:
                manage.createBranch(name)  # Iceberg creates an empty snapshot for the branch
            else:
                manage.createBranch(name, on.id)
            manage.commit()

        self._markers.put(name)
        self._commit(change)
        return name

    def append(self, branch: str, records: DataFrame) -> IcebergSnapshot:
        """Append the records to the branch and return the new snapshot at its head."""
        self._invalidate_cache()
        writer = records.writeTo(f"{self.sql_name}.`branch_{branch}`")
        writer.option(f"snapshot-property.{RUN_KEY}", branch).append()
        return self._new_head(branch)

    def _new_head(self, branch: str) -> IcebergSnapshot:
        self._loaded.refresh()
        head = self._head(branch)
        self._expect_branch(branch, head is not None)
        assert head is not None
        return head

    def publish(
        self,
        branch: str,
        staged: IcebergSnapshot,
        on: IcebergSnapshot | None,
        summary: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> bool:
        """Move the main branch from `on` to `staged`, and remove the branch.

        With `summary`, an empty snapshot with this summary follows `staged`, and the table gets
        `properties` and that snapshot's id. Returns False and changes nothing if the main branch is
        no longer at `on`.
        """

        def change(transaction: Any) -> bool:
            table = transaction.table()
            main = table.currentSnapshot()
            if (None if main is None else main.snapshotId()) != (None if on is None else on.id):
                return False
            self._expect_branch(branch, table.refs().containsKey(branch))
            if summary is not None:
                self._add_summary(transaction, branch, summary, properties or {})
            manage = transaction.manageSnapshots()
            manage.fastForwardBranch("main", branch).removeBranch(branch).commit()
            return True

        def landed() -> bool:
            newer = takewhile(lambda each: each != on, self.lineage(self.current))
            return any(each.id == staged.id for each in newer)

        published = self._commit(change, landed)
        if published:
            self._markers.remove(branch)
        self._invalidate_cache()  # let readers in this Spark session see the commit
        return published

    def _add_summary(
        self,
        transaction: Any,
        branch: str,
        summary: Mapping[str, str],
        properties: Mapping[str, str],
    ) -> None:
        """Add an empty snapshot with this summary to the branch, and set the properties."""
        append = transaction.newFastAppend().toBranch(branch)
        for key, value in {**summary, RUN_KEY: branch}.items():
            append.set(key, value)
        append.commit()
        head = _snapshot(transaction.table().snapshot(branch))
        assert head is not None
        where = {SNAPSHOT_KEY: str(head.id), SEQUENCE_KEY: str(head.sequence)}
        update = transaction.updateProperties()
        for key, value in {**properties, **where}.items():
            update.set(key, value)
        update.commit()

    def _expect_branch(self, branch: str, there: bool) -> None:
        if not there:
            raise JobError(
                f"{self.name}: another writer removed branch {branch}; run the job again",
                "BRANCH_GONE",
            )

    def discard(self, branch: str) -> None:
        """Remove the branch and the files of its snapshots, unless the branch was published."""
        found: list[int] = []

        def change(transaction: Any) -> bool:
            # `publish` removes the branch in its commit, so a branch that still exists was not
            # published.
            found.clear()
            self._loaded.refresh()
            for each in self.lineage(self._head(branch)):
                if each.summary.get(RUN_KEY) != branch:
                    break
                found.append(each.id)
            if not transaction.table().refs().containsKey(branch):
                found.clear()
                return False
            transaction.manageSnapshots().removeBranch(branch).commit()
            return True

        if self._commit(change) and found:
            # Expire only the branch's own snapshots, and no snapshot of the main branch.
            expire = self._loaded.expireSnapshots().expireOlderThan(0)
            for snapshot_id in found:
                expire.expireSnapshotId(snapshot_id)
            expire.commit()
        self._markers.remove(branch)

    def stale_branches(self) -> Sequence[str]:
        """Return the branches of runs that died long ago, by the clock of the table's store."""
        branches = [each for each in self._loaded.refs().keySet() if _BRANCH_NAME.fullmatch(each)]
        if not branches or not self._markers.supported:
            return []
        probe = f"now_{uuid4().hex}"
        self._markers.put(probe)
        times = self._markers.times_ms()
        self._markers.remove(probe)
        oldest_ms = times.pop(probe) - STAGING_AGE_MS_MAX
        for each in branches:
            if each not in times:  # its age counts from now
                self._markers.put(each)
        old = {name for name, at_ms in times.items() if at_ms < oldest_ms}
        for each in old.difference(branches):
            self._markers.remove(each)
        return sorted(old.intersection(branches))

    def rewrite(self, branch: str, file_bytes: int) -> IcebergSnapshot:
        """Merge small files into files of about `file_bytes` on the branch, and return its head."""
        jvm: Any = self._spark.sparkContext._jvm  # pyright: ignore[reportPrivateUsage]
        session = self._spark._jsparkSession  # pyright: ignore[reportPrivateUsage]
        action = jvm.org.apache.iceberg.spark.actions.SparkActions.get(session)
        rewrite = action.rewriteDataFiles(self._loaded).toBranch(branch).binPack()
        rewrite = rewrite.snapshotProperty(RUN_KEY, branch)
        rewrite = rewrite.option("target-file-size-bytes", str(file_bytes))
        rewrite.option("min-input-files", "2").execute()
        return self._new_head(branch)

    def expire_snapshots(self) -> None:
        """Expire the snapshots before the limits of the table's properties.

        The newest snapshot that does not expire describes the whole archive. Age counts from the
        newest snapshot. A table without these properties keeps all snapshots.
        """
        limit = self.property(SNAPSHOTS_KEY)
        current = self.current
        if limit is None or current is None:
            return
        age_ms = int(self.property(SNAPSHOT_AGE_KEY) or _FOREVER_MS)
        expired = expired_snapshots(self.lineage(current), int(limit), age_ms)
        if expired:
            expire = self._loaded.expireSnapshots().expireOlderThan(0)
            for snapshot_id in expired:
                expire.expireSnapshotId(snapshot_id)
            expire.commit()
            self._loaded.refresh()

    def _head(self, branch: str) -> IcebergSnapshot | None:
        reference = self._loaded.refs().get(branch)
        return None if reference is None else self.snapshot(reference.snapshotId())

    def _commit(
        self, change: Callable[[Any], bool | None], landed: Callable[[], bool] = lambda: False
    ) -> bool:
        """Commit `change` atomically on the metadata that it read.

        Returns False if `change` returns False. `landed` reports whether a commit with an unknown
        outcome took effect.
        """
        from py4j.protocol import Py4JJavaError

        for _ in range(COMMIT_TRIES_MAX):
            transaction = self._loaded.newTransaction()
            if change(transaction) is False:
                return False
            try:
                transaction.commitTransaction()
            except Py4JJavaError as error:
                self._loaded.refresh()
                if landed():
                    return True
                if error.java_exception.getClass().getSimpleName() != "CommitFailedException":
                    raise
            else:
                self._loaded.refresh()
                return True
        raise JobError(f"{self.name}: other writers keep changing it; try again", "BUSY_TABLE")


def expired_snapshots(
    lineage: Iterable[IcebergSnapshot], snapshots_max: int, age_ms_max: int
) -> list[int]:
    """Return the ids of the snapshots that expire, of a lineage from the newest snapshot on.

    The oldest kept snapshot describes the whole archive, so a rollback to any kept one finds it.
    """
    newest_ms: int | None = None
    kept, chars, full = 0, 0, False
    expired: list[int] = []
    for each in lineage:
        if full:
            expired.append(each.id)
            continue
        newest_ms = each.at_ms if newest_ms is None else newest_ms
        kept += 1
        chars += sum(map(len, each.summary.values()))
        old = kept >= SNAPSHOTS_KEPT_MIN and newest_ms - each.at_ms > age_ms_max
        many = kept >= snapshots_max or chars > SUMMARY_CHARS_MAX
        full = (many or old) and OFFSETS_KEY in each.summary
    return expired


def _snapshot(of: Any) -> IcebergSnapshot | None:
    if of is None:
        return None
    summary = of.summary()
    ours = {key: summary.get(key) for key in _SUMMARY_KEYS if summary.containsKey(key)}
    return IcebergSnapshot(
        of.snapshotId(),
        of.parentId(),
        of.sequenceNumber(),
        of.operation(),
        of.timestampMillis(),
        ours,
    )
