"""ListTransactions, key 66, v0-v2: lists the transactional ids that this broker coordinates.

v1 filter by duration · v2 filter by a pattern of ids (KIP-1152).
Source: Kafka, TransactionStateManager.listTransactionStates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.core.transaction_effects import TransactionView
from gateway.core.transaction_states import TransactionState
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.many_rows import Rows, with_pauses
from gateway.handlers.rights import allows_id
from gateway.transactions.id_patterns import IdPattern, InvalidPattern

_BY_NAME = {state.kafka_name: state for state in TransactionState}


async def handle(request: Request, ctx: Context) -> Reply:
    body = request.body
    coordinators = [] if ctx.transactions is None else [*ctx.transactions.all()]
    if any(each.loading for each in coordinators):
        return _refused(ErrorCode.coordinator_load_in_progress)
    try:
        pattern = _pattern(body)
    except InvalidPattern:
        return _refused(ErrorCode.invalid_regular_expression)
    rows = Rows(request, "transaction_states")
    wanted = _filter(body, ctx.clock.now_ms())
    for coordinator in coordinators:
        names = coordinator.names
        if pattern is not None:
            names = await pattern.matching(names)
        async for name in with_pauses(names, request):
            if not allows_id(request, ctx, Operation.DESCRIBE, name):
                continue
            view = coordinator.describe(name)
            if isinstance(view, TransactionView) and wanted(view):
                await rows.add(_row(view))
    return Reply(
        error_code=ErrorCode.none,
        unknown_state_filters=[
            name for name in dict.fromkeys(body.state_filters) if name not in _BY_NAME
        ],
        transaction_states=rows.result(),
    )


def _pattern(body: Any) -> IdPattern | None:
    """Return the compiled pattern of the request, or None. Raises InvalidPattern."""
    pattern = getattr(body, "transactional_id_pattern", None)
    return IdPattern(pattern) if pattern else None


def _refused(error: ErrorCode) -> Reply:
    return Reply(error_code=error, unknown_state_filters=[], transaction_states=[])


def _filter(body: Any, now_ms: int) -> Callable[[TransactionView], bool]:
    """Return whether a transaction passes all filters of the request."""
    states = {_BY_NAME[name] for name in body.state_filters if name in _BY_NAME}
    producer_ids = set(body.producer_id_filters)
    longer_ms = getattr(body, "duration_filter", -1)

    def wanted(view: TransactionView) -> bool:
        if producer_ids and view.producer_id not in producer_ids:
            return False
        if body.state_filters and view.state not in states:
            return False
        return longer_ms < 0 or now_ms - view.started_ms > longer_ms

    return wanted


def _row(view: TransactionView) -> Reply:
    return Reply(
        transactional_id=view.transactional_id,
        producer_id=view.producer_id,
        transaction_state=view.state.kafka_name,
    )


API = Api(key=66, name="ListTransactions", versions=range(3), handle=handle)
