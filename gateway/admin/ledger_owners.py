"""Names the owner of a ledger: a partition of a topic, or a consumer group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from gateway.topics.catalog import IDS, Topic, decode_topic
from ledger.errors import CorruptFormat, NoNode
from ledger.ids import STREAM_KEY
from ledger.ports.metadata import MetadataStore, Node
from subscriptions.rollout.open_store import GROUPS
from subscriptions.segments.log_claim import SUBSCRIPTION_KEY
from subscriptions.znodes.znode_format import subscriber_of

_DELETED = "(deleted)"


class LedgerOwner(NamedTuple):
    """The owner that the custom metadata of a ledger names. None in each field that it lacks."""

    topic: str | None = None
    partition: int | None = None
    group: str | None = None


async def read_topic_names(store: MetadataStore) -> dict[UUID, str]:
    """Return the names of all topics by id, without topics whose metadata are corrupt."""
    return {topic.topic_id: topic.name for topic in await read_topics(store)}


async def read_topics(store: MetadataStore) -> list[Topic]:
    """Return all topics as they are stored, without topics whose metadata are corrupt."""
    try:
        nodes = await store.read_tree(IDS)
    except NoNode:
        return []  # no gateway ever used this cluster
    return [topic for path, node in nodes.items() for topic in _decoded(path, node)]


def _decoded(path: str, node: Node) -> list[Topic]:
    if path == IDS:
        return []
    try:
        return [decode_topic(path, node)]
    except CorruptFormat:
        return []


def owner_of(custom: Mapping[str, bytes], topics: Mapping[UUID, str]) -> LedgerOwner:
    """Return the owner by the custom metadata of a ledger."""
    stream = custom.get(STREAM_KEY, b"").decode(errors="replace")
    if stream:
        return _owner_of_stream(stream, topics)
    parent, _, name = custom.get(SUBSCRIPTION_KEY, b"").decode(errors="replace").rpartition("/")
    if parent == GROUPS:
        return LedgerOwner(group=subscriber_of(name))
    return LedgerOwner()


def _owner_of_stream(stream: str, topics: Mapping[UUID, str]) -> LedgerOwner:
    """Return the partition that is stored in a stream. Other programs name streams freely."""
    topic, _, index = stream.rpartition("-")
    try:
        topic_id, partition = UUID(topic), int(index)
    except ValueError:
        return LedgerOwner(topic=stream)
    return LedgerOwner(topics.get(topic_id, _DELETED), partition)
