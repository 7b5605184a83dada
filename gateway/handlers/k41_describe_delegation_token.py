"""DescribeDelegationToken, key 41, v1-v3: refuses, because there are no delegation tokens.

v2 flexible · v3 the requester of each token.
Not done: delegation tokens.
"""

from __future__ import annotations

from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.token_refusals import refusal


def handle(request: Request, ctx: Context) -> Reply:
    return Reply(error_code=refusal(request).code, tokens=[])


API = Api(key=41, name="DescribeDelegationToken", versions=range(1, 4), handle=handle)
