"""Why a request about delegation tokens is refused. There are none here.

As Kafka without a secret key: first a client that did not authenticate, then all others.
Source: Kafka, KafkaApis.allowTokenRequests, DelegationTokenControlManager.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.access import ANONYMOUS
from gateway.handlers.api import Request


def refusal(request: Request) -> ErrorCode:
    """Return the error code of a request about delegation tokens."""
    if request.peer.principal == ANONYMOUS:
        return ErrorCode.delegation_token_request_not_allowed
    return ErrorCode.delegation_token_auth_disabled
