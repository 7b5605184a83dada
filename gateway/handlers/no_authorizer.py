"""Shared by the APIs of ACLs: a broker without an authorizer refuses each of them."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.handlers.api import ConnectionEnds, Reply, Request

REFUSED = Reply(
    error_code=ErrorCode.security_disabled, error_message="No Authorizer is configured."
)
_UNKNOWN = 0  # the code of an enum value that the sender itself did not know


def refuse_unknown(request: Request, *codes: int) -> None:
    """End the connection, as Kafka does, if one of the enum codes of a request is UNKNOWN.

    Codes that only this broker does not know are left to the authorizer, which is missing.
    """
    if _UNKNOWN in codes:
        raise ConnectionEnds(
            f"an ACL with an UNKNOWN element from client {(request.client_id or '')[:64]}"
        )
