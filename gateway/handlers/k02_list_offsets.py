"""ListOffsets, key 2, v1-v11: returns where a partition starts, ends or reaches a timestamp.

v2 isolation · v4 leader epoch · v6 flexible · v7 max timestamp (-3) · v8 earliest local (-4) · v9
latest tiered (-5) · v10 timeout · v11 earliest pending upload (-6). Starts and ends are returned
from memory in the same turn of the event loop, because Spark sends two requests for every poll.
Only the leader answers, and only while it holds the lease.
Not done: tiers (-5 and -6 return -1).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from kio.schema.errors import ErrorCode

from gateway.errors import partition_code
from gateway.handlers.api import Api, Context, Reply, Request, Result
from gateway.topics.partition import Partition
from ledger.errors import LedgerError

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = range(-1, -7, -1)
# The limit for one partition, because replies are sent in order and the next requests wait.
_OPENING_S_MAX = 10.0
_VERSION_MIN = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, PENDING_UPLOAD: 11}


def handle(request: Request, ctx: Context) -> Result | Coroutine[Any, Any, Result]:
    """Reply from memory if only starts and ends are requested. Otherwise search the log."""
    answers: list[list[Reply | None]] = []
    complete = True
    for topic in request.body.topics:
        row: list[Reply | None] = []
        for asked in topic.partitions:
            partition = ctx.partitions.find(topic.name, asked.partition_index)
            answer = (
                _refusal(asked, ctx.partitions.why_not_led(topic.name, asked.partition_index))
                if partition is None
                else _from_memory(request.version, asked, partition)
            )
            complete = complete and answer is not None
            row.append(answer)
        answers.append(row)
    if complete:
        return _reply(request, answers)
    return _complete(request, ctx, answers)


def _reply(request: Request, answers: list[list[Reply | None]]) -> Reply:
    return Reply(
        topics=[
            Reply(name=topic.name, partitions=row)
            for topic, row in zip(request.body.topics, answers, strict=True)
        ]
    )


def _answer(asked: Any, offset: int = -1, timestamp: int = -1, epoch: int = -1) -> Reply:
    return Reply(
        partition_index=asked.partition_index,
        error_code=ErrorCode.none,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=epoch,
    )


def _refusal(asked: Any, error: ErrorCode) -> Reply:
    return Reply(
        partition_index=asked.partition_index,
        error_code=error,
        timestamp=-1,
        offset=-1,
        leader_epoch=-1,
    )


def _from_memory(version: int, asked: Any, partition: Partition) -> Reply | None:
    """Return the reply, or None if the partition must be opened or searched."""
    if version < _VERSION_MIN.get(asked.timestamp, 0):
        return _refusal(asked, ErrorCode.unsupported_version)
    if not partition.is_leader:
        return _refusal(asked, ErrorCode.not_leader_or_follower)
    if not partition.readable:
        return None
    epoch: int = getattr(asked, "current_leader_epoch", -1)
    if epoch >= 0 and epoch != partition.leader_epoch:
        older = epoch < partition.leader_epoch
        return _refusal(
            asked, ErrorCode.fenced_leader_epoch if older else ErrorCode.unknown_leader_epoch
        )
    if asked.timestamp == LATEST:
        return _answer(asked, partition.high_watermark, epoch=partition.leader_epoch)
    if asked.timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = partition.log_start_offset
        return _answer(asked, start, epoch=partition.epoch_at(start))
    if asked.timestamp in (LATEST_TIERED, PENDING_UPLOAD):
        return _answer(asked)  # no record is in a remote tier
    return None


async def _complete(request: Request, ctx: Context, answers: list[list[Reply | None]]) -> Result:
    for topic, row in zip(request.body.topics, answers, strict=True):
        for at, asked in enumerate(topic.partitions):
            row[at] = row[at] or await _find_and_search(request.version, topic.name, asked, ctx)
    return _reply(request, answers)


async def _find_and_search(version: int, topic: str, asked: Any, ctx: Context) -> Reply:
    partition = ctx.partitions.find(topic, asked.partition_index)
    if partition is None:
        return _refusal(asked, ctx.partitions.why_not_led(topic, asked.partition_index))
    return await _search(version, asked, partition)


async def _search(version: int, asked: Any, partition: Partition) -> Reply:
    try:
        async with asyncio.timeout(_OPENING_S_MAX):
            await partition.ensure_readable()
    except TimeoutError:
        return _refusal(asked, ErrorCode.not_leader_or_follower)
    except LedgerError as error:
        return _refusal(asked, partition_code(error))
    known = _from_memory(version, asked, partition)
    if known is not None:
        return known
    try:
        if asked.timestamp == MAX_TIMESTAMP:
            found = await partition.offset_of_timestamp_max()
        else:
            found = await partition.offset_for_timestamp(asked.timestamp)
    except LedgerError as error:
        return _refusal(asked, partition_code(error))
    if not partition.is_leader:  # another broker may have taken over and appended
        return _refusal(asked, ErrorCode.not_leader_or_follower)
    if found is None:
        return _answer(asked)
    timestamp, offset = found
    return _answer(asked, offset, timestamp, partition.epoch_at(offset))


API = Api(key=2, name="ListOffsets", versions=range(1, 12), handle=handle)
