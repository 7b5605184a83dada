"""Topic settings: every key of Kafka 4.3, its bounds, and the typed values that others use.

Source: Kafka, `TopicConfig`, `LogConfig`. Keys that mean nothing here (index sizes, flushes) are
kept and shown, because tools write and read them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from gateway.topics.config_keys import (
    LONG_MAX,
    ConfigEntry,
    ConfigKey,
    Source,
    Type,
    Value,
    shown,
)
from gateway.topics.errors import InvalidConfig

MESSAGE_BYTES_MAX = 16 * 1024 * 1024  # no entry is larger; the bookies' limits derive from it

_THROTTLED = re.compile(r"\*|\d+:\d+")


def _throttled_fault(value: Value) -> str | None:
    assert isinstance(value, tuple)
    if all(_THROTTLED.fullmatch(item) for item in value) and ("*" not in value or len(value) == 1):
        return None
    return "must be the literal '*' or a list of replicas in the form [partition]:[brokerId],..."


def _remote_fault(value: Value) -> str | None:
    if value is False:
        return None
    return (
        "Tiered Storage functionality is disabled in the broker. "
        "Topic cannot be configured with remote log storage."
    )


def _key(
    name: str,
    type_: Type,
    default: object,
    about: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    one_of: tuple[str, ...] = (),
    synonym: str | tuple[tuple[str, str], ...] = (),
) -> ConfigKey:
    text = shown(cast("Value", default))
    checks = {
        "leader.replication.throttled.replicas": _throttled_fault,
        "follower.replication.throttled.replicas": _throttled_fault,
        "remote.storage.enable": _remote_fault,
    }
    return ConfigKey(
        name=name,
        type=type_,
        default=text,
        about=about,
        at_least=at_least,
        at_most=at_most,
        one_of=one_of,
        synonyms=((synonym, text),) if isinstance(synonym, str) else synonym,
        check=checks.get(name),
    )


_WEEK_MS = 7 * 24 * 3600 * 1000
_CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")

_KEYS = (
    _key(
        "cleanup.policy",
        Type.LIST,
        "delete",
        "What happens to old data: delete removes whole segments past retention, compact keeps the "
        "latest record of each key.",
        one_of=("compact", "delete"),
        synonym="log.cleanup.policy",
    ),
    _key(
        "compression.gzip.level",
        Type.INT,
        -1,
        "Level for gzip when this server has to compress; -1 is the codec's own default.",
        at_least=-1,
        at_most=9,
        synonym="compression.gzip.level",
    ),
    _key(
        "compression.lz4.level",
        Type.INT,
        9,
        "Level for lz4 when this server has to compress.",
        at_least=1,
        at_most=17,
        synonym="compression.lz4.level",
    ),
    _key(
        "compression.type",
        Type.STRING,
        "producer",
        "Codec of the stored batches; producer keeps each batch as it was sent.",
        one_of=_CODECS,
        synonym="compression.type",
    ),
    _key(
        "compression.zstd.level",
        Type.INT,
        3,
        "Level for zstd when this server has to compress.",
        at_least=-131072,
        at_most=22,
        synonym="compression.zstd.level",
    ),
    _key(
        "control.record.interval.ms",
        Type.LONG,
        100,
        "With control.record.policy=periodic: how long after the last record of a burst readers at "
        "other gateways see it, at the latest.",
        at_least=1,
    ),
    _key(
        "control.record.policy",
        Type.STRING,
        "periodic",
        "When a control record follows the last record of a burst, so that readers at other "
        "gateways see it: immediate, periodic (control.record.interval.ms), or off (with the next "
        "record). An embedded gateway has no others and writes none unless the topic says so.",
        one_of=("immediate", "periodic", "off"),
    ),
    _key(
        "delete.retention.ms",
        Type.LONG,
        24 * 3600 * 1000,
        "How long a compacted topic still shows the marker of a deleted key.",
        at_least=0,
        synonym="log.cleaner.delete.retention.ms",
    ),
    _key(
        "file.delete.delay.ms",
        Type.LONG,
        60_000,
        "How long a truncated segment is kept, for tools that look at ledgers, before it goes.",
        at_least=0,
        synonym="log.segment.delete.delay.ms",
    ),
    _key(
        "flush.messages",
        Type.LONG,
        LONG_MAX,
        "Records between forced syncs. Without effect here: every acknowledged record is synced.",
        at_least=1,
        synonym="log.flush.interval.messages",
    ),
    _key(
        "flush.ms",
        Type.LONG,
        LONG_MAX,
        "Time between forced syncs. Without effect here: every acknowledged record is synced.",
        at_least=0,
        synonym=(("log.flush.scheduler.interval.ms", str(LONG_MAX)),),
    ),
    _key(
        "follower.replication.throttled.replicas",
        Type.LIST,
        "",
        "Replicas whose copying is slowed on followers. Kept for tools; there are no followers.",
    ),
    _key(
        "index.interval.bytes",
        Type.INT,
        4096,
        "Bytes between index entries. Kept for tools; the index here is one entry per 4 MiB.",
        at_least=0,
        synonym="log.index.interval.bytes",
    ),
    _key(
        "leader.replication.throttled.replicas",
        Type.LIST,
        "",
        "Replicas whose copying is slowed on leaders. Kept for tools; there are no followers.",
    ),
    _key(
        "local.retention.bytes",
        Type.LONG,
        -2,
        "Local size limit of a tiered topic; -2 follows retention.bytes.",
        at_least=-2,
        synonym="log.local.retention.bytes",
    ),
    _key(
        "local.retention.ms",
        Type.LONG,
        -2,
        "Local time limit of a tiered topic; -2 follows retention.ms.",
        at_least=-2,
        synonym="log.local.retention.ms",
    ),
    _key(
        "max.compaction.lag.ms",
        Type.LONG,
        LONG_MAX,
        "Longest time that a record of a compacted topic may stay uncompacted.",
        at_least=1,
        synonym="log.cleaner.max.compaction.lag.ms",
    ),
    _key(
        "max.message.bytes",
        Type.INT,
        1_048_588,
        "Largest record batch taken, after compression.",
        at_least=0,
        at_most=MESSAGE_BYTES_MAX,
        synonym="message.max.bytes",
    ),
    _key(
        "message.timestamp.after.max.ms",
        Type.LONG,
        3_600_000,
        "How far a record's own timestamp may lie ahead of the server's clock.",
        at_least=0,
        synonym="log.message.timestamp.after.max.ms",
    ),
    _key(
        "message.timestamp.before.max.ms",
        Type.LONG,
        LONG_MAX,
        "How far a record's own timestamp may lie behind the server's clock.",
        at_least=0,
        synonym="log.message.timestamp.before.max.ms",
    ),
    _key(
        "message.timestamp.type",
        Type.STRING,
        "CreateTime",
        "Whose clock stamps records: the producer's, or the server's when it appends.",
        one_of=("CreateTime", "LogAppendTime"),
        synonym="log.message.timestamp.type",
    ),
    _key(
        "min.cleanable.dirty.ratio",
        Type.DOUBLE,
        0.5,
        "Share of uncompacted bytes from which a compacted topic is cleaned.",
        at_least=0,
        at_most=1,
        synonym="log.cleaner.min.cleanable.ratio",
    ),
    _key(
        "min.compaction.lag.ms",
        Type.LONG,
        0,
        "Shortest time that a record of a compacted topic stays as it is.",
        at_least=0,
        synonym="log.cleaner.min.compaction.lag.ms",
    ),
    _key(
        "min.insync.replicas",
        Type.INT,
        1,
        "Copies that must be on disk before a write is acknowledged; never below the majority of "
        "the replication factor.",
        at_least=1,
        synonym="min.insync.replicas",
    ),
    _key(
        "preallocate",
        Type.BOOLEAN,
        False,
        "Reserve a segment's room at once. Without effect here: the bookies decide.",
        synonym="log.preallocate",
    ),
    _key(
        "remote.log.copy.disable",
        Type.BOOLEAN,
        False,
        "Stop copying segments to the remote tier.",
    ),
    _key(
        "remote.log.delete.on.disable",
        Type.BOOLEAN,
        False,
        "Delete remote data when the remote tier is switched off.",
    ),
    _key(
        "remote.storage.enable",
        Type.BOOLEAN,
        False,
        "Keep old segments in a remote tier. Not supported; only false is taken.",
    ),
    _key(
        "retention.bytes",
        Type.LONG,
        -1,
        "Bytes that a partition keeps before its oldest segments go; -1 is no limit.",
        synonym="log.retention.bytes",
    ),
    _key(
        "retention.ms",
        Type.LONG,
        _WEEK_MS,
        "Age at which a completed segment goes; -1 is never.",
        at_least=-1,
        synonym=(("log.retention.hours", "168"),),
    ),
    _key(
        "segment.bytes",
        Type.INT,
        1024**3,
        "Size at which a segment is completed and the next one begun.",
        at_least=1024 * 1024,
        synonym="log.segment.bytes",
    ),
    _key(
        "segment.index.bytes",
        Type.INT,
        10 * 1024 * 1024,
        "Size of a segment's index. Kept for tools; the index here grows as needed.",
        at_least=4,
        synonym="log.index.size.max.bytes",
    ),
    _key(
        "segment.jitter.ms",
        Type.LONG,
        0,
        "Largest random time taken off segment.ms, so that segments do not all roll at once.",
        at_least=0,
        synonym=(("log.roll.jitter.hours", "0"),),
    ),
    _key(
        "segment.ms",
        Type.LONG,
        _WEEK_MS,
        "Age at which a segment is completed though it is not full.",
        at_least=1,
        synonym=(("log.roll.hours", "168"),),
    ),
    _key(
        "unclean.leader.election.enable",
        Type.BOOLEAN,
        False,
        "Let a replica lead that may lack acknowledged records. Without effect here: never done.",
        synonym="unclean.leader.election.enable",
    ),
)

TOPIC_KEYS: Mapping[str, ConfigKey] = {key.name: key for key in _KEYS}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """A topic's effective settings, typed. Times in ms, sizes in bytes; -1 is no limit."""

    retention_ms: int
    retention_bytes: int
    segment_bytes: int
    segment_ms: int
    segment_jitter_ms: int
    max_message_bytes: int
    message_timestamp_type: str  # "CreateTime" or "LogAppendTime"
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    compression_type: str
    cleanup_policy: frozenset[str]  # of "delete", "compact"
    min_insync_replicas: int
    log_append_time: bool  # message_timestamp_type, as the hot path asks for it
    compacts: bool  # cleanup_policy likewise
    truncated_keep_ms: int  # file.delete.delay.ms
    control_interval_ms: int  # 0: immediate, -1: off
    control_is_set: bool  # the topic itself says so

    def control_ms(self, *, clustered: bool) -> int:
        """`StreamConfig.control_ms`: without other gateways only when the topic asks for it."""
        return self.control_interval_ms if clustered or self.control_is_set else -1


def normalize(overrides: Mapping[str, str | None]) -> dict[str, str]:
    """The overrides as the catalog stores them, sorted. Raises InvalidConfig in Kafka's words."""
    nulls = sorted(name for name, text in overrides.items() if text is None)
    if nulls:
        raise InvalidConfig(f"Null value not supported for topic configs: {','.join(nulls)}")
    values: dict[str, Value] = {}
    for name, text in sorted(overrides.items()):
        key = TOPIC_KEYS.get(name)
        if key is None:
            raise InvalidConfig(f"Unknown topic config name: {name}")
        values[name] = key.parse(text or "")
    _check_lags(values)
    return {name: shown(value) for name, value in values.items()}


def _check_lags(values: Mapping[str, Value]) -> None:
    low = values.get("min.compaction.lag.ms", 0)
    high = values.get("max.compaction.lag.ms", LONG_MAX)
    assert isinstance(low, int) and isinstance(high, int)
    if low > high:
        raise InvalidConfig(
            f"conflict topic config setting min.compaction.lag.ms ({low}) > "
            f"max.compaction.lag.ms ({high})"
        )


def topic_config(overrides: Mapping[str, str]) -> TopicConfig:
    """The effective settings of a topic with these overrides, which `normalize` has made."""

    def value(name: str) -> Value:
        key = TOPIC_KEYS[name]
        assert key.default is not None
        return key.parse(overrides.get(name, key.default))

    def number(name: str) -> int:
        found = value(name)
        assert isinstance(found, int)
        return found

    policy = value("cleanup.policy")
    assert isinstance(policy, tuple)
    timestamp_type = str(value("message.timestamp.type"))
    return TopicConfig(
        retention_ms=number("retention.ms"),
        retention_bytes=number("retention.bytes"),
        segment_bytes=number("segment.bytes"),
        segment_ms=number("segment.ms"),
        segment_jitter_ms=number("segment.jitter.ms"),
        max_message_bytes=number("max.message.bytes"),
        message_timestamp_type=timestamp_type,
        message_timestamp_before_max_ms=number("message.timestamp.before.max.ms"),
        message_timestamp_after_max_ms=number("message.timestamp.after.max.ms"),
        compression_type=str(value("compression.type")),
        cleanup_policy=frozenset(policy),
        min_insync_replicas=number("min.insync.replicas"),
        log_append_time=timestamp_type == "LogAppendTime",
        compacts="compact" in policy,
        truncated_keep_ms=number("file.delete.delay.ms"),
        control_interval_ms={
            "immediate": 0,
            "periodic": number("control.record.interval.ms"),
            "off": -1,
        }[str(value("control.record.policy"))],
        control_is_set="control.record.policy" in overrides,
    )


def describe_topic(overrides: Mapping[str, str], names: Iterable[str] | None) -> list[ConfigEntry]:
    """Every setting of a topic (or those named; unknown names are left out), sorted by name."""
    wanted = None if names is None else set(names)
    return [
        _entry(key, overrides.get(key.name))
        for key in TOPIC_KEYS.values()
        if wanted is None or key.name in wanted
    ]


def _entry(key: ConfigKey, override: str | None) -> ConfigEntry:
    defaults = tuple((name, text, Source.DEFAULT) for name, text in key.synonyms)
    if override is None:
        return ConfigEntry(key=key, value=key.default, source=Source.DEFAULT, synonyms=defaults)
    return ConfigEntry(
        key=key,
        value=override,
        source=Source.TOPIC,
        synonyms=((key.name, override, Source.TOPIC), *defaults),
    )
