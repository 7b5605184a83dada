"""OffsetCommit, key 8, v2-v10: stores offsets of a group; replies when they are durable.

v2-v4 retention time · v6 leader epoch · v7 static members · v8 flexible · v9 GROUP_ID_NOT_FOUND
instead of ILLEGAL_GENERATION · v10 topic ids. Offsets are stored by topic id, so that a new topic
never gets the offsets of a deleted topic of the same name.
A member of the consumer protocol (KIP-848) needs v9, and names its epoch in place of a generation.
Source: Kafka, KafkaApis.handleOffsetCommitRequest and OffsetMetadataManager.commitOffset.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from itertools import repeat
from typing import Any

from kio.schema.errors import ErrorCode

from gateway.access import Operation, auditing
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.many_rows import Rows, with_pauses
from gateway.handlers.rights import GROUP_DENIED, TOPIC_DENIED, allows_group, allows_topic
from gateway.topics.catalog import Topic
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition

_NOT_FOUND_FROM = 9
_TOPIC_IDS_FROM = 10


async def handle(request: Request, ctx: Context) -> Reply:
    body = request.body
    if not allows_group(request, ctx, Operation.READ, body.group_id):
        return Reply(topics=await refused_rows(request, GROUP_DENIED))
    commit = _Commit(request, ctx)
    async for asked in with_pauses(body.topics, request):
        topic = commit.topic(asked)
        denied = commit.denies(asked, topic)
        async for each in with_pauses(asked.partitions, request):
            commit.add(each, topic, denied=denied)
    code = ErrorCode.none
    if commit.offsets:
        code = await ctx.groups.commit(
            body.group_id,
            body.member_id,
            body.generation_id_or_member_epoch,
            getattr(body, "group_instance_id", None),
            commit.offsets,
            new_version=request.version >= _NOT_FOUND_FROM,
        )
    if auditing.sink is not None and not body.member_id:
        from gateway.handlers.changes import note_offsets  # few gateways have an audit log

        note_offsets(request, body.group_id, code.name.upper())
    if code is ErrorCode.group_id_not_found and request.version < _NOT_FOUND_FROM:
        code = ErrorCode.illegal_generation
    return Reply(topics=await commit_rows(request, commit.faults, code))


async def refused_rows(request: Request, code: ErrorCode) -> Any:
    """Return the rows of the topics in the reply to a request of which nothing is done."""
    return await commit_rows(request, repeat(None), code)


async def commit_rows(request: Request, faults: Iterable[ErrorCode | None], code: ErrorCode) -> Any:
    """Return the rows of the topics in the reply. `faults` has an item for each partition.

    A partition without a fault gets `code`, the code of the commit.
    """
    found = iter(faults)
    topics = Rows(request, "topics")
    for asked in request.body.topics:
        rows = Rows(request, "topics", "partitions")
        for each in asked.partitions:
            fault = next(found)
            error = code if fault is None else fault
            await rows.add(Reply(partition_index=each.partition_index, error_code=error))
        about = Reply(name=getattr(asked, "name", None), topic_id=getattr(asked, "topic_id", None))
        await topics.add(Reply(about, partitions=rows.result()))
    return topics.result()


class _Commit:
    """The offsets of one OffsetCommit, and what is wrong with the others."""

    def __init__(self, request: Request, ctx: Context) -> None:
        # The offsets to commit.
        self.offsets: dict[TopicIdPartition, CommittedOffset] = {}
        # For each partition of the request, why its offset cannot be committed, or None.
        self.faults: list[ErrorCode | None] = []
        self._request = request
        self._ctx = ctx
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

    def topic(self, asked: Any) -> Topic | None:
        if not self._by_id:
            return self._catalog.by_name(asked.name)
        return None if asked.topic_id is None else self._catalog.by_id(asked.topic_id)

    def denies(self, asked: Any, topic: Topic | None) -> bool:
        """Return whether the client may not read a topic, which it may not exist for it then."""
        name = asked.name if not self._by_id else None if topic is None else topic.name
        return name is not None and not allows_topic(self._request, self._ctx, Operation.READ, name)

    def add(self, asked: Any, topic: Topic | None, *, denied: bool) -> None:
        """Add the offset of one partition to the commit, or its fault to `faults`."""
        metadata = asked.committed_metadata or ""
        fault = None
        if denied:
            fault = TOPIC_DENIED
        elif topic is None and self._by_id:
            fault = ErrorCode.unknown_topic_id
        elif topic is None or not 0 <= asked.partition_index < topic.partitions:
            fault = ErrorCode.unknown_topic_or_partition
        elif len(metadata) > self._metadata_size_max:
            fault = ErrorCode.offset_metadata_too_large
        else:
            self.offsets[TopicIdPartition(topic.topic_id, asked.partition_index)] = CommittedOffset(
                offset=asked.committed_offset,
                leader_epoch=getattr(asked, "committed_leader_epoch", -1),
                metadata=metadata,
                commit_time_ms=self._now_ms,
                expire_time_ms=self._expire_time_ms,
            )
        self.faults.append(fault)


API = Api(key=8, name="OffsetCommit", versions=range(2, 11), handle=handle)
