"""Goal: an Iceberg archive keeps its promises in a REST and in a JDBC catalog, on disk and on S3.

Method: Iceberg's own REST catalog over its database, and a JDBC catalog over SQLite. A second name
of the REST catalog acts as another process; the JDBC catalog is used without its cache. PyIceberg
asks the REST server itself; sqlite3 reads the JDBC catalog's database. DuckDB reads what PyIceberg
finds.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import StaticTable

from gateway.pipelines.archives.iceberg import IcebergArchive
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from tests.peers.iceberg_rest import IcebergRest
from tests.peers.s3 import KEY, REGION, SECRET, S3Server
from tests.pipelines.archive_contract import ArchiveContract, commit, frame, read, rows
from tests.pipelines.test_iceberg import Stop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore")
_numbers = itertools.count()
KINDS = ("rest", "jdbc", "rest on s3")
STEPS = ("branch", "write", "check", "publish")


class Catalog(NamedTuple):
    """A catalog under two names in Spark, and how other readers find its tables."""

    name: str
    other: str
    uri: str
    reading: Mapping[str, str]

    def found(self, table: str) -> Any:
        """Return PyIceberg's view of a table."""
        if self.uri.startswith("http"):
            settings = {"type": "rest", "uri": self.uri, **self.reading}
            return load_catalog("judge", **settings).load_table(table)
        space, name = table.split(".")
        with sqlite3.connect(self.uri.removeprefix("jdbc:sqlite:")) as database:
            query = "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = ?"
            (where,) = database.execute(f"{query} AND table_name = ?", (space, name)).fetchone()
        return StaticTable.from_metadata(where.removeprefix("file:"))


def use(spark: SparkSession, name: str, settings: Mapping[str, str]) -> None:
    for key, value in settings.items():
        spark.conf.set(f"spark.sql.catalog.{name}{key}", value)


@pytest.fixture(scope="module")
def rest_on_s3(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergRest]:
    data = tmp_path_factory.mktemp("rest-s3") / "data"
    with IcebergRest(data, warehouse=s3.path("warehouse"), hadoop=s3.hadoop()) as server:
        yield server


def rest(spark: SparkSession, server: IcebergRest, name: str, s3: S3Server | None) -> Catalog:
    for each in (name, f"{name}_other"):
        use(spark, each, {"": "org.apache.iceberg.spark.SparkCatalog", **server.settings()})
        use(spark, each, {".cache-enabled": "false"} if each != name else {})
    reading: dict[str, str] = {}
    if s3 is not None:
        reading = {"s3.endpoint": s3.endpoint, "s3.region": REGION}
        reading |= {"s3.access-key-id": KEY, "s3.secret-access-key": SECRET}
    return Catalog(name, f"{name}_other", server.uri, reading)


def jdbc(spark: SparkSession, data: Path) -> Catalog:
    uri = f"jdbc:sqlite:{data / 'catalog.db'}"
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": uri,
        ".jdbc.schema-version": "V1",
        ".warehouse": f"file:{data / 'warehouse'}",
    }
    # The catalog's name is a part of each key in its database, so there is no second name.
    use(spark, "jdbc", {**settings, ".cache-enabled": "false"})
    return Catalog("jdbc", "jdbc", uri, {})


@pytest.fixture(scope="module", params=KINDS)
def catalog(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Catalog:
    if request.param == "jdbc":
        return jdbc(spark, tmp_path_factory.mktemp("jdbc"))
    if request.param == "rest":
        return rest(spark, request.getfixturevalue("iceberg_rest"), "rest", None)
    server = request.getfixturevalue("rest_on_s3")
    return rest(spark, server, "rest_s3", request.getfixturevalue("s3"))


def span(start: int, end: int) -> OffsetRange:
    return OffsetRange("a", 0, start, end)


def put(spark: SparkSession, archive: IcebergArchive, *ranges: OffsetRange) -> bool:
    return archive.append(frame(spark, rows(*ranges)), commit(*ranges), archive.state())


@pytest.mark.proof
class TestContract(ArchiveContract):
    """The contract of all archives, in each catalog."""

    def opened(self, spark: SparkSession, name: str) -> IcebergArchive:
        return IcebergArchive(spark, name)

    @pytest.fixture
    def name(self, catalog: Catalog) -> str:
        return f"{catalog.name}.archives.c{next(_numbers)}"


@pytest.mark.proof
@pytest.mark.parametrize(
    "step",
    STEPS,
)
def test_a_run_that_is_overtaken_adds_nothing_and_other_readers_see_each_record_once(
    spark: SparkSession, catalog: Catalog, step: str
):
    table = f"archives.t{next(_numbers)}"
    other = IcebergArchive(spark, f"{catalog.other}.{table}")
    overtaken = IcebergArchive(
        spark,
        f"{catalog.name}.{table}",
        at_step=Stop(step, lambda: put(spark, other, span(0, 3))),
    )
    assert not put(spark, overtaken, span(0, 5))
    assert put(spark, overtaken, span(3, 12))
    assert read(other) == rows(span(0, 12))
    assert other.state().ends == {TopicPartition("a", 0): 12}

    found = catalog.found(table)
    assert list(found.metadata.refs) == ["main"]
    records = found.scan().to_arrow()  # noqa: F841 - DuckDB reads it by its name
    counted = duckdb.sql('SELECT count(*), count(DISTINCT "offset"), max("offset") FROM records')
    assert counted.fetchall() == [(12, 12, 11)]


@pytest.mark.parametrize("step", [pytest.param(each, marks=pytest.mark.proof) for each in STEPS])
def test_after_a_death_at_any_step_the_next_run_commits_the_records_once(
    spark: SparkSession, catalog: Catalog, step: str
):
    class Death(BaseException):
        """No handler of ours runs."""

    def die() -> None:
        raise Death

    table = f"archives.t{next(_numbers)}"
    assert put(spark, IcebergArchive(spark, f"{catalog.name}.{table}"), span(0, 2))
    dying = IcebergArchive(spark, f"{catalog.name}.{table}", at_step=Stop(step, die))
    with pytest.raises(Death):
        put(spark, dying, span(2, 5))
    again = IcebergArchive(spark, f"{catalog.other}.{table}")
    assert again.state().ends == {TopicPartition("a", 0): 2}
    assert put(spark, again, span(2, 5))
    assert catalog.found(table).scan().to_arrow().num_rows == 5
