"""ExpireDelegationToken, key 40, v1-v2: refuses, because the connection is not authenticated.

v2 flexible.
Not done: delegation tokens.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.handlers.api import Api, Context, Reply, Request


def handle(request: Request, ctx: Context) -> Reply:
    return Reply(error_code=ErrorCode.delegation_token_request_not_allowed, expiry_timestamp=-1)


API = Api(key=40, name="ExpireDelegationToken", versions=range(1, 3), handle=handle)
