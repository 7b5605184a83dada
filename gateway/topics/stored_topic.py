"""A topic, and the node that stores it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from gateway.core.topic_names import has_streams, is_internal, topic_name_fault
from gateway.topics.configs import normalize
from gateway.topics.errors import InvalidConfig
from ledger.errors import CorruptFormat
from ledger.ports.metadata import NODE_BYTES_MAX, Node
from ledger.sealed import seal, unseal

_SPARE_BYTES = 16 * 1024  # for the path, more partitions, and fields of later releases


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, from its creation to its deletion. A topic created again has another id."""

    name: str
    topic_id: UUID
    partitions: int
    replication_factor: int
    # Only the overrides, normalized, without defaults.
    configs: Mapping[str, str] = field(hash=False)
    is_internal: bool

    @property
    def has_streams(self) -> bool:
        """False if the topic has no data: its partitions are empty and have no owners."""
        return has_streams(self.name)


def encode_topic(topic: Topic) -> bytes:
    """Return the data of a topic's node."""
    return seal(
        {
            "name": topic.name,
            "partitions": topic.partitions,
            "replication_factor": topic.replication_factor,
            "configs": dict(topic.configs),
        }
    )


def check_fits(topic: Topic) -> None:
    """Check that the topic's node holds its configs. Raises InvalidConfig."""
    size = len(encode_topic(topic))
    if size + _SPARE_BYTES > NODE_BYTES_MAX:
        raise InvalidConfig(
            f"The configurations of topic '{topic.name}' would take {size} bytes, and the limit is "
            f"{NODE_BYTES_MAX - _SPARE_BYTES}. Set shorter values, or delete some."
        )


def decode_topic(path: str, node: Node) -> Topic:
    """Decode a topic's node. Raises CorruptFormat with the path."""
    document = unseal(node.data, path)
    try:
        name = str(document["name"])
        if topic_name_fault(name) is not None:
            raise CorruptFormat(f"{path}: {name!r} is not a valid topic name")
        return Topic(
            name=name,
            topic_id=UUID(path.rpartition("/")[2]),
            partitions=int(document["partitions"]),
            replication_factor=int(document["replication_factor"]),
            configs=normalize(document["configs"]),
            is_internal=is_internal(name),
        )
    except (KeyError, ValueError, TypeError, AttributeError, InvalidConfig) as error:
        raise CorruptFormat(f"{path}: {error!r}") from error
