"""AddOffsetsToTxn, key 25, v0-v4: adds the offsets of a group to a transaction.

v2 PRODUCER_FENCED in place of INVALID_PRODUCER_EPOCH · v3 flexible · v4 no change.
The transaction gets the group's partition of `__consumer_offsets`. The first request creates this
topic and waits for it: some clients (kafkajs) take an error here for final. If it cannot be created
the answer is COORDINATOR_NOT_AVAILABLE.
Source: Kafka, KafkaApis.handleAddOffsetsToTxnRequest.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.core.topic_names import CONSUMER_OFFSETS
from gateway.core.transaction_effects import Adding
from gateway.core.transaction_states import TopicPartition
from gateway.groups.transactional_groups import offsets_partition
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.rights import GROUP_DENIED, ID_DENIED, allows_group, allows_id
from gateway.handlers.transaction_errors import coordinator_of, in_old_words, keeps_pending
from gateway.log import Throttle, logger
from gateway.topics import internal_topics
from gateway.topics.errors import TopicError
from ledger.errors import LedgerError

_FENCED_FROM = 2
_throttle = Throttle()


async def handle(request: Request, ctx: Context) -> Reply:
    body = request.body
    if not allows_id(request, ctx, Operation.WRITE, body.transactional_id):
        return Reply(error_code=ID_DENIED)
    if not allows_group(request, ctx, Operation.READ, body.group_id):
        return Reply(error_code=GROUP_DENIED)
    coordinator = coordinator_of(body.transactional_id, ctx)
    if isinstance(coordinator, ErrorCode):
        return Reply(error_code=coordinator)
    if not keeps_pending(body.group_id, ctx):
        return Reply(error_code=ErrorCode.coordinator_not_available)
    partition = TopicPartition(CONSUMER_OFFSETS, offsets_partition(body.group_id))
    if not ctx.partitions.exists(*partition):
        await _create_offsets_topic(ctx)
        coordinator = coordinator_of(body.transactional_id, ctx)  # it may have moved meanwhile
        if isinstance(coordinator, ErrorCode):
            return Reply(error_code=coordinator)
        if not ctx.partitions.exists(*partition):
            return Reply(error_code=ErrorCode.coordinator_not_available)
    added = await coordinator.add(
        Adding(
            body.transactional_id, body.producer_id, body.producer_epoch, frozenset((partition,))
        )
    )
    return Reply(error_code=in_old_words(added.error, request.version, _FENCED_FROM))


async def _create_offsets_topic(ctx: Context) -> None:
    """Create `__consumer_offsets`, or log why that is not possible."""
    try:
        await internal_topics.ensure(ctx.catalog, CONSUMER_OFFSETS)
    except (TopicError, LedgerError) as error:
        if _throttle.allows("offsets topic", type(error).__name__, ctx.clock.monotonic_s()):
            logger().warning("cannot create a topic", topic=CONSUMER_OFFSETS, reason=str(error))


API = Api(key=25, name="AddOffsetsToTxn", versions=range(5), handle=handle)
