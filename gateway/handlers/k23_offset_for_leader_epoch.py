"""OffsetForLeaderEpoch, key 23, v2-v4: returns where a leader epoch ends in the log of a partition.

v3 replica id (ignored) · v4 flexible. Consumers ask after the leader has changed, with the epoch of
the last record that they read, to notice a log that was truncated. Only the leader answers, after
it has loaded the epochs of the log, and after its own is published. The newest epoch ends at the
high watermark: what is not durable may still be lost. Kafka's leader returns its log end, which
differs only while records are not replicated yet. Source: KIP-320;
Kafka, ReplicaManager.lastOffsetForLeaderEpoch and LeaderEpochFileCache.endOffsetFor.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.cluster.port import StreamKey
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.many_rows import Rows, with_pauses
from gateway.handlers.opening import open_all
from gateway.handlers.rights import TOPIC_DENIED, allows_cluster, allows_topic
from gateway.topics.empty_partition import EmptyPartition
from gateway.topics.partition import Partition

_UNKNOWN_EPOCH = -1


async def handle(request: Request, ctx: Context) -> Reply:
    errors = await open_all(await _unopened(request, ctx))
    topics = Rows(request, "topics")
    async for topic in with_pauses(request.body.topics, request):
        partitions = Rows(request, "topics", "partitions")
        denied = not _may_ask(topic.topic, request, ctx)
        async for asked in with_pauses(topic.partitions, request):
            row = _refusal(asked, TOPIC_DENIED) if denied else None
            await partitions.add(row or _row(topic.topic, asked, ctx, errors))
        await topics.add(Reply(topic=topic.topic, partitions=partitions.result()))
    return Reply(topics=topics.result())


def _may_ask(topic: str, request: Request, ctx: Context) -> bool:
    """Return whether the client may ask for epochs: as a broker, or as a client of the topic."""
    if allows_cluster(request, ctx, Operation.CLUSTER_ACTION):
        return True
    return allows_topic(request, ctx, Operation.DESCRIBE, topic)


async def _unopened(request: Request, ctx: Context) -> set[Partition]:
    """Return the partitions of the request that this broker leads and has not opened."""
    found: set[Partition] = set()
    async for topic in with_pauses(request.body.topics, request):
        if not _may_ask(topic.topic, request, ctx):
            continue
        async for asked in with_pauses(topic.partitions, request):
            partition = ctx.partitions.find(topic.topic, asked.partition)
            if partition is not None and partition.is_leader and not partition.readable:
                found.add(partition)
    return found


def _row(topic: str, asked: Any, ctx: Context, errors: dict[Partition, ErrorCode]) -> Reply:
    partition = ctx.partitions.find(topic, asked.partition)
    if partition is None:
        empty = ctx.partitions.empty(topic, asked.partition)
        if empty is not None:
            return _answer(asked, empty)
        return _refusal(asked, _why_not_led(topic, asked, ctx))
    if not partition.is_leader:
        return _refusal(asked, ErrorCode.not_leader_or_follower)
    if not partition.readable:
        return _refusal(asked, errors.get(partition, ErrorCode.not_leader_or_follower))
    if not ctx.partitions.shows_epoch(topic, asked.partition, partition):
        return _refusal(asked, ErrorCode.not_leader_or_follower)
    return _answer(asked, partition)


def _answer(asked: Any, partition: Partition | EmptyPartition) -> Reply:
    fenced = _check_epoch(asked.current_leader_epoch, partition.leader_epoch)
    if fenced is not ErrorCode.none:
        return _refusal(asked, fenced)
    end = partition.epoch_end(asked.leader_epoch)
    if end is None:
        return _refusal(asked, ErrorCode.none)
    return Reply(
        error_code=ErrorCode.none,
        partition=asked.partition,
        leader_epoch=end.epoch,
        end_offset=end.end_sequence_id,
    )


def _why_not_led(topic: str, asked: Any, ctx: Context) -> ErrorCode:
    """Return the error for a partition that another broker leads, or that does not exist.

    As in Kafka, a follower checks the epoch first.
    """
    error = ctx.partitions.why_not_led(topic, asked.partition)
    known = ctx.catalog.by_name(topic)
    if error is ErrorCode.not_leader_or_follower and known is not None:
        epoch = ctx.cluster.leader_epoch(StreamKey(known.topic_id, asked.partition))
        fenced = _check_epoch(asked.current_leader_epoch, epoch)
        return error if epoch < 0 or fenced is ErrorCode.none else fenced
    return error


def _check_epoch(asked: int, epoch: int) -> ErrorCode:
    if asked in (_UNKNOWN_EPOCH, epoch):
        return ErrorCode.none
    return ErrorCode.fenced_leader_epoch if asked < epoch else ErrorCode.unknown_leader_epoch


def _refusal(asked: Any, error: ErrorCode) -> Reply:
    return Reply(error_code=error, partition=asked.partition, leader_epoch=-1, end_offset=-1)


API = Api(key=23, name="OffsetForLeaderEpoch", versions=range(2, 5), handle=handle)
