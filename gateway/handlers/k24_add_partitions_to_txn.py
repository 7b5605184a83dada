"""AddPartitionsToTxn, key 24, v0-v5: adds partitions to transactions, or reports which are added.

v2 PRODUCER_FENCED in place of INVALID_PRODUCER_EPOCH · v3 flexible · v4 many transactions, verify
only · v5 no change. Brokers send v4 and later.
Source: Kafka, KafkaApis.handleAddPartitionsToTxnRequest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.core.topic_names import is_internal
from gateway.core.transaction_effects import Adding
from gateway.core.transaction_states import EPOCH_BUMP_VERSION, TopicPartition
from gateway.handlers.api import ALL_PARTITIONS_MAX, Api, Context, Reply, Request
from gateway.handlers.many_rows import Rows, with_pauses
from gateway.handlers.rights import (
    CLUSTER_DENIED,
    ID_DENIED,
    TOPIC_DENIED,
    allows_cluster,
    allows_id,
    denied_topics,
)
from gateway.handlers.transaction_errors import coordinator_of, in_old_words
from gateway.transactions.coordinator_partition import CoordinatorPartition

_MANY_FROM = 4
_FENCED_FROM = 2
_AT_ONCE = 64  # transactions of one request that wait for their records together

_VERIFIED_AT_ONCE = 500  # partitions of one transaction


class _Errors(NamedTuple):
    """The errors of the partitions of one transaction: of some, and of all others."""

    of_others: ErrorCode = ErrorCode.none
    of_some: Mapping[TopicPartition, ErrorCode] = {}

    def of(self, partition: TopicPartition) -> ErrorCode:
        return self.of_some.get(partition, self.of_others)


async def handle(request: Request, ctx: Context) -> Reply:
    if request.version < _MANY_FROM:
        return await _answer_one(request, ctx)
    if not allows_cluster(request, ctx, Operation.CLUSTER_ACTION):
        return Reply(error_code=CLUSTER_DENIED, results_by_transaction=())
    by_id: dict[str, Any] = {}
    async for each in with_pauses(request.body.transactions, request):
        by_id.setdefault(each.transactional_id, each)
    answered: dict[str, _Errors] = {}
    waiting = iter(by_id.items())
    while some := dict(islice(waiting, _AT_ONCE)):
        errors = await asyncio.gather(*(_answer(asked, request, ctx) for asked in some.values()))
        answered.update(zip(some, errors, strict=True))
    found = Rows(request, "results_by_transaction")
    places: dict[str, slice] = {}  # the row of each id
    async for each in with_pauses(request.body.transactions, request):
        # As in Kafka, each row of an id gets the answer of its first one.
        transactional_id = each.transactional_id
        first = places.get(transactional_id)
        if first is None:
            topics = Rows(request, "results_by_transaction", "topic_results")
            await _add_topics(each.topics, answered.pop(transactional_id), topics, request)
            row = Reply(transactional_id=transactional_id, topic_results=topics.result())
            places[transactional_id] = await found.add(row)
        elif not found.full:
            await found.repeat(first)
        else:  # no broker repeats an id
            await found.add(Reply(transactional_id=transactional_id, topic_results=()))
    return Reply(error_code=ErrorCode.none, results_by_transaction=found.result())


async def _answer_one(request: Request, ctx: Context) -> Reply:
    """Answer the request of a client, which may not add partitions of internal topics.

    As in Kafka, nothing is added if the client may not write to one of the topics.
    """
    body = request.body
    asked = body.v3_and_below_topics
    adding = Adding(
        body.v3_and_below_transactional_id,
        body.v3_and_below_producer_id,
        body.v3_and_below_producer_epoch,
        await _partitions(asked, request),
    )
    errors = _Errors()
    if not allows_id(request, ctx, Operation.WRITE, adding.transactional_id):
        errors = _Errors(ID_DENIED)
    elif adding.partitions or not asked:  # as in Kafka, topics without partitions add nothing
        names = {each.topic for each in adding.partitions}
        denied_names = denied_topics(request, ctx, Operation.WRITE, names)
        refused: dict[TopicPartition, ErrorCode] = {}
        async for each in with_pauses(adding.partitions, request):
            if is_internal(each.topic) or each.topic in denied_names:
                refused[each] = TOPIC_DENIED
            elif not ctx.partitions.exists(*each):
                refused[each] = ErrorCode.unknown_topic_or_partition
        errors = _Errors(ErrorCode.operation_not_attempted, refused)
        if not refused:
            errors = await _add(adding, request.version, request, ctx)
    rows = Rows(request, "results_by_topic_v3_and_below")
    await _add_topics(asked, errors, rows, request)
    return Reply(results_by_topic_v3_and_below=rows.result())


async def _answer(asked: Any, request: Request, ctx: Context) -> _Errors:
    adding = Adding(
        asked.transactional_id,
        asked.producer_id,
        asked.producer_epoch,
        await _partitions(asked.topics, request),
        EPOCH_BUMP_VERSION,
    )
    return await _add(adding, _MANY_FROM, request, ctx, verify_only=asked.verify_only)


async def _add(
    adding: Adding, version: int, request: Request, ctx: Context, *, verify_only: bool = False
) -> _Errors:
    unknown: dict[TopicPartition, ErrorCode] = {}
    async for each in with_pauses(adding.partitions, request):
        if not ctx.partitions.exists(*each):
            unknown[each] = ErrorCode.unknown_topic_or_partition
    if unknown:
        return _Errors(ErrorCode.operation_not_attempted, unknown)
    coordinator = coordinator_of(adding.transactional_id, ctx)
    if isinstance(coordinator, ErrorCode):
        return _Errors(coordinator)
    if verify_only:
        return await _verify(adding, coordinator)
    added = await coordinator.add(adding)
    return _Errors(in_old_words(added.error, version, _FENCED_FROM))


async def _verify(adding: Adding, coordinator: CoordinatorPartition) -> _Errors:
    """Verify the partitions in parts, each as of its own turn of the loop."""
    found: dict[TopicPartition, ErrorCode] = {}
    waiting = iter(adding.partitions)
    while some := frozenset(islice(waiting, _VERIFIED_AT_ONCE)):
        if found:
            await asyncio.sleep(0)
        found |= coordinator.verify(adding._replace(partitions=some))
    return _Errors(of_some=found)


async def _partitions(topics: Iterable[Any], request: Request) -> frozenset[TopicPartition]:
    found: set[TopicPartition] = set()
    async for topic in with_pauses(topics, request):
        async for index in with_pauses(topic.partitions, request):
            found.add(TopicPartition(topic.name, index))
    return frozenset(found)


async def _add_topics(asked: Iterable[Any], errors: _Errors, rows: Rows, request: Request) -> None:
    """Add the answer in the order of the request, with its repeated rows."""
    inner = (
        ("results_by_topic_v3_and_below", "results_by_partition")
        if request.version < _MANY_FROM
        else ("results_by_transaction", "topic_results", "results_by_partition")
    )
    for topic in asked:
        partitions = Rows(request, *inner)
        for index in topic.partitions:
            error = errors.of(TopicPartition(topic.name, index))
            await partitions.add(Reply(partition_index=index, partition_error_code=error))
        await rows.add(Reply(name=topic.name, results_by_partition=partitions.result()))


API = Api(
    key=24,
    name="AddPartitionsToTxn",
    versions=range(6),
    handle=handle,
    elements_max=ALL_PARTITIONS_MAX,
)
