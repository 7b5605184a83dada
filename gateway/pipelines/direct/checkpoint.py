"""The contents of a streaming query's checkpoint: offsets and topic ids. Pure.

For a Python source, Spark keeps only the offsets. The reader cannot learn the location of the
checkpoint, and data of input partitions does not outlive their batch. Therefore the topic ids are
stored among the offsets, each as a topic without partitions: {"t":{"0":5},"t@<id>":{}}. No topic
name contains an "@". Spark's Kafka source ignores a topic without partitions, so it can continue
from such a checkpoint. Checkpoints of Spark's own source, and older ones of this source, contain no
ids; they are assumed to belong to the current topic.

Source: Spark, JsonUtils.partitionOffsets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.pipelines.shared.kafka_source import offsets_json
from gateway.pipelines.shared.partitions import TopicPartition

OffsetsJson = dict[str, dict[str, int]]

_OF = "@"


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """The next offset of each partition, and the known topic ids by topic name."""

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str] = field(default_factory=dict[str, str])

    def recreated(self, topic_ids: Mapping[str, str]) -> list[str]:
        """Return the topics whose id differs from the one in `topic_ids`.

        Unknown ids count as equal.
        """
        return sorted(
            name for name, known in self.topic_ids.items() if topic_ids.get(name, known) != known
        )


def to_json(position: StreamOffsets) -> OffsetsJson:
    """Encode the offsets and ids. Ids of topics without an offset are left out."""
    offsets = {
        (partition.topic, partition.partition): at for partition, at in position.offsets.items()
    }
    found: OffsetsJson = json.loads(offsets_json(offsets))
    ids = {
        f"{topic}{_OF}{position.topic_ids[topic]}": dict[str, int]()
        for topic in found
        if topic in position.topic_ids
    }
    return found | ids


def from_json(offsets: OffsetsJson) -> StreamOffsets:
    """Decode a checkpoint of this source or of Spark's Kafka source."""
    ids = dict(name.split(_OF, 1) for name in offsets if _OF in name)
    found = {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in offsets.items()
        for partition, offset in partitions.items()
    }
    return StreamOffsets(found, ids)
