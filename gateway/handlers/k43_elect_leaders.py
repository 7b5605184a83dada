"""ElectLeaders, key 43, v0-v2: reports that no election is needed, because leaders follow the ring.

v1 unclean elections · v2 flexible.
A leader here is always the preferred one. A partition between two owners has none, and no request
makes one: the owner is found as soon as a gateway has claimed the partition.
Source: Kafka, ReplicationControlManager.electLeaders (codes, texts).
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.cluster.port import StreamKey
from gateway.core.shown_text import shown
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.many_rows import Rows, with_pauses
from gateway.handlers.rights import CLUSTER_DENIED, CLUSTER_TEXT, allows_cluster

_PREFERRED, _UNCLEAN = 0, 1
_INVALID = ErrorCode.invalid_request
_NO_LEADER = {
    _PREFERRED: (
        ErrorCode.preferred_leader_not_available,
        "The preferred leader was not available.",
    ),
    _UNCLEAN: (
        ErrorCode.eligible_leaders_not_available,
        "Eligible topic partition leaders are not available.",
    ),
}
_NOT_NEEDED = "Leader election not needed for topic partition."


async def handle(request: Request, ctx: Context) -> Reply:
    kind = getattr(request.body, "election_type", _PREFERRED)
    asked = request.body.topic_partitions
    fault: tuple[ErrorCode, str] | None = None
    if not allows_cluster(request, ctx, Operation.ALTER):
        fault = CLUSTER_DENIED, CLUSTER_TEXT
    elif kind not in _NO_LEADER and asked != ():
        fault = _INVALID, f"Unknown election type {kind}"
    results = Rows(request, "replica_election_results")
    if asked is not None:
        async for each in with_pauses(asked, request):
            rows = Rows(request, "replica_election_results", "partition_result")
            async for index in with_pauses(each.partitions, request):
                code, text = _outcome(each.topic, index, kind, fault, ctx)
                row = Reply(partition_id=index, error_code=code, error_message=rows.text(text))
                await rows.add(row)
            await results.add(Reply(topic=each.topic, partition_result=rows.result()))
    elif fault is None:
        # The partitions that need no election are left out of the answer for all partitions.
        async for topic in with_pauses(ctx.catalog.all(), request):
            await results.add(Reply(topic=topic.name, partition_result=[]))
    code = ErrorCode.none if fault is None else fault[0]
    return Reply(error_code=code, replica_election_results=results.result())


def _outcome(
    name: str, index: int, kind: int, fault: tuple[ErrorCode, str] | None, ctx: Context
) -> tuple[ErrorCode, str]:
    if fault is not None:
        return fault
    topic: Any = ctx.catalog.by_name(name)
    if topic is None:
        return ErrorCode.unknown_topic_or_partition, f"No such topic as {shown(name)}"
    if not 0 <= index < topic.partitions:
        return ErrorCode.unknown_topic_or_partition, f"No such partition as {name}-{index}"
    if ctx.cluster.leader(StreamKey(topic.topic_id, index)).node_id < 0:
        return _NO_LEADER[kind]
    return ErrorCode.election_not_needed, _NOT_NEEDED


API = Api(key=43, name="ElectLeaders", versions=range(3), handle=handle)
