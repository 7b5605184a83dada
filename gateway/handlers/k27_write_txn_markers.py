"""WriteTxnMarkers, key 27, v1-v2: ends transactions in the partitions that this broker leads.

v2 transaction version (KIP-1228). Coordinators of other gateways send it, with tagged fields of
this project (gateway.wire.marker_request), and admin clients that abort a hanging transaction. The
answer of a partition follows once its marker is durable and may be acknowledged. A partition that
another gateway leads answers NOT_LEADER_OR_FOLLOWER, as a replica does in Kafka, and so does one
that is being opened if a coordinator asks. A marker that is not durable after `_WAIT_S_MAX` answers
REQUEST_TIMED_OUT and stays in its partition's order. As in Kafka, the answers to several markers of
one producer are merged.
A marker for `__consumer_offsets` reaches every group of the partition with pending offsets.
Source: Kafka, KafkaApis.handleWriteTxnMarkersRequest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.access import Operation
from gateway.core.partition_transactions import EndMarker
from gateway.handlers.api import Api, Context, Reply, Request, Result
from gateway.handlers.many_rows import Rows
from gateway.handlers.rights import CLUSTER_DENIED, allows_cluster
from gateway.transactions.local_markers import LocalMarkers, OnMarked
from gateway.wire.marker_request import MarkedTopic, RequestedMarker, decode_markers

_WAIT_S_MAX = 20.0  # less than the time after which another gateway closes its connection
_PER_TURN = 200  # partitions that are handled before other tasks run


class _Place(NamedTuple):
    """One partition of one marker in the request."""

    marker: RequestedMarker
    topic: MarkedTopic
    at: int  # its place among the partitions of the topic


class _Writing:
    """The markers of one request, from the first append until each partition has answered."""

    def __init__(
        self, markers: Sequence[RequestedMarker], local: LocalMarkers | _NoMarkers
    ) -> None:
        loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = loop.create_future()
        self._local = local
        self._places = _places(markers)
        # The answers by producer id, topic and partition: REQUEST_TIMED_OUT until there is one.
        self.errors: dict[int, dict[str, dict[int, ErrorCode]]] = {}
        self._left = 1  # partitions without an answer, and 1 until all were appended
        self._timer = loop.call_later(_WAIT_S_MAX, self._end)
        self._append_some()

    def _append_some(self) -> None:
        """Append the next markers, and the others in later turns of the loop."""
        some = list(islice(self._places, _PER_TURN))
        for place in some:
            self._append(place)
        if len(some) == _PER_TURN and not self.done.done():
            asyncio.get_running_loop().call_soon(self._append_some)
        else:
            self._on_answered()

    def _append(self, place: _Place) -> None:
        marker, topic, at = place
        end = EndMarker(
            marker.producer_id,
            marker.epoch,
            marker.coordinator_epoch,
            marker.commit,
            marker.version,
            marker.number,
            topic.leader_epoch(at),
        )
        self._left += 1
        index = topic.indexes[at]
        on_marked = partial(self._on_marked, self._row(place), index)
        self._local.append(topic.name, index, end, on_marked, topic.topic_id)

    def _row(self, place: _Place) -> dict[int, ErrorCode]:
        """Add a partition to the answers, and return those of its topic."""
        answers = self.errors.setdefault(place.marker.producer_id, {})
        of_topic = answers.setdefault(place.topic.name, {})
        of_topic[place.topic.indexes[place.at]] = ErrorCode.request_timed_out
        return of_topic

    def _on_marked(self, answers: dict[int, ErrorCode], index: int, error: ErrorCode) -> None:
        if not self.done.done():
            answers[index] = error
            self._on_answered()

    def _on_answered(self) -> None:
        self._left -= 1
        if not self._left:
            self._end()

    def _end(self) -> None:
        self._timer.cancel()
        if not self.done.done():
            for place in self._places:  # too late: they are not appended any more
                self._row(place)
            self.done.set_result(None)


def _places(markers: Sequence[RequestedMarker]) -> Iterator[_Place]:
    for marker in markers:
        for topic in marker.topics:
            for at in range(len(topic.indexes)):
                yield _Place(marker, topic, at)


def handle(
    request: Request, ctx: Context
) -> Result | asyncio.Future[Result] | Coroutine[Any, Any, Result]:
    """Append the markers now. Requests of usual size are answered without a task of their own."""
    markers: Sequence[RequestedMarker] = request.body
    assert ctx.markers is not None
    if not allows_cluster(request, ctx, Operation.ALTER) and not allows_cluster(
        request, ctx, Operation.CLUSTER_ACTION
    ):
        writing = _Writing(markers, _NoMarkers(CLUSTER_DENIED))
    elif any(min(each.producer_id, each.epoch, each.version) < 0 for each in markers):
        # Kafka cannot write such a marker, and fails the whole request.
        writing = _Writing(markers, _NoMarkers(ErrorCode.unknown_server_error))
    else:
        writing = _Writing(markers, ctx.markers)
    if sum(marker.partitions for marker in markers) > _PER_TURN:
        return _answer_many(request, writing)
    reply: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
    writing.done.add_done_callback(partial(_answer, reply, writing))
    return reply


def _answer(reply: asyncio.Future[Result], writing: _Writing, _: asyncio.Future[None]) -> None:
    if reply.done():
        return
    markers = [
        Reply(
            producer_id=producer_id,
            topics=[
                Reply(name=name, partitions=[_row(each) for each in answers.items()])
                for name, answers in topics.items()
            ],
        )
        for producer_id, topics in writing.errors.items()
    ]
    reply.set_result(Reply(markers=markers))


async def _answer_many(request: Request, writing: _Writing) -> Result:
    """Return the answers. The rows of many partitions are encoded with pauses."""
    await writing.done
    markers = Rows(request, "markers")
    for producer_id, topics in writing.errors.items():
        of_producer = Rows(request, "markers", "topics")
        for name, answers in topics.items():
            rows = Rows(request, "markers", "topics", "partitions")
            for each in answers.items():
                await rows.add(_row(each))
            await of_producer.add(Reply(name=name, partitions=rows.result()))
        await markers.add(Reply(producer_id=producer_id, topics=of_producer.result()))
    return Reply(markers=markers.result())


def _row(answer: tuple[int, ErrorCode]) -> Reply:
    return Reply(partition_index=answer[0], error_code=answer[1])


class _NoMarkers:
    """The receiver of markers that cannot be written, or that the client may not write."""

    def __init__(self, error: ErrorCode) -> None:
        self._error = error

    def append(
        self,
        topic: str,
        index: int,
        marker: EndMarker,
        on_marked: OnMarked,
        topic_id: UUID | None = None,
    ) -> None:
        on_marked(self._error)


API = Api(
    key=27,
    name="WriteTxnMarkers",
    versions=range(1, 3),
    handle=handle,
    decode=decode_markers,
)
