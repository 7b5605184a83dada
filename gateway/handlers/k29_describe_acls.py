"""DescribeAcls, key 29, v1-v3: refuses, because no authorizer is configured.

v1 pattern types · v2 flexible · v3 users as resources.
Not done: ACLs (the answer is SECURITY_DISABLED).
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.no_authorizer import refuse_unknown


def handle(request: Request, ctx: Context) -> Reply:
    asked = request.body
    refuse_unknown(
        request,
        asked.resource_type_filter,
        asked.pattern_type_filter,
        asked.operation,
        asked.permission_type,
    )
    return Reply(
        error_code=ErrorCode.security_disabled,
        error_message="No Authorizer is configured on the broker",
        resources=[],
    )


API = Api(key=29, name="DescribeAcls", versions=range(1, 4), handle=handle)
