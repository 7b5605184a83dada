"""The stores of the proofs: where the archive is, and how others see what is in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as dataset
from pyarrow.fs import FileSelector, FileSystem, LocalFileSystem, S3FileSystem
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from tests.peers.iceberg_rest import IcebergRest
from tests.peers.processes import Lifecycle, ServerProcess
from tests.peers.s3 import KEY, REGION, SECRET, S3Server

Row = tuple[bytes, bytes, int]
Placed = tuple[tuple[int, int], Row]
"""Partition and offset of a record, and its key, value and time."""
COLUMNS = ["partition", "offset", "key", "value", "timestamp"]


class Store(Lifecycle):
    """Where an archive is. `server` is the process to kill, if the store has one."""

    format = "parquet"
    server: ServerProcess | None = None

    def __init__(self, work: Path) -> None:
        self.work = work

    @property
    def place(self) -> str:
        """The archive as `gateway job archive --to` takes it."""
        return str(self.work / "archive")

    @property
    def words(self) -> list[str]:
        """Options of the jobs besides the place."""
        return [] if self.format == "parquet" else ["--format", self.format]

    @property
    def conf(self) -> Mapping[str, str]:
        """Settings of Spark."""
        return {}

    def source(self, topic: str) -> str:
        """The archive as `gateway job audit` takes it."""
        kind = "archive" if self.format == "parquet" else self.format
        return f"{kind}:{self.place}#{topic}"

    def commits(self) -> int:
        """Count the commits so far."""
        system, root = self._files()
        found = system.get_file_info(FileSelector(f"{root}/_commits", allow_not_found=True))
        return sum(each.base_name.removesuffix(".json").isdecimal() for each in found)

    def records(self) -> Iterator[Placed]:
        """Read all archived records without Spark and without our code."""
        system, root = self._files()
        found = system.get_file_info(FileSelector(root, recursive=True))
        files = [each.path for each in found if _is_archived(each.path.removeprefix(f"{root}/"))]
        partitions = dataset.partitioning(flavor="hive")
        data = dataset.dataset(files, filesystem=system, format="parquet", partitioning=partitions)
        for batch in data.to_batches(columns=COLUMNS):
            yield from _rows(batch)

    def _files(self) -> tuple[FileSystem, str]:
        return LocalFileSystem(), self.place

    def start(self) -> Store:
        if self.server is not None:
            self.server.start()
        return self

    def stop(self) -> None:
        if self.server is not None and self.server.running:
            self.server.stop()


class S3Store(Store):
    """A Parquet archive on the S3 server."""

    def __init__(self, work: Path) -> None:
        super().__init__(work)
        self.server = self._s3 = S3Server(work / "s3")

    @property
    def place(self) -> str:
        return self._s3.path("archive")

    @property
    def conf(self) -> Mapping[str, str]:
        return {f"spark.hadoop.{key}": value for key, value in self._s3.hadoop().items()}

    def commits(self) -> int:
        # The server may be down, so its directory is counted.
        found = self._s3.local("archive") / "_commits"
        return len(list(found.glob("[0-9]*.json"))) if found.exists() else 0

    def _files(self) -> tuple[FileSystem, str]:
        system = S3FileSystem(
            access_key=KEY, secret_key=SECRET, region=REGION, endpoint_override=self._s3.endpoint
        )
        return system, f"{self._s3.bucket}/archive"


class IcebergRestStore(Store):
    """An Iceberg table in Iceberg's own REST catalog."""

    format = "iceberg"

    def __init__(self, work: Path) -> None:
        super().__init__(work)
        self.server = self._rest = IcebergRest(work / "rest")
        # The number of snapshots when the server last answered.
        self._known = 0

    @property
    def place(self) -> str:
        return "lake.archives.flights"

    @property
    def conf(self) -> Mapping[str, str]:
        settings = {"": "org.apache.iceberg.spark.SparkCatalog", **self._rest.settings()}
        return {f"spark.sql.catalog.lake{key}": value for key, value in settings.items()}

    def commits(self) -> int:
        try:
            snapshots = self._table().metadata.snapshots
        except NoSuchTableError:
            return 0
        except Exception:  # the server is down
            return self._known
        self._known = sum("archive.run" in _summary(each) for each in snapshots)
        return self._known

    def records(self) -> Iterator[Placed]:
        scan = self._table().scan(selected_fields=tuple(COLUMNS))
        for batch in scan.to_arrow_batch_reader():
            yield from _rows(batch)

    def _table(self) -> Any:
        catalog = load_catalog("judge", type="rest", uri=self._rest.uri)
        return catalog.load_table(self.place.removeprefix("lake."))


STORES: Mapping[str, type[Store]] = {
    "local": Store,
    "s3": S3Store,
    "iceberg-rest": IcebergRestStore,
}


def _is_archived(path: str) -> bool:
    return path.startswith("topic=") and path.endswith(".parquet")


def _summary(snapshot: Any) -> Mapping[str, str]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def _rows(batch: pa.RecordBatch) -> Iterator[Placed]:
    micros = batch.column("timestamp").cast(pa.timestamp("us")).cast("int64").to_pylist()
    lists = [batch.column(name).to_pylist() for name in COLUMNS[:4]]
    for partition, offset, key, value, time in zip(*lists, micros, strict=True):
        yield (int(partition), offset), (key, value, time // 1000)
