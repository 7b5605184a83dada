"""A topic's segments as a side of an audit, read from bookies without a gateway."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from gateway.interrupt import run_interruptibly
from gateway.pipelines.archives.holes import HOLE_COLUMNS, clip_holes
from gateway.pipelines.audits.model import CleanupRules, Ranges, Side
from gateway.pipelines.audits.sides import check_same_topic
from gateway.pipelines.direct import register
from gateway.pipelines.direct.offsets import PartitionSources, wait_until_known
from gateway.pipelines.direct.options import Options, parse
from gateway.pipelines.direct.pruning import PushedFilters
from gateway.pipelines.direct.tasks import SliceTask, plan_tasks, read_holes
from gateway.pipelines.shared.accepted_losses import lost_ranges
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_source import Isolation, offsets_json
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from gateway.pipelines.shared.storage import open_storage, read_topic
from gateway.pipelines.shared.topics import OffsetBounds
from gateway.topics.catalog import Topic
from gateway.topics.configs import topic_config

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def segments_side(
    spark: SparkSession,
    name: str,
    topic: str,
    metadata: str,
    isolation: Isolation,
    tls: Mapping[str, str],
) -> Side:
    """Open the topic's segments as they are now. Raises JobError.

    Segments are never compacted, even if the topic's settings ask for it. Therefore a missing
    record is lost.
    """
    register(spark)
    options = _options(name, topic, metadata, isolation, tls)
    stored, bounds, accepted = run_interruptibly(_look_up(options))

    def reading(chosen: Isolation, ranges: Ranges) -> DataFrame:
        assigned = sorted(partition.partition for partition in ranges)
        reader = spark.read.format("ledger").option("metadata", metadata)
        return reader.options(
            assign=f'{{"{topic}":{assigned}}}',
            startingOffsets=offsets_json(
                {partition: each.earliest for partition, each in ranges.items()}
            ),
            endingOffsets=offsets_json(
                {partition: each.latest for partition, each in ranges.items()}
            ),
            includeHeaders="true",
            failOnDataLoss="true",
            acceptedLoss="skip",
            isolation=str(chosen),
            **tls,
        ).load()

    def now() -> Ranges:
        return run_interruptibly(_look_up(options))[1]

    def confirm() -> None:
        now, _, _ = run_interruptibly(_look_up(options))
        check_same_topic(topic, str(stored.topic_id), str(now.topic_id))

    committed = isolation is Isolation.read_committed
    return Side(
        name,
        bounds,
        read=lambda ranges: reading(isolation, ranges),
        uncommitted=(lambda ranges: reading(Isolation.read_uncommitted, ranges))
        if committed
        else None,
        holes=lambda ranges: _holes(spark, options, ranges),
        ordered=True,
        rules={topic: _rules(stored)},
        accepted=accepted,
        topic_ids={topic: str(stored.topic_id)},
        now=now,
        confirm=confirm,
    )


def _options(
    name: str, topic: str, metadata: str, isolation: Isolation, tls: Mapping[str, str]
) -> Options:
    if not metadata:
        raise JobError(
            f"{name}: set --metadata to the storage: zk://host:port/chroot of a cluster, or"
            " grpc://127.0.0.1:3181 of `gateway dev`",
            "USAGE",
        )
    wanted = {"metadata": metadata, "subscribe": topic, "isolation": str(isolation)}
    return parse({**wanted, **tls})


def _rules(stored: Topic) -> CleanupRules:
    config = topic_config(stored.configs)
    return CleanupRules(
        compact=False,
        delete="delete" in config.cleanup_policy,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
    )


def _holes(spark: SparkSession, options: Options, ranges: Ranges) -> DataFrame:
    """Find the markers and the aborted batches in these ranges, one task for each slice."""
    tasks = run_interruptibly(_plan(options, ranges))

    def find(some: Iterable[SliceTask]) -> Iterator[OffsetRange]:
        for task in some:
            whole = OffsetRange(*task.topic_partition, task.piece.first, task.piece.end)
            yield from clip_holes(read_holes(task, options), whole)

    spread = spark.sparkContext.parallelize(tasks, max(1, len(tasks)))
    return spark.createDataFrame(spread.mapPartitions(find), HOLE_COLUMNS)


async def _plan(options: Options, ranges: Ranges) -> list[SliceTask]:
    async with open_storage(
        options.metadata, *(options.tls or ()), transport=options.transport
    ) as storage:
        sources = PartitionSources(storage, options)
        try:
            found = await sources.refresh()
            await wait_until_known(
                found, {partition: each.latest for partition, each in ranges.items()}, decided=True
            )
            wanted = [
                OffsetRange(*partition, *each)
                for partition, each in ranges.items()
                if each.earliest < each.latest
            ]
            return await plan_tasks(wanted, found, options.slice_bytes, PushedFilters())
        finally:
            sources.close()


async def _look_up(
    options: Options,
) -> tuple[Topic, dict[TopicPartition, OffsetBounds], tuple[OffsetRange, ...]]:
    """Return the topic, the bounds of its partitions, and the losses that were accepted."""
    async with open_storage(
        options.metadata, *(options.tls or ()), transport=options.transport
    ) as storage:
        (name,) = options.topics
        topic = await read_topic(storage.store, name)
        sources = PartitionSources(storage, options)
        try:
            found = await sources.refresh()
            bounds = {
                partition: OffsetBounds(each.scan.start_sequence_id, each.end)
                for partition, each in found.items()
            }
            accepted = [
                lost
                for partition, each in found.items()
                for lost in lost_ranges(partition, each.scan.losses)
            ]
            return topic, bounds, tuple(accepted)
        finally:
            sources.close()
