"""What an audit can compare: `topic:`, `segments:`, `archive:` and `iceberg:`, opened as sides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from gateway.pipelines.audits.counting import table
from gateway.pipelines.audits.model import Isolation, Ranges, Rules, Side
from gateway.pipelines.kafka_source import read_ranges
from gateway.pipelines.model import JobError, OffsetRange, Place
from gateway.pipelines.topics import Bounds, Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KINDS = ("topic", "archive", "iceberg", "segments")
_SPELT_OUT = 64  # ranges that a condition may list
_ARCHIVES = {"archive": "parquet", "iceberg": "iceberg"}


class Source(NamedTuple):
    """`kind:where[#topic]`, as somebody wrote it."""

    kind: str
    where: str
    topic: str | None

    def __str__(self) -> str:
        return f"{self.kind}:{self.where}{'' if self.topic is None else f'#{self.topic}'}"


class Access(NamedTuple):
    """How sources are reached: servers, metadata of the storage, which records are read."""

    bootstrap: str
    metadata: str = ""
    isolation: Isolation = Isolation.read_committed


def parse_source(text: str) -> Source:
    """Raises JobError that says the grammar."""
    kind, colon, where = text.partition(":")
    topic = None
    if kind in _ARCHIVES and "#" in where:
        where, _, topic = where.rpartition("#")
    if kind not in KINDS or not colon or not where or topic == "":
        raise JobError(
            f"{text!r} is no source: write topic:NAME, segments:NAME, archive:PATH[#TOPIC] or"
            " iceberg:CATALOG.NAMESPACE.TABLE[#TOPIC]",
            "USAGE",
        )
    return Source(kind, where, topic)


def open_sides(
    spark: SparkSession, left: Source, right: Source, left_access: Access, right_access: Access
) -> tuple[Side, Side]:
    """Both, as they stand now; an archive of many topics is cut to the topic of the other one."""
    wanted = [each.where if each.kind not in _ARCHIVES else each.topic for each in (left, right)]
    return (
        _open(spark, left, left_access, wanted[1]),
        _open(spark, right, right_access, wanted[0]),
    )


def _open(spark: SparkSession, source: Source, access: Access, others: str | None) -> Side:
    if source.kind == "topic":
        return topic_side(spark, str(source), source.where, access)
    if source.kind == "segments":
        from gateway.pipelines.audits.segments import segments_side

        return segments_side(spark, str(source), source.where, access.metadata, access.isolation)
    return archive_side(spark, source, others)


def rules_of(settings: Mapping[str, str | None]) -> Rules:
    """What the settings of a topic let a broker remove."""
    known = Rules()
    policies = [each.strip() for each in (settings.get("cleanup.policy") or "delete").split(",")]
    return Rules(
        compact="compact" in policies,
        delete="delete" in policies,
        retention_ms=int(settings.get("retention.ms") or -1),
        retention_bytes=int(settings.get("retention.bytes") or -1),
        tombstone_ms=int(settings.get("delete.retention.ms") or known.tombstone_ms),
        lag_ms=int(settings.get("min.compaction.lag.ms") or known.lag_ms),
    )


def topic_side(spark: SparkSession, name: str, topic: str, access: Access) -> Side:
    """A topic, read through its cluster by Spark's own source."""
    topics = Topics(access.bootstrap)
    topics.named([topic])

    def reading(isolation: Isolation, ranges: Ranges) -> DataFrame:
        wanted = [OffsetRange(*place, *each) for place, each in ranges.items()]
        options = {"kafka.isolation.level": str(isolation)}
        return read_ranges(spark, access.bootstrap, wanted, options)

    def confirm() -> None:
        check_same(topic, topic_id, topics.facts(topic).topic_id)

    committed = access.isolation is Isolation.read_committed
    topic_id = topics.facts(topic).topic_id  # before its bounds
    return Side(
        name,
        topics.bounds([topic]),
        read=lambda ranges: reading(access.isolation, ranges),
        uncommitted=(lambda ranges: reading(Isolation.read_uncommitted, ranges))
        if committed
        else None,
        ordered=True,
        rules={topic: rules_of(topics.settings(topic))},
        topic_ids={} if topic_id is None else {topic: topic_id},
        now=lambda: topics.bounds([topic]),
        confirm=confirm,
    )


def check_same(topic: str, before: str | None, now: str | None) -> None:
    """Raises JobError when both ids are known, and are not of one topic."""
    if before is not None and now is not None and before != now:
        raise JobError(
            f"topic {topic!r} was deleted and made anew while it was read: its id was {before}, is"
            f" {now}; audit again",
            "TOPIC_MADE_ANEW",
        )


def archive_side(spark: SparkSession, source: Source, others: str | None) -> Side:
    """An archive, or one of its topics; `others`: the topic that the other source names."""
    from gateway.pipelines.archives import open_archive

    archive = open_archive(spark, source.where, _ARCHIVES[source.kind])
    ranges = archive.ranges()
    state = archive.state()
    topics = sorted({place.topic for place in state.ends})
    if not topics:
        raise JobError(f"{source}: nothing is archived there", "EMPTY_ARCHIVE")
    if source.topic is not None:
        chosen = [source.topic]
    elif others in topics:
        chosen = [others]
    elif others is None or len(topics) == 1:
        chosen = topics
    else:
        raise JobError(f"{source} holds {', '.join(topics)}: add #TOPIC to say which", "USAGE")
    if chosen[0] not in topics:
        raise JobError(f"{source}: it holds {', '.join(topics)}", "UNKNOWN_TOPIC")
    bounds = {place: Bounds(end, end) for place, end in state.ends.items()}
    bounds |= spans(ranges)
    return Side(
        str(source),
        {place: each for place, each in bounds.items() if place.topic in chosen},
        read=lambda wanted: in_ranges(spark, archive.read(chosen), wanted),
        accepted=tuple(lost.range for lost in state.lost if lost.range.topic in chosen),
        topic_ids={name: state.topic_ids[name] for name in chosen if name in state.topic_ids},
    )


def spans(ranges: list[OffsetRange]) -> dict[Place, Bounds]:
    """Per place, from the first to the last offset of its ranges."""
    found: dict[Place, Bounds] = {}
    for each in ranges:
        known = found.get(each.place, Bounds(each.start, each.end))
        found[each.place] = Bounds(min(known.earliest, each.start), max(known.latest, each.end))
    return found


def in_ranges(spark: SparkSession, frame: DataFrame, wanted: Ranges) -> DataFrame:
    """The records of these ranges, `model.COLUMNS` alone."""
    from pyspark.sql import functions as F

    columns = [column for column in frame.columns if column != "day"]
    offset = F.col("offset")
    if len(wanted) <= _SPELT_OUT:  # as a condition it also tells which files need no look
        here = F.lit(False)
        for place, each in wanted.items():
            one = (F.col("topic") == place.topic) & (F.col("partition") == place.partition)
            here |= one & (offset >= each.earliest) & (offset < each.latest)
        return frame.where(here).select(*columns)
    rows = [(*place, *each) for place, each in wanted.items()]
    known = table(spark, rows, "topic STRING, partition INT, first BIGINT, end BIGINT")
    near = frame.join(F.broadcast(known), ["topic", "partition"])
    return near.where("offset >= first AND offset < end").select(*columns)
