"""CreateDelegationToken, key 38, v1-v3: refuses, because there are no delegation tokens.

v2 flexible · v3 another owner than the requester.
A client that did not authenticate is refused before the look whether tokens are enabled, as in
Kafka.
Not done: delegation tokens.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.token_refusals import refusal


def handle(request: Request, ctx: Context) -> Reply:
    requester_kind, _, requester = request.peer.principal.partition(":")
    kind, name = requester_kind, requester
    code, timestamp = refusal(request)
    owner_name = getattr(request.body, "owner_principal_name", None)
    if owner_name and request.body.owner_principal_type is None:
        # As Kafka, which requires both.
        code, timestamp = ErrorCode.unknown_server_error, -1
    elif owner_name:
        kind, name = request.body.owner_principal_type, owner_name
    return Reply(
        error_code=code,
        principal_type=kind,
        principal_name=name,
        token_requester_principal_type=requester_kind,
        token_requester_principal_name=requester,
        issue_timestamp=timestamp,
        expiry_timestamp=timestamp,
        max_timestamp=timestamp,
        token_id="",
        hmac=b"",
    )


API = Api(key=38, name="CreateDelegationToken", versions=range(1, 4), handle=handle)
