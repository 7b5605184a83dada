"""DeleteAcls, key 31, v1-v3: deletes the ACLs that filters match, and returns them.

v1 pattern types · v2 flexible · v3 users as resources.
Without an authorizer the answer is SECURITY_DISABLED. Filters are matched with the ACLs that the
metadata store has, not with those in memory. An ACL that several filters match is in the answer of
each. More than 10,000 ACLs are not deleted at once.
Source: Kafka, AclApis and AclControlManager (checks and texts).
"""

from __future__ import annotations

from gateway.access import Operation
from gateway.handlers.acl_requests import check_filter, refusal
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.many_rows import Rows, with_pauses


async def handle(request: Request, ctx: Context) -> Reply:
    refused = refusal(request, ctx, Operation.ALTER)
    results = Rows(request, "filter_results")
    async for each in with_pauses(request.body.filters, request):
        check_filter(request, each)
        if refused is not None:
            await results.add(Reply(refused, matching_acls=[]))
    if refused is None and ctx.acls is not None:
        from gateway.handlers.acl_changes import delete  # few gateways have an authorizer

        results = await delete(request, ctx, ctx.acls)
    return Reply(filter_results=results.result())


API = Api(key=31, name="DeleteAcls", versions=range(1, 4), handle=handle)
