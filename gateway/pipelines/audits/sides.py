"""Topics and archives as the sides of an audit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gateway.pipelines.archives.lives import base_name, select_life
from gateway.pipelines.archives.port import Archive
from gateway.pipelines.audits.model import CleanupRules, Ranges, Side
from gateway.pipelines.shared.accepted_losses import LossesUnknown, read_accepted
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.frames import filter_offsets, small_frame
from gateway.pipelines.shared.kafka_admin import KafkaAdmin
from gateway.pipelines.shared.kafka_source import Isolation, read_ranges
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from gateway.pipelines.shared.topics import OffsetBounds, Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PLAIN = "PLAINTEXT"


def cleanup_rules(settings: Mapping[str, str | None]) -> CleanupRules:
    """Return the rules for the records that a topic's settings allow a broker to remove."""
    known = CleanupRules()
    policies = [each.strip() for each in (settings.get("cleanup.policy") or "delete").split(",")]
    return CleanupRules(
        compact="compact" in policies,
        delete="delete" in policies,
        retention_ms=int(settings.get("retention.ms") or -1),
        retention_bytes=int(settings.get("retention.bytes") or -1),
        tombstone_ms=int(settings.get("delete.retention.ms") or known.tombstone_ms),
        lag_ms=int(settings.get("min.compaction.lag.ms") or known.lag_ms),
    )


def topic_side(
    spark: SparkSession,
    name: str,
    topic: str,
    bootstrap: str,
    isolation: Isolation,
    metadata: str = "",
    client: Mapping[str, str] | None = None,
) -> Side:
    """Open a topic as a side. Spark's own source reads the records from the cluster.

    `metadata` is needed if the address that the gateways name leads nowhere from here. `client` are
    properties of Kafka's client, with which the driver and the tasks connect.
    """
    topics = KafkaAdmin(spark, bootstrap, client) if client else Topics(bootstrap)
    topics.named([topic])
    plain = (client or {}).get("security.protocol", _PLAIN).upper() == _PLAIN
    accepted, notes = _accepted_of(name, topic, bootstrap if plain else "", metadata)

    def reading(chosen: Isolation, ranges: Ranges) -> DataFrame:
        wanted = [OffsetRange(*partition, *each) for partition, each in ranges.items()]
        options = {f"kafka.{key}": value for key, value in (client or {}).items()}
        options["kafka.isolation.level"] = str(chosen)
        return without_lost(spark, read_ranges(spark, bootstrap, wanted, options), accepted)

    def holes(ranges: Ranges) -> DataFrame:
        # Imported here because it needs numpy.
        from gateway.pipelines.archives.holes import find_holes

        wanted = [OffsetRange(*partition, *each) for partition, each in ranges.items()]
        return find_holes(spark, bootstrap, wanted, isolation)

    def confirm() -> None:
        check_same_topic(topic, topic_id, topics.describe(topic).topic_id)

    committed = isolation is Isolation.read_committed
    # Look up the id before the bounds, so that `confirm` detects a topic recreated in between.
    topic_id = topics.describe(topic).topic_id
    return Side(
        name,
        topics.bounds([topic]),
        read=lambda ranges: reading(isolation, ranges),
        uncommitted=(lambda ranges: reading(Isolation.read_uncommitted, ranges))
        if committed
        else None,
        holes=holes if plain else None,
        ordered=True,
        rules={topic: cleanup_rules(topics.settings(topic))},
        accepted=accepted,
        topic_ids={} if topic_id is None else {topic: topic_id},
        now=lambda: topics.bounds([topic]),
        confirm=confirm,
        notes=notes,
    )


def _accepted_of(
    name: str, topic: str, bootstrap: str, metadata: str
) -> tuple[tuple[OffsetRange, ...], tuple[str, ...]]:
    """Return the accepted losses of a topic, and a note if they are unknown.

    Without `bootstrap`, only the store at `metadata` is read.
    """
    if not bootstrap and not metadata:
        return (), (
            f"{name}: accepted losses are unknown, because gateways are asked for their metadata"
            " without TLS only; name it with --metadata if the topic is served by gateways",
        )
    try:
        try:
            found = read_accepted(bootstrap, [topic], "" if bootstrap else metadata)
        except LossesUnknown:
            if not metadata:
                raise
            found = read_accepted(bootstrap, [topic], metadata)
    except LossesUnknown as error:
        return (), (f"{name}: {error}; lost records of it count as LOST",)
    return tuple(each for ranges in found.values() for each in ranges), ()


def without_lost(
    spark: SparkSession, frame: DataFrame, accepted: Sequence[OffsetRange]
) -> DataFrame:
    """Leave out rows at offsets of accepted losses: markers, which no archive and no segment has.

    The order of the rows stays.
    """
    from pyspark.sql import functions as F

    if not accepted:
        return frame
    known = small_frame(
        spark, accepted, "its_topic STRING, its_partition INT, start BIGINT, end BIGINT"
    )
    here = (F.col("topic") == F.col("its_topic")) & (F.col("partition") == F.col("its_partition"))
    here &= (F.col("offset") >= F.col("start")) & (F.col("offset") < F.col("end"))
    return frame.join(F.broadcast(known), here, "left_anti")


def check_same_topic(topic: str, before: str | None, now: str | None) -> None:
    """Raise JobError if both ids are known and differ."""
    if before is not None and now is not None and before != now:
        raise JobError(
            f"topic {topic!r} was deleted and recreated while it was read: its id was {before},"
            f" and is now {now}; audit again",
            "TOPIC_MADE_ANEW",
        )


def archive_side(
    spark: SparkSession,
    name: str,
    archive: Archive,
    topic: str | None,
    others: str | None,
    others_id: Callable[[], str] = str,
) -> Side:
    """Open an archive as a side, restricted to one topic if one is named.

    `topic` takes precedence over `others`, the topic of the other source. `others_id` looks up the
    id of that topic, or an empty text. It selects one of several lives.
    """
    ranges = archive.ranges()
    state = archive.state()
    topics = sorted({partition.topic for partition in state.ends})
    if not topics:
        raise JobError(f"{name}: the archive is empty", "EMPTY_ARCHIVE")
    wanted = others if topic is None else topic
    known = wanted is not None and base_name(wanted) in map(base_name, topics)
    if wanted is not None and known:
        lives = [each for each in topics if base_name(each) == base_name(wanted)]
        others_life = others_id() if wanted == others and len(lives) > 1 else ""
        chosen = [select_life(lives, state.topic_ids, wanted, others_life)]
    elif topic is not None:
        raise JobError(f"{name}: it holds {', '.join(topics)}", "UNKNOWN_TOPIC")
    elif others is None or len(topics) == 1:
        chosen = topics
    else:
        raise JobError(f"{name} holds {', '.join(topics)}: add #TOPIC to choose one", "USAGE")
    bounds = {partition: OffsetBounds(end, end) for partition, end in state.ends.items()}
    bounds |= range_bounds(ranges)
    return Side(
        name,
        {partition: each for partition, each in bounds.items() if partition.topic in chosen},
        read=lambda wanted: filter_ranges(spark, archive.read(chosen), wanted),
        accepted=tuple(lost.range for lost in state.lost if lost.range.topic in chosen),
        topic_ids={each: state.topic_ids[each] for each in chosen if each in state.topic_ids},
    )


def range_bounds(ranges: list[OffsetRange]) -> dict[TopicPartition, OffsetBounds]:
    """Return for each partition the bounds from the first to the last offset of its ranges."""
    found: dict[TopicPartition, OffsetBounds] = {}
    for each in ranges:
        known = found.get(each.topic_partition, OffsetBounds(each.start, each.end))
        found[each.topic_partition] = OffsetBounds(
            min(known.earliest, each.start), max(known.latest, each.end)
        )
    return found


def filter_ranges(spark: SparkSession, frame: DataFrame, wanted: Ranges) -> DataFrame:
    """Keep the records of these ranges, with the columns of `COLUMNS`."""
    columns = [column for column in frame.columns if column != "day"]
    ranges = [OffsetRange(*partition, *each) for partition, each in wanted.items()]
    return filter_offsets(spark, frame, ranges).select(*columns)
