"""AddPartitionsToTxn, key 24, v0-v5: adds partitions to transactions, or reports which are added.

v2 PRODUCER_FENCED in place of INVALID_PRODUCER_EPOCH · v3 flexible · v4 many transactions, verify
only · v5 no change. Brokers send v4 and later.
Source: Kafka, KafkaApis.handleAddPartitionsToTxnRequest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from gateway.core.transaction_effects import Adding
from gateway.core.transaction_states import EPOCH_BUMP_VERSION, TopicPartition
from gateway.handlers.api import Api, Context, Reply, Request
from gateway.handlers.many_rows import Rows, answer_each
from gateway.handlers.transaction_errors import coordinator_of, in_old_words

_MANY_FROM = 4
_FENCED_FROM = 2

_Errors = Mapping[TopicPartition, ErrorCode]


async def handle(request: Request, ctx: Context) -> Reply:
    body = request.body
    if request.version < _MANY_FROM:
        asked = body.v3_and_below_topics
        adding = Adding(
            body.v3_and_below_transactional_id,
            body.v3_and_below_producer_id,
            body.v3_and_below_producer_epoch,
            _partitions(asked),
        )
        errors = await _add(adding, request.version, ctx)
        rows = Rows(request, "results_by_topic_v3_and_below")
        for topic in _topics(errors):
            await rows.add(topic, 1 + len(topic["results_by_partition"]))
        return Reply(results_by_topic_v3_and_below=rows.result())
    found = Rows(request, "results_by_transaction")
    by_id = {each.transactional_id: each for each in body.transactions}
    await answer_each(
        by_id.values(),
        lambda asked: _answer(asked, request.version, ctx),
        lambda asked: _row(
            asked, dict.fromkeys(_partitions(asked.topics), ErrorCode.coordinator_not_available)
        ),
        found,
        ctx,
        weight=1 + sum(len(topic.partitions) for each in by_id.values() for topic in each.topics),
    )
    return Reply(error_code=ErrorCode.none, results_by_transaction=found.result())


async def _answer(asked: Any, version: int, ctx: Context) -> Reply:
    adding = Adding(
        asked.transactional_id,
        asked.producer_id,
        asked.producer_epoch,
        _partitions(asked.topics),
        EPOCH_BUMP_VERSION,
    )
    return _row(asked, await _add(adding, version, ctx, verify_only=asked.verify_only))


async def _add(adding: Adding, version: int, ctx: Context, *, verify_only: bool = False) -> _Errors:
    unknown = {each for each in adding.partitions if not ctx.partitions.exists(*each)}
    if unknown:
        return {
            each: ErrorCode.unknown_topic_or_partition
            if each in unknown
            else ErrorCode.operation_not_attempted
            for each in adding.partitions
        }
    coordinator = coordinator_of(adding.transactional_id, ctx)
    if isinstance(coordinator, ErrorCode):
        return dict.fromkeys(adding.partitions, coordinator)
    if verify_only:
        return coordinator.verify(adding)
    added = await coordinator.add(adding)
    return dict.fromkeys(adding.partitions, in_old_words(added.error, version, _FENCED_FROM))


def _partitions(topics: Iterable[Any]) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(topic.name, index) for topic in topics for index in topic.partitions
    )


def _row(asked: Any, errors: _Errors) -> Reply:
    return Reply(transactional_id=asked.transactional_id, topic_results=_topics(errors))


def _topics(errors: _Errors) -> list[Reply]:
    by_topic: dict[str, list[Reply]] = {}
    for topic, index in sorted(errors):
        code = errors[TopicPartition(topic, index)]
        row = Reply(partition_index=index, partition_error_code=code)
        by_topic.setdefault(topic, []).append(row)
    return [Reply(name=name, results_by_partition=rows) for name, rows in by_topic.items()]


API = Api(
    key=24,
    name="AddPartitionsToTxn",
    versions=range(6),
    handle=handle,
    elements_max=250_000,
    preview=True,
)
