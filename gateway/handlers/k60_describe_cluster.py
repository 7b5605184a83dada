"""DescribeCluster, key 60, v0-v2: returns the cluster id and the live brokers.

v1 endpoint type (only brokers: there are no separate controllers) · v2 fenced brokers (never any).
Not done: controllers as endpoints.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.broker_endpoints import controller_id, endpoints
from gateway.handlers.rights import cluster_operations
from gateway.handlers.topic_replies import OPERATIONS_NOT_REQUESTED

_BROKERS = 1
_CONTROLLERS = 2


def handle(request: Request, ctx: Context) -> Reply:
    request.peer.looked_up += 1
    endpoint_type = getattr(request.body, "endpoint_type", _BROKERS)
    if endpoint_type != _BROKERS:
        return _refused(endpoint_type)
    asked = request.body.include_cluster_authorized_operations
    return Reply(
        error_code=ErrorCode.none,
        error_message=None,
        endpoint_type=_BROKERS,
        cluster_id=ctx.cluster_id,
        controller_id=controller_id(ctx, request.peer),
        brokers=[
            Reply(
                broker_id=node.node_id,
                host=node.host,
                port=node.port,
                rack=node.rack,
                is_fenced=False,
            )
            for node in endpoints(ctx, request.peer)
        ],
        cluster_authorized_operations=(
            cluster_operations(request, ctx) if asked else OPERATIONS_NOT_REQUESTED
        ),
    )


def _refused(endpoint_type: int) -> Reply:
    known = endpoint_type == _CONTROLLERS
    return Reply(
        error_code=(
            ErrorCode.mismatched_endpoint_type if known else ErrorCode.unsupported_endpoint_type
        ),
        error_message=(
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of "
            "type CONTROLLER"
            if known
            else f"Unsupported endpoint type {endpoint_type}"
        ),
        endpoint_type=_BROKERS,
        cluster_id="",
        controller_id=-1,
        brokers=[],
        cluster_authorized_operations=OPERATIONS_NOT_REQUESTED,
    )


API = Api(key=60, name="DescribeCluster", versions=range(3), handle=handle)
