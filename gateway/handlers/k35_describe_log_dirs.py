"""DescribeLogDirs, key 35, v1-v5: returns the bytes of each partition, by bookie.

v2 flexible · v3 error of the whole request · v4 bytes of the disk · v5 cordoned directories (none).
Each gateway answers for the partitions that it leads, from the metadata of their ledgers. Where a
ledger changed its bookies or is striped, the bytes of each bookie are estimated. A request for more
partitions than can be read in 10 s ends with REQUEST_TIMED_OUT. Its client must name fewer of them.
Not done: total and free bytes of bookies in a cluster (-1, unknown).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.errors import admin_code
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.log_dirs import directory, disk_space
from gateway.handlers.many_rows import ANSWER_S_MAX, Rows, with_pauses
from gateway.handlers.rights import CLUSTER_DENIED, allows_cluster
from gateway.topics.catalog import Topic
from ledger.errors import LedgerError
from ledger.ids import BookieId

_AT_ONCE = 16

_Topics = dict[str, list[Reply]]  # rows of partitions by topic


async def handle(request: Request, ctx: Context) -> Reply:
    if not allows_cluster(request, ctx, Operation.DESCRIBE):
        return Reply(error_code=CLUSTER_DENIED, results=[])
    found: dict[BookieId, _Topics] = {bookie: {} for bookie in ctx.partitions.bookies()}
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            await _read(request, ctx, found)
    except TimeoutError:
        return _failed(ErrorCode.request_timed_out, request)
    except LedgerError as error:
        return _failed(admin_code(error), request)
    total, usable = disk_space(ctx)
    results: list[Reply] = []
    for bookie, topics in found.items():
        rows = Rows(request, "results", "topics")
        for name, partitions in topics.items():
            await rows.add(Reply(name=name, partitions=partitions), 1 + len(partitions))
        results.append(
            Reply(
                error_code=ErrorCode.none,
                log_dir=directory(bookie, ctx),
                topics=rows.result(),
                total_bytes=total,
                usable_bytes=usable,
                is_cordoned=False,
            )
        )
    return Reply(error_code=ErrorCode.none, results=results)


def _failed(code: ErrorCode, request: Request) -> Reply:
    """Return an error. Before v3 only a directory has a place for it."""
    result = Reply(error_code=code, log_dir="", topics=[])
    return Reply(error_code=code, results=[] if request.version >= 3 else [result])


async def _read(request: Request, ctx: Context, found: dict[BookieId, _Topics]) -> None:
    """Add a row for each bookie and partition that this broker leads."""
    at_once: list[tuple[Topic, int]] = []
    async for each in _wanted(request, ctx):
        at_once.append(each)
        if len(at_once) == _AT_ONCE:
            await _add(at_once, ctx, found)
            at_once.clear()
    await _add(at_once, ctx, found)


async def _add(some: list[tuple[Topic, int]], ctx: Context, found: dict[BookieId, _Topics]) -> None:
    answers = await asyncio.gather(
        *(ctx.partitions.stored_bytes(topic, index) for topic, index in some)
    )
    bookies = ctx.partitions.bookies()
    for (topic, index), shares in zip(some, answers, strict=True):
        if shares is None:
            continue
        # A partition without a segment is shown without bytes, at all bookies that it may use.
        for bookie in shares or bookies:
            size = shares.get(bookie, 0)
            row = Reply(
                partition_index=index, partition_size=size, offset_lag=0, is_future_key=False
            )
            found.setdefault(bookie, {}).setdefault(topic.name, []).append(row)


async def _wanted(request: Request, ctx: Context) -> AsyncIterator[tuple[Topic, int]]:
    """Yield each partition once: all of the catalog, or the existing ones that are named."""
    asked = request.body.topics
    if asked is None:
        async for topic in with_pauses(ctx.catalog.all(), request):
            for index in range(topic.partitions):
                yield topic, index
        return
    seen: set[tuple[str, int]] = set()
    async for each in with_pauses(asked, request):
        named = ctx.catalog.by_name(each.topic)
        if named is None:
            continue
        async for index in with_pauses(each.partitions, request):
            if (each.topic, index) not in seen:
                seen.add((each.topic, index))
                yield named, index


API = Api(key=35, name="DescribeLogDirs", versions=range(1, 6), handle=handle)
