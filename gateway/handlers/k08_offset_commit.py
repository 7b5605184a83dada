"""OffsetCommit, key 8, v2-v10: stores offsets of a group; replies when they are durable.

v2-v4 retention time · v6 leader epoch · v7 static members · v8 flexible · v9 GROUP_ID_NOT_FOUND
instead of ILLEGAL_GENERATION · v10 topic ids. Offsets are stored by topic id, so that a new topic
never gets the offsets of a deleted topic of the same name.
Not done: groups of the new protocol (KIP-848).
Source: Kafka, KafkaApis.handleOffsetCommitRequest and OffsetMetadataManager.commitOffset.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from gateway.handlers.api import Api, Context, Reply, Request
from gateway.topics.catalog import Topic
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition

_NOT_FOUND_FROM = 9
_TOPIC_IDS_FROM = 10


async def handle(request: Request, ctx: Context) -> Reply:
    body = request.body
    commit = _Commit(request, ctx)
    topics = [commit.topic(each) for each in body.topics]
    code = ErrorCode.none
    if commit.offsets:
        code = await ctx.groups.commit(
            body.group_id,
            body.member_id,
            body.generation_id_or_member_epoch,
            getattr(body, "group_instance_id", None),
            commit.offsets,
        )
    if code is ErrorCode.group_id_not_found and request.version < _NOT_FOUND_FROM:
        code = ErrorCode.illegal_generation
    for reply in commit.accepted:
        reply["error_code"] = code
    return Reply(topics=topics)


class _Commit:
    """The offsets of one OffsetCommit, and the rows of its reply."""

    def __init__(self, request: Request, ctx: Context) -> None:
        # The offsets to commit.
        self.offsets: dict[TopicIdPartition, CommittedOffset] = {}
        # The row of each offset to commit. All rows get the code of the commit.
        self.accepted: list[Reply] = []
        self._catalog = ctx.catalog
        self._metadata_size_max = ctx.config.groups.metadata_bytes_max
        self._by_id = request.version >= _TOPIC_IDS_FROM
        self._now_ms = ctx.clock.now_ms()
        retention = getattr(request.body, "retention_time", timedelta(milliseconds=-1))
        self._expire_time_ms = (
            -1
            if retention < timedelta()
            else self._now_ms + round(retention.total_seconds() * 1000)
        )

    def topic(self, asked: Any) -> Reply:
        """Add the offsets of one topic to the commit, and return the topic's rows."""
        topic: Topic | None = None
        if not self._by_id:
            topic = self._catalog.by_name(asked.name)
        elif asked.topic_id is not None:
            topic = self._catalog.by_id(asked.topic_id)
        return Reply(
            name=None if self._by_id else asked.name,
            topic_id=asked.topic_id if self._by_id else None,
            partitions=[self._partition(each, topic) for each in asked.partitions],
        )

    def _partition(self, asked: Any, topic: Topic | None) -> Reply:
        reply = Reply(partition_index=asked.partition_index, error_code=ErrorCode.none)
        metadata = asked.committed_metadata or ""
        if topic is None and self._by_id:
            reply["error_code"] = ErrorCode.unknown_topic_id
        elif topic is None or not 0 <= asked.partition_index < topic.partitions:
            reply["error_code"] = ErrorCode.unknown_topic_or_partition
        elif len(metadata) > self._metadata_size_max:
            reply["error_code"] = ErrorCode.offset_metadata_too_large
        else:
            self.accepted.append(reply)
            self.offsets[TopicIdPartition(topic.topic_id, asked.partition_index)] = CommittedOffset(
                offset=asked.committed_offset,
                leader_epoch=getattr(asked, "committed_leader_epoch", -1),
                metadata=metadata,
                commit_time_ms=self._now_ms,
                expire_time_ms=self._expire_time_ms,
            )
        return reply


API = Api(key=8, name="OffsetCommit", versions=range(2, 11), handle=handle)
