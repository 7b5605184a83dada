"""Goal: topic configs have Kafka's names, bounds, defaults and error texts.

Method: the borders of each kind of rule; every key is parsed, formatted and described once.
"""

import pytest

from gateway.topics.config_keys import ConfigSource, format_value
from gateway.topics.configs import (
    MESSAGE_BYTES_MAX,
    TOPIC_KEYS,
    describe_topic,
    normalize,
    topic_config,
)
from gateway.topics.errors import InvalidConfig
from ledger.streams.config import StreamLimits

# The topic configs of Kafka 4.3 (kafka-configs.sh --describe --all --entity-type topics).
KAFKA_KEYS = [
    "cleanup.policy",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "follower.replication.throttled.replicas",
    "index.interval.bytes",
    "leader.replication.throttled.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "preallocate",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
]
OUR_KEYS = ["control.record.interval.ms", "control.record.policy", "gateway.loss.delivery"]


def test_every_key_of_kafka_is_known():
    assert sorted(TOPIC_KEYS) == sorted(KAFKA_KEYS + OUR_KEYS)


@pytest.mark.parametrize("name", sorted(TOPIC_KEYS))
def test_a_default_is_legal_and_shown_as_it_is(name):
    key = TOPIC_KEYS[name]
    assert format_value(key.parse(key.default)) == key.default
    assert key.about


def test_defaults_are_kafkas():
    config = topic_config({})
    assert config.retention_ms == 604_800_000
    assert config.retention_bytes == -1
    assert config.segment_bytes == 1_073_741_824
    assert config.segment_ms == 604_800_000
    assert config.max_message_bytes == 1_048_588
    assert config.message_timestamp_type == "CreateTime"
    assert config.message_timestamp_before_max_ms == 2**63 - 1
    assert config.message_timestamp_after_max_ms == 3_600_000
    assert TOPIC_KEYS["compression.type"].default == "producer"
    assert config.cleanup_policy == {"delete"}
    assert config.min_insync_replicas == 1
    assert not config.compacts
    assert not config.log_append_time


def test_overrides_win():
    config = topic_config(
        normalize(
            {
                "retention.ms": " 1000 ",
                "cleanup.policy": "compact, delete",
                "message.timestamp.type": "LogAppendTime",
                "max.message.bytes": "16777216",
            }
        )
    )
    assert config.retention_ms == 1000
    assert config.cleanup_policy == {"compact", "delete"}
    assert config.compacts
    assert config.log_append_time
    assert config.max_message_bytes == MESSAGE_BYTES_MAX


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("foo", "1", "Unknown topic config name: foo"),
        (
            "retention.ms",
            "abc",
            "Invalid value abc for configuration retention.ms: Not a number of type LONG",
        ),
        (
            "retention.ms",
            "-2",
            "Invalid value -2 for configuration retention.ms: Value must be at least -1",
        ),
        ("retention.ms", str(2**63), "Not a number of type LONG"),
        ("retention.ms", "1_000", "Not a number of type LONG"),
        ("retention.ms", "", "Not a number of type LONG"),
        ("segment.bytes", "2147483648", "Not a number of type INT"),
        ("segment.bytes", "1048575", "Value must be at least 1048576"),
        (
            "max.message.bytes",
            "16777217",
            "Invalid value 16777217 for configuration max.message.bytes: "
            "Value must be no more than 16777216",
        ),
        (
            "cleanup.policy",
            "shred",
            "Invalid value shred for configuration cleanup.policy: "
            "String must be one of: compact, delete",
        ),
        ("cleanup.policy", "delete,shred", "String must be one of: compact, delete"),
        ("message.timestamp.type", "createtime", "CreateTime, LogAppendTime"),
        ("compression.type", "brotli", "zstd"),
        ("preallocate", "yes", "Expected value to be either true or false"),
        ("min.cleanable.dirty.ratio", "1.5", "Value must be no more than 1"),
        ("min.cleanable.dirty.ratio", "nan", "Value must be at least 0"),
        ("min.insync.replicas", "0", "Value must be at least 1"),
        ("remote.storage.enable", "true", "Tiered Storage functionality is disabled"),
        ("leader.replication.throttled.replicas", "x", "must be the literal '*'"),
        ("retention.ms", None, "Null value not supported for topic configs: retention.ms"),
    ],
)
def test_a_bad_setting_is_refused_in_kafkas_words(name, text, message):
    with pytest.raises(InvalidConfig) as refused:
        normalize({name: text})
    assert message in str(refused.value)


def test_a_compaction_lag_cannot_end_before_it_begins():
    with pytest.raises(InvalidConfig, match="conflict topic config setting"):
        normalize({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"})


def test_a_long_value_is_not_echoed_whole():
    with pytest.raises(InvalidConfig) as refused:
        normalize({"retention.ms": "9" * 1_000_000})
    assert len(str(refused.value)) < 400


def test_values_are_stored_in_one_spelling():
    assert normalize({"preallocate": " TRUE", "retention.ms": "+05"}) == {
        "preallocate": "true",
        "retention.ms": "5",
    }


def test_a_description_names_the_source_and_what_lies_under_it():
    entries = {entry.key.name: entry for entry in describe_topic({"retention.ms": "5"}, None)}
    assert len(entries) == len(TOPIC_KEYS)
    assert entries["retention.ms"].value == "5"
    assert entries["retention.ms"].source is ConfigSource.TOPIC
    assert entries["retention.ms"].synonyms == (("retention.ms", "5", ConfigSource.TOPIC),)
    assert entries["retention.bytes"].synonyms == (
        ("log.retention.bytes", "-1", ConfigSource.DEFAULT),
    )
    assert entries["cleanup.policy"].value == "delete"
    assert entries["cleanup.policy"].source is ConfigSource.DEFAULT


def test_a_description_can_be_asked_for_by_name():
    assert [e.key.name for e in describe_topic({}, ["segment.ms", "nonsense"])] == ["segment.ms"]


def test_the_text_about_the_index_names_its_stride():
    stride = StreamLimits().index_stride_bytes
    assert f"one entry per {stride // 2**20} MiB" in TOPIC_KEYS["index.interval.bytes"].about


def test_a_key_that_decides_nothing_says_so():
    """Rolls are spread by the age of a segment, whatever the key is set to."""
    assert "No effect" in TOPIC_KEYS["segment.jitter.ms"].about
