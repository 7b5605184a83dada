"""InitProducerId, key 22, v0-v5: allocates an id for an idempotent producer.

v2 flexible · v3 may contain the present id and epoch (KIP-360) · v5 no change.
As in Kafka, an idempotent producer always gets a new id, even if it sends its present id. No
earlier batch has the new id. Therefore the broker need not store epochs.
Not done: transactions (a transactional id is refused).
Source: Kafka, TransactionCoordinator.handleInitProducerId.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.handlers.api import Api, Context, Reply, Request
from ledger.errors import LedgerError


async def handle(request: Request, ctx: Context) -> Reply:
    body = request.body
    known_id = getattr(body, "producer_id", -1)
    known_epoch = getattr(body, "producer_epoch", -1)
    if body.transactional_id is not None or (known_id == -1) != (known_epoch == -1):
        return _refused(ErrorCode.invalid_request)
    try:
        producer_id = await ctx.producer_ids.next()
    except LedgerError:
        return _refused(ErrorCode.coordinator_load_in_progress)  # a retriable error
    return Reply(error_code=ErrorCode.none, producer_id=producer_id, producer_epoch=0)


def _refused(code: ErrorCode) -> Reply:
    return Reply(error_code=code, producer_id=-1, producer_epoch=-1)


API = Api(key=22, name="InitProducerId", versions=range(6), handle=handle)
