"""A topic as its segments hold it: read from bookies, no gateway between."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway.pipelines.audits.model import CleanupRules, Ranges, Side
from gateway.pipelines.audits.sides import check_same_topic
from gateway.pipelines.direct import register
from gateway.pipelines.direct.offsets import PartitionSources
from gateway.pipelines.direct.options import Options, parse
from gateway.pipelines.direct.storage import open_storage, read_topic
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_source import Isolation, offsets_json
from gateway.pipelines.shared.partitions import TopicPartition
from gateway.pipelines.shared.topics import OffsetBounds
from gateway.topics.catalog import Topic
from gateway.topics.configs import topic_config

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def segments_side(
    spark: SparkSession, name: str, topic: str, metadata: str, isolation: Isolation
) -> Side:
    """The topic as its storage has it now. Raises JobError.

    Segments are never compacted, whatever the topic's settings say: what is not there is lost.
    """
    if not metadata:
        raise JobError(
            f"{name}: say with --metadata where the storage is: zk://host:port/chroot of a"
            " cluster, or grpc://127.0.0.1:3181 of `gateway dev`",
            "USAGE",
        )
    register(spark)
    options = parse({"metadata": metadata, "subscribe": topic})
    facts, bounds = asyncio.run(_looked_up(options))
    config = topic_config(facts.configs)
    rules = CleanupRules(
        compact=False,
        delete="delete" in config.cleanup_policy,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
    )

    def reading(chosen: Isolation, ranges: Ranges) -> DataFrame:
        assigned = sorted(place.partition for place in ranges)
        reader = spark.read.format("ledger").option("metadata", metadata)
        return reader.options(
            assign=f'{{"{topic}":{assigned}}}',
            startingOffsets=offsets_json({place: each.earliest for place, each in ranges.items()}),
            endingOffsets=offsets_json({place: each.latest for place, each in ranges.items()}),
            includeHeaders="true",
            failOnDataLoss="true",
            isolation=str(chosen),
        ).load()

    def confirm() -> None:
        now, _ = asyncio.run(_looked_up(options))
        check_same_topic(topic, str(facts.topic_id), str(now.topic_id))

    committed = isolation is Isolation.read_committed
    return Side(
        name,
        bounds,
        read=lambda ranges: reading(isolation, ranges),
        uncommitted=(lambda ranges: reading(Isolation.read_uncommitted, ranges))
        if committed
        else None,
        ordered=True,
        rules={topic: rules},
        topic_ids={topic: str(facts.topic_id)},
        confirm=confirm,
    )


async def _looked_up(options: Options) -> tuple[Topic, dict[TopicPartition, OffsetBounds]]:
    async with open_storage(options.metadata, *(options.tls or ())) as storage:
        (name,) = options.topics
        topic = await read_topic(storage.store, name)
        sources = PartitionSources(storage, options)
        try:
            found = await sources.look()
            return topic, {
                place: OffsetBounds(each.scan.start_sequence_id, each.scan.end_sequence_id)
                for place, each in found.items()
            }
        finally:
            sources.close()
