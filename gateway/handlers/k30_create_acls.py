"""CreateAcls, key 30, v1-v3: stores ACLs; each of them is refused or stored on its own.

v1 pattern types · v2 flexible · v3 users as resources.
Without an authorizer the answer is SECURITY_DISABLED. An ACL that is there already succeeds. As in
Kafka, a request for more than 10,000 new ACLs stores none of them.
Source: Kafka, AclApis and AclControlManager (checks and texts).
"""

from __future__ import annotations

from gateway.access import Operation
from gateway.handlers.acl_requests import refusal, refuse_unknown
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.many_rows import Rows, with_pauses


async def handle(request: Request, ctx: Context) -> Reply:
    refused = refusal(request, ctx, Operation.ALTER)
    results = Rows(request, "results")
    async for each in with_pauses(request.body.creations, request):
        refuse_unknown(
            request,
            each.resource_type,
            each.resource_pattern_type,
            each.operation,
            each.permission_type,
        )
        if refused is not None:
            await results.add(refused)
    if refused is None and ctx.acls is not None:
        from gateway.handlers.acl_changes import create  # few gateways have an authorizer

        results = await create(request, ctx, ctx.acls)
    return Reply(results=results.result())


API = Api(key=30, name="CreateAcls", versions=range(1, 4), handle=handle)
