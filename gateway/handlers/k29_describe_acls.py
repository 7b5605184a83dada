"""DescribeAcls, key 29, v1-v3: returns the ACLs that a filter matches, by the pattern of resources.

v1 pattern types · v2 flexible · v3 users as resources.
Without an authorizer the answer is SECURITY_DISABLED. Each gateway answers from its memory.
Source: Kafka, AclApis and DescribeAclsResponse.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.handlers.acl_requests import check_filter, refusal
from gateway.handlers.api import Api, Context, Reply, Request


async def handle(request: Request, ctx: Context) -> Reply:
    check_filter(request, request.body)
    refused = refusal(request, ctx, Operation.DESCRIBE)
    if refused is not None or ctx.acls is None:
        reply = Reply(refused or {}, resources=[])
        if reply["error_code"] is ErrorCode.security_disabled:
            reply["error_message"] = "No Authorizer is configured on the broker"
        return reply
    from gateway.handlers.acl_changes import describe  # few gateways have an authorizer

    return await describe(request, ctx.acls)


API = Api(key=29, name="DescribeAcls", versions=range(1, 4), handle=handle)
