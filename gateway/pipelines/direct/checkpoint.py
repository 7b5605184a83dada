"""What a checkpoint holds of a stream: how far it came, and in which topic of that name. Pure.

Of a Python source's stream Spark keeps its offsets and nothing else: the reader is not told where
the checkpoint is, and what partitions hold does not outlive their batch. So the ids of topics stand
among the offsets, each as a topic without partitions: {"t":{"0":5},"t@<id>":{}}. No topic's name
has an "@", and Spark's Kafka source sees nothing in such a topic: it can go on from there. Its own
checkpoints, and older ones of ours, have no ids; they are taken to be of the topic there is.
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
    """The next offset of each place; `topic_ids` by name, where they are known."""

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str] = field(default_factory=dict[str, str])

    def others(self, topic_ids: Mapping[str, str]) -> list[str]:
        """Topics whose id is another one there; where either does not know it, it is the same."""
        return sorted(
            name for name, known in self.topic_ids.items() if topic_ids.get(name, known) != known
        )


def to_json(position: StreamOffsets) -> OffsetsJson:
    """Such that `from_json` gives it back; ids of topics that have no offset are left out."""
    offsets = {(place.topic, place.partition): at for place, at in position.offsets.items()}
    found: OffsetsJson = json.loads(offsets_json(offsets))
    ids = {
        f"{topic}{_OF}{position.topic_ids[topic]}": dict[str, int]()
        for topic in found
        if topic in position.topic_ids
    }
    return found | ids


def from_json(offsets: OffsetsJson) -> StreamOffsets:
    """What a checkpoint holds: with ids, or as Spark's Kafka source writes it."""
    ids = dict(name.split(_OF, 1) for name in offsets if _OF in name)
    found = {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in offsets.items()
        for partition, offset in partitions.items()
    }
    return StreamOffsets(found, ids)
