"""DescribeClientQuotas, key 48, v0-v1: returns the stored limits of the entities that match.

v1 flexible.
Source: Kafka, ClientQuotasImage.describe.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.core.client_quotas import (
    QuotaRefused,
    UnknownEntityType,
    filter_of,
    matches,
    ordered,
    ordered_limits,
)
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.many_rows import Rows, with_pauses
from gateway.handlers.rights import CLUSTER_DENIED, allows_cluster


async def handle(request: Request, ctx: Context) -> Reply:
    body = request.body
    if not allows_cluster(request, ctx, Operation.DESCRIBE_CONFIGS):
        return Reply(error_code=CLUSTER_DENIED, error_message=None, entries=None)
    try:
        wanted = filter_of(
            ((each.entity_type, each.match_type, each.match) for each in body.components),
            strict=body.strict,
        )
    except UnknownEntityType as fault:
        return _refused(ErrorCode.unsupported_version, fault)
    except QuotaRefused as fault:
        return _refused(ErrorCode.invalid_request, fault)
    entries = Rows(request, "entries")
    async for entity, limits in with_pauses(ctx.stored.quotas.all(), request):
        if not matches(entity, wanted):
            continue
        row = Reply(
            entity=[Reply(entity_type=kind, entity_name=name) for kind, name in ordered(entity)],
            values=[Reply(key=key, value=value) for key, value in ordered_limits(limits)],
        )
        await entries.add(row)
    return Reply(error_code=ErrorCode.none, error_message="", entries=entries.result())


def _refused(code: ErrorCode, fault: QuotaRefused) -> Reply:
    return Reply(error_code=code, error_message=str(fault), entries=None)


API = Api(key=48, name="DescribeClientQuotas", versions=range(2), handle=handle)
