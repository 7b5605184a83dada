"""An Iceberg table, accessed through Iceberg's library in Spark's JVM.

New files go to a separate branch, which no reader sees. `publish` makes the branch the main branch
in one commit. The commit fails if the main branch has moved since the separate branch was created.
Iceberg retries most failed commits on newer metadata. It refuses to retry a commit that moves
references, because the references that the commit was based on have changed.

Source: Apache Iceberg 1.11, BaseTransaction and UpdateSnapshotReferencesOperation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from gateway.pipelines.archives.history import FORMAT_KEY, KEYS
from gateway.pipelines.archives.port import ROW_GROUP_BYTES
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import COLUMNS
from ledger.ports.clock import Clock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RUN_KEY = "archive.run"
"""Snapshot property: the branch to which the snapshot was written."""
COMMIT_TRIES_MAX = 20
STAGING_AGE_MS_MAX = 24 * 3600 * 1000
"""A branch older than this was left by a run that has died."""

_BRANCH = "archive_"
_BRANCH_NAME = re.compile(rf"{_BRANCH}(\d+)_[0-9a-f]+")
_PROPERTIES = {
    "format-version": "2",
    "write.parquet.row-group-size-bytes": str(ROW_GROUP_BYTES),
    "write.distribution-mode": "none",  # each task writes the records that it read, unshuffled
    "write.metadata.metrics.column.key": "counts",
    "write.metadata.metrics.column.value": "counts",
    "write.metadata.delete-after-commit.enabled": "true",
}


class IcebergSnapshot(NamedTuple):
    """A snapshot of the table.

    The first snapshot has no `parent_id`. The parent of a later snapshot may be expired.
    """

    id: int
    parent_id: int | None
    sequence: int
    operation: str
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

    def _read(self, suffix: str, options: dict[str, str]) -> DataFrame:
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

        self._commit(change)
        return name

    def append(
        self, branch: str, records: DataFrame, summary: Mapping[str, str]
    ) -> IcebergSnapshot:
        """Append the records to the branch and return the new snapshot at its head."""
        self._invalidate_cache()
        writer = records.writeTo(f"{self.sql_name}.`branch_{branch}`")
        for key, value in {**summary, RUN_KEY: branch}.items():
            writer = writer.option(f"snapshot-property.{key}", value)
        writer.append()
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
        properties: Mapping[str, str],
    ) -> bool:
        """Move the main branch from `on` to `staged`, set the properties and remove the branch.

        Returns False and changes nothing if the main branch is no longer at `on`.
        """

        def change(transaction: Any) -> bool:
            table = transaction.table()
            main = table.currentSnapshot()
            if (None if main is None else main.snapshotId()) != (None if on is None else on.id):
                return False
            self._expect_branch(branch, table.refs().containsKey(branch))
            manage = transaction.manageSnapshots()
            manage.fastForwardBranch("main", branch).removeBranch(branch).commit()
            update = transaction.updateProperties()
            for key, value in properties.items():
                update.set(key, value)
            update.commit()
            return True

        def landed() -> bool:
            newer = takewhile(lambda each: each != on, self.lineage(self.current))
            return any(each.id == staged.id for each in newer)

        published = self._commit(change, landed)
        self._invalidate_cache()  # let readers in this Spark session see the commit
        return published

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

    def stale_branches(self) -> Sequence[str]:
        """Return the branches of runs that died long ago."""
        oldest_ms = self._clock.now_ms() - STAGING_AGE_MS_MAX
        matches = map(_BRANCH_NAME.fullmatch, self._loaded.refs().keySet())
        return [each[0] for each in matches if each is not None and int(each[1]) < oldest_ms]

    def rewrite(self, file_bytes: int) -> None:
        """Merge small files of a partition into files of about `file_bytes`."""
        jvm: Any = self._spark.sparkContext._jvm  # pyright: ignore[reportPrivateUsage]
        session = self._spark._jsparkSession  # pyright: ignore[reportPrivateUsage]
        action = jvm.org.apache.iceberg.spark.actions.SparkActions.get(session)
        rewrite = action.rewriteDataFiles(self._loaded).binPack()
        rewrite = rewrite.option("target-file-size-bytes", str(file_bytes))
        rewrite.option("min-input-files", "2").execute()
        self._loaded.refresh()
        self._invalidate_cache()

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


def _snapshot(of: Any) -> IcebergSnapshot | None:
    if of is None:
        return None
    summary = of.summary()
    ours: dict[str, str] = {}
    if summary.containsKey(FORMAT_KEY):
        ours = {key: summary.get(key) for key in (*KEYS, RUN_KEY) if summary.containsKey(key)}
    return IcebergSnapshot(
        of.snapshotId(), of.parentId(), of.sequenceNumber(), of.operation(), ours
    )
