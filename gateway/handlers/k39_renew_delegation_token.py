"""RenewDelegationToken, key 39, v1-v2: refuses, because there are no delegation tokens.

v2 flexible.
Not done: delegation tokens.
"""

from __future__ import annotations

from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.token_refusals import refusal


def handle(request: Request, ctx: Context) -> Reply:
    code, timestamp = refusal(request)
    return Reply(error_code=code, expiry_timestamp=timestamp)


API = Api(key=39, name="RenewDelegationToken", versions=range(1, 3), handle=handle)
