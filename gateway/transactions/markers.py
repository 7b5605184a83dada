"""Sends the markers of ended transactions to the partitions, on whichever gateways these are.

    send ─▶ own partition: appended at once
         ├▶ another gateway: queued for it ─▶ WriteTxnMarkers, many markers in one request
         ├▶ no owner yet, or the owner is unknown: a retriable answer, after a pause
         └▶ no such topic here: read from the metadata store ─▶ gone: success
            (`__consumer_offsets` is created, because its groups keep the offsets)

A retriable answer reaches the coordinator after a pause, which doubles for a partition that fails
again. The coordinator then sends the marker again, and the owner is looked up again.

A request that was given up never takes effect later: it names the topic's id and the leader epoch
of each partition, and its markers are numbered (docs/decisions/0021-late-markers.md). No marker is
sent to a gateway whose leader epoch is unknown. Source: Kafka, TransactionMarkerChannelManager.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.cluster.peer_links import Encode, OnAnswer
from gateway.cluster.port import Cluster, StreamKey
from gateway.core.partition_transactions import EndMarker
from gateway.core.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from gateway.core.transaction_effects import Marker
from gateway.core.transaction_states import TopicPartition
from gateway.topics import internal_topics
from gateway.topics.catalog import Catalog
from gateway.transactions.local_markers import LocalMarkers
from gateway.transactions.ports import OnAnswers
from gateway.wire.marker_request import MarkedTopic, RequestedMarker, encode_markers
from ledger.errors import LedgerError
from ledger.tasks import reported, start_restarting

WRITE_TXN_MARKERS: Final = 27
_PER_TURN: Final = 200  # partitions of one marker that are handled before other tasks run
_REQUEST_PARTITIONS_MAX: Final = 1_000
_REQUESTS_AT_ONCE: Final = 4  # to one gateway
_PAUSE_S_FIRST: Final = 0.02
_PAUSE_S_MAX: Final = 0.1  # as long as the pauses of Kafka's coordinator
_PAUSE_S_EACH: Final = 20e-6  # added for each partition that fails at present

_FINAL: Final = frozenset(
    (
        ErrorCode.none,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.transaction_coordinator_fenced,
        ErrorCode.unsupported_for_message_format,
    )
)
"""Answers after which this partition is not asked again. All others are given after a pause."""


class Links(Protocol):
    """The connections to other gateways, as `PeerLinks` has them."""

    def ask(self, node_id: int, key: int, encode: Encode, on_answer: OnAnswer) -> None: ...


class _Sending:
    """One marker between `send` and the answer of its last partition."""

    __slots__ = ("end", "left", "marker", "on_answers", "stopped")

    def __init__(self, marker: Marker, on_answers: OnAnswers) -> None:
        self.marker = marker
        self.end = _end_marker(marker)  # what each partition of this gateway gets
        self.on_answers = on_answers
        self.left = len(marker.partitions)  # partitions without an answer
        self.stopped = False  # True once its coordinator ended: no answer is wanted


class _Placed(NamedTuple):
    """One partition of a marker that another gateway leads."""

    sending: _Sending
    partition: TopicPartition
    topic_id: UUID
    leader_epoch: int


_Named = tuple[int, str, int]  # producer id, topic and partition: what an answer is for


class _Owner:
    """The markers for one other gateway."""

    __slots__ = ("due", "requests", "waiting")

    def __init__(self) -> None:
        # Partitions that wait for a request, in order. A partition waits once for each transaction
        # that is being ended, so the coordinators bound their number.
        self.waiting: deque[_Placed] = deque()
        self.requests = 0  # without an answer; at most `_REQUESTS_AT_ONCE`
        self.due = False  # True while the next requests are about to be made


class ClusterMarkers:
    """The `MarkerSender` of a gateway."""

    def __init__(
        self, catalog: Catalog, cluster: Cluster, local: LocalMarkers, links: Links
    ) -> None:
        self._catalog = catalog
        self._cluster = cluster
        self._local = local
        self._links = links
        # The markers under way, by the callback of their coordinator.
        self._sendings: defaultdict[OnAnswers, set[_Sending]] = defaultdict(set)
        # The markers for other gateways by node id. One entry for each gateway that got markers.
        self._owners: dict[int, _Owner] = {}
        # Answers of this turn of the loop, which are given in the next one.
        self._answers: dict[_Sending, dict[TopicPartition, ErrorCode]] = {}
        # Answers that are being given, a part in each turn of the loop.
        self._given: deque[tuple[_Sending, Mapping[TopicPartition, ErrorCode]]] = deque()
        # How often a partition failed in a row. An entry goes with the first final answer.
        self._failures: dict[TopicPartition, int] = {}
        # Partitions of topics that this broker does not know, until the store was read.
        self._doubtful: deque[tuple[_Sending, TopicPartition]] = deque()
        self._reading: asyncio.Task[None] | None = None

    # -- the port -------------------------------------------------------------------------------

    def send(self, marker: Marker, on_answers: OnAnswers) -> None:
        """See `MarkerSender`."""
        sending = _Sending(marker, on_answers)
        self._sendings[on_answers].add(sending)
        self._place_some(sending, iter(marker.partitions))

    def stop(self, on_answers: OnAnswers) -> None:
        """See `MarkerSender`. What is under way may still be written, once, in its own place."""
        self._local.stop(on_answers)
        for sending in self._sendings.pop(on_answers, ()):
            sending.stopped = True
            self._answers.pop(sending, None)
            for partition in sending.marker.partitions:
                self._failures.pop(partition, None)

    async def close(self) -> None:
        """Stop reading the store. Call it after all coordinators have stopped."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    # -- where each partition is ----------------------------------------------------------------

    def _place_some(self, sending: _Sending, partitions: Iterator[TopicPartition]) -> None:
        """Handle the next partitions of a marker, and the others in later turns of the loop."""
        if sending.stopped:
            return
        some = list(islice(partitions, _PER_TURN))
        for partition in some:
            self._place(sending, partition)
        if len(some) == _PER_TURN:
            asyncio.get_running_loop().call_soon(self._place_some, sending, partitions)

    def _place(self, sending: _Sending, partition: TopicPartition) -> None:
        topic, index = partition
        known = self._catalog.by_name(topic)
        if known is None or not 0 <= index < known.partitions:
            if topic == CONSUMER_OFFSETS:
                # Groups keep the offsets of the transaction whether or not the topic exists.
                internal_topics.begin(self._catalog, topic)
                self._on_answer(sending, partition, ErrorCode.unknown_topic_or_partition)
                return
            self._doubtful.append((sending, partition))
            self._read_store()
            return
        key = StreamKey(known.topic_id, index)
        if topic in (CONSUMER_OFFSETS, TRANSACTION_STATE) or self._cluster.owns(key):
            on_marked = partial(self._on_answer, sending, partition)
            words = (topic, index, sending.end, on_marked, known.topic_id, sending.on_answers)
            self._local.append(*words)
            return
        leader = self._cluster.leader(key)
        if leader.node_id in (-1, self._cluster.node_id) or leader.epoch < 0:
            self._on_answer(sending, partition, ErrorCode.not_leader_or_follower)
            return
        owner = self._owners.setdefault(leader.node_id, _Owner())
        owner.waiting.append(_Placed(sending, partition, known.topic_id, leader.epoch))
        if not owner.due:
            owner.due = True
            asyncio.get_running_loop().call_soon(self._ask_owner, leader.node_id, owner)

    # -- other gateways -------------------------------------------------------------------------

    def _ask_owner(self, node_id: int, owner: _Owner) -> None:
        owner.due = False
        while owner.waiting and owner.requests < _REQUESTS_AT_ONCE:
            asked = _take(owner.waiting)
            if asked:
                owner.requests += 1
                on_reply = partial(self._on_reply, node_id, owner, asked)
                encode = partial(_encode, list(asked.values()))
                self._links.ask(node_id, WRITE_TXN_MARKERS, encode, on_reply)

    def _on_reply(
        self, node_id: int, owner: _Owner, asked: dict[_Named, _Placed], reply: Any
    ) -> None:
        """Take the answers of a request. A partition without one is asked again."""
        owner.requests -= 1
        for named, error in () if reply is None else _answers(reply):
            placed = asked.pop(named, None)
            if placed is not None:
                self._on_answer(placed.sending, placed.partition, error)
        for placed in asked.values():
            self._on_answer(placed.sending, placed.partition, ErrorCode.network_exception)
        self._ask_owner(node_id, owner)

    # -- deleted topics -------------------------------------------------------------------------

    def _read_store(self) -> None:
        if self._reading is None or self._reading.done():
            self._reading = start_restarting("the lookup of topics with markers", self._read)

    async def _read(self) -> None:
        """Ask the store whether unknown topics exist: this broker may not have read them yet."""
        while self._doubtful:
            doubtful, self._doubtful = self._doubtful, deque()
            counts: dict[str, int | None] = {}
            for number, (sending, partition) in enumerate(doubtful, 1):
                if partition.topic not in counts:
                    counts[partition.topic] = await self._stored_partitions(partition.topic)
                elif number % _PER_TURN == 0:
                    await asyncio.sleep(0)
                count = counts[partition.topic]
                gone = count is not None and partition.partition >= count
                error = ErrorCode.none if gone else ErrorCode.unknown_topic_or_partition
                self._on_answer(sending, partition, error)

    async def _stored_partitions(self, topic: str) -> int | None:
        try:
            return await self._catalog.stored_partitions(topic)
        except LedgerError:
            return None

    # -- answers --------------------------------------------------------------------------------

    def _on_answer(self, sending: _Sending, partition: TopicPartition, error: ErrorCode) -> None:
        if sending.stopped:
            return
        if not self._answers:
            asyncio.get_running_loop().call_soon(self._give_answers)
        self._answers.setdefault(sending, {})[partition] = error

    def _give_answers(self) -> None:
        answers, self._answers = self._answers, {}
        giving = bool(self._given)
        self._given.extend(answers.items())
        if not giving:
            self._give_some()

    def _give_some(self) -> None:
        """Give the next answers, and the others in later turns of the loop."""
        weight = 0
        while self._given:
            sending, errors = self._given.popleft()
            final = {each: error for each, error in errors.items() if error in _FINAL}
            for partition in final:
                self._failures.pop(partition, None)
            if final:
                self._give(sending, final)
            failed = {each: error for each, error in errors.items() if error not in _FINAL}
            if failed:
                pause_s = self._pause_s(failed)
                asyncio.get_running_loop().call_later(pause_s, self._give, sending, failed)
            weight += 1 + len(errors)
            if weight >= _PER_TURN and self._given:
                asyncio.get_running_loop().call_soon(self._give_some)
                return

    def _pause_s(self, failed: Iterable[TopicPartition]) -> float:
        """Count a failure of each partition. Returns the pause before they are sent again."""
        most = 0
        for partition in failed:
            count = self._failures[partition] = self._failures.get(partition, 0) + 1
            most = max(most, count)
        longest_s = _PAUSE_S_MAX + _PAUSE_S_EACH * len(self._failures)
        return min(_PAUSE_S_FIRST * 2 ** min(most - 1, 10), longest_s)

    def _give(self, sending: _Sending, errors: Mapping[TopicPartition, ErrorCode]) -> None:
        if sending.stopped:
            return
        sending.left -= len(errors)
        if not sending.left:
            under_way = self._sendings[sending.on_answers]
            under_way.discard(sending)
            if not under_way:
                del self._sendings[sending.on_answers]
        with reported("the answers to a marker"):
            sending.on_answers(sending.marker, errors)


def _end_marker(marker: Marker) -> EndMarker:
    return EndMarker(
        marker.producer_id,
        marker.epoch,
        marker.coordinator_epoch,
        marker.commit,
        marker.version,
        marker.number,
    )


def _take(waiting: deque[_Placed]) -> dict[_Named, _Placed]:
    """Take the partitions of the next request, each once for a producer.

    The response does not say which marker of a producer it answers.
    """
    asked: dict[_Named, _Placed] = {}
    while waiting and len(asked) < _REQUEST_PARTITIONS_MAX:
        placed = waiting[0]
        if not placed.sending.stopped:
            topic, index = placed.partition
            named = (placed.sending.marker.producer_id, topic, index)
            if named in asked:
                break
            asked[named] = placed
        waiting.popleft()
    return asked


def _answers(reply: Any) -> Iterator[tuple[_Named, ErrorCode]]:
    for marker in reply.markers:
        for topic in marker.topics:
            for each in topic.partitions:
                yield (marker.producer_id, topic.name, each.partition_index), each.error_code


def _encode(asked: Iterable[_Placed], version: int) -> bytes:
    """Encode the body of a request for these partitions."""
    sendings: dict[_Sending, dict[UUID, list[_Placed]]] = {}
    for placed in asked:
        topics = sendings.setdefault(placed.sending, {})
        topics.setdefault(placed.topic_id, []).append(placed)
    markers: list[RequestedMarker] = []
    for sending, topics in sendings.items():
        marked = [
            MarkedTopic(
                placed[0].partition.topic,
                [each.partition.partition for each in placed],
                topic_id,
                [each.leader_epoch for each in placed],
            )
            for topic_id, placed in topics.items()
        ]
        marker = sending.marker
        markers.append(
            RequestedMarker(
                marker.producer_id,
                marker.epoch,
                marker.commit,
                marked,
                marker.coordinator_epoch,
                marker.version,
                marker.number,
            )
        )
    return encode_markers(version, markers)
