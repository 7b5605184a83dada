"""Kafka's own topics: what the broker creates, when, and with which settings.

    FindCoordinator of a group ─▶ __consumer_offsets    no streams: offsets are kept elsewhere
    FindCoordinator of an id   ─▶ __transaction_state   streams: the log of the coordinators

The first request creates the topic in the background, once in the cluster.
Source: Kafka, AutoTopicCreationManager, GroupCoordinatorService.groupMetadataTopicConfigs and
TransactionStateManager.transactionTopicConfigs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.core.feature_levels import Form
from gateway.core.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from gateway.topics.errors import TopicExists

if TYPE_CHECKING:
    from gateway.topics.catalog import Catalog

INTERNAL_PARTITIONS: Final = 50
"""Kafka: offsets.topic.num.partitions and transaction.state.log.num.partitions."""

COPIES: Final = 3
"""Kafka: the replication factors of both topics. Fewer bookies keep fewer copies."""

_IN_SYNC: Final = 2  # Kafka: transaction.state.log.min.isr
_SEGMENT_BYTES: Final = "104857600"  # Kafka: the segment.bytes of both topics


class InternalTopic(NamedTuple):
    """What the broker creates under the name of an internal topic."""

    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


def internal_topic(name: str, bookies: int) -> InternalTopic | None:
    """Return the settings of an internal topic for `bookies` writable bookies.

    Returns None for other names, and for internal topics that this broker has no use for.
    """
    copies = max(1, min(COPIES, bookies))
    configs = {"cleanup.policy": "compact", "segment.bytes": _SEGMENT_BYTES}
    if name == CONSUMER_OFFSETS:
        configs["compression.type"] = "producer"
    elif name == TRANSACTION_STATE:
        configs["compression.type"] = "uncompressed"
        configs["min.insync.replicas"] = str(min(_IN_SYNC, copies))
        configs["unclean.leader.election.enable"] = "false"
    else:
        return None
    return InternalTopic(INTERNAL_PARTITIONS, copies, configs)


def is_wanted(name: str, may_write: Callable[[Form], bool]) -> bool:
    """Return whether this broker creates the internal topic, in the present form of the data.

    Gateways of earlier releases would take it for an ordinary topic, so its form keeps them out.
    """
    if name == TRANSACTION_STATE:
        return may_write(Form.TRANSACTIONS)
    return name == CONSUMER_OFFSETS and may_write(Form.INTERNAL_TOPICS)


def begin(catalog: Catalog, name: str) -> None:
    """Create the internal topic in the background, unless it exists or is being created."""
    if catalog.by_name(name) is None:
        catalog.auto_creation.begin(name)


async def ensure(catalog: Catalog, name: str) -> None:
    """Create the internal topic unless it exists. Raises TopicError or LedgerError."""
    if catalog.by_name(name) is None:
        try:
            await catalog.create_by_itself(name)
        except TopicExists:
            pass  # another broker or request created it first
