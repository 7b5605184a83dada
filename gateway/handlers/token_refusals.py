"""Why a request about delegation tokens is refused. There are none here.

As Kafka 4.3 without a secret key: a client that did not authenticate is refused by the broker, and
any other one by the controller, whose answers have other times.
Source: Kafka, KafkaApis.allowTokenRequests, DelegationTokenControlManager.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from gateway.access import ANONYMOUS
from gateway.handlers.api import Request


class Refusal(NamedTuple):
    """An error code, and the timestamp of all fields with a time."""

    code: ErrorCode
    timestamp: int


_NOT_ALLOWED: Final = Refusal(ErrorCode.delegation_token_request_not_allowed, -1)
_NO_TOKENS: Final = Refusal(ErrorCode.delegation_token_auth_disabled, 0)


def refusal(request: Request) -> Refusal:
    """Return how a request about delegation tokens is refused."""
    return _NOT_ALLOWED if request.peer.principal == ANONYMOUS else _NO_TOKENS
