"""The judges of the proofs on Spark: the project's own audits, and pandas on the CSV."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import islice

import pandas
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.demo import steps
from tests.demo.flights import differences as cells
from tests.demo.flights import distance_column, flights, summary
from tests.demo.flights import expected as csv_summary
from tests.pipelines.proof_harm import DIFFERS, Harm
from tests.pipelines.proof_stores import Placed

COPY = "flights-again"
READ_S_MAX = 600.0
_PLACE = ["partition", "offset"]
_RECORD = ["key", "value", "ms"]


class Ends:
    """The number of records that the copy has, as far as the gateway was up to answer."""

    def __init__(self, bootstrap: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": "proof", "log_level": 0}
        self._consumer = Consumer(settings)
        self._known = 0

    def replayed(self) -> int:
        found = 0
        for partition in range(steps.PARTITIONS):
            try:
                place = TopicPartition(COPY, partition)
                _, end = self._consumer.get_watermark_offsets(place, timeout=1.0)
            except KafkaException:
                return self._known  # the gateway is down, or the topic does not exist yet
            found += end
        self._known = max(self._known, found)
        return self._known

    def close(self) -> None:
        self._consumer.close()


def audits(harm: Harm, archive: str, metadata: str) -> int:
    """Return the differences that the audit job finds between four copies, and in the archive."""
    topic, copy = f"topic:{steps.TOPIC}", f"topic:{COPY}"
    found = 0
    for words in (
        [topic, archive],
        [archive, copy, "--align", "rank"],
        [topic, f"segments:{steps.TOPIC}", "--metadata", metadata],
        [archive],
    ):
        job = harm.supervise("audit", *words)
        report = job.wait_done()
        print(f"audit {' '.join(words[:2])}: {report['verdict']}", flush=True)
        differs = job.process.exit_code == DIFFERS
        assert differs == bool(report["differences"]), report
        assert report["verdict"] != "explained", report
        found += report["differences"]
    return found


def in_copy(bootstrap: str) -> Iterator[Placed]:
    """Read the copy with librdkafka, to the end of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "judge",
            "auto.offset.reset": "earliest",
            "log_level": 3,
        }
    )
    places = [TopicPartition(COPY, partition, 0) for partition in range(steps.PARTITIONS)]
    ends = sum(consumer.get_watermark_offsets(place, timeout=60)[1] for place in places)
    consumer.assign(places)
    deadline = time.monotonic() + READ_S_MAX
    seen = 0
    while seen < ends and time.monotonic() < deadline:
        for message in consumer.consume(10_000, timeout=1.0):
            assert message.error() is None, message.error()
            seen += 1
            row = (message.key(), message.value(), message.timestamp()[1])
            yield (message.partition(), message.offset()), row
    consumer.close()


def frame(rows: Iterable[Placed]) -> pandas.DataFrame:
    """Return the records as a table."""
    return pandas.DataFrame([(*place, *row) for place, row in rows], columns=[*_PLACE, *_RECORD])


def originals(count: int) -> pandas.DataFrame:
    """Return the first flights of the CSV as records, in the order of the file."""
    return pandas.DataFrame(islice(flights(), count), columns=_RECORD)


def differences(found: pandas.DataFrame, wanted: pandas.DataFrame) -> int:
    """Count the places at which the records are not those of the CSV, each once and in its order.

    The producer chose a partition for each key. In each partition, the offsets must count the
    flights of its keys from 0, in the order of the CSV.
    """
    partitions = found.groupby("key")["partition"].agg(["min", "nunique"])
    scattered = int((partitions["nunique"] != 1).sum())
    wanted = wanted.assign(partition=wanted["key"].map(partitions["min"]).fillna(-1).astype(int))
    wanted["offset"] = wanted.groupby("partition").cumcount()
    doubled = int(found.duplicated(_PLACE).sum())
    both = found.merge(wanted, "outer", _PLACE, suffixes=("", "_wanted"), indicator=True)
    same = both["_merge"] == "both"
    for name in _RECORD:
        same &= both[name] == both[f"{name}_wanted"]
    return scattered + doubled + int((~same).sum())


def summary_differences(found: pandas.DataFrame, count: int) -> int:
    """Compare counts, distances and times of each carrier with what pandas reads in the CSV."""
    fields = found["value"].str.decode("utf-8").str.split(",").str[distance_column()]
    columns = {"distance": fields.astype("int64"), "carrier": found["key"].str.decode("utf-8")}
    return cells(summary(found.assign(**columns, hour_ms=found["ms"])), csv_summary(count))


def judge(archived: Iterable[Placed], copied: Iterable[Placed], count: int) -> int:
    """Return all differences of the archive's files and of the copy from `count` flights."""
    wanted = originals(count)
    found = 0
    for name, rows in (("files", archived), ("copy", copied)):
        table = frame(rows)
        here = differences(table, wanted) + summary_differences(table, count)
        print(f"{name}: {len(table)} records of {len(wanted)}, {here} differences", flush=True)
        found += here
    return found
