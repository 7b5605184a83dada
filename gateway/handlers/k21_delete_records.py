"""DeleteRecords, key 21, v0-v2: moves the log start offset of partitions forward.

v2 flexible. Offset -1 stands for the high watermark. The reply is sent when the new start is
durable. No reader can read below the new start any more. Disk space is freed when whole segments
are below it and file.delete.delay.ms has passed. As in Kafka, the request's timeout does not end
the deletion of the partition itself: it is for other replicas. A partition that is named again is
answered once, and its last offset counts. Source: Kafka, KafkaApis.handleDeleteRecordsRequest and
ReplicaManager.deleteRecords; DistributedLog, "Truncation" (seed 000).
"""

from __future__ import annotations

import asyncio
from functools import partial

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.errors import partition_code
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.many_rows import ANSWER_S_MAX, Rows, answer_each, with_pauses
from gateway.handlers.rights import TOPIC_DENIED, allows_topic
from gateway.topics.partition import Partition
from ledger.errors import LedgerError, NotOwner
from ledger.tasks import start_once

_HIGH_WATERMARK = -1
_NO_WATERMARK = -1
# The limit for one request, because replies are sent in order and the next requests wait.
_WAIT_S_MAX = 30.0
_AT_ONCE = 64  # deletions of one request

_Result = tuple[int, ErrorCode]  # the new log start offset or -1
_TOO_LATE: _Result = _NO_WATERMARK, ErrorCode.request_timed_out


async def handle(request: Request, ctx: Context) -> Reply:
    deletions = _Deletions(ctx)
    topics = Rows(request, "topics")
    for name, offsets in (await _asked(request)).items():
        partitions = Rows(request, "topics", "partitions")
        if not allows_topic(request, ctx, Operation.DELETE, name):
            for index in offsets:
                await partitions.add(_row(index, _NO_WATERMARK, TOPIC_DENIED))
            await topics.add(Reply(name=name, partitions=partitions.result()))
            continue
        await answer_each(
            offsets.items(),
            partial(deletions.row, name),
            lambda asked: _row(asked[0], *_TOO_LATE),
            partitions,
            ctx,
            end_s=deletions.begun_s + ANSWER_S_MAX,
            at_once=_AT_ONCE,
            weight=1,
        )
        await topics.add(Reply(name=name, partitions=partitions.result()))
    return Reply(topics=topics.result())


async def _asked(request: Request) -> dict[str, dict[int, int]]:
    """Return the offsets by topic and partition. The last mention of a partition counts."""
    offsets: dict[str, dict[int, int]] = {}
    async for topic in with_pauses(request.body.topics, request):
        of_topic = offsets.setdefault(topic.name, {})
        async for each in with_pauses(topic.partitions, request):
            of_topic[each.partition_index] = each.offset
    return offsets


def _row(index: int, low_watermark: int, error: ErrorCode) -> Reply:
    return Reply(partition_index=index, low_watermark=low_watermark, error_code=error)


class _Deletions:
    """The deletions of one request, of which at most `_AT_ONCE` run.

    A deletion that goes on after `_WAIT_S_MAX` counts too.
    """

    def __init__(self, ctx: Context) -> None:
        self.begun_s = ctx.clock.monotonic_s()
        self._end_s = self.begun_s + _WAIT_S_MAX
        self._running: set[asyncio.Task[_Result]] = set()
        self._ctx = ctx

    async def row(self, topic: str, asked: tuple[int, int]) -> Reply:
        index, offset = asked
        partition = _deletable(topic, index, self._ctx)
        if isinstance(partition, ErrorCode):
            return _row(index, _NO_WATERMARK, partition)
        if len(self._running) >= _AT_ONCE:
            return _row(index, *_TOO_LATE)
        deleting = start_once("a deletion of records", _delete(partition, topic, offset))
        self._running.add(deleting)
        deleting.add_done_callback(self._running.discard)
        # The deletion goes on after the wait.
        wait_s = max(self._end_s - self._ctx.clock.monotonic_s(), 0.0)
        await asyncio.wait([deleting], timeout=wait_s)
        return _row(index, *(deleting.result() if deleting.done() else _TOO_LATE))


def _deletable(topic: str, index: int, ctx: Context) -> Partition | ErrorCode:
    """Return the partition, or why its records cannot be deleted here."""
    known = ctx.catalog.by_name(topic)
    if known is None or not ctx.partitions.exists(topic, index):
        return ErrorCode.unknown_topic_or_partition
    if known.is_internal:
        return ErrorCode.invalid_topic_exception
    if "delete" not in ctx.catalog.config(known).cleanup_policy:
        return ErrorCode.policy_violation
    return ctx.partitions.find(topic, index) or ErrorCode.not_leader_or_follower


async def _delete(partition: Partition, topic: str, offset: int) -> _Result:
    """Return the new log start offset, or -1 and an error code."""
    try:
        await partition.ensure_readable()
        if not partition.is_leader:
            raise NotOwner(topic)
        end = partition.high_watermark
        if offset != _HIGH_WATERMARK and not 0 <= offset <= end:
            return _NO_WATERMARK, ErrorCode.offset_out_of_range
        await partition.truncate(end if offset == _HIGH_WATERMARK else offset)
        if not partition.is_leader:  # another broker may lead the partition by now
            raise NotOwner(topic)
    except LedgerError as error:
        return _NO_WATERMARK, partition_code(error)
    return partition.log_start_offset, ErrorCode.none


API = Api(key=21, name="DeleteRecords", versions=range(3), handle=handle)
