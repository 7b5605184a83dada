"""Shared by the APIs of ACLs: refusals of a gateway without an authorizer, and without rights."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.handlers.api import ConnectionEnds, Context, Reply, Request
from gateway.handlers.rights import CLUSTER_DENIED, CLUSTER_TEXT, allows_cluster

DISABLED = Reply(
    error_code=ErrorCode.security_disabled, error_message="No Authorizer is configured."
)
DENIED = Reply(error_code=CLUSTER_DENIED, error_message=CLUSTER_TEXT)

_UNKNOWN = 0  # the code of an enum value that the sender itself did not know


def refusal(request: Request, ctx: Context, operation: Operation) -> Reply | None:
    """Return why ACLs can be neither described nor changed, or None."""
    if not allows_cluster(request, ctx, operation):
        return DENIED
    return DISABLED if ctx.acls is None else None


def refuse_unknown(request: Request, *codes: int) -> None:
    """End the connection, as Kafka does, if one of the enum codes of a request is UNKNOWN.

    Codes that only this broker does not know are answered one by one.
    """
    if _UNKNOWN in codes:
        raise ConnectionEnds(
            f"an ACL with an UNKNOWN element from client {(request.client_id or '')[:64]}"
        )


def check_filter(request: Request, asked: Any) -> None:
    """End the connection if a filter of a request has an UNKNOWN element."""
    refuse_unknown(
        request,
        asked.resource_type_filter,
        asked.pattern_type_filter,
        asked.operation,
        asked.permission_type,
    )
