"""DescribeProducers, key 61, v0: the producers of partitions, with their open transactions.

A producer is listed while its sequences or its transactions are known. The last timestamp is that
of its newest batch, or the time of a newer marker. Only the owner of a partition answers: another
gateway answers NOT_LEADER_OR_FOLLOWER, while in Kafka replicas answer too. Partitions of
`__consumer_offsets` have no producers: offsets of open transactions are with their groups.
As in Kafka, a partition that is named again is answered again. Partitions for which the reply has
no room get REQUEST_TIMED_OUT.
Source: Kafka, KafkaApis.handleDescribeProducersRequest and UnifiedLog.activeProducers.
"""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import chain
from typing import Any

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.core.partition_transactions import PartitionTransactions, ProducerTransactions
from gateway.core.producer_states import AcceptedBatch, ProducerStates
from gateway.core.topic_names import topic_name_fault
from gateway.errors import partition_code
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.many_rows import ANSWER_S_MAX, Rows, answer_each, with_pauses
from gateway.handlers.rights import TEXTS, TOPIC_DENIED, allows_topic
from ledger.errors import LedgerError, NotOwner

_UNKNOWN = "This server does not host this topic-partition."
_NONE = -1


async def handle(request: Request, ctx: Context) -> Reply:
    topics = Rows(request, "topics")
    end_s = ctx.clock.monotonic_s() + ANSWER_S_MAX
    adding = asyncio.Lock()  # else partitions that are answered together would all lack room
    for topic in request.body.topics:
        partitions = Rows(request, "topics", "partitions")
        refusal = _refusal(topic.name, request, ctx)
        if refusal is not None:
            error, text = refusal
            for index in topic.partition_indexes:
                await partitions.add(_refused(index, error, partitions.text(text)))
        else:
            await answer_each(
                topic.partition_indexes,
                partial(_partition, topic.name, request, partitions, adding, ctx),
                lambda index: _refused(index, ErrorCode.request_timed_out),
                partitions,
                ctx,
                end_s=end_s,
                weight=1,
            )
        await topics.add(Reply(name=topic.name, partitions=partitions.result()))
    return Reply(topics=topics.result())


def _refusal(name: str, request: Request, ctx: Context) -> tuple[ErrorCode, str] | None:
    """Return why all partitions of a topic are refused, or None."""
    fault = topic_name_fault(name)
    if fault is not None:
        return ErrorCode.invalid_topic_exception, f"Topic name is invalid: {fault}"
    if not allows_topic(request, ctx, Operation.READ, name):
        return TOPIC_DENIED, TEXTS[TOPIC_DENIED]
    return None


def _refused(index: int, error: ErrorCode, message: str | None = None) -> Reply:
    return Reply(
        partition_index=index, error_code=error, error_message=message, active_producers=[]
    )


async def _partition(
    name: str, request: Request, partitions: Rows, adding: asyncio.Lock, ctx: Context, index: int
) -> Reply:
    if ctx.catalog.by_name(name) is None:
        unknown = ErrorCode.unknown_topic_or_partition
        return _refused(index, unknown, partitions.text(_UNKNOWN))
    if ctx.partitions.empty(name, index) is not None:
        return Reply(partition_index=index, error_code=ErrorCode.none, active_producers=[])
    partition = ctx.partitions.find(name, index)
    if partition is None:
        return _refused(index, ctx.partitions.why_not_led(name, index))
    try:
        await partition.ensure_readable()
        async with adding:
            producers = await _producers(partition.producers, partition.transactions, request)
        if not partition.is_leader:
            raise NotOwner(name)
    except LedgerError as error:
        return _refused(index, partition_code(error))
    if producers is None:
        return _refused(index, ErrorCode.request_timed_out)
    return Reply(partition_index=index, error_code=ErrorCode.none, active_producers=producers)


async def _producers(
    states: ProducerStates, transactions: PartitionTransactions, request: Request
) -> Any:
    """Return the rows of the producers of one partition, or None if the reply has no room."""
    rows = Rows(request, "topics", "partitions", "active_producers")
    if rows.full:
        return None
    seen: set[int] = set()  # grows in parts, as there may be a million
    every = chain(states.producer_ids, transactions.producer_ids)
    async for producer_id in with_pauses(every, request):
        if rows.full:
            return None
        if producer_id in seen:
            continue
        seen.add(producer_id)
        batch, of_producer = states.newest(producer_id), transactions.producer(producer_id)
        if batch is not None or of_producer is not None:  # else it expired meanwhile
            await rows.add(_producer(producer_id, batch, of_producer or ProducerTransactions()))
    return rows.result()


def _producer(
    producer_id: int, batch: AcceptedBatch | None, transactions: ProducerTransactions
) -> Reply:
    epoch = transactions.epoch if batch is None else max(transactions.epoch, batch.epoch)
    last_sequence, last_ms = _NONE, transactions.used_ms
    if batch is not None and batch.epoch == epoch:
        last_sequence = batch.last_sequence
        marked = transactions.marker_offset > batch.base_offset
        if not marked and batch.timestamp_ms != _NONE:
            last_ms = batch.timestamp_ms
        elif transactions.open:  # a snapshot has no time of the batch
            last_ms = transactions.started_ms
    return Reply(
        producer_id=producer_id,
        producer_epoch=epoch,
        last_sequence=last_sequence,
        last_timestamp=last_ms,
        coordinator_epoch=transactions.coordinator_epoch,
        current_txn_start_offset=transactions.first_offset,
    )


API = Api(key=61, name="DescribeProducers", versions=range(1), handle=handle)
