"""Writes markers into the partitions that this broker leads.

The partition checks the producer's epoch, the coordinator's epoch and the number of each marker,
and answers once the marker is durable and may be acknowledged. Markers for `__consumer_offsets` go
to the coordinators of groups instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.core.partition_transactions import NO_LEADER_EPOCH, EndMarker
from gateway.core.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from gateway.topics.partitions import Partitions

GROUP_PREFIX = f"{CONSUMER_OFFSETS}/"
"""Begins the name under which one gateway names a group to another; no topic can have it."""

OnMarked = Callable[[ErrorCode], None]
"""Receives the outcome of one marker in one partition. Runs once, perhaps inside the call."""


class GroupMarkers(Protocol):
    """Ends transactions in the committed offsets of groups."""

    def end(self, index: int, marker: EndMarker, on_marked: OnMarked, sender: object) -> None:
        """End the transaction for all groups of one partition of `__consumer_offsets`.

        NONE means that the pending offsets of this producer are committed or dropped, durably, in
        every group of the partition, on whichever broker the group is coordinated.
        """
        ...

    def end_in_group(
        self, group: str, marker: EndMarker, ownership: UUID | None, on_marked: OnMarked
    ) -> None:
        """End the transaction for one group, if this broker coordinates it."""
        ...

    def stop(self, sender: object) -> None:
        """Give up the markers that `end` took for this sender."""
        ...


class NoPendingOffsets:
    """The groups of a release without TxnOffsetCommit: no offset is ever pending."""

    def end(self, index: int, marker: EndMarker, on_marked: OnMarked, sender: object) -> None:
        on_marked(ErrorCode.none)

    def end_in_group(
        self, group: str, marker: EndMarker, ownership: UUID | None, on_marked: OnMarked
    ) -> None:
        on_marked(ErrorCode.none)

    def stop(self, sender: object) -> None:
        pass


class LocalMarkers:
    """The partitions of this broker, as the receivers of markers."""

    def __init__(self, partitions: Partitions, groups: GroupMarkers | None = None) -> None:
        self._partitions = partitions
        self._groups = groups or NoPendingOffsets()

    def append(
        self,
        topic: str,
        index: int,
        marker: EndMarker,
        on_marked: OnMarked,
        topic_id: UUID | None = None,
        sender: object = None,
    ) -> None:
        """Append a marker to a partition that this broker leads.

        With `topic_id` it is refused if the topic has another id: it was created again. A group
        that another gateway names has the ownership of the group in its place. `stop` of the
        `sender` gives up a marker for groups.

        A marker of another gateway names a leader epoch. It does not wait for a partition that is
        being opened: its sender gets NOT_LEADER_OR_FOLLOWER, and sends it again.
        """
        if topic == TRANSACTION_STATE:
            # Kafka would append the marker. Here nothing of a transaction can be in this log.
            on_marked(ErrorCode.unsupported_for_message_format)
            return
        if topic == CONSUMER_OFFSETS and self._partitions.exists(topic, index):
            self._groups.end(index, marker, on_marked, sender)
            return
        if topic.startswith(GROUP_PREFIX):
            group = topic.removeprefix(GROUP_PREFIX)
            self._groups.end_in_group(group, marker, topic_id, on_marked)
            return
        partition = self._partitions.find(topic, index)
        if partition is None:
            on_marked(self._partitions.why_not_led(topic, index))
        elif topic_id is not None and not partition.belongs_to(topic_id):
            on_marked(ErrorCode.unknown_topic_or_partition)
        elif marker.leader_epoch != NO_LEADER_EPOCH and not partition.readable:
            # Another gateway sent it, and every request behind it would wait for the opening.
            if not partition.closed:
                partition.open_first()
            on_marked(ErrorCode.not_leader_or_follower)
        else:
            partition.append_marker(marker, on_marked)

    def stop(self, sender: object) -> None:
        """Give up the markers of a sender that wait for groups. Those in partitions stay there."""
        self._groups.stop(sender)
