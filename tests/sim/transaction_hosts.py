"""The machines of `transaction_world`: coordinators, partitions and clients around the real cores.

Each takes a message and returns messages. Nothing here is lost or late: that is the world's part.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from gateway.core.partition_transactions import (
    EndMarker,
    Guard,
    PartitionTransactions,
    RepeatedMarker,
)
from gateway.core.producer_states import AcceptedBatch, ProducerStates
from gateway.core.transaction_effects import (
    Added,
    Adding,
    Answer,
    Append,
    Ended,
    Ending,
    Initializing,
    Marker,
    Reload,
    SendMarkers,
)
from gateway.core.transaction_states import TopicPartition
from gateway.core.transactions import TransactionCoordinator

ID = "pay"  # the transactional id that all clients share
TOPIC = "t"


class Message(NamedTuple):
    """One message. `to` is ("coordinator" | "partition" | "client", its index)."""

    to: tuple[str, int]
    body: Any
    back: Any = None  # where the answer belongs; None if there is none


class Produce(NamedTuple):
    client: int
    tag: int  # the transaction, unique in a run
    producer_id: int
    epoch: int
    sequence: int
    protocol: int


class Verified(NamedTuple):
    key: tuple[int, int, int]  # of the parked batch
    leader_epoch: int
    error: ErrorCode


class Marked(NamedTuple):
    marker: Marker
    partition: int
    error: ErrorCode


class Written(NamedTuple):
    error: ErrorCode


class Coordinator:
    """One gateway's coordinator of the log's only partition, during one ownership."""

    def __init__(self, index, core: TransactionCoordinator):
        self.index = index
        self.core = core
        self.lease = True  # False once another coordinator took over; it then answers nothing
        self.queue: list[Append] = []  # appended, not durable
        self.sent: dict[int, Marker] = {}  # markers without an answer, by partition

    def handle(self, message, now_ms):
        """Handle a request or an answer. Returns effects, or messages that refuse it."""
        body = message.body
        if isinstance(body, Marked):
            if self.sent.get(body.partition) == body.marker:
                del self.sent[body.partition]
            at = TopicPartition(TOPIC, body.partition)
            return self.core.on_marked(body.marker, {at: body.error}, now_ms)
        if not self.lease:
            return [refusal(message)]
        if isinstance(body, Initializing):
            return self.core.initialize(body, message.back, now_ms)
        if isinstance(body, Ending):
            return self.core.end(body, message.back, now_ms)
        if message.back[0] == "verify":
            (error,) = self.core.verify(body).values()
            return [Answer(message.back, Added(error))]
        return self.core.add(body, message.back, now_ms)


def refusal(message):
    """The answer of a gateway that is not the coordinator."""
    kind = {Ending: Ended, Adding: Added}.get(type(message.body), Added)
    return Answer(message.back, kind(ErrorCode.not_coordinator))


def answered(effect):
    """The message that carries an answer to its client or partition."""
    kind, index, *rest = effect.waiter
    if kind == "client":
        return Message(("client", index), effect.result, rest[0])
    return Message(("partition", index), Verified(*rest, effect.result.error))


class Entry(NamedTuple):
    """One record of a partition: of a producer, or a marker."""

    offset: int
    content: Produce | EndMarker


class PartitionHost:
    """The owner of one partition, with its log. `snapshot` is what a new owner starts from."""

    def __init__(self, index, rules):
        self.index = index
        self.rules = rules
        self.log: list[Entry] = []  # durable
        self.queue: list[tuple[Entry, list]] = []  # not durable, with the messages that then leave
        self.snapshot = (b"", 0)
        # Batches that wait for a verification, by the number of its guard, epoch and client.
        self.parked: dict[tuple[int, int, int], tuple[Message, Guard]] = {}
        self._begin(0)

    def _begin(self, leader_epoch):
        self.core: PartitionTransactions = self.rules.partition(leader_epoch)
        self.states = ProducerStates()
        self.parked.clear()

    @property
    def end(self):
        return len(self.log) + len(self.queue)

    def handle(self, message, now_ms):
        body = message.body
        if isinstance(body, Produce):
            return self._produce(message, now_ms)
        if isinstance(body, Verified):
            parked = None
            if body.leader_epoch == self.core.leader_epoch:
                parked = self.parked.pop(body.key, None)
            return [] if parked is None else self._verified(*parked, body.error, now_ms)
        return self._mark(message, now_ms)

    def _produce(self, message, now_ms):
        body = message.body
        two = body.protocol == 2
        guard = self.core.begin_verification(
            body.producer_id, body.epoch, body.sequence, now_ms, bumps_epoch=two
        )
        if isinstance(guard, ErrorCode):
            return [self._written(message, guard)]
        if guard is None:
            return self._append(message, guard, now_ms)
        key = (guard.number, body.epoch, body.client)
        self.parked[key] = (message, guard)
        where = frozenset((TopicPartition(TOPIC, self.index),))
        asked = Adding(ID, body.producer_id, body.epoch, where, body.protocol if two else 0)
        kind = "added" if two else "verify"
        back = (kind, self.index, key, self.core.leader_epoch)
        return [Message(("coordinator", -1), asked, back)]

    def _verified(self, message, guard, error, now_ms):
        if error is ErrorCode.none:
            return self._append(message, guard, now_ms)
        return [self._written(message, error)]

    def _append(self, message, guard, now_ms):
        body = message.body
        found = self.states.check(body.producer_id, body.epoch, body.sequence, 1)
        if isinstance(found, AcceptedBatch):
            return self._after(found.base_offset, self._written(message, ErrorCode.none))
        error = self.core.check_batch(
            body.producer_id, body.epoch, body.sequence, guard, transactional=True
        )
        if error is ErrorCode.none:
            error = found
        if error is not ErrorCode.none:
            return [self._written(message, error)]
        offset = self.end
        self._accept(Entry(offset, body), now_ms)
        self.queue.append((Entry(offset, body), [self._written(message, ErrorCode.none)]))
        return []

    def _written(self, message, error):
        return Message(("client", message.body.client), Written(error), message.back)

    def _after(self, offset, message):
        """The message leaves once the log is durable past `offset`."""
        for entry, messages in self.queue:
            if entry.offset == offset:
                messages.append(message)
                return []
        return [message]

    def _accept(self, entry, now_ms):
        body = entry.content
        if isinstance(body, EndMarker):
            self.core.accept_marker(body, entry.offset, now_ms)
            return
        self.core.accept_batch(
            body.producer_id, body.epoch, entry.offset, now_ms, transactional=True
        )
        batch = (body.producer_id, body.epoch, body.sequence, 1, entry.offset, 0, now_ms)
        self.states.accept(*batch, durable_offset=len(self.log))

    def _mark(self, message, now_ms):
        marker, leader_epoch = message.body
        numbers = (marker.number, leader_epoch) if self.rules.numbered else (-1, -1)
        identity = (marker.producer_id, marker.epoch, marker.coordinator_epoch)
        one = EndMarker(*identity, marker.commit, marker.version, *numbers)
        found = self.core.check_marker(one)
        if isinstance(found, RepeatedMarker):
            return self._after(found.offset, self._marked(message, ErrorCode.none))
        if found is not ErrorCode.none:
            return [self._marked(message, found)]
        offset = self.end
        self._accept(Entry(offset, one), now_ms)
        self.queue.append((Entry(offset, one), [self._marked(message, ErrorCode.none)]))
        return []

    def _marked(self, message, error):
        return Message(message.back, Marked(message.body[0], self.index, error))

    # -- durability -----------------------------------------------------------------------------

    def flush(self):
        """Make the oldest record durable. Returns the messages that then leave."""
        entry, messages = self.queue.pop(0)
        self.log.append(entry)
        self.core.on_durable(len(self.log))
        return messages

    def take_snapshot(self):
        self.snapshot = (self.core.encode(len(self.log)), len(self.log))

    def fail_over(self, kept, now_ms):
        """Begin a new ownership. The first `kept` records of the queue turn out to be durable."""
        self.log += [entry for entry, _ in self.queue[:kept]]
        self.queue.clear()
        self._begin(self.core.leader_epoch + 1)
        snapshot, start = self.snapshot
        for _ in self.core.load(snapshot):
            pass
        for entry in self.log:
            if entry.offset >= start:
                self._accept(entry, now_ms)
            elif isinstance(entry.content, Produce):
                body = entry.content
                batch = (body.producer_id, body.epoch, body.sequence, 1, entry.offset, 0, now_ms)
                self.states.accept(*batch, durable_offset=len(self.log))
        self.core.on_durable(len(self.log))


EFFECTS = (Append, Answer, SendMarkers, Reload)
