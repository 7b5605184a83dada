"""AlterReplicaLogDirs, key 34, v1-v2: accepts the directory that a partition has already.

v2 flexible.
A directory is a bookie (see `log_dirs`). Entries are not moved between bookies by request, so any
other directory is answered as Kafka answers one that does not exist.
Not done: moving a partition to other bookies (LOG_DIR_NOT_FOUND).
"""

from __future__ import annotations

from typing import NamedTuple

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.log_dirs import directory
from gateway.handlers.many_rows import ANSWER_S_MAX, Rows, answer_each, with_pauses
from gateway.handlers.rights import CLUSTER_DENIED, allows_cluster
from gateway.handlers.topic_replies import not_reached, reply_or_error


class _Change(NamedTuple):
    partition: int
    path: str


async def handle(request: Request, ctx: Context) -> Reply:
    denied = not allows_cluster(request, ctx, Operation.ALTER)
    known = {directory(bookie, ctx) for bookie in ctx.partitions.bookies()}
    results = Rows(request, "results")
    end_s = ctx.clock.monotonic_s() + ANSWER_S_MAX  # for all topics together
    for name, changes in (await _changes(request)).items():
        rows = Rows(request, "results", "partitions")

        async def answer(change: _Change, name: str = name) -> Reply:
            if denied:
                return Reply(_about(change), error_code=CLUSTER_DENIED)
            return await reply_or_error(_alter(name, change, known, ctx), _about(change))

        await answer_each(
            changes,
            answer,
            lambda change: not_reached(_about(change)),
            rows,
            ctx,
            weight=1,
            end_s=end_s,
        )
        await results.add(Reply(topic_name=name, partitions=rows.result()), 1 + len(changes))
    return Reply(results=results.result())


async def _changes(request: Request) -> dict[str, list[_Change]]:
    """Return the directory of each partition by topic. The last one that names it counts."""
    wanted: dict[str, dict[int, str]] = {}
    async for each in with_pauses(request.body.dirs, request):
        async for topic in with_pauses(each.topics, request):
            async for index in with_pauses(topic.partitions, request):
                wanted.setdefault(topic.name, {})[index] = each.path
    return {
        name: [_Change(index, path) for index, path in partitions.items()]
        for name, partitions in wanted.items()
    }


def _about(change: _Change) -> Reply:
    return Reply(partition_index=change.partition)


async def _alter(name: str, change: _Change, known: set[str], ctx: Context) -> Reply:
    return Reply(_about(change), error_code=await _code(name, change, known, ctx))


async def _code(name: str, change: _Change, known: set[str], ctx: Context) -> ErrorCode:
    if change.path not in known:
        return ErrorCode.log_dir_not_found
    topic = ctx.catalog.by_name(name)
    if topic is None or not 0 <= change.partition < topic.partitions:
        return ErrorCode.unknown_topic_or_partition
    shares = await ctx.partitions.stored_bytes(topic, change.partition)
    if shares is None:
        return ErrorCode.replica_not_available
    # A partition without a segment may begin at any bookie.
    held = {directory(bookie, ctx) for bookie in shares}
    return ErrorCode.none if change.path in held or not held else ErrorCode.log_dir_not_found


API = Api(key=34, name="AlterReplicaLogDirs", versions=range(1, 3), handle=handle)
