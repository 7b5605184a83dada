"""CreateAcls, key 30, v1-v3: refuses each ACL, because no authorizer is configured.

v1 pattern types · v2 flexible · v3 users as resources.
Not done: ACLs (the answer is SECURITY_DISABLED).
"""

from __future__ import annotations

from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.many_rows import Rows, with_pauses
from gateway.handlers.no_authorizer import REFUSED, refuse_unknown


async def handle(request: Request, ctx: Context) -> Reply:
    results = Rows(request, "results")
    async for each in with_pauses(request.body.creations, request):
        refuse_unknown(
            request,
            each.resource_type,
            each.resource_pattern_type,
            each.operation,
            each.permission_type,
        )
        await results.add(REFUSED)
    return Reply(results=results.result())


API = Api(key=30, name="CreateAcls", versions=range(1, 4), handle=handle)
