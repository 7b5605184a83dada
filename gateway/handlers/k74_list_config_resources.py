"""ListConfigResources, key 74, v0-v1: lists the resources that have configs, by type.

v1 all types of resources; v0 asks for client metrics only.
Source: Kafka, KafkaApis.handleListConfigResources (KIP-1142).
"""

from __future__ import annotations

from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.broker_endpoints import live_brokers
from gateway.handlers.k32_describe_configs import ResourceType
from gateway.handlers.many_rows import Rows, with_pauses
from gateway.handlers.rights import CLUSTER_DENIED, allows_cluster

_ALL = tuple(sorted(ResourceType, reverse=True))


async def handle(request: Request, ctx: Context) -> Reply:
    if not allows_cluster(request, ctx, Operation.DESCRIBE_CONFIGS):
        return Reply(error_code=CLUSTER_DENIED, config_resources=[])
    asked = [ResourceType.CLIENT_METRICS] if request.version == 0 else request.body.resource_types
    wanted = set(asked or _ALL)
    if not wanted <= set(_ALL):
        return Reply(error_code=ErrorCode.unsupported_version, config_resources=[])
    rows = Rows(request, "config_resources")
    for kind in _ALL:
        if kind in wanted:
            async for name in with_pauses(_names(kind, ctx), request):
                await rows.add(Reply(resource_name=name, resource_type=kind))
    return Reply(error_code=ErrorCode.none, config_resources=rows.result())


def _names(kind: ResourceType, ctx: Context) -> Iterable[str]:
    match kind:
        case ResourceType.TOPIC:
            return (topic.name for topic in ctx.catalog.all())
        case ResourceType.BROKER | ResourceType.BROKER_LOGGER:
            return (str(member.node_id) for member in live_brokers(ctx))
        case ResourceType.GROUP | ResourceType.CLIENT_METRICS:
            return ctx.stored.configs.names(kind)


API = Api(key=74, name="ListConfigResources", versions=range(2), handle=handle)
