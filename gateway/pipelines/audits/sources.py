"""The sources of an audit: `topic:`, `segments:`, `archive:` and `iceberg:`, opened as sides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from gateway.core.sasl_session import OAUTHBEARER
from gateway.pipelines.archives import open_archive
from gateway.pipelines.archives.lives import base_name, select_life
from gateway.pipelines.archives.port import ArchiveProof
from gateway.pipelines.audits.model import Side
from gateway.pipelines.audits.sides import archive_side, topic_side
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_servers import with_portable_login
from gateway.pipelines.shared.kafka_source import Isolation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS = ("topic", "archive", "iceberg", "segments")
_ARCHIVES = {"archive": "parquet", "iceberg": "iceberg"}
_TLS = ("tls.ca", "tls.certificate", "tls.key", "tls.roles", "bookieTransport")
_KAFKA = "kafka."
_SET_BY_SOURCE = frozenset({"kafka.bootstrap.servers", "kafka.isolation.level"})
_MECHANISM, _JAAS = "sasl.mechanism", "sasl.jaas.config"
_REPLACED = {
    "ssl.truststore.location": ("ssl.truststore.certificates",),
    "ssl.keystore.location": ("ssl.keystore.key", "ssl.keystore.certificate.chain"),
    _MECHANISM: ("sasl.login.callback.handler.class", "sasl.oauthbearer.token.endpoint.url"),
}
"""Keys that Kafka's client refuses beside another one, which takes their place.

Those of OAUTHBEARER make way for another mechanism than that of before, and the login of another
mechanism for OAUTHBEARER.
"""

_NO_OPTIONS: Mapping[str, str] = {}


class AuditSource(NamedTuple):
    """A source as written on the command line: `kind:where[#topic]`."""

    kind: str
    where: str
    topic: str | None

    def __str__(self) -> str:
        return f"{self.kind}:{self.where}{'' if self.topic is None else f'#{self.topic}'}"


class SourceAccess(NamedTuple):
    """The access to sources: bootstrap servers, storage metadata, and the isolation level.

    `tls` are the options `tls.` and `bookieTransport` of `format("ledger")`, and `client` the
    properties of Kafka's client, without the prefix `kafka.`.
    """

    bootstrap: str
    metadata: str = ""
    isolation: Isolation = Isolation.read_committed
    tls: Mapping[str, str] = _NO_OPTIONS
    client: Mapping[str, str] = _NO_OPTIONS

    def with_options(self, options: Mapping[str, str]) -> SourceAccess:
        """Return this access with more options. Raises JobError for an unknown option."""
        gone = self._replaced_by(options)
        tls, client = dict(self.tls), {k: v for k, v in self.client.items() if k not in gone}
        for key, value in options.items():
            if key in _TLS:
                tls[key] = value
            elif key.startswith(_KAFKA) and key not in _SET_BY_SOURCE:
                client[key.removeprefix(_KAFKA)] = value
            else:
                raise JobError(
                    f"option {key!r}: must be one of {', '.join(_TLS)}, or a property of Kafka's"
                    " client such as kafka.security.protocol",
                    "USAGE",
                )
        return self._replace(tls=tls, client=client)

    def _replaced_by(self, options: Mapping[str, str]) -> set[str]:
        """Return the properties in whose place these options are."""
        mechanisms = self.client.get(_MECHANISM), options.get(_KAFKA + _MECHANISM)
        names = {key.removeprefix(_KAFKA) for key in options if key.startswith(_KAFKA)}
        if mechanisms[0] == mechanisms[1]:
            names.discard(_MECHANISM)
        gone = {replaced for name in names for replaced in _REPLACED.get(name, ())}
        if _MECHANISM in names and OAUTHBEARER in mechanisms:
            gone.add(_JAAS)
        return gone

    def with_portable_login(self) -> SourceAccess:
        """Return this access with a login that Kafka's own client reads. Raises JobError."""
        return self._replace(client=with_portable_login(self.client))


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

    An archive of several topics is restricted to the topic that the other source names. If the
    archive holds several lives of it, the topic id of a live source selects one.
    """
    return (
        _open(spark, left, left_access, right, right_access),
        _open(spark, right, right_access, left, left_access),
    )


def check_alone(source: AuditSource) -> None:
    """Raise JobError unless the source can be audited without another one."""
    if source.kind not in _ARCHIVES:
        raise JobError(
            f"{source}: name the source to compare it with; only an archive is audited alone",
            "USAGE",
        )


def prove_archive(spark: SparkSession, source: AuditSource) -> ArchiveProof:
    """Compare the records of an archive, or of one topic in it, with its own log."""
    archive = open_archive(spark, source.where, _ARCHIVES[source.kind])
    known = sorted({partition.topic for partition in archive.state().ends})
    if not known:
        raise JobError(f"{source}: the archive is empty", "EMPTY_ARCHIVE")
    base = None if source.topic is None else base_name(source.topic)
    if base is not None and base not in map(base_name, known):
        raise JobError(f"{source}: it holds {', '.join(known)}", "UNKNOWN_TOPIC")
    lives = [each for each in known if base in (None, base_name(each))]
    if source.topic is not None and source.topic != base:
        lives = [select_life(lives, archive.state().topic_ids, source.topic)]
    return archive.verify(lives)


def _open(
    spark: SparkSession,
    source: AuditSource,
    access: SourceAccess,
    other: AuditSource,
    other_access: SourceAccess,
) -> Side:
    if source.kind == "topic":
        return topic_side(
            spark,
            str(source),
            source.where,
            access.bootstrap,
            access.isolation,
            access.metadata,
            access.client,
        )
    if source.kind == "segments":
        # Imported here because `segments` needs PyArrow.
        from gateway.pipelines.audits.segments import segments_side

        return segments_side(
            spark, str(source), source.where, access.metadata, access.isolation, access.tls
        )
    archive = open_archive(spark, source.where, _ARCHIVES[source.kind])
    if other.kind in _ARCHIVES:
        return archive_side(spark, str(source), archive, source.topic, other.topic)

    def others_id() -> str:
        live = _open(spark, other, other_access, source, access)
        return live.topic_ids.get(other.where, "")

    return archive_side(spark, str(source), archive, source.topic, other.where, others_id)
