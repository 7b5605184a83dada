"""Defines the topic configs: every key of Kafka 4.3 with its bounds, and their typed values.

Keys without effect in this project (index sizes, flushes) are stored and returned too, because
tools write and read them. Source: Kafka, `TopicConfig`, `LogConfig`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import cast

from gateway.core.cleaning_choice import CleaningRules
from gateway.core.shown_text import shown
from gateway.topics.config_keys import (
    LONG_MAX,
    ConfigEntry,
    ConfigKey,
    ConfigSource,
    ConfigType,
    Value,
    describe_config,
    format_value,
)
from gateway.topics.errors import InvalidConfig
from gateway.wire.batches import Compression, decompressed_bytes_max

MESSAGE_BYTES_MAX = 16 * 1024 * 1024  # the largest entry; the bookies' limits derive from it


class LossMode(Enum):
    """What consumers receive for a lost range that was accepted: `gateway.loss.delivery`."""

    SKIP = "skip"  # batches without records, as the log cleaner leaves behind
    MARKER = "marker"  # one record that describes the loss
    STOP = "stop"  # an error, as for a loss that was not accepted


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
    type_: ConfigType,
    default: object,
    about: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    one_of: tuple[str, ...] = (),
    synonym: str | tuple[tuple[str, str], ...] = (),
) -> ConfigKey:
    text = format_value(cast("Value", default))
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
_CODEC_NUMBERS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")  # as in attributes of batches
_WITH_LEVELS = ("gzip", "lz4", "zstd")

_KEYS = (
    _key(
        "cleanup.policy",
        ConfigType.LIST,
        "delete",
        "The cleanup of old data: delete removes whole segments past retention, compact keeps the "
        "latest record of each key.",
        one_of=("compact", "delete"),
        synonym="log.cleanup.policy",
    ),
    _key(
        "compression.gzip.level",
        ConfigType.INT,
        -1,
        "The gzip level if this broker compresses; -1 is the default level of the codec.",
        at_least=-1,
        at_most=9,
        synonym="compression.gzip.level",
    ),
    _key(
        "compression.lz4.level",
        ConfigType.INT,
        9,
        "The lz4 level if this broker compresses.",
        at_least=1,
        at_most=17,
        synonym="compression.lz4.level",
    ),
    _key(
        "compression.type",
        ConfigType.STRING,
        "producer",
        "The codec of stored batches; producer keeps each batch as it was sent.",
        one_of=_CODECS,
        synonym="compression.type",
    ),
    _key(
        "compression.zstd.level",
        ConfigType.INT,
        3,
        "The zstd level if this broker compresses.",
        at_least=-131072,
        at_most=22,
        synonym="compression.zstd.level",
    ),
    _key(
        "control.record.interval.ms",
        ConfigType.LONG,
        100,
        "The longest time until readers at other brokers see the last record of a burst, with "
        "control.record.policy=periodic.",
        at_least=1,
    ),
    _key(
        "control.record.policy",
        ConfigType.STRING,
        "periodic",
        "When to write a control record after the last record of a burst, so that readers at other "
        "brokers see that record: immediate, periodic (control.record.interval.ms) or off (only "
        "with the next record). An embedded broker writes none unless the topic sets this config.",
        one_of=("immediate", "periodic", "off"),
    ),
    _key(
        "delete.retention.ms",
        ConfigType.LONG,
        24 * 3600 * 1000,
        "How long a compacted topic retains the tombstone of a deleted key.",
        at_least=0,
        synonym="log.cleaner.delete.retention.ms",
    ),
    _key(
        "file.delete.delay.ms",
        ConfigType.LONG,
        60_000,
        "How long to wait before the ledger of a truncated segment is deleted.",
        at_least=0,
        synonym="log.segment.delete.delay.ms",
    ),
    _key(
        "flush.messages",
        ConfigType.LONG,
        LONG_MAX,
        "Records between forced syncs. No effect: every acknowledged record is synced.",
        at_least=1,
        synonym="log.flush.interval.messages",
    ),
    _key(
        "flush.ms",
        ConfigType.LONG,
        LONG_MAX,
        "Time between forced syncs. No effect: every acknowledged record is synced.",
        at_least=0,
        synonym=(("log.flush.scheduler.interval.ms", str(LONG_MAX)),),
    ),
    _key(
        "follower.replication.throttled.replicas",
        ConfigType.LIST,
        "",
        "Replicas throttled on followers. No effect: brokers do not copy partitions.",
    ),
    _key(
        "gateway.loss.delivery",
        ConfigType.STRING,
        LossMode.SKIP.value,
        "What consumers receive for records that are lost and that an operator gave up: skip "
        "passes them without a trace, marker delivers one record with the header gateway.loss at "
        "the last lost offset, stop refuses to read on.",
        one_of=tuple(mode.value for mode in LossMode),
    ),
    _key(
        "index.interval.bytes",
        ConfigType.INT,
        4096,
        "Bytes between index entries. No effect: the index has one entry per 1 MiB.",
        at_least=0,
        synonym="log.index.interval.bytes",
    ),
    _key(
        "leader.replication.throttled.replicas",
        ConfigType.LIST,
        "",
        "Replicas throttled on leaders. No effect: brokers do not copy partitions.",
    ),
    _key(
        "local.retention.bytes",
        ConfigType.LONG,
        -2,
        "The local size limit of a tiered topic; -2 stands for retention.bytes.",
        at_least=-2,
        synonym="log.local.retention.bytes",
    ),
    _key(
        "local.retention.ms",
        ConfigType.LONG,
        -2,
        "The local time limit of a tiered topic; -2 stands for retention.ms.",
        at_least=-2,
        synonym="log.local.retention.ms",
    ),
    _key(
        "max.compaction.lag.ms",
        ConfigType.LONG,
        LONG_MAX,
        "The longest time that a record of a compacted topic may stay uncompacted.",
        at_least=1,
        synonym="log.cleaner.max.compaction.lag.ms",
    ),
    _key(
        "max.message.bytes",
        ConfigType.INT,
        1_048_588,
        "The largest record batch accepted, after compression.",
        at_least=0,
        at_most=MESSAGE_BYTES_MAX,
        synonym="message.max.bytes",
    ),
    _key(
        "message.timestamp.after.max.ms",
        ConfigType.LONG,
        3_600_000,
        "How far the timestamp of a record may be ahead of the broker's clock.",
        at_least=0,
        synonym="log.message.timestamp.after.max.ms",
    ),
    _key(
        "message.timestamp.before.max.ms",
        ConfigType.LONG,
        LONG_MAX,
        "How far the timestamp of a record may be behind the broker's clock.",
        at_least=0,
        synonym="log.message.timestamp.before.max.ms",
    ),
    _key(
        "message.timestamp.type",
        ConfigType.STRING,
        "CreateTime",
        "Whether records keep the producer's timestamp or get that of the broker's append.",
        one_of=("CreateTime", "LogAppendTime"),
        synonym="log.message.timestamp.type",
    ),
    _key(
        "min.cleanable.dirty.ratio",
        ConfigType.DOUBLE,
        0.5,
        "The share of uncompacted bytes above which a compacted topic is cleaned.",
        at_least=0,
        at_most=1,
        synonym="log.cleaner.min.cleanable.ratio",
    ),
    _key(
        "min.compaction.lag.ms",
        ConfigType.LONG,
        0,
        "The shortest time that a record of a compacted topic stays uncompacted.",
        at_least=0,
        synonym="log.cleaner.min.compaction.lag.ms",
    ),
    _key(
        "min.insync.replicas",
        ConfigType.INT,
        1,
        "The copies that must be on disk before a write is acknowledged; at least the majority of "
        "the replication factor.",
        at_least=1,
        synonym="min.insync.replicas",
    ),
    _key(
        "preallocate",
        ConfigType.BOOLEAN,
        False,
        "Whether to preallocate the file of a segment. No effect: bookies decide.",
        synonym="log.preallocate",
    ),
    _key(
        "remote.log.copy.disable",
        ConfigType.BOOLEAN,
        False,
        "Whether to stop copying segments to the remote tier.",
    ),
    _key(
        "remote.log.delete.on.disable",
        ConfigType.BOOLEAN,
        False,
        "Whether to delete remote data when the remote tier is disabled.",
    ),
    _key(
        "remote.storage.enable",
        ConfigType.BOOLEAN,
        False,
        "Whether to keep old segments in a remote tier. Only false is supported.",
    ),
    _key(
        "retention.bytes",
        ConfigType.LONG,
        -1,
        "The size of a partition above which its oldest segments are deleted; -1 is no limit.",
        synonym="log.retention.bytes",
    ),
    _key(
        "retention.ms",
        ConfigType.LONG,
        _WEEK_MS,
        "The age at which a completed segment is deleted; -1 is no limit.",
        at_least=-1,
        synonym=(("log.retention.hours", "168"),),
    ),
    _key(
        "segment.bytes",
        ConfigType.INT,
        1024**3,
        "The size at which a segment is completed and the next one begins.",
        at_least=1024 * 1024,
        synonym="log.segment.bytes",
    ),
    _key(
        "segment.index.bytes",
        ConfigType.INT,
        10 * 1024 * 1024,
        "The size of a segment's index. No effect: the index grows as needed.",
        at_least=4,
        synonym="log.index.size.max.bytes",
    ),
    _key(
        "segment.jitter.ms",
        ConfigType.LONG,
        0,
        "The largest random time subtracted from segment.ms. No effect: each roll is delayed by up "
        "to a twentieth of segment.ms, so that segments roll apart.",
        at_least=0,
        synonym=(("log.roll.jitter.hours", "0"),),
    ),
    _key(
        "segment.ms",
        ConfigType.LONG,
        _WEEK_MS,
        "The age at which a segment is completed even if it is not full.",
        at_least=1,
        synonym=(("log.roll.hours", "168"),),
    ),
    _key(
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        False,
        "Whether a replica without all acknowledged records may lead. No effect: none may.",
        synonym="unclean.leader.election.enable",
    ),
)

TOPIC_KEYS: Mapping[str, ConfigKey] = {key.name: key for key in _KEYS}

# The order in which Kafka checks values, so that the first error is the same. Source: LogConfig.
_CHECKED = {
    name: place
    for place, name in enumerate(
        (
            "segment.bytes",
            "segment.ms",
            "segment.jitter.ms",
            "segment.index.bytes",
            "flush.messages",
            "flush.ms",
            "retention.bytes",
            "retention.ms",
            "max.message.bytes",
            "index.interval.bytes",
            "delete.retention.ms",
            "min.compaction.lag.ms",
            "max.compaction.lag.ms",
            "file.delete.delay.ms",
            "min.cleanable.dirty.ratio",
            "cleanup.policy",
            "unclean.leader.election.enable",
            "min.insync.replicas",
            "compression.type",
            "compression.gzip.level",
            "compression.lz4.level",
            "compression.zstd.level",
            "preallocate",
            "message.timestamp.type",
            "message.timestamp.before.max.ms",
            "message.timestamp.after.max.ms",
            "leader.replication.throttled.replicas",
            "follower.replication.throttled.replicas",
            "remote.storage.enable",
            "local.retention.ms",
            "local.retention.bytes",
            "remote.log.copy.disable",
            "remote.log.delete.on.disable",
        )
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The effective configs of a topic, typed, in ms and bytes. -1 means no limit."""

    retention_ms: int
    retention_bytes: int
    segment_bytes: int
    segment_ms: int
    max_message_bytes: int
    decompressed_bytes_max: int  # of one batch
    message_timestamp_type: str  # "CreateTime" or "LogAppendTime"
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    cleanup_policy: frozenset[str]  # a subset of "delete" and "compact"
    min_insync_replicas: int
    log_append_time: bool  # True if message_timestamp_type is "LogAppendTime"
    compacts: bool  # True if cleanup_policy has "compact"
    cleaning: CleaningRules  # when a topic that compacts is cleaned
    delete_retention_ms: int  # how long cleaning keeps a tombstone after it met it
    truncated_keep_ms: int  # the value of file.delete.delay.ms
    control_interval_ms: int  # 0 writes control records at once, -1 writes none
    control_is_set: bool  # True if the topic overrides control.record.policy
    loss_mode: LossMode
    compression: Compression | None  # of stored batches; None keeps that of the producer

    def control_ms(self, *, clustered: bool) -> int:
        """Return `StreamConfig.control_ms`. Without other brokers the default is off."""
        return self.control_interval_ms if clustered or self.control_is_set else -1


def normalize(overrides: Mapping[str, str | None]) -> dict[str, str]:
    """Return the overrides as the catalog stores them, sorted. Raises InvalidConfig."""
    nulls = sorted(name for name, text in overrides.items() if text is None)
    if nulls:
        raise InvalidConfig(f"Null value not supported for topic configs: {shown(','.join(nulls))}")
    unknown = next((name for name in sorted(overrides) if name not in TOPIC_KEYS), None)
    if unknown is not None:
        raise InvalidConfig(f"Unknown topic config name: {shown(unknown)}")
    values: dict[str, Value] = {}
    for name in sorted(overrides, key=_place_in_kafka):
        values[name] = TOPIC_KEYS[name].parse(overrides[name] or "")
    _check_lags(values)
    return {name: format_value(value) for name, value in sorted(values.items())}


def _place_in_kafka(name: str) -> tuple[int, str]:
    """Return the place in which Kafka checks the value of a key; keys of our own come last."""
    return (_CHECKED.get(name, len(_CHECKED)), name)


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
    """Return the effective configs of a topic with these normalized overrides."""

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
    batch_bytes_max = number("max.message.bytes")
    timestamp_type = str(value("message.timestamp.type"))
    return TopicConfig(
        retention_ms=number("retention.ms"),
        retention_bytes=number("retention.bytes"),
        segment_bytes=number("segment.bytes"),
        segment_ms=number("segment.ms"),
        max_message_bytes=batch_bytes_max,
        decompressed_bytes_max=decompressed_bytes_max(batch_bytes_max),
        message_timestamp_type=timestamp_type,
        message_timestamp_before_max_ms=number("message.timestamp.before.max.ms"),
        message_timestamp_after_max_ms=number("message.timestamp.after.max.ms"),
        cleanup_policy=frozenset(policy),
        min_insync_replicas=number("min.insync.replicas"),
        log_append_time=timestamp_type == "LogAppendTime",
        compacts="compact" in policy,
        cleaning=CleaningRules(
            _ratio(value("min.cleanable.dirty.ratio")),
            number("min.compaction.lag.ms"),
            number("max.compaction.lag.ms"),
        ),
        delete_retention_ms=number("delete.retention.ms"),
        truncated_keep_ms=number("file.delete.delay.ms"),
        control_interval_ms={
            "immediate": 0,
            "periodic": number("control.record.interval.ms"),
            "off": -1,
        }[str(value("control.record.policy"))],
        control_is_set="control.record.policy" in overrides,
        loss_mode=LossMode(value("gateway.loss.delivery")),
        compression=_compression(str(value("compression.type")), number),
    )


def _ratio(value: Value) -> float:
    assert isinstance(value, int | float)
    return float(value)


def _compression(name: str, number: Callable[[str], int]) -> Compression | None:
    if name == "producer":
        return None
    codec = _CODEC_NUMBERS.index(name)
    return Compression(codec, number(f"compression.{name}.level") if name in _WITH_LEVELS else 0)


def describe_topic(overrides: Mapping[str, str], names: Iterable[str] | None) -> list[ConfigEntry]:
    """Return the configs of a topic by name: all configs, or the existing ones in `names`."""
    wanted = None if names is None else set(names)
    return [
        describe_config(key, overrides.get(key.name), ConfigSource.TOPIC, _listed(key))
        for key in TOPIC_KEYS.values()
        if wanted is None or key.name in wanted
    ]


_NOT_LISTED = frozenset(
    {
        "log.flush.scheduler.interval.ms",
        "log.retention.hours",
        "log.roll.hours",
        "log.roll.jitter.hours",
    }
)
"""Defaults of brokers that Kafka does not list for a topic, because other names precede them."""


def _listed(key: ConfigKey) -> list[tuple[str, str]]:
    """Return the defaults of brokers that Kafka lists for this key."""
    return [(name, text) for name, text in key.synonyms if name not in _NOT_LISTED]
