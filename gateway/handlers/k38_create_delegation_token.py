"""CreateDelegationToken, key 38, v1-v3: refuses, because the connection is not authenticated.

v2 flexible · v3 another owner than the requester.
A PLAINTEXT listener refuses before it looks whether tokens are enabled, as in Kafka.
Not done: delegation tokens.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.handlers.api import Api, Context, Reply, Request

_REQUESTER = ("User", "ANONYMOUS")  # Kafka: KafkaPrincipal.ANONYMOUS


def handle(request: Request, ctx: Context) -> Reply:
    kind, name = _REQUESTER
    code = ErrorCode.delegation_token_request_not_allowed
    owner_name = getattr(request.body, "owner_principal_name", None)
    if owner_name and request.body.owner_principal_type is None:
        code = ErrorCode.unknown_server_error  # as Kafka, which requires both
    elif owner_name:
        kind, name = request.body.owner_principal_type, owner_name
    return Reply(
        error_code=code,
        principal_type=kind,
        principal_name=name,
        token_requester_principal_type=_REQUESTER[0],
        token_requester_principal_name=_REQUESTER[1],
        issue_timestamp=-1,
        expiry_timestamp=-1,
        max_timestamp=-1,
        token_id="",
        hmac=b"",
    )


API = Api(key=38, name="CreateDelegationToken", versions=range(1, 4), handle=handle)
