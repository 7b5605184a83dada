"""Asks transaction coordinators about producers, for the partitions of this gateway.

    verify ─▶ coordinator in this process: asked directly
           └▶ at another gateway: AddPartitionsToTxn v5, one request at a time for each gateway;
              questions that come meanwhile form the next one

Questions about one transaction are put together, so a producer that begins in many partitions costs
one record of the coordinator. In protocol 2 a coordinator may still be ending the transaction
before this one; it is then asked again for up to `_RETRY_S_MAX`.

Source: Kafka, AddPartitionsToTxnManager and ReplicaManager.handleProduceAppend.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from kio.schema.errors import ErrorCode

from gateway.cluster.port import ClusterMember
from gateway.core.transaction_effects import Added, Adding
from gateway.core.transaction_states import EPOCH_BUMP_VERSION, TopicPartition
from gateway.transactions.markers import Links
from ledger.ids import Buffer
from ledger.tasks import start_once

ADD_PARTITIONS_TO_TXN: Final = 24
_WAITING_MAX: Final = 10_000  # partitions that wait for one gateway
_BATCH_MAX: Final = 1_000  # partitions in one request
# The pause before a busy coordinator is asked again. It doubles, because a transaction is mostly
# complete long before `_RETRY_S` (Kafka: add.partitions.to.txn.retry.backoff.ms).
_RETRY_S_FIRST: Final = 0.002
_RETRY_S: Final = 0.02
_RETRY_S_MAX: Final = 0.1  # Kafka: add.partitions.to.txn.retry.backoff.max.ms


class Coordinator(Protocol):
    """The coordinator of one id in this process."""

    def verify(self, request: Adding) -> Mapping[TopicPartition, ErrorCode]: ...

    def add(self, request: Adding) -> Coroutine[Any, Any, Added]: ...


class Coordinators(Protocol):
    """Where the coordinators of ids are."""

    def local(self, transactional_id: str) -> Coordinator | ErrorCode: ...

    def leader(self, transactional_id: str) -> ClusterMember | None: ...


class _Producer(NamedTuple):
    """The transaction of a question. Questions about the same one are put together."""

    transactional_id: str
    producer_id: int
    epoch: int
    adds: bool


_Partitions = dict[TopicPartition, "Future[ErrorCode]"]


class _Gateway:
    """The questions for one gateway, perhaps this one."""

    __slots__ = ("asked", "due", "size", "waiting")

    def __init__(self) -> None:
        # Questions that were not sent yet, oldest first. At most `_WAITING_MAX` partitions.
        self.waiting: dict[_Producer, _Partitions] = {}
        self.size = 0  # partitions in `waiting`
        # The ids of questions without an answer. Another gateway gets one request at a time.
        self.asked: set[str] = set()
        self.due = False  # True while the next questions are about to be sent


class CoordinatorVerifier:
    """The `Verifier` of a gateway."""

    def __init__(self, node_id: int, coordinators: Coordinators, links: Links) -> None:
        self._node_id = node_id
        self._coordinators = coordinators
        self._links = links
        # The gateways with coordinators by node id. One entry for each that was asked.
        self._gateways: dict[int, _Gateway] = {}

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        topic: str,
        index: int,
        *,
        adds: bool,
    ) -> Future[ErrorCode]:
        """See `Verifier`. A gateway that does not answer gives NETWORK_EXCEPTION."""
        loop = asyncio.get_running_loop()
        outcome: Future[ErrorCode] = loop.create_future()
        producer = _Producer(transactional_id, producer_id, epoch, adds)
        until_s = loop.time() + _RETRY_S_MAX
        self._ask(producer, TopicPartition(topic, index), outcome, until_s, _RETRY_S_FIRST)
        return outcome

    def _ask(
        self,
        producer: _Producer,
        partition: TopicPartition,
        outcome: Future[ErrorCode],
        until_s: float,
        pause_s: float,
    ) -> None:
        answer: Future[ErrorCode] = asyncio.get_running_loop().create_future()
        asked = (producer, partition, outcome, until_s, pause_s)
        answer.add_done_callback(partial(self._on_answer, *asked))
        node_id = self._node_of(producer.transactional_id)
        if node_id is None:
            answer.set_result(ErrorCode.coordinator_not_available)
            return
        gateway = self._gateways.setdefault(node_id, _Gateway())
        questions = gateway.waiting.setdefault(producer, {})
        known = questions.get(partition)
        if known is not None:  # asked twice, by two batches of one producer
            known.add_done_callback(lambda known: _resolve(answer, known.result()))
        elif gateway.size >= _WAITING_MAX:
            _drop_empty(gateway, producer)
            answer.set_result(ErrorCode.coordinator_not_available)
        else:
            questions[partition] = answer
            gateway.size += 1
            self._send_soon(node_id, gateway)

    def _node_of(self, transactional_id: str) -> int | None:
        if not isinstance(self._coordinators.local(transactional_id), ErrorCode):
            return self._node_id
        member = self._coordinators.leader(transactional_id)
        return None if member is None or member.node_id == self._node_id else member.node_id

    def _on_answer(
        self,
        producer: _Producer,
        partition: TopicPartition,
        outcome: Future[ErrorCode],
        until_s: float,
        pause_s: float,
        answer: Future[ErrorCode],
    ) -> None:
        if outcome.done():
            return  # given up by the partition
        error, loop = answer.result(), asyncio.get_running_loop()
        busy = error is ErrorCode.concurrent_transactions
        if busy and producer.adds and loop.time() + pause_s <= until_s:
            longer_s = min(2 * pause_s, _RETRY_S)
            loop.call_later(pause_s, self._ask, producer, partition, outcome, until_s, longer_s)
        else:
            outcome.set_result(error)

    # -- questions ------------------------------------------------------------------------------

    def _send_soon(self, node_id: int, gateway: _Gateway) -> None:
        if gateway.waiting and not gateway.due:
            gateway.due = True
            asyncio.get_running_loop().call_soon(self._send, node_id, gateway)

    def _send(self, node_id: int, gateway: _Gateway) -> None:
        gateway.due = False
        here = node_id == self._node_id
        if gateway.asked and not here:
            return
        batch = _take(gateway)
        gateway.asked.update(producer.transactional_id for producer in batch)
        if here:
            for producer, partitions in batch.items():
                self._ask_here(gateway, producer, partitions)
        elif batch:
            on_reply = partial(self._on_reply, node_id, gateway, batch)
            encode = partial(_encode, batch)
            self._links.ask(node_id, ADD_PARTITIONS_TO_TXN, encode, on_reply)

    def _ask_here(self, gateway: _Gateway, producer: _Producer, partitions: _Partitions) -> None:
        coordinator = self._coordinators.local(producer.transactional_id)
        request = Adding(
            producer.transactional_id,
            producer.producer_id,
            producer.epoch,
            frozenset(partitions),
            EPOCH_BUMP_VERSION,
        )
        finish = partial(self._finish, gateway, producer, partitions)
        if isinstance(coordinator, ErrorCode):
            finish({}, coordinator)
        elif producer.adds:
            start_once(
                "a partition of a transaction",
                _added(coordinator, request, finish),
                lambda _: finish({}, ErrorCode.coordinator_not_available),
            )
        else:
            finish(coordinator.verify(request), ErrorCode.network_exception)

    def _finish(
        self,
        gateway: _Gateway,
        producer: _Producer,
        partitions: _Partitions,
        errors: Mapping[TopicPartition, ErrorCode],
        otherwise: ErrorCode,
    ) -> None:
        """Give the answers of this process, and ask what waited for them."""
        gateway.asked.discard(producer.transactional_id)
        for partition, answer in partitions.items():
            _resolve(answer, errors.get(partition, otherwise))
        self._send_soon(self._node_id, gateway)

    def _on_reply(
        self, node_id: int, gateway: _Gateway, batch: dict[_Producer, _Partitions], reply: Any
    ) -> None:
        gateway.asked.clear()
        errors = {} if reply is None else dict(_answers(reply))
        otherwise = ErrorCode.network_exception
        if reply is not None and reply.error_code is not ErrorCode.none:
            otherwise = reply.error_code
        for producer, partitions in batch.items():
            for partition, answer in partitions.items():
                named = (producer.transactional_id, partition)
                _resolve(answer, errors.get(named, otherwise))
        self._send_soon(node_id, gateway)


def _drop_empty(gateway: _Gateway, producer: _Producer) -> None:
    if not gateway.waiting[producer]:
        del gateway.waiting[producer]


def _resolve(answer: Future[ErrorCode], error: ErrorCode) -> None:
    if not answer.done():
        answer.set_result(error)


async def _added(
    coordinator: Coordinator,
    request: Adding,
    finish: Callable[[Mapping[TopicPartition, ErrorCode], ErrorCode], None],
) -> None:
    finish({}, (await coordinator.add(request)).error)


def _take(gateway: _Gateway) -> dict[_Producer, _Partitions]:
    """Take the questions of the next request: one for each id that is not being asked about."""
    batch: dict[_Producer, _Partitions] = {}
    named = set(gateway.asked)
    size = 0
    for producer in list(gateway.waiting):
        if producer.transactional_id in named or (batch and size >= _BATCH_MAX):
            continue
        named.add(producer.transactional_id)
        partitions = batch[producer] = gateway.waiting.pop(producer)
        size += len(partitions)
        gateway.size -= len(partitions)
    return batch


def _answers(reply: Any) -> Iterator[tuple[tuple[str, TopicPartition], ErrorCode]]:
    for of_id in reply.results_by_transaction:
        for topic in of_id.topic_results:
            for each in topic.results_by_partition:
                partition = TopicPartition(topic.name, each.partition_index)
                yield (of_id.transactional_id, partition), each.partition_error_code


def _encode(batch: Mapping[_Producer, _Partitions], version: int) -> Buffer:
    from gateway.wire.messages import encode_request_body

    transactions: list[dict[str, Any]] = []
    for producer, partitions in batch.items():
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        transactions.append(
            {
                "transactional_id": producer.transactional_id,
                "producer_id": producer.producer_id,
                "producer_epoch": producer.epoch,
                "verify_only": not producer.adds,
                "topics": [{"name": name, "partitions": each} for name, each in topics.items()],
            }
        )
    return encode_request_body(ADD_PARTITIONS_TO_TXN, version, {"transactions": transactions})
