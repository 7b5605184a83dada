"""Reads through Spark's own Kafka source, for exactly the requested offsets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from gateway.pipelines.shared.kafka_servers import KafkaServers, source_options
from gateway.pipelines.shared.partitions import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Isolation(StrEnum):
    """Kafka's isolation.level: whether reads include records of open and aborted transactions."""

    read_committed = "read_committed"
    read_uncommitted = "read_uncommitted"


def offsets_json(offsets: Mapping[tuple[str, int], int]) -> str:
    """Encode offsets as Spark does, sorted by topic and partition: {"topic":{"0":5}}."""
    topics: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(offsets):
        topics.setdefault(topic, {})[str(partition)] = offsets[topic, partition]
    return json.dumps(topics, separators=(",", ":"))


def read_ranges(
    spark: SparkSession,
    bootstrap: KafkaServers,
    ranges: Iterable[OffsetRange],
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Read these ranges, at most one per partition, with the columns of `COLUMNS`.

    The query fails if records of a range are deleted while it runs. `options` are passed on to the
    source.
    """
    wanted = list(ranges)
    reader = spark.read.format("kafka").options(**source_options(bootstrap))
    assigned: dict[str, list[int]] = {}
    for each in wanted:
        assigned.setdefault(each.topic, []).append(each.partition)
    return reader.options(
        assign=json.dumps(assigned),
        startingOffsets=offsets_json({each.topic_partition: each.start for each in wanted}),
        endingOffsets=offsets_json({each.topic_partition: each.end for each in wanted}),
        includeHeaders="true",
        failOnDataLoss="true",
        **dict(options or {}),
    ).load()
