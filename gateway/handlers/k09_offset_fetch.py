"""OffsetFetch, key 9, v1-v10: returns the committed offsets of groups.

v2 null topics request all, group error at the top · v5 leader epoch · v6 flexible · v7
require_stable (UNSTABLE_OFFSET_COMMIT while an offset is pending) · v8 many groups · v9 member id
and epoch of the consumer protocol · v10 topic ids.
A partition without a commit has offset -1 and no error. A group that is being loaded gets an error,
never -1. Each partition has this error too, because aiokafka reads only the errors of partitions.
The offsets of a read-only group are the offsets that its clients fetch next.
As in Kafka, a partition that is named again is answered again. A group for whose offsets the reply
has no room gets COORDINATOR_NOT_AVAILABLE, and none of its offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.cluster.peers import PEER_CLIENT_ID
from gateway.core.read_progress import is_read_group
from gateway.groups.coordinator import Refused
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.many_rows import Rows, answer_each
from gateway.handlers.rights import (
    GROUP_DENIED,
    TOPIC_DENIED,
    allows_cluster,
    allows_group,
    allows_topic,
)
from gateway.topics.catalog import Topic
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition

_MANY_FROM = 8
_TOPIC_IDS_FROM = 10
_NONE_COMMITTED = CommittedOffset()
_UNSTABLE = CommittedOffset()  # compared by identity: the offset is pending in a transaction


async def handle(request: Request, ctx: Context) -> Reply:
    body = request.body
    if request.version >= _MANY_FROM:
        return await _groups(request, ctx)
    reply = await _group(body, request, asyncio.Lock(), ctx)
    code = reply["error_code"]
    if code is not ErrorCode.none and body.topics is not None:
        topics = _topic_rows(request)
        for topic in body.topics:
            rows = _rows(request)
            for index in topic.partition_indexes:
                await rows.add(_partition(index, _NONE_COMMITTED, code))
            await topics.add(Reply(name=topic.name, partitions=rows.result()))
        reply["topics"] = topics.result()
    return reply


async def _groups(request: Request, ctx: Context) -> Reply:
    """Return the offsets of many groups. A group that is named again gets INVALID_REQUEST.

    Groups for whose offsets the reply has no room get a retriable error.
    """
    groups = Rows(request, "groups")
    seen: set[str] = set()
    adding = asyncio.Lock()  # else groups that are answered together would all lack room

    async def answer(asked: Any) -> Reply:
        if asked.group_id in seen:
            return _refused(asked, ErrorCode.invalid_request)
        seen.add(asked.group_id)
        return await _group(asked, request, adding, ctx)

    def refuse(asked: Any) -> Reply:
        return _refused(asked, ErrorCode.coordinator_not_available)

    await answer_each(request.body.groups, answer, refuse, groups, ctx)
    return Reply(groups=groups.result())


def _refused(asked: Any, code: ErrorCode) -> Reply:
    return Reply(group_id=asked.group_id, topics=[], error_code=code)


async def _group(asked: Any, request: Request, adding: asyncio.Lock, ctx: Context) -> Reply:
    """Return the offsets of one group, or an error and none of them."""
    if not allows_group(request, ctx, Operation.DESCRIBE, asked.group_id):
        return _refused(asked, GROUP_DENIED)
    try:
        offsets = await _offsets(asked, request, ctx)
        if getattr(request.body, "require_stable", False):
            offsets = _StableOffsets(offsets, ctx.groups.unstable(asked.group_id))
        async with adding:
            topics = await _topics(asked.topics, offsets, request, ctx)
    except Refused as refused:
        return _refused(asked, refused.code)
    return Reply(group_id=asked.group_id, topics=topics, error_code=ErrorCode.none)


async def _topics(
    asked: Any, offsets: Mapping[TopicIdPartition, CommittedOffset], request: Request, ctx: Context
) -> Any:
    """Return the offsets of the topics that are asked for. Raises Refused if they are too many."""
    if asked is None:
        return await _all(offsets, request, ctx)
    answer = _by_id if request.version >= _TOPIC_IDS_FROM else _by_name
    rows = _topic_rows(request)
    for each in asked:
        await rows.add(await answer(each, offsets, request, ctx))
    return rows.result()


class _StableOffsets(Mapping[TopicIdPartition, CommittedOffset]):
    """The offsets of a group, with `_UNSTABLE` in place of those of partitions in `unstable`."""

    def __init__(
        self,
        offsets: Mapping[TopicIdPartition, CommittedOffset],
        unstable: Container[TopicIdPartition],
    ) -> None:
        self._offsets = offsets
        self._unstable = unstable

    def __getitem__(self, key: TopicIdPartition) -> CommittedOffset:
        return _UNSTABLE if key in self._unstable else self._offsets[key]

    def __iter__(self) -> Iterator[TopicIdPartition]:
        return iter(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)


async def _offsets(
    asked: Any, request: Request, ctx: Context
) -> Mapping[TopicIdPartition, CommittedOffset]:
    """Return the offsets of one group. Raises Refused.

    Another gateway asks for the offsets that this one has noted of a read-only group.
    """
    group_id = asked.group_id
    if _is_peer(request, ctx):
        return ctx.read_only_groups.offsets_here(group_id)
    member_id, epoch = getattr(asked, "member_id", None), getattr(asked, "member_epoch", -1)
    offsets = await ctx.groups.offsets(group_id, member_id, epoch)
    if offsets or not is_read_group(group_id) or await ctx.groups.describe(group_id) is not None:
        return offsets
    if ctx.groups.has_consumer_group(group_id):
        return offsets
    return await ctx.read_only_groups.offsets(group_id)


def _is_peer(request: Request, ctx: Context) -> bool:
    """Return whether another gateway asks. Its name alone is no proof, if there is an authorizer.

    Any client could name itself so, and be answered past the group's coordinator.
    """
    if request.client_id != PEER_CLIENT_ID:
        return False
    return allows_cluster(request, ctx, Operation.CLUSTER_ACTION)


async def _all(
    offsets: Mapping[TopicIdPartition, CommittedOffset], request: Request, ctx: Context
) -> Any:
    """Return all committed offsets of topics that exist."""
    partitions: dict[UUID, Rows] = {}
    for key in list(offsets):
        committed = offsets.get(key)
        if committed is not None:  # else it was removed during a pause
            rows = partitions.get(key.topic_id)
            if rows is None:
                rows = partitions[key.topic_id] = _rows(request)
            await _add(rows, _partition(key.partition, committed))
    topics = _topic_rows(request)
    for topic_id, rows in partitions.items():
        topic = ctx.catalog.by_id(topic_id)
        if topic is not None and allows_topic(request, ctx, Operation.DESCRIBE, topic.name):
            await topics.add(Reply(name=topic.name, topic_id=topic_id, partitions=rows.result()))
    return topics.result()


async def _by_name(
    asked: Any,
    offsets: Mapping[TopicIdPartition, CommittedOffset],
    request: Request,
    ctx: Context,
) -> Reply:
    """Return the offsets of one topic. An unknown topic has none and no error, as in Kafka."""
    topic, code = ctx.catalog.by_name(asked.name), ErrorCode.none
    if not allows_topic(request, ctx, Operation.DESCRIBE, asked.name):
        topic, code = None, TOPIC_DENIED
    rows = await _partitions(asked.partition_indexes, topic, offsets, request, code)
    return Reply(name=asked.name, partitions=rows)


async def _by_id(
    asked: Any,
    offsets: Mapping[TopicIdPartition, CommittedOffset],
    request: Request,
    ctx: Context,
) -> Reply:
    topic = None if asked.topic_id is None else ctx.catalog.by_id(asked.topic_id)
    code = ErrorCode.unknown_topic_id if topic is None else ErrorCode.none
    if topic is not None and not allows_topic(request, ctx, Operation.DESCRIBE, topic.name):
        topic, code = None, TOPIC_DENIED
    rows = await _partitions(asked.partition_indexes, topic, offsets, request, code)
    return Reply(topic_id=asked.topic_id, partitions=rows)


async def _partitions(
    indexes: Iterable[int],
    topic: Topic | None,
    offsets: Mapping[TopicIdPartition, CommittedOffset],
    request: Request,
    code: ErrorCode = ErrorCode.none,
) -> Any:
    replies = _rows(request)
    for index in indexes:
        committed = _NONE_COMMITTED
        if topic is not None:
            committed = offsets.get(TopicIdPartition(topic.topic_id, index), _NONE_COMMITTED)
        await _add(replies, _partition(index, committed, code))
    return replies.result()


async def _add(rows: Rows, row: Reply) -> None:
    """Add a partition with its metadata. Raises Refused if the reply has no room for it."""
    if rows.full:
        raise Refused(ErrorCode.coordinator_not_available)
    await rows.add(row)


def _topic_rows(request: Request, *path: str) -> Rows:
    path = ("topics", *path)
    return Rows(request, *(("groups", *path) if request.version >= _MANY_FROM else path))


def _rows(request: Request) -> Rows:
    return _topic_rows(request, "partitions")


def _partition(index: int, committed: CommittedOffset, code: ErrorCode = ErrorCode.none) -> Reply:
    if committed is _UNSTABLE:
        code = ErrorCode.unstable_offset_commit
    return Reply(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=code,
    )


API = Api(key=9, name="OffsetFetch", versions=range(1, 11), handle=handle)
