"""The sources of an audit: `topic:`, `segments:`, `archive:` and `iceberg:`, opened as sides."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gateway.pipelines.archives import open_archive
from gateway.pipelines.audits.model import Side
from gateway.pipelines.audits.sides import archive_side, topic_side
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_source import Isolation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS = ("topic", "archive", "iceberg", "segments")
_ARCHIVES = {"archive": "parquet", "iceberg": "iceberg"}


class AuditSource(NamedTuple):
    """A source as written on the command line: `kind:where[#topic]`."""

    kind: str
    where: str
    topic: str | None

    def __str__(self) -> str:
        return f"{self.kind}:{self.where}{'' if self.topic is None else f'#{self.topic}'}"


class SourceAccess(NamedTuple):
    """The access to sources: bootstrap servers, storage metadata, and the isolation level."""

    bootstrap: str
    metadata: str = ""
    isolation: Isolation = Isolation.read_committed


def parse_source(text: str) -> AuditSource:
    """Parse a source. Raises a JobError that shows the grammar."""
    kind, colon, where = text.partition(":")
    topic = None
    if kind in _ARCHIVES and "#" in where:
        where, _, topic = where.rpartition("#")
    if kind not in KINDS or not colon or not where or topic == "":
        raise JobError(
            f"{text!r} is no source: use topic:NAME, segments:NAME, archive:PATH[#TOPIC] or"
            " iceberg:CATALOG.NAMESPACE.TABLE[#TOPIC]",
            "USAGE",
        )
    return AuditSource(kind, where, topic)


def open_sides(
    spark: SparkSession,
    left: AuditSource,
    right: AuditSource,
    left_access: SourceAccess,
    right_access: SourceAccess,
) -> tuple[Side, Side]:
    """Open both sources with their current contents.

    An archive of several topics is restricted to the topic that the other source names.
    """
    wanted = [each.where if each.kind not in _ARCHIVES else each.topic for each in (left, right)]
    return (
        _open(spark, left, left_access, wanted[1]),
        _open(spark, right, right_access, wanted[0]),
    )


def _open(
    spark: SparkSession, source: AuditSource, access: SourceAccess, others: str | None
) -> Side:
    if source.kind == "topic":
        return topic_side(
            spark, str(source), source.where, access.bootstrap, access.isolation, access.metadata
        )
    if source.kind == "segments":
        # Imported here because `segments` needs PyArrow.
        from gateway.pipelines.audits.segments import segments_side

        return segments_side(spark, str(source), source.where, access.metadata, access.isolation)
    archive = open_archive(spark, source.where, _ARCHIVES[source.kind])
    return archive_side(spark, str(source), archive, source.topic, others)
