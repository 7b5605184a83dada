"""InitProducerId, key 22, v0-v5: allocates an id for an idempotent or transactional producer.

v2 flexible · v3 may contain the present id and epoch (KIP-360) · v4 PRODUCER_FENCED in place of
INVALID_PRODUCER_EPOCH · v5 no change.
As in Kafka, an idempotent producer always gets a new id, even if it sends its present id. No
earlier batch has the new id. Therefore the broker need not store epochs.
The coordinator of a transactional id gives it a new epoch, which fences earlier producers.
Source: Kafka, TransactionCoordinator.handleInitProducerId.
"""

from __future__ import annotations

from datetime import timedelta

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.core.transaction_checks import check_initializing
from gateway.core.transaction_effects import Initialized, Initializing
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.rights import (
    CLUSTER_DENIED,
    ID_DENIED,
    allows_any_topic,
    allows_cluster,
    allows_id,
)
from gateway.handlers.transaction_errors import coordinator_of, in_old_words
from ledger.errors import LedgerError

_MILLISECOND = timedelta(milliseconds=1)
_FENCED_FROM = 4


async def handle(request: Request, ctx: Context) -> Reply:
    body = request.body
    request.peer.looked_up += 1
    known_id = getattr(body, "producer_id", -1)
    known_epoch = getattr(body, "producer_epoch", -1)
    if body.transactional_id is not None:
        if not allows_id(request, ctx, Operation.WRITE, body.transactional_id):
            return _refused(ID_DENIED)
        return await _transactional(request, known_id, known_epoch, ctx)
    if not allows_cluster(request, ctx, Operation.IDEMPOTENT_WRITE) and not allows_any_topic(
        request, ctx, Operation.WRITE
    ):
        return _refused(CLUSTER_DENIED)
    if (known_id == -1) != (known_epoch == -1):
        return _refused(ErrorCode.invalid_request)
    try:
        producer_id = await ctx.producer_ids.next()
    except LedgerError:
        return _refused(ErrorCode.coordinator_load_in_progress)  # a retriable error
    return Reply(error_code=ErrorCode.none, producer_id=producer_id, producer_epoch=0)


async def _transactional(request: Request, known_id: int, known_epoch: int, ctx: Context) -> Reply:
    body = request.body
    timeout_ms = body.transaction_timeout // _MILLISECOND
    asked = Initializing(body.transactional_id, timeout_ms, known_id, known_epoch)
    error = check_initializing(asked, ctx.config.transaction.timeout_ms_max)
    coordinator = error if error is not ErrorCode.none else coordinator_of(asked[0], ctx)
    if isinstance(coordinator, ErrorCode):
        found = Initialized(coordinator)
    else:
        found = await coordinator.initialize(asked)
    return Reply(
        error_code=in_old_words(found.error, request.version, _FENCED_FROM),
        producer_id=found.producer_id,
        producer_epoch=found.epoch,
    )


def _refused(code: ErrorCode) -> Reply:
    return Reply(error_code=code, producer_id=-1, producer_epoch=-1)


API = Api(key=22, name="InitProducerId", versions=range(6), handle=handle)
