"""Random administration of topics: creation, deletion, partitions, configs, metadata."""

from __future__ import annotations

from typing import Any, ClassVar

import hypothesis.strategies as st
from hypothesis.stateful import rule

from tests.compat.differential.script import NOT_YET
from tests.compat.differential.sequences import Compared, versions

METADATA, CREATE_TOPICS, DELETE_TOPICS = 3, 19, 20
DESCRIBE_CONFIGS, CREATE_PARTITIONS, INCREMENTAL_ALTER_CONFIGS = 32, 37, 44
DESCRIBE_TOPIC_PARTITIONS = 75
TOPIC = 2
TIMEOUT_MS = 10_000
SET, DELETE, APPEND, SUBTRACT = range(4)

words = st.sampled_from(("a", "b", "c"))
configs = st.sampled_from(
    (
        ("retention.ms", "1000"),
        ("retention.ms", "-1"),
        ("retention.ms", "-2"),
        ("retention.ms", "many"),
        ("cleanup.policy", "compact"),
        ("cleanup.policy", "delete"),
        ("cleanup.policy", "compact,delete"),
        ("cleanup.policy", ""),
        ("max.message.bytes", "1000"),
        ("max.message.bytes", "-1"),
        ("compression.type", "zstd"),
        ("compression.type", "none"),
        ("message.timestamp.type", "LogAppendTime"),
        ("segment.bytes", "1048576"),
        ("segment.bytes", "1"),
        ("unknown.key", "1"),
        ("", "1"),
    )
)
NAMES = sorted({"retention.ms", "cleanup.policy", "max.message.bytes", "compression.type"})


class Topics(Compared):
    """Three names of topics, which are created, changed, described and deleted."""

    name: ClassVar[str] = "topics"
    key: ClassVar[int] = CREATE_TOPICS

    def _settle(self) -> None:
        """Wait until Kafka's broker has applied what its controller answered."""
        self.script.published()

    @rule(
        word=words,
        partitions=st.sampled_from((1, 1, 2, 3, -1, 0)),
        copies=st.sampled_from((1, 1, 1, -1, 0)),
        wanted=st.lists(configs, max_size=2, unique_by=lambda each: each[0]),
        validate=st.booleans(),
        version=versions(2, 7),
    )
    def create(
        self,
        word: str,
        partitions: int,
        copies: int,
        wanted: list[tuple[str, str]],
        validate: bool,
        version: int,
    ) -> None:
        topic: dict[str, Any] = {
            "name": self.script.name(word),
            "num_partitions": partitions,
            "replication_factor": copies,
            "configs": [{"name": name, "value": value} for name, value in wanted],
        }
        fields = {"timeout": TIMEOUT_MS, "validate_only": validate}
        self.script.other(CREATE_TOPICS, version, topics=[topic], **fields)
        self._settle()

    @rule(word=words, version=versions(1, 6))
    def delete(self, word: str, version: int) -> None:
        name = self.script.name(word)
        topics = {"topics": [{"name": name}], "topic_names": [name]}
        self.script.other(DELETE_TOPICS, version, timeout=TIMEOUT_MS, **topics)
        self._settle()

    @rule(word=words, count=st.integers(0, 5), validate=st.booleans(), version=versions(0, 3))
    def add_partitions(self, word: str, count: int, validate: bool, version: int) -> None:
        topic = {"name": self.script.name(word), "count": count, "assignments": None}
        fields = {"timeout": TIMEOUT_MS, "validate_only": validate}
        self.script.other(CREATE_PARTITIONS, version, topics=[topic], **fields)
        self._settle()

    @rule(
        word=words,
        wanted=st.lists(
            st.tuples(configs, st.sampled_from((SET, SET, SET, DELETE, APPEND, SUBTRACT))),
            min_size=1,
            max_size=2,
            unique_by=lambda each: each[0][0],
        ),
        validate=st.booleans(),
        version=versions(0, 1),
    )
    def alter(
        self,
        word: str,
        wanted: list[tuple[tuple[str, str], int]],
        validate: bool,
        version: int,
    ) -> None:
        changes = [
            {"name": name, "config_operation": operation, "value": value}
            for (name, value), operation in wanted
        ]
        resource = {"resource_type": TOPIC, "resource_name": self.script.name(word)}
        resources = [{**resource, "configs": changes}]
        self.script.other(
            INCREMENTAL_ALTER_CONFIGS, version, resources=resources, validate_only=validate
        )
        self._settle()

    @rule(word=words, version=versions(1, 4))
    def describe_configs(self, word: str, version: int) -> None:
        resource = {"resource_type": TOPIC, "resource_name": self.script.name(word)}
        resources = [{**resource, "configuration_keys": NAMES}]
        fields = {"include_synonyms": True, "include_documentation": False}
        self.script.other(DESCRIBE_CONFIGS, version, resources=resources, **fields)

    @rule(
        word=words, version=versions(4, 13)
    )  # earlier versions create the topic in the background
    def describe(self, word: str, version: int) -> None:
        topics = [{"name": self.script.name(word)}]
        fields = {"topics": topics, "allow_auto_topic_creation": False}
        errors = [error for error in NOT_YET if error != "unknown_topic_or_partition"]
        self.script.settled(self.script.other(METADATA, version, **fields), errors)

    @rule(word=words)
    def describe_partitions(self, word: str) -> None:
        topics = [{"name": self.script.name(word)}]
        fields = {"response_partition_limit": 2_000, "cursor": None}
        self.script.other(DESCRIBE_TOPIC_PARTITIONS, 0, topics=topics, **fields)
