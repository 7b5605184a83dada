"""What the handlers of transactions share: the coordinator of an id, and old error codes."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.core.shown_text import shown
from gateway.handlers.api import Context
from gateway.log import Throttle, logger
from gateway.transactions.coordinator_partition import CoordinatorPartition

_throttle = Throttle()


def coordinator_of(transactional_id: str, ctx: Context) -> CoordinatorPartition | ErrorCode:
    """Return the coordinator of an id if it is in this process, otherwise the error."""
    if not transactional_id:
        return ErrorCode.invalid_request
    if ctx.transactions is None:
        return ErrorCode.coordinator_not_available
    return ctx.transactions.local(transactional_id)


def keeps_pending(group: str, ctx: Context) -> bool:
    """Return whether this broker can keep offsets of transactions, or log that it cannot."""
    if ctx.groups.transactional is not None:
        return True
    if _throttle.allows("flag", "", ctx.clock.monotonic_s()):
        logger().warning(
            "offsets in transactions need --log-segment-based-subscriptions-store-enabled",
            group=shown(group),
        )
    return False


def in_old_words(error: ErrorCode, version: int, fenced_from: int) -> ErrorCode:
    """Return the error in a code that this version has.

    Clients of versions before `fenced_from` do not understand PRODUCER_FENCED.
    """
    if error is ErrorCode.producer_fenced and version < fenced_from:
        return ErrorCode.invalid_producer_epoch
    return error
