"""Produce, key 0, v3-v13: appends record batches.

v3 magic 2 only · v5 log start offset · v7 zstd · v8 error message · v9 flexible · v10 errors name
the leader (KIP-951) · v13 topic ids. Advertised from v0, because librdkafka < 2.11.1 otherwise
sends batches uncompressed (librdkafka#4956). acks=1 and acks=-1 both wait for the ack quorum;
acks=0 gets no reply: after an error the connection is closed, as in Kafka.
The records of each batch are checked as in Kafka (gateway.wire.record_check). A batch whose check
takes long is checked in parts, and later batches of its partition wait behind it.
A batch whose codec differs from `compression.type` of its topic is compressed again.
Not done: more than one batch for each partition of a
request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.handlers.api import Api, ConnectionEnds, Context, Request, Result
from gateway.handlers.broker_endpoints import LeaderHints
from gateway.handlers.rights import allows_id, allows_topic
from gateway.handlers.transactional_produce import (
    NO_ID,
    is_transactional,
    transaction_in_parts,
    transaction_of,
)
from gateway.topics.partition import Partition
from gateway.topics.produced import Produced
from gateway.wire.node_endpoints import endpoints_bytes
from gateway.wire.produce_reply import (
    LEADERS_FROM,
    PER_PART,
    PartitionProduced,
    encode_in_parts,
    encode_produce,
)
from gateway.wire.produce_request import ELEMENTS_MAX, TOPIC_IDS_FROM, decode_produce
from gateway.wire.steps import result_with_pauses
from ledger.ids import Buffer
from ledger.tasks import start_once

_NOT_LEADER = ErrorCode.not_leader_or_follower
# As in Kafka, the answer to these errors does not contain the start of the log.
_WITHOUT_START = frozenset(
    {
        ErrorCode.corrupt_message,
        ErrorCode.kafka_storage_error,
        ErrorCode.message_too_large,
        ErrorCode.not_leader_or_follower,
        ErrorCode.record_list_too_large,
        ErrorCode.request_timed_out,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
    }
)
_DENIED = Produced(ErrorCode.topic_authorization_failed)
_BAD_ACKS = Produced(ErrorCode.invalid_required_acks, message="acks must be -1, 0 or 1.")


class _SinglePartition:
    """A Produce request with one partition: the hot path, without lists and counts."""

    __slots__ = ("_ctx", "_index", "_partition", "_reply", "_request", "_topic", "error")

    def __init__(
        self, request: Request, ctx: Context, topic: str | UUID, index: int, partition: Partition
    ) -> None:
        self._request = request
        self._ctx = ctx
        self._topic = topic
        self._index = index
        self._partition = partition
        self._reply: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.error = ErrorCode.none  # the error of the result

    @property
    def reply(self) -> asyncio.Future[Result]:
        return self._reply

    def on_produced(self, produced: Produced) -> None:
        if self._reply.done():
            return
        request = self._request
        self.error = produced.error
        if produced.error:
            request.error = int(produced.error)
        topics = [(self._topic, [_answer(self._index, produced, self._partition)])]
        if produced.error is _NOT_LEADER:
            self._reply.set_result([_redirected(request, self._ctx, topics)])
            return
        self._reply.set_result([encode_produce(request.version, request.correlation_id, topics)])


class _ManyPartitions:
    """A Produce request with any number of partitions. It replies after the last result."""

    __slots__ = ("_ctx", "_left", "_redirects", "_request", "_topics", "error", "reply")

    def __init__(
        self, request: Request, ctx: Context, topics: list[tuple[str | UUID, int]]
    ) -> None:
        self._request = request
        self._ctx = ctx
        # True if a result is an error without its leader, so that the reply must name the leader.
        self._redirects = False
        self.error = ErrorCode.none  # the first error of a result
        # The results by topic and place in the request. None until the result is known.
        self._topics: list[tuple[str | UUID, list[PartitionProduced | None]]] = [
            (topic, [None] * partitions) for topic, partitions in topics
        ]
        # The number of missing results.
        self._left = sum(partitions for _, partitions in topics)
        self.reply: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        if not self._left:
            self._finish()

    def put(
        self, topic: int, place: int, index: int, produced: Produced, partition: Partition | None
    ) -> None:
        self._topics[topic][1][place] = _answer(index, produced, partition)
        self._redirects = self._redirects or produced.error is _NOT_LEADER
        self.error = self.error or produced.error
        if self.error and not self._request.error:
            self._request.error = int(self.error)
        self._left -= 1
        if not self._left:
            self._finish()

    def _finish(self) -> None:
        if self.reply.done():
            return
        request = self._request
        topics = [(name, [p for p in answers if p is not None]) for name, answers in self._topics]
        if self._redirects:
            self.reply.set_result([_redirected(request, self._ctx, topics)])
            return
        self.reply.set_result([encode_produce(request.version, request.correlation_id, topics)])


class _LongProduce(_ManyPartitions):
    """A Produce request with so many partitions that it is accepted and answered in parts."""

    __slots__ = ()

    def _finish(self) -> None:
        if not self.reply.done():
            self.reply.set_result(None)  # `result` encodes the reply

    async def result(self) -> Result:
        """Wait for all results. Returns the reply. Raises ConnectionEnds."""
        await self.reply
        request = self._request
        if not request.body.acks:
            if self.error:
                raise _ends(request, self.error)
            return None
        hints = LeaderHints(self._ctx, request.peer)
        if self._redirects and request.version >= LEADERS_FROM:
            for _ in _name_leaders(hints, self._topics):
                await asyncio.sleep(0)
        topics: Any = self._topics  # no answer is missing
        reply: list[Buffer] = []
        words = (request.version, request.correlation_id, topics)
        nodes = hints.nodes()
        request.nodes_bytes = endpoints_bytes(nodes)
        for each in encode_in_parts(*words, nodes=nodes):
            reply.append(each)
            await asyncio.sleep(0)
        return reply


class _PartitionPlace:
    """The place of one partition's result in a `_ManyPartitions`."""

    __slots__ = ("_index", "_many", "_partition", "_place", "_topic")

    def __init__(
        self, many: _ManyPartitions, topic: int, place: int, index: int, partition: Partition
    ) -> None:
        self._many = many
        self._topic = topic
        self._place = place
        self._index = index
        self._partition = partition

    def on_produced(self, produced: Produced) -> None:
        self._many.put(self._topic, self._place, self._index, produced, self._partition)


class _NoReply:
    """A request with acks=0, which gets no reply. It is in flight until its batches are durable.

    So the memory of such requests is bounded too. After an error the connection is closed: this is
    the only way to let the producer look for the leaders again.
    """

    __slots__ = ("_request", "_results", "ended")

    def __init__(self, request: Request, results: _SinglePartition | _ManyPartitions) -> None:
        self._request = request
        self._results = results
        self.ended: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        results.reply.add_done_callback(self._on_reply)

    def _on_reply(self, _: asyncio.Future[Result]) -> None:
        if self.ended.done():
            return
        if self._results.error:
            self.ended.set_exception(_ends(self._request, self._results.error))
        else:
            self.ended.set_result(None)


def _ends(request: Request, error: ErrorCode) -> ConnectionEnds:
    client = request.client_id or ""
    return ConnectionEnds(f"{error.name} for a produce with acks=0 of client {client}")


def _answer(index: int, produced: Produced, partition: Partition | None) -> PartitionProduced:
    hidden = partition is None or produced.unverified or produced.error in _WITHOUT_START
    return PartitionProduced(
        index,
        produced.error,
        produced.base_offset,
        produced.append_time_ms,
        -1 if hidden or partition is None else partition.log_start_offset,
        produced.message,
        None,
        produced.record_errors,
    )


def _redirected(
    request: Request, ctx: Context, topics: Sequence[tuple[str | UUID, list[PartitionProduced]]]
) -> bytes:
    """Encode the reply with the leader of each partition in error, and the leaders' addresses."""
    version, correlation_id = request.version, request.correlation_id
    if version < LEADERS_FROM:
        return encode_produce(version, correlation_id, topics)
    hints = LeaderHints(ctx, request.peer)
    for _ in _name_leaders(hints, topics):
        pass
    nodes = hints.nodes()
    request.nodes_bytes = endpoints_bytes(nodes)
    return encode_produce(version, correlation_id, topics, nodes=nodes)


def _name_leaders(
    hints: LeaderHints, topics: Sequence[tuple[str | UUID, list[Any]]]
) -> Iterator[None]:
    """Put the leader of each partition in error into its answer, in parts.

    Every partition must have its answer.
    """
    count = 0
    for named, answers in topics:
        for at, each in enumerate(answers):
            if each.error_code == int(_NOT_LEADER):
                answers[at] = each._replace(current_leader=hints.leader(named, each.index))
            count += 1
            if count % PER_PART == 0:
                yield


def handle(request: Request, ctx: Context) -> Result | asyncio.Future[Result]:
    """Accept or refuse each batch in order. Reply when the accepted batches are durable.

    A request of many partitions is accepted in parts. Later ones of its connection wait meanwhile,
    because a batch must not overtake an earlier one of its partition. Raises ConnectionEnds.
    """
    peer = request.peer
    long = _is_long(request.body.topic_data)
    if peer.appending is None and not long:
        return _start(request, ctx)
    before, peer.appending = peer.appending, asyncio.get_running_loop().create_future()
    in_turn = _in_turn(request, ctx, before, peer.appending, long=long)
    return start_once("a Produce of many partitions", in_turn, expected=Exception)


def _is_long(topics: Any) -> bool:
    if len(topics) == 1:
        return len(topics[0].partition_data) > PER_PART
    return len(topics) > PER_PART or sum(len(each.partition_data) for each in topics) > PER_PART


async def _in_turn(
    request: Request,
    ctx: Context,
    before: asyncio.Future[bool] | None,
    appended: asyncio.Future[bool],
    *,
    long: bool,
) -> Result:
    """Accept a request after `before`, and complete `appended`. Returns its result."""
    goes_on = False
    try:
        if before is not None:
            await asyncio.wait([before])
            if not before.result():  # the connection ends
                raise ConnectionEnds("an earlier Produce with acks=0 failed")
        if long:
            finish: Any = await _start_long(request, ctx)
        else:
            finish = _start(request, ctx)
        goes_on = True
    except ConnectionEnds:
        raise
    except Exception:
        goes_on = bool(request.body.acks)  # without a reply, the connection ends
        raise
    finally:
        appended.set_result(goes_on)
        if request.peer.appending is appended:
            request.peer.appending = None
    return await finish


async def _start_long(request: Request, ctx: Context) -> Coroutine[Any, Any, Result]:
    """Accept or refuse each batch in order, in parts. Returns the rest of the work."""
    body = request.body
    refused, transactional = _BAD_ACKS, False
    if body.acks in (-1, 0, 1) or ctx.authorizer is not None:
        found = await result_with_pauses(transaction_in_parts(body))
        refused, transactional = _checked(found, request, ctx)
    results = _LongProduce(request, ctx, _shape(request, body.topic_data))
    named = body.transactional_id if transactional else None
    for _ in _append_each(request, ctx, body.topic_data, refused, named, results):
        await asyncio.sleep(0)
    if not body.acks and results.error and results.reply.done():
        raise _ends(request, results.error)  # no later request of the connection begins
    return results.result()


def _start(request: Request, ctx: Context) -> asyncio.Future[Result]:
    """Accept or refuse each batch in order. Raises ConnectionEnds."""
    body = request.body
    refused, transactional = _BAD_ACKS, False
    if ctx.authorizer is not None:
        refused, transactional = _checked(transaction_of(body), request, ctx)
    elif body.acks in (-1, 0, 1):
        refused, transactional = transaction_of(body)
    topics = body.topic_data
    if transactional:
        results = _many(request, ctx, topics, refused, body.transactional_id)
    elif refused is None and len(topics) == 1 and len(topics[0].partition_data) == 1:
        results = _single(request, ctx, topics[0])
    else:
        results = _many(request, ctx, topics, refused)
    if body.acks:
        return results.reply
    if results.error and results.reply.done():  # no later request of the connection begins
        raise _ends(request, results.error)
    return _NoReply(request, results).ended


def _checked(
    found: tuple[Produced | None, bool], request: Request, ctx: Context
) -> tuple[Produced | None, bool]:
    """Return the result of `transaction_of` after the right to the id, and after the acks.

    As in Kafka, a batch of a transaction anywhere in the request needs the right.
    """
    refused, transactional = found
    body = request.body
    if transactional and not allows_id(request, ctx, Operation.WRITE, body.transactional_id):
        refused = NO_ID
    if refused is not NO_ID and body.acks not in (-1, 0, 1):
        refused = _BAD_ACKS
    return refused, transactional


def _refusal(
    request: Request, ctx: Context, name: str | None, refused: Produced | None
) -> Produced | None:
    """Return why the batches of a topic are refused, or None. `refused` is for all topics."""
    if ctx.authorizer is None or refused is NO_ID or name is None:
        return refused
    return refused if allows_topic(request, ctx, Operation.WRITE, name) else _DENIED


def _single(request: Request, ctx: Context, topic: Any) -> _SinglePartition | _ManyPartitions:
    data = topic.partition_data[0]
    named, name = _name_of(request, ctx, topic)
    partition = None
    if name is not None and _refusal(request, ctx, name, None) is None:
        partition = ctx.partitions.find_for_produce(name, data.index)
    if partition is None:
        return _many(request, ctx, (topic,), None)
    single = _SinglePartition(request, ctx, named, data.index, partition)
    batch, acks_all = memoryview(data.records or b""), request.body.acks == -1
    partition.append(batch, request.version, single.on_produced, acks_all=acks_all)
    return single


def _name_of(request: Request, ctx: Context, topic: Any) -> tuple[str | UUID, str | None]:
    """Return the topic as the request names it, and its name, or None if there is no such topic."""
    if request.version < TOPIC_IDS_FROM:
        return topic.name, topic.name
    topic_id: UUID = topic.topic_id or UUID(int=0)
    known = ctx.catalog.by_id(topic_id)
    return topic_id, None if known is None else known.name


def _many(
    request: Request,
    ctx: Context,
    topics: Any,
    refused: Produced | None,
    transactional_id: str | None = None,
) -> _ManyPartitions:
    many = _ManyPartitions(request, ctx, _shape(request, topics))
    for _ in _append_each(request, ctx, topics, refused, transactional_id, many):
        pass
    return many


def _shape(request: Request, topics: Any) -> list[tuple[str | UUID, int]]:
    """Return each topic with the number of its partitions."""
    if request.version < TOPIC_IDS_FROM:
        return [(topic.name, len(topic.partition_data)) for topic in topics]
    return [(topic.topic_id or UUID(int=0), len(topic.partition_data)) for topic in topics]


def _append_each(
    request: Request,
    ctx: Context,
    topics: Any,
    refused: Produced | None,
    transactional_id: str | None,
    many: _ManyPartitions,
) -> Iterator[None]:
    """Append or refuse each batch in order. Yields after each `PER_PART` of them."""
    count, version, acks_all = 0, request.version, request.body.acks == -1
    find = ctx.partitions.find_for_produce
    for at, topic in enumerate(topics):
        if not topic.partition_data:
            continue
        named, name = _name_of(request, ctx, topic)
        why_not = _refusal(request, ctx, name, refused)
        for place, data in enumerate(topic.partition_data):
            count += 1
            if count % PER_PART == 0:
                yield
                named, name = _name_of(request, ctx, topic)  # it may have been deleted
            partition = None if name is None or why_not else find(name, data.index)
            if why_not is not None or partition is None:
                why = why_not or Produced(ctx.partitions.why_not_produced(named, data.index))
                many.put(at, place, data.index, why, None)
                continue
            answered = _PartitionPlace(many, at, place, data.index, partition).on_produced
            batch = memoryview(data.records or b"")
            if transactional_id is not None and is_transactional(batch):
                words = (batch, version, answered, transactional_id)
                partition.append_transactional(*words, acks_all=acks_all)
                continue
            partition.append(batch, version, answered, acks_all=acks_all)


API = Api(
    key=0,
    name="Produce",
    versions=range(3, 14),
    handle=handle,
    decode=decode_produce,
    elements_max=ELEMENTS_MAX,
    advertised=range(14),
)
