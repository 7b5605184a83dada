"""DeleteRecords, key 21, v0-v2: moves the log start offset of partitions forward.

v2 flexible. Offset -1 stands for the high watermark. The reply is sent when the new start is
durable. No reader can read below the new start any more. Disk space is freed when whole segments
are below it and file.delete.delay.ms has passed. Source: Kafka, ReplicaManager.deleteRecords;
DistributedLog, "Truncation" (seed 000).
"""

from __future__ import annotations

import asyncio
from typing import Any

from kio.schema.errors import ErrorCode

from gateway.errors import partition_code
from gateway.handlers.api import Api, Context, Reply, Request
from ledger.errors import LedgerError, NotOwner
from ledger.tasks import start_once

_HIGH_WATERMARK = -1
_NO_WATERMARK = -1
# The limit for one partition, because replies are sent in order and the next requests wait.
_WAIT_S_MAX = 30.0


async def handle(request: Request, ctx: Context) -> Reply:
    wait_s = min(max(request.body.timeout.total_seconds(), 0.0), _WAIT_S_MAX)
    rows = [
        (topic.name, [_row(topic.name, asked, wait_s, ctx) for asked in topic.partitions])
        for topic in request.body.topics
    ]
    answers = await asyncio.gather(*(asyncio.gather(*row) for _, row in rows))
    return Reply(
        topics=[
            Reply(name=name, partitions=partitions)
            for (name, _), partitions in zip(rows, answers, strict=True)
        ]
    )


async def _row(topic: str, asked: Any, wait_s: float, ctx: Context) -> Reply:
    deleting = start_once(
        "a deletion of records", _delete(topic, asked.partition_index, asked.offset, ctx)
    )
    await asyncio.wait([deleting], timeout=wait_s)  # the deletion goes on after the timeout
    if deleting.done():
        low_watermark, error = deleting.result()
    else:
        low_watermark, error = _NO_WATERMARK, ErrorCode.request_timed_out
    return Reply(
        partition_index=asked.partition_index, low_watermark=low_watermark, error_code=error
    )


async def _delete(topic: str, index: int, offset: int, ctx: Context) -> tuple[int, ErrorCode]:
    """Return the new log start offset, or -1 and an error code."""
    known = ctx.catalog.by_name(topic)
    if known is None or not ctx.partitions.exists(topic, index):
        return _NO_WATERMARK, ErrorCode.unknown_topic_or_partition
    if known.is_internal:
        return _NO_WATERMARK, ErrorCode.invalid_topic_exception
    if "delete" not in ctx.catalog.config(known).cleanup_policy:
        return _NO_WATERMARK, ErrorCode.policy_violation
    partition = ctx.partitions.find(topic, index)
    if partition is None:
        return _NO_WATERMARK, ErrorCode.not_leader_or_follower
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
