"""DescribeTransactions, key 65, v0: describes the transactions of transactional ids.

Only the coordinator of an id answers for it. Prepared transactions show the partitions whose
marker is not durable yet.
Source: Kafka, TransactionCoordinator.handleDescribeTransactions.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.core.transaction_effects import TransactionView
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.many_rows import Rows, with_pauses
from gateway.handlers.rights import ID_DENIED, allows_id, allows_topic
from gateway.handlers.transaction_errors import coordinator_of

_PARTITIONS_MAX = 1_000_000  # of all rows; ids beyond them get a retriable error


async def handle(request: Request, ctx: Context) -> Reply:
    rows = Rows(request, "transaction_states")
    left = _PARTITIONS_MAX
    # The row of each id that was described, and its partitions.
    places: dict[str, tuple[slice, int]] = {}
    for transactional_id in request.body.transactional_ids:
        place, count = places.get(transactional_id, (None, 0))
        if place is not None and count <= left and not rows.full:
            left -= count
            await rows.repeat(place)
            continue
        view: TransactionView | ErrorCode = ErrorCode.coordinator_not_available
        if left > 0 and not rows.full:
            view = _view(transactional_id, request, ctx)
        if isinstance(view, TransactionView):
            left -= len(view.partitions)
            if left < 0:
                view = ErrorCode.coordinator_not_available
        if isinstance(view, TransactionView):
            place = await rows.add(await _row(view, request, ctx))
            places[transactional_id] = place, len(view.partitions)
        else:
            await rows.add(_refused(transactional_id, view))
    return Reply(transaction_states=rows.result())


def _view(transactional_id: str, request: Request, ctx: Context) -> TransactionView | ErrorCode:
    if not allows_id(request, ctx, Operation.DESCRIBE, transactional_id):
        return ID_DENIED
    coordinator = coordinator_of(transactional_id, ctx)
    if isinstance(coordinator, ErrorCode):
        return coordinator
    return coordinator.describe(transactional_id)


async def _row(view: TransactionView, request: Request, ctx: Context) -> Reply:
    """Return the row of a transaction, without the topics that the client may not describe."""
    found: dict[str, list[int]] = {}
    async for topic, index in with_pauses(view.partitions, request):
        found.setdefault(topic, []).append(index)
    topics = Rows(request, "transaction_states", "topics")
    for topic in sorted(found):
        if not allows_topic(request, ctx, Operation.DESCRIBE, topic):
            continue
        await topics.add(Reply(topic=topic, partitions=sorted(found[topic])))
    return Reply(
        error_code=ErrorCode.none,
        transactional_id=view.transactional_id,
        transaction_state=view.state.kafka_name,
        transaction_timeout=view.timeout_ms,
        transaction_start_time=view.started_ms,
        producer_id=view.producer_id,
        producer_epoch=view.epoch,
        topics=topics.result(),
    )


def _refused(transactional_id: str, error: ErrorCode) -> Reply:
    return Reply(
        error_code=error,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout=0,
        transaction_start_time=0,
        producer_id=0,
        producer_epoch=0,
        topics=[],
    )


API = Api(key=65, name="DescribeTransactions", versions=range(1), handle=handle)
