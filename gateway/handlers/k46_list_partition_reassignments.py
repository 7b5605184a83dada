"""ListPartitionReassignments, key 46, v0: lists nothing, because partitions are never reassigned.

A partition moves between gateways at once, as soon as its owner hands it over.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.rights import CLUSTER_DENIED, CLUSTER_TEXT, allows_cluster


def handle(request: Request, ctx: Context) -> Reply:
    if not allows_cluster(request, ctx, Operation.DESCRIBE):
        named = [
            Reply(
                name=topic.name,
                partitions=[Reply(partition_index=index) for index in topic.partition_indexes],
            )
            for topic in request.body.topics or ()
        ]
        return Reply(error_code=CLUSTER_DENIED, error_message=CLUSTER_TEXT, topics=named)
    return Reply(error_code=ErrorCode.none, error_message=None, topics=[])


API = Api(key=46, name="ListPartitionReassignments", versions=range(1), handle=handle)
