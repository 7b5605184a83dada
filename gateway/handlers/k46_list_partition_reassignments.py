"""ListPartitionReassignments, key 46, v0: lists nothing, because partitions are never reassigned.

A partition moves between gateways at once, as soon as its owner hands it over.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.handlers.api import Api, Context, Reply, Request


def handle(request: Request, ctx: Context) -> Reply:
    return Reply(error_code=ErrorCode.none, error_message=None, topics=[])


API = Api(key=46, name="ListPartitionReassignments", versions=range(1), handle=handle)
