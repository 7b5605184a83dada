"""DescribeQuorum, key 55, v0-v2: describes the live gateways as the voters of the metadata.

v1 times of each replica · v2 error texts and the addresses of voters.
The metadata are in SQLite or ZooKeeper, not in a Raft log. So every gateway is a voter that has
caught up now, the leader is the broker that Metadata names as controller, and all offsets are 0.
Not done: offsets and epochs of a metadata log (they are 0), directory ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.handlers.api import Api, Context, Peer, Reply, Request
from gateway.handlers.broker_endpoints import controller_id, endpoints, live_brokers
from gateway.handlers.many_rows import Rows, with_pauses
from gateway.handlers.rights import CLUSTER_DENIED, CLUSTER_TEXT, allows_cluster

_TOPIC = "__cluster_metadata"
_NOT_HOSTED = "This server does not host this topic-partition."


async def handle(request: Request, ctx: Context) -> Reply:
    if not allows_cluster(request, ctx, Operation.DESCRIBE):
        return Reply(error_code=CLUSTER_DENIED, error_message=CLUSTER_TEXT, topics=[], nodes=[])
    asked = request.body.topics
    if _is_metadata(asked):
        peer = request.peer
        row = Reply(topic_name=_TOPIC, partitions=[_metadata(ctx, peer)])
        return _reply([row], [_node(each, peer.listener) for each in endpoints(ctx, peer)])
    topics = Rows(request, "topics")
    async for each in with_pauses(asked, request):
        rows = Rows(request, "topics", "partitions")
        async for partition in with_pauses(each.partitions, request):
            await rows.add(_unknown(partition.partition_index, rows.text(_NOT_HOSTED)))
        await topics.add(Reply(topic_name=each.topic_name, partitions=rows.result()))
    return _reply(topics.result(), [])


def _reply(topics: Any, nodes: list[Reply]) -> Reply:
    return Reply(error_code=ErrorCode.none, error_message="", topics=topics, nodes=nodes)


def _is_metadata(asked: Sequence[Any]) -> bool:
    """Return whether exactly the partition of the metadata is asked for, as Kafka requires."""
    if len(asked) != 1 or asked[0].topic_name != _TOPIC:
        return False
    partitions = asked[0].partitions
    return len(partitions) == 1 and partitions[0].partition_index == 0


def _metadata(ctx: Context, peer: Peer) -> Reply:
    now_ms = ctx.clock.now_ms()
    return Reply(
        partition_index=0,
        error_code=ErrorCode.none,
        error_message="",
        leader_id=controller_id(ctx, peer),
        leader_epoch=0,
        high_watermark=0,
        current_voters=[
            Reply(
                replica_id=member.node_id,
                log_end_offset=0,
                last_fetch_timestamp=now_ms,
                last_caught_up_timestamp=now_ms,
            )
            for member in live_brokers(ctx)
        ],
        observers=[],
    )


def _unknown(index: int, text: str | None) -> Reply:
    return Reply(
        partition_index=index,
        error_code=ErrorCode.unknown_topic_or_partition,
        error_message=text,
        current_voters=[],
        observers=[],
    )


def _node(node: Any, name: str) -> Reply:
    listener = Reply(name=name, host=node.host, port=node.port)
    return Reply(node_id=node.node_id, listeners=[listener])


API = Api(key=55, name="DescribeQuorum", versions=range(3), handle=handle)
