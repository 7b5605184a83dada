"""EndTxn, key 26, v0-v5: commits or aborts a transaction.

v2 PRODUCER_FENCED in place of INVALID_PRODUCER_EPOCH · v3 flexible · v4 no change · v5 each
transaction ends with an epoch of its own, which the answer has (KIP-890).
The answer follows the durable outcome; the markers follow later.
Source: Kafka, KafkaApis.handleEndTxnRequest.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.core.transaction_effects import Ended, Ending
from gateway.core.transaction_states import EPOCH_BUMP_VERSION
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.rights import ID_DENIED, allows_id
from gateway.handlers.transaction_errors import coordinator_of, in_old_words
from gateway.transactions.coordinator_partition import CoordinatorPartition

_FENCED_FROM = 2
_BUMP_FROM = 5


async def handle(request: Request, ctx: Context) -> Reply:
    body = request.body
    coordinator: CoordinatorPartition | ErrorCode = ID_DENIED
    if allows_id(request, ctx, Operation.WRITE, body.transactional_id):
        coordinator = coordinator_of(body.transactional_id, ctx)
    if isinstance(coordinator, ErrorCode):
        ended = Ended(coordinator)
    else:
        ended = await coordinator.end(
            Ending(
                body.transactional_id,
                body.producer_id,
                body.producer_epoch,
                body.committed,
                EPOCH_BUMP_VERSION if request.version >= _BUMP_FROM else 0,
            )
        )
    return Reply(
        error_code=in_old_words(ended.error, request.version, _FENCED_FROM),
        producer_id=ended.producer_id,
        producer_epoch=ended.epoch,
    )


API = Api(key=26, name="EndTxn", versions=range(6), handle=handle)
