"""DescribeDelegationToken, key 41, v1-v3: refuses, because the connection is not authenticated.

v2 flexible · v3 the requester of each token.
Not done: delegation tokens.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.handlers.api import Api, Context, Reply, Request


def handle(request: Request, ctx: Context) -> Reply:
    return Reply(error_code=ErrorCode.delegation_token_request_not_allowed, tokens=[])


API = Api(key=41, name="DescribeDelegationToken", versions=range(1, 4), handle=handle)
