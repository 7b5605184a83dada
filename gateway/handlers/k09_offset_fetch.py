"""OffsetFetch, key 9, v1-v10: returns the committed offsets of groups.

v2 null topics request all, group error at the top · v5 leader epoch · v6 flexible · v7
require_stable (UNSTABLE_OFFSET_COMMIT while an offset is pending) · v8 many groups · v9 member id
and epoch of the new protocol (ignored: groups here are classic) · v10 topic ids.
A partition without a commit has offset -1 and no error. A group that is being loaded gets an error,
never -1. Each partition has this error too, because aiokafka reads only the errors of partitions.
The offsets of a read-only group are the offsets that its clients fetch next.
Not done: groups of the new protocol (KIP-848).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.cluster.peers import PEER_CLIENT_ID
from gateway.core.read_progress import is_read_group
from gateway.groups.coordinator import Refused
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.many_rows import Rows, answer_each
from gateway.topics.catalog import Topic
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition

_MANY_FROM = 8
_TOPIC_IDS_FROM = 10
_ROWS_MAX = 500_000  # partitions in one reply
_NONE_COMMITTED = CommittedOffset()
_UNSTABLE = CommittedOffset()  # compared by identity: the offset is pending in a transaction


async def handle(request: Request, ctx: Context) -> Reply:
    body = request.body
    if request.version >= _MANY_FROM:
        return await _groups(request, ctx)
    reply = await _group(body, request, ctx)
    code = reply["error_code"]
    if code is not ErrorCode.none and body.topics is not None:
        reply["topics"] = [
            Reply(
                name=topic.name,
                partitions=[
                    _partition(index, _NONE_COMMITTED, code) for index in topic.partition_indexes
                ],
            )
            for topic in body.topics
        ]
    return reply


async def _groups(request: Request, ctx: Context) -> Reply:
    """Return the offsets of many groups. A group that is named again gets INVALID_REQUEST.

    After `_ROWS_MAX` rows, the remaining groups get a retriable error.
    """
    groups = Rows(request, "groups")
    seen: set[str] = set()
    partitions = 0

    async def answer(asked: Any) -> Reply:
        nonlocal partitions
        if asked.group_id in seen:
            return _refused(asked, ErrorCode.invalid_request)
        seen.add(asked.group_id)
        if partitions >= _ROWS_MAX:
            return _refused(asked, ErrorCode.coordinator_not_available)
        reply = await _group(asked, request, ctx)
        partitions += sum(len(topic["partitions"]) for topic in reply["topics"])
        return reply

    def refuse(asked: Any) -> Reply:
        return _refused(asked, ErrorCode.coordinator_not_available)

    await answer_each(request.body.groups, answer, refuse, groups, ctx)
    return Reply(groups=groups.result())


def _refused(asked: Any, code: ErrorCode) -> Reply:
    return Reply(group_id=asked.group_id, topics=[], error_code=code)


async def _group(asked: Any, request: Request, ctx: Context) -> Reply:
    version = request.version
    try:
        offsets = await _offsets(asked.group_id, request.client_id, ctx)
    except Refused as refused:
        return _refused(asked, refused.code)
    if getattr(request.body, "require_stable", False):
        offsets = _StableOffsets(offsets, ctx.groups.unstable(asked.group_id))
    if asked.topics is None:
        topics = await _all(offsets, request, ctx)
    elif version >= _TOPIC_IDS_FROM:
        topics = [await _by_id(each, offsets, request, ctx) for each in asked.topics]
    else:
        topics = [await _by_name(each, offsets, request, ctx) for each in asked.topics]
    return Reply(group_id=asked.group_id, topics=topics, error_code=ErrorCode.none)


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
    group_id: str, client_id: str | None, ctx: Context
) -> Mapping[TopicIdPartition, CommittedOffset]:
    """Return the offsets of one group. Raises Refused."""
    if client_id == PEER_CLIENT_ID:
        return ctx.read_only_groups.offsets_here(group_id)
    offsets = await ctx.groups.offsets(group_id)
    if offsets or not is_read_group(group_id) or await ctx.groups.describe(group_id) is not None:
        return offsets
    return await ctx.read_only_groups.offsets(group_id)


async def _all(
    offsets: Mapping[TopicIdPartition, CommittedOffset], request: Request, ctx: Context
) -> list[Reply]:
    """Return all committed offsets of topics that exist."""
    partitions: dict[UUID, Rows] = {}
    for key in list(offsets):
        committed = offsets.get(key)
        if committed is not None:  # else it was removed during a pause
            rows = partitions.get(key.topic_id)
            if rows is None:
                rows = partitions[key.topic_id] = _rows(request)
            await rows.add(_partition(key.partition, committed))
    topics = [ctx.catalog.by_id(topic_id) for topic_id in partitions]
    return [
        Reply(
            name=topic.name, topic_id=topic.topic_id, partitions=partitions[topic.topic_id].result()
        )
        for topic in topics
        if topic is not None
    ]


async def _by_name(
    asked: Any,
    offsets: Mapping[TopicIdPartition, CommittedOffset],
    request: Request,
    ctx: Context,
) -> Reply:
    """Return the offsets of one topic. An unknown topic has none and no error, as in Kafka."""
    topic = ctx.catalog.by_name(asked.name)
    rows = await _partitions(asked.partition_indexes, topic, offsets, request)
    return Reply(name=asked.name, partitions=rows)


async def _by_id(
    asked: Any,
    offsets: Mapping[TopicIdPartition, CommittedOffset],
    request: Request,
    ctx: Context,
) -> Reply:
    topic = None if asked.topic_id is None else ctx.catalog.by_id(asked.topic_id)
    code = ErrorCode.unknown_topic_id if topic is None else ErrorCode.none
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
        await replies.add(_partition(index, committed, code))
    return replies.result()


def _rows(request: Request) -> Rows:
    path = ("topics", "partitions")
    return Rows(request, *(("groups", *path) if request.version >= _MANY_FROM else path))


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
