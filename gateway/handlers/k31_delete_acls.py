"""DeleteAcls, key 31, v1-v3: refuses each filter, because no authorizer is configured.

v1 pattern types · v2 flexible · v3 users as resources.
Not done: ACLs (the answer is SECURITY_DISABLED).
"""

from __future__ import annotations

from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.many_rows import Rows, with_pauses
from gateway.handlers.no_authorizer import REFUSED, refuse_unknown


async def handle(request: Request, ctx: Context) -> Reply:
    results = Rows(request, "filter_results")
    async for each in with_pauses(request.body.filters, request):
        refuse_unknown(
            request,
            each.resource_type_filter,
            each.pattern_type_filter,
            each.operation,
            each.permission_type,
        )
        await results.add(Reply(REFUSED, matching_acls=[]))
    return Reply(filter_results=results.result())


API = Api(key=31, name="DeleteAcls", versions=range(1, 4), handle=handle)
