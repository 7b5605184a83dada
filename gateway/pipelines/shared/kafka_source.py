"""Spark's own Kafka source, asked for exactly these offsets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from gateway.pipelines.shared.partitions import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Isolation(StrEnum):
    """Whether records of open and aborted transactions are read; as Kafka names it."""

    read_committed = "read_committed"
    read_uncommitted = "read_uncommitted"


def offsets_json(offsets: Mapping[tuple[str, int], int]) -> str:
    """As Spark writes offsets: {"topic":{"0":5}}, topics and partitions in order."""
    topics: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(offsets):
        topics.setdefault(topic, {})[str(partition)] = offsets[topic, partition]
    return json.dumps(topics, separators=(",", ":"))


def read_ranges(
    spark: SparkSession,
    bootstrap: str,
    ranges: Iterable[OffsetRange],
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The records of these ranges (one of a place), columns of `COLUMNS`, headers included.

    Fails when one of them is gone while it runs. `options` are further ones of the source.
    """
    wanted = list(ranges)
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    assigned: dict[str, list[int]] = {}
    for each in wanted:
        assigned.setdefault(each.topic, []).append(each.partition)
    return reader.options(
        assign=json.dumps(assigned),
        startingOffsets=offsets_json({each.place: each.start for each in wanted}),
        endingOffsets=offsets_json({each.place: each.end for each in wanted}),
        includeHeaders="true",
        failOnDataLoss="true",
        **dict(options or {}),
    ).load()
