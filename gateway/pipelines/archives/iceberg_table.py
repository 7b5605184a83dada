"""An Iceberg table as Iceberg's own library in Spark's JVM has it: lineage, branches, one commit.

New files are written to a branch of their own, which no reader looks at. `publish` makes the branch
the table's main line in one commit that fails when the main line is no longer the one it started
from. Iceberg retries a failed commit on newer metadata, except one that moves references: that one
is refused, since the references it was made from are gone.
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
"""Of a snapshot: the branch that it was written to."""
COMMIT_TRIES_MAX = 20
STAGING_AGE_MS_MAX = 24 * 3600 * 1000
"""A branch older than that belongs to a run that is dead."""

_BRANCH = "archive_"
_BRANCH_NAME = re.compile(rf"{_BRANCH}(\d+)_[0-9a-f]+")
_PROPERTIES = {
    "format-version": "2",
    "write.parquet.row-group-size-bytes": str(ROW_GROUP_BYTES),
    "write.distribution-mode": "none",  # a task writes what it read: nothing is shuffled
    "write.metadata.metrics.column.key": "counts",
    "write.metadata.metrics.column.value": "counts",
    "write.metadata.delete-after-commit.enabled": "true",
}


class IcebergSnapshot(NamedTuple):
    """`parent_id` may name one that is expired; None: it is the first."""

    id: int
    parent_id: int | None
    sequence: int
    operation: str
    summary: Mapping[str, str]
    """What of it is an archive's."""


class IcebergTable:
    """The table called `name`, `catalog.namespace.table`. Raises JobError for another name."""

    def __init__(self, spark: SparkSession, name: str, clock: Clock) -> None:
        parts = name.split(".")
        if len(parts) < 3 or not all(parts):
            raise JobError(f"{name!r}: an Iceberg table is catalog.namespace.table", "USAGE")
        catalog = f"spark.sql.catalog.{parts[0]}"
        if spark.conf.get(catalog, None) is None:
            raise JobError(
                f"there is no catalog {parts[0]!r}: name it with"
                f" --conf {catalog}=org.apache.iceberg.spark.SparkCatalog and its further settings",
                "USAGE",
            )
        self.name = name
        self._spark = spark
        self._clock = clock
        self._quoted = [f"`{part}`" for part in parts]
        self._loaded: Any = None

    @property
    def sql_name(self) -> str:
        return ".".join(self._quoted)

    def exists(self) -> bool:
        """Whether it is there, as of now: what follows sees its newest metadata."""
        if self._loaded is None:
            if not self._spark.catalog.tableExists(self.sql_name):
                return False
            self._loaded = self._load()
        self._loaded.refresh()
        return True

    def create(self) -> None:
        """The table is there, for archived records."""
        if self.exists():
            return  # as people have made it
        properties = ", ".join(f"'{key}'='{value}'" for key, value in _PROPERTIES.items())
        columns = COLUMNS.replace("offset BIGINT", "`offset` BIGINT")
        self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {'.'.join(self._quoted[:-1])}")
        try:
            self._spark.sql(
                f"CREATE TABLE IF NOT EXISTS {self.sql_name} ({columns}) USING iceberg"
                f" PARTITIONED BY (topic, partition, days(timestamp)) TBLPROPERTIES ({properties})"
            )
        except Exception:  # whoever made it first, it is there
            if not self.exists():
                raise
        if self.exists() and self._loaded.sortOrder().isUnsorted():
            # Each task sorts its own, on disk if need be, and has one file open, not one per day.
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
                raise self._foreign(f"column {name} {kind} is not there")
        if there:
            raise self._foreign(f"it has further columns: {', '.join(there)}")
        return loaded

    def _foreign(self, what: str) -> JobError:
        return JobError(f"{self.name} is no archive: {what}; name a new table", "NO_ARCHIVE")

    # --- what is there -------------------------------------------------------------------------

    @property
    def current(self) -> IcebergSnapshot | None:
        """The head of the main line; None: nothing was ever added."""
        return _snapshot(self._loaded.currentSnapshot())

    def lineage(self, newest: IcebergSnapshot | None) -> Iterator[IcebergSnapshot]:
        """That one and its ancestors, as far back as they are kept."""
        while newest is not None:
            yield newest
            if newest.parent_id is None:
                return
            newest = self.snapshot(newest.parent_id)

    def snapshot(self, snapshot_id: int) -> IcebergSnapshot | None:
        return _snapshot(self._loaded.snapshot(snapshot_id))

    def property(self, key: str) -> str | None:
        """A property of the table."""
        return self._loaded.properties().get(key)

    def data(self, snapshot_id: int) -> DataFrame:
        """All records as of a snapshot."""
        return self._read("", {"snapshot-id": str(snapshot_id)})

    def added(self, snapshot: IcebergSnapshot) -> DataFrame:
        """Only the records that an append has added."""
        since = {"start-snapshot-id": str(snapshot.parent_id)}
        return self._read("", {**since, "end-snapshot-id": str(snapshot.id)})

    def metadata(self, what: str) -> DataFrame:
        """One of Iceberg's tables about this one: files, snapshots, ..."""
        return self._read(f".{what}", {})

    def _read(self, what: str, options: dict[str, str]) -> DataFrame:
        self._forget()
        return self._spark.read.format("iceberg").options(**options).load(self.sql_name + what)

    def _forget(self) -> None:
        """Spark asks the catalog again: what it remembers may be older than what we see."""
        self._spark.catalog.refreshTable(self.sql_name)

    # --- what changes it -----------------------------------------------------------------------

    def branch(self, on: IcebergSnapshot | None) -> str:
        """The name of a new branch that begins at that snapshot."""
        name = f"{_BRANCH}{self._clock.now_ms()}_{uuid4().hex[:12]}"

        def change(transaction: Any) -> None:
            manage = transaction.manageSnapshots()
            if on is None:
                manage.createBranch(name)  # begins with an empty snapshot of its own
            else:
                manage.createBranch(name, on.id)
            manage.commit()

        self._commit(change)
        return name

    def append(
        self, branch: str, records: DataFrame, summary: Mapping[str, str]
    ) -> IcebergSnapshot:
        """The snapshot that holds the records now, at the head of the branch."""
        self._forget()
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
        """True: the main line goes on from `on` with `staged`, and the properties are set.

        The branch is no more. False: the main line is elsewhere; nothing was changed.
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
        self._forget()  # whoever reads the table in this session sees it
        return published

    def _expect_branch(self, branch: str, there: bool) -> None:
        if not there:
            raise JobError(f"{self.name}: branch {branch} was removed meanwhile", "BRANCH_GONE")

    def discard(self, branch: str) -> None:
        """The branch and the files of its snapshots are no more, unless it was published."""
        found: list[int] = []

        def change(transaction: Any) -> bool:
            # The branch is still there, so it was not published: both are one commit.
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
            # Not a day's worth of the main line: only these.
            expire = self._loaded.expireSnapshots().expireOlderThan(0)
            for snapshot_id in found:
                expire.expireSnapshotId(snapshot_id)
            expire.commit()

    def stale_branches(self) -> Sequence[str]:
        """Branches of runs that died long ago."""
        oldest_ms = self._clock.now_ms() - STAGING_AGE_MS_MAX
        matches = map(_BRANCH_NAME.fullmatch, self._loaded.refs().keySet())
        return [each[0] for each in matches if each is not None and int(each[1]) < oldest_ms]

    def rewrite(self, file_bytes: int) -> None:
        """Small files of a partition are joined to some of about that size."""
        jvm: Any = self._spark.sparkContext._jvm  # pyright: ignore[reportPrivateUsage]
        session = self._spark._jsparkSession  # pyright: ignore[reportPrivateUsage]
        action = jvm.org.apache.iceberg.spark.actions.SparkActions.get(session)
        rewrite = action.rewriteDataFiles(self._loaded).binPack()
        rewrite = rewrite.option("target-file-size-bytes", str(file_bytes))
        rewrite.option("min-input-files", "2").execute()
        self._loaded.refresh()
        self._forget()

    def _head(self, branch: str) -> IcebergSnapshot | None:
        reference = self._loaded.refs().get(branch)
        return None if reference is None else self.snapshot(reference.snapshotId())

    def _commit(
        self, change: Callable[[Any], bool | None], landed: Callable[[], bool] = lambda: False
    ) -> bool:
        """Whether `change` wanted it, committed at once on the metadata that it was shown."""
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
        raise JobError(f"{self.name}: others change it all the time; try again", "BUSY_TABLE")


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
