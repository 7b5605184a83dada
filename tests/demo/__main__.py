"""The main job, end to end: produce, consume in a group, Spark batch and stream, each compared.

Ends with one line of JSON, and with 1 when anything differs from what pandas says of the CSV.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import pandas
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.demo import steps
from tests.demo.flights import Flight, differences, distance_column, expected, flights
from tests.peers.broker import Broker
from tests.peers.gateway import Gateway
from tests.peers.install import PeerMissing, spark_jars
from tests.peers.kafka import ApacheKafka
from tests.peers.spark import new_session

T = TypeVar("T")


class Report:
    """What each step did, and how far it is from the judge."""

    def __init__(self, judge: pandas.DataFrame) -> None:
        self.judge = judge
        self.rows: list[tuple[str, int, float, int, str]] = []

    def add(self, step: str, found: pandas.DataFrame, seconds: float, note: str = "") -> None:
        count = int(found["flights"].sum())
        self.rows.append((step, count, seconds, differences(found, self.judge), note))

    def table(self) -> Table:
        table = Table(
            title="flights of 2013: cells of each summary that differ from pandas on the CSV"
        )
        for name in ("step", "flights", "seconds", "flights/s", "differ", "note"):
            table.add_column(name, justify="left" if name in ("step", "note") else "right")
        for step, count, seconds, different, note in self.rows:
            figures = (f"{count:,}", f"{seconds:.1f}", f"{count / seconds:,.0f}", str(different))
            table.add_row(step, *figures, note)
        return table


def timed(work: Callable[[], T]) -> tuple[T, float]:
    started = time.monotonic()
    return work(), time.monotonic() - started


def with_progress(records: Iterable[Flight], count: int, console: Console) -> Iterator[Flight]:
    """The same records, with a bar when somebody is looking."""
    if console.is_terminal:
        return iter(track(records, "producing", total=count, console=console))
    return iter(records)


def job(broker: Broker, work: Path, console: Console) -> Report:
    judge, distance = expected(), distance_column()
    count = int(judge["flights"].sum())
    report = Report(judge)
    bootstrap = broker.bootstrap
    steps.create_topic(bootstrap)
    records = with_progress(flights(), count, console)
    acknowledged, seconds = timed(lambda: steps.produce(bootstrap, records))
    assert acknowledged == count, f"{acknowledged} of {count} acknowledged"
    (found, twice), group_s = timed(lambda: steps.consume_in_group(bootstrap, count, distance))
    note = f"keyed by carrier, {steps.PARTITIONS} partitions"
    report.rows.append(("produce", acknowledged, seconds, 0, note))
    report.add("group of two", found, group_s, f"{twice:,} read twice over the rebalance")
    spark = new_session("demo", work / "spark")
    try:
        batch, seconds = timed(lambda: steps.spark_batch(spark, bootstrap, distance))
        report.add("Spark batch", batch, seconds)
        (found, at_stop), seconds = timed(
            lambda: steps.spark_stream(spark, bootstrap, distance, work)
        )
        report.add("Spark stream", found, seconds, f"stopped after {at_stop:,}, resumed")
    finally:
        spark.stop()
    return report


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--target", choices=("gateway", "kafka"), default="gateway")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # pyspark on newer pandas
    console = Console(stderr=True)
    started = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix="demo-"))
    kinds = {"gateway": Gateway, "kafka": ApacheKafka}
    try:
        spark_jars()
        with kinds[arguments.target](work / "data") as broker:
            report = job(broker, work, console)
    except PeerMissing as missing:
        print(f"demo: {missing}")
        return 1
    finally:
        shutil.rmtree(work, ignore_errors=True)
    Console(width=100).print(report.table())
    different = sum(row[3] for row in report.rows)
    seconds = {row[0].replace(" ", "_").lower() + "_s": round(row[2], 1) for row in report.rows}
    line = {
        "demo": "flights",
        "target": arguments.target,
        "flights": report.rows[0][1],
        "carriers": len(report.judge),
        **seconds,
        "differences": different,
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(line))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
