"""The stored plans of a replay: files in a directory, or properties of the archive's table.

A plan is stored once and never replaced. If two runs store a plan of the same number, the first one
succeeds, and both continue with that plan.
"""

from __future__ import annotations

import base64
import re
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.files import join_path, open_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TRIES_MAX = 20
_TAG_AGE_MS_MAX = 3_600_000
"""The age at which Iceberg may remove the tag of a plan. A commit must not take longer."""
_FILE = re.compile(r"plan(?:-(\d+))?\.json")


class StoredPlan(NamedTuple):
    """A plan as it was stored. `where` names its place in errors."""

    number: int
    data: bytes
    where: str


class PlanStore(Protocol):
    """The port to the plans of one replay, numbered from 1. Every method may raise JobError."""

    @property
    def name(self) -> str:
        """The place of the plans, for reports."""
        ...

    def last(self) -> StoredPlan | None:
        """Return the plan with the highest number, or None if there is none."""
        ...

    def put_if_absent(self, number: int, data: bytes) -> None:
        """Store the plan, unless there is a plan of that number."""
        ...


def default_state(directory: str, digest: str) -> str:
    """Return the state directory of a replay: a hidden directory inside the archive."""
    return join_path(directory, "_replays", digest)


class FilePlans:
    """Plans as files in a directory: `plan.json`, `plan-2.json`, and so on."""

    def __init__(self, spark: SparkSession | None, directory: str) -> None:
        self.name = directory
        self._files = open_files(spark, directory)

    def last(self) -> StoredPlan | None:
        matches = map(_FILE.fullmatch, self._files.names(self.name))
        numbers = [int(each[1] or 1) for each in matches if each is not None]
        if not numbers:
            return None
        path = self._path(max(numbers))
        data = self._files.read(path)
        assert data is not None, "plans are never removed"
        return StoredPlan(max(numbers), data, path)

    def put_if_absent(self, number: int, data: bytes) -> None:
        self._files.put_if_absent(self._path(number), data)

    def _path(self, number: int) -> str:
        return join_path(self.name, "plan.json" if number == 1 else f"plan-{number}.json")


class TablePlans:
    """Plans as properties of an Iceberg table, for all replays of the table.

    Iceberg sets a property whether it exists or not. Therefore the same commit creates a tag of the
    plan's name, which a catalog refuses if the tag exists. The tag may be removed after an hour.
    Of the plans of a replay, the table keeps the last two.
    """

    def __init__(self, spark: SparkSession, table: str, digest: str) -> None:
        self.name = f"{table}, property archive.replay.{digest}"
        self._spark = spark
        self._table = table
        self._prefix = f"archive.replay.{digest}."
        # Iceberg's Table object in the JVM. None until the first call.
        self._loaded: Any = None

    def last(self) -> StoredPlan | None:
        properties = self._properties()
        numbers = self._numbers(properties)
        if not numbers:
            return None
        key = f"{self._prefix}{max(numbers)}"
        where = f"{self._table}, property {key}"
        try:
            data = zlib.decompress(base64.b64decode(properties[key], validate=True))
        except (ValueError, zlib.error) as error:
            raise JobError(f"{where}: not the state of a replay: {error!r}", "BAD_STATE") from error
        return StoredPlan(max(numbers), data, where)

    def put_if_absent(self, number: int, data: bytes) -> None:
        from py4j.protocol import Py4JJavaError

        key = f"{self._prefix}{number}"
        text = base64.b64encode(zlib.compress(data, 9)).decode()
        for _ in range(_TRIES_MAX):
            known = self._numbers(self._properties())
            if number in known:
                return
            try:
                self._commit(key, text, [each for each in known if each < number - 1])
                return
            except Py4JJavaError as error:
                # If the outcome is unknown, the next look at the properties decides.
                name = error.java_exception.getClass().getSimpleName()
                if name not in ("CommitFailedException", "CommitStateUnknownException"):
                    raise
        raise JobError(f"{self._table}: other writers keep changing it; try again", "BUSY_TABLE")

    def _commit(self, key: str, text: str, old: list[int]) -> None:
        snapshot = self._loaded.currentSnapshot()
        if snapshot is None:
            raise JobError(f"{self._table}: the archive is empty", "NOT_ARCHIVED")
        transaction = self._loaded.newTransaction()
        # The transaction begins with the newest metadata, which may have the plan by now.
        seen = transaction.table()
        if seen.properties().containsKey(key):
            return
        update = transaction.updateProperties().set(key, text)
        for each in old:
            update = update.remove(f"{self._prefix}{each}")
        update.commit()
        tag = key.replace(".", "_")
        manage = transaction.manageSnapshots()
        if seen.refs().containsKey(tag):  # of a table that lost its properties
            manage = manage.removeTag(tag)
        manage = manage.createTag(tag, snapshot.snapshotId())
        manage.setMaxRefAgeMs(tag, _TAG_AGE_MS_MAX).commit()
        transaction.commitTransaction()

    def _properties(self) -> dict[str, str]:
        """Return the table's properties as they are now."""
        if self._loaded is None:
            if not self._spark.catalog.tableExists(self._table):
                raise JobError(f"{self._table}: there is no such table", "NOT_ARCHIVED")
            jvm: Any = self._spark.sparkContext._jvm  # pyright: ignore[reportPrivateUsage]
            session = self._spark._jsparkSession  # pyright: ignore[reportPrivateUsage]
            util = jvm.org.apache.iceberg.spark.Spark3Util
            self._loaded = util.loadIcebergTable(session, self._table)
        self._loaded.refresh()
        return dict(self._loaded.properties())

    def _numbers(self, properties: dict[str, str]) -> list[int]:
        size = len(self._prefix)
        return [int(each[size:]) for each in properties if each.startswith(self._prefix)]
