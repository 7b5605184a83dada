"""Asks transaction coordinators about producers, for the partitions of this gateway.

    verify ─▶ coordinator in this process: asked directly
           └▶ at another gateway: AddPartitionsToTxn v5, one request at a time for each gateway;
              questions that come meanwhile form the next one

Questions about one transaction are put together, so a producer that begins in many partitions costs
one record of the coordinator. In protocol 2 a coordinator may still be ending the transaction
before this one. It is then asked again, for `_RETRY_S_MAX` at another gateway and for
`_RETRY_HERE_S_MAX` in this process.

Source: Kafka, AddPartitionsToTxnManager and ReplicaManager.handleProduceAppend.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable, Coroutine, Mapping
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
# A question to a coordinator of this process costs little. After a refusal the producer would send
# its batches of all partitions again.
_RETRY_HERE_S_MAX: Final = 1.0
# Pauses above `_RETRY_S` have this share of the time waited, so a stuck transaction costs little.
_RETRY_SHARE: Final = 0.25


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


class _Question:
    """One partition that a producer begins in, until its answer."""

    __slots__ = ("begun_s", "outcomes", "pause_s")

    def __init__(self, outcome: Future[ErrorCode], begun_s: float) -> None:
        # One for each batch that waits for the answer.
        self.outcomes = [outcome]
        self.begun_s = begun_s
        self.pause_s = _RETRY_S_FIRST  # before a busy coordinator is asked again

    def answer(self, error: ErrorCode) -> None:
        """Give the answer to each batch that still waits."""
        for outcome in self.outcomes:
            if not outcome.done():
                outcome.set_result(error)

    @property
    def given_up(self) -> bool:
        """True if no batch waits for the answer any more."""
        return self.outcomes[0].done() and all(outcome.done() for outcome in self.outcomes)


_Partitions = dict[TopicPartition, _Question]


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

    def __init__(
        self,
        node_id: int,
        coordinators: Coordinators,
        links: Links,
        exists: Callable[[str, int], bool],
    ) -> None:
        """Ask for this gateway. `exists` returns whether the cluster has a partition."""
        self._node_id, self._exists = node_id, exists
        self._coordinators = coordinators
        self._links = links
        # The gateways with coordinators by node id. One entry for each that was asked.
        self._gateways: dict[int, _Gateway] = {}
        # The questions of this turn of the loop, for which no coordinator was looked up yet. At
        # most `_WAITING_MAX` partitions.
        self._new: dict[_Producer, _Partitions] = {}
        self._new_size = 0  # partitions in `_new`

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
        question = _Question(outcome, loop.time())
        self._put(producer, TopicPartition(topic, index), question)
        return outcome

    def _put(self, producer: _Producer, partition: TopicPartition, question: _Question) -> None:
        """Ask a question once this turn of the loop is over."""
        if self._new_size >= _WAITING_MAX:
            question.answer(ErrorCode.coordinator_not_available)
            return
        if not self._new:
            asyncio.get_running_loop().call_soon(self._place)
        questions = self._new.get(producer)
        if questions is None:
            questions = self._new[producer] = {}
        if _add(questions, partition, question):
            self._new_size += 1

    def _place(self) -> None:
        """Look up the coordinator of each producer, and ask it."""
        new, self._new = self._new, {}
        self._new_size = 0
        touched: dict[int, _Gateway] = {}
        for producer, questions in new.items():
            node_id = self._node_of(producer.transactional_id)
            if node_id is None:
                for question in questions.values():
                    question.answer(ErrorCode.coordinator_not_available)
                continue
            gateway = touched[node_id] = self._gateways.setdefault(node_id, _Gateway())
            waiting = gateway.waiting.get(producer)
            if waiting is None and gateway.size + len(questions) <= _WAITING_MAX:
                gateway.waiting[producer] = questions
                gateway.size += len(questions)
            else:
                self._join(gateway, producer, questions)
        for node_id, gateway in touched.items():
            if not gateway.due:
                self._send(node_id, gateway)

    def _join(self, gateway: _Gateway, producer: _Producer, questions: _Partitions) -> None:
        """Put questions to those that wait already, as many as there is room for."""
        waiting = gateway.waiting.setdefault(producer, {})
        for partition, question in questions.items():
            if gateway.size >= _WAITING_MAX and partition not in waiting:
                question.answer(ErrorCode.coordinator_not_available)
            elif _add(waiting, partition, question):
                gateway.size += 1
        if not waiting:
            del gateway.waiting[producer]

    def _node_of(self, transactional_id: str) -> int | None:
        if not isinstance(self._coordinators.local(transactional_id), ErrorCode):
            return self._node_id
        member = self._coordinators.leader(transactional_id)
        return None if member is None or member.node_id == self._node_id else member.node_id

    # -- answers --------------------------------------------------------------------------------

    def _give(
        self,
        producer: _Producer,
        questions: _Partitions,
        errors: Mapping[TopicPartition, ErrorCode],
        otherwise: ErrorCode,
        retry_s_max: float,
    ) -> None:
        """Give the answers. For up to `retry_s_max`, a busy coordinator is asked again."""
        busy: _Partitions = {}
        for partition, question in questions.items():
            error = errors.get(partition, otherwise)
            if error is ErrorCode.concurrent_transactions and producer.adds:
                busy[partition] = question
            else:
                question.answer(error)
        if busy:
            self._ask_again(producer, busy, retry_s_max)

    def _ask_again(self, producer: _Producer, busy: _Partitions, retry_s_max: float) -> None:
        loop = asyncio.get_running_loop()
        now_s, pause_s = loop.time(), min(question.pause_s for question in busy.values())
        waited_s = now_s - min(question.begun_s for question in busy.values())
        next_s = now_s + pause_s
        longer_s = min(2 * pause_s, max(_RETRY_S, _RETRY_SHARE * waited_s))
        again: _Partitions = {}
        for partition, question in busy.items():
            if question.given_up:
                continue
            if next_s <= question.begun_s + retry_s_max:
                question.pause_s = longer_s
                again[partition] = question
            else:
                question.answer(ErrorCode.concurrent_transactions)
        if again:
            loop.call_later(pause_s, self._put_again, producer, again)

    def _put_again(self, producer: _Producer, questions: _Partitions) -> None:
        """Ask questions again, all at once unless others about their transaction wait."""
        if producer in self._new or self._new_size + len(questions) > _WAITING_MAX:
            for partition, question in questions.items():
                self._put(producer, partition, question)
            return
        if not self._new:
            asyncio.get_running_loop().call_soon(self._place)
        self._new[producer] = questions
        self._new_size += len(questions)

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
        # As in AddPartitionsToTxn, with which other gateways ask.
        unknown = {
            each: ErrorCode.unknown_topic_or_partition
            for each in partitions
            if not self._exists(*each)
        }
        request = Adding(
            producer.transactional_id,
            producer.producer_id,
            producer.epoch,
            frozenset(partitions).difference(unknown),
            EPOCH_BUMP_VERSION,
        )
        finish = partial(self._finish, gateway, producer, partitions)
        if isinstance(coordinator, ErrorCode):
            finish(unknown, coordinator)
        elif not request.partitions:
            finish(unknown, ErrorCode.unknown_topic_or_partition)
        elif producer.adds:
            start_once(
                "a partition of a transaction",
                _added(coordinator, request, partial(finish, unknown)),
                lambda _: finish(unknown, ErrorCode.coordinator_not_available),
            )
        else:
            finish({**coordinator.verify(request), **unknown}, ErrorCode.network_exception)

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
        self._give(producer, partitions, errors, otherwise, _RETRY_HERE_S_MAX)
        self._send_soon(self._node_id, gateway)

    def _on_reply(
        self, node_id: int, gateway: _Gateway, batch: dict[_Producer, _Partitions], reply: Any
    ) -> None:
        gateway.asked.clear()
        errors = {} if reply is None else _answers(reply)
        otherwise = ErrorCode.network_exception
        if reply is not None and reply.error_code is not ErrorCode.none:
            otherwise = reply.error_code
        for producer, partitions in batch.items():
            given = errors.get(producer.transactional_id, {})
            self._give(producer, partitions, given, otherwise, _RETRY_S_MAX)
        self._send_soon(node_id, gateway)


def _add(questions: _Partitions, partition: TopicPartition, question: _Question) -> bool:
    """Add a question. Returns False if it joined another one about the same partition."""
    known = questions.get(partition)
    if known is None:
        questions[partition] = question
        return True
    known.outcomes += question.outcomes  # two batches of one producer
    return False


async def _added(
    coordinator: Coordinator, request: Adding, finish: Callable[[ErrorCode], None]
) -> None:
    finish((await coordinator.add(request)).error)


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


def _answers(reply: Any) -> dict[str, dict[TopicPartition, ErrorCode]]:
    return {
        of_id.transactional_id: {
            TopicPartition(topic.name, each.partition_index): each.partition_error_code
            for topic in of_id.topic_results
            for each in topic.results_by_partition
        }
        for of_id in reply.results_by_transaction
    }


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
