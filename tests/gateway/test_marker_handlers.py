"""Goal: WriteTxnMarkers and DescribeProducers answer as Kafka 4.3, also if a request
is forged or huge.

Method: requests in Kafka's bytes through the dispatcher, over a broker's topics on virtual time.
The receiver of markers is a port that the test answers.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from kio.schema.errors import ErrorCode as Code

from gateway.handlers import k27_write_txn_markers as handler
from gateway.server.dispatch import RequestRefused
from gateway.wire.marker_request import MarkedTopic, RequestedMarker, encode_markers
from tests.gateway.stream_cluster import PEER, started_cluster

WRITE_TXN_MARKERS, DESCRIBE_PRODUCERS = 27, 61


class Received:
    """Answers each marker with `code`, or keeps its callback while `code` is None."""

    def __init__(self):
        self.code = Code.none
        self.appended, self.waiting = [], []

    def append(self, topic, index, marker, on_marked, topic_id=None, sender=None):
        self.appended.append((topic, index, marker, topic_id))
        if self.code is None:
            self.waiting.append(on_marked)
        else:
            on_marked(self.code)


@asynccontextmanager
async def broker():
    async with started_cluster() as cluster:
        cluster.context.markers = Received()
        yield cluster
        await cluster.partitions.stop()


def asked(*topics, producer=7, epoch=3, **changed):
    return {
        "producer_id": producer,
        "producer_epoch": epoch,
        "transaction_result": True,
        "topics": [{"name": name, "partition_indexes": list(indexes)} for name, indexes in topics],
        "coordinator_epoch": 5,
        "transaction_version": 2,
        **changed,
    }


def start(cluster, *markers, version=2):
    """Return the request and the handler's result for markers with our fields too."""
    head = WRITE_TXN_MARKERS.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4)
    frame = head + b"\xff\xff\x00" + encode_markers(version, markers)
    request, handle = cluster.dispatcher.open(frame, PEER)
    return request, cluster.dispatcher.start(request, handle)


async def write(cluster, *markers, version=2):
    return codes(await cluster.answer(WRITE_TXN_MARKERS, version, markers=list(markers)))


def codes(reply):
    return {
        (marker.producer_id, topic.name, each.partition_index): each.error_code
        for marker in reply.markers
        for topic in marker.topics
        for each in topic.partitions
    }


@pytest.mark.parametrize("version", [1, 2])
async def test_a_marker_without_our_fields_is_checked_as_in_kafka(version):
    async with broker() as cluster:
        assert await write(cluster, asked(("t", [0])), version=version) == {(7, "t", 0): Code.none}
        ((topic, index, marker, topic_id),) = cluster.context.markers.appended
        transaction_version = 2 if version == 2 else 0
        assert (topic, index, topic_id) == ("t", 0, None)
        assert marker == (7, 3, 5, True, transaction_version, -1, -1)


async def test_our_fields_reach_the_partition():
    async with broker() as cluster:
        topic_id = (await cluster.topic("t", 2)).name[:36]
        known = cluster.catalog.by_name("t").topic_id
        assert str(known) == topic_id
        topic = MarkedTopic("t", (0, 1), known, (8, 9))
        _, result = start(cluster, RequestedMarker(7, 3, False, [topic], 5, 2, 11))
        await result
        assert cluster.context.markers.appended == [
            ("t", 0, (7, 3, 5, False, 2, 11, 8), known),
            ("t", 1, (7, 3, 5, False, 2, 11, 9), known),
        ]


async def test_the_answer_follows_the_last_partition():
    async with broker() as cluster:
        received = cluster.context.markers
        received.code = None
        request, result = cluster.ask(
            WRITE_TXN_MARKERS, 2, markers=[asked(("t", [0, 1]), ("u", [0]))]
        )
        for on_marked in received.waiting[:2]:
            on_marked(Code.none)
        await asyncio.sleep(1)
        assert not result.done()
        received.waiting[2](Code.not_leader_or_follower)
        assert codes(cluster.decoded(request, await result)) == {
            (7, "t", 0): Code.none,
            (7, "t", 1): Code.none,
            (7, "u", 0): Code.not_leader_or_follower,
        }


async def test_a_partition_that_does_not_answer_times_out_alone():
    async with broker() as cluster:
        received = cluster.context.markers
        received.code = None
        request, result = cluster.ask(WRITE_TXN_MARKERS, 2, markers=[asked(("t", [0, 1]))])
        received.waiting[0](Code.none)
        assert codes(cluster.decoded(request, await result)) == {
            (7, "t", 0): Code.none,
            (7, "t", 1): Code.request_timed_out,
        }
        received.waiting[1](Code.none)  # too late, and harmless


async def test_markers_of_one_producer_are_answered_together():
    async with broker() as cluster:
        markers = [asked(("t", [0])), asked(("t", [1])), asked(("t", [0]), producer=8)]
        reply = await cluster.answer(WRITE_TXN_MARKERS, 2, markers=markers)
        assert [each.producer_id for each in reply.markers] == [7, 8]
        assert len(codes(reply)) == 3


@pytest.mark.parametrize("markers", [[], [asked()], [asked(("t", []))]])
async def test_a_request_without_partitions_has_an_empty_answer(markers):
    async with broker() as cluster:
        assert await write(cluster, *markers) == {}


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param({"producer_id": -1, "producer_epoch": -1}, id="no producer"),
        pytest.param({"producer_epoch": -1}, id="no epoch"),
        pytest.param({"transaction_version": -1}, id="no version"),
    ],
)
async def test_a_marker_that_kafka_cannot_write_fails_the_request(forged):
    async with broker() as cluster:
        errors = await write(cluster, asked(("t", [0])), asked(("t", [1]), **forged))
        assert set(errors.values()) == {Code.unknown_server_error}
        assert len(errors) == 2
        assert cluster.context.markers.appended == []


async def test_100_000_partitions_in_one_request_get_an_answer_each():
    async with broker() as cluster:
        turns = 0

        def count():
            nonlocal turns
            turns += 1
            loop.call_soon(count)

        loop = asyncio.get_running_loop()
        loop.call_soon(count)
        topic = MarkedTopic("t", range(100_000))
        request, result = start(cluster, RequestedMarker(7, 3, False, [topic], 5, 2))
        errors = codes(cluster.decoded(request, await result))
        assert len(errors) == 100_000
        assert set(errors.values()) == {Code.none}
        assert turns > 100_000 // handler._PER_TURN, "other tasks have to run meanwhile"


async def test_partitions_that_are_not_reached_in_time_time_out(monkeypatch):
    monkeypatch.setattr(handler, "_WAIT_S_MAX", 0.0)
    async with broker() as cluster:
        topic = MarkedTopic("t", range(1_000))
        request, result = start(cluster, RequestedMarker(7, 3, False, [topic], 5, 2))
        errors = codes(cluster.decoded(request, await result))
        assert len(errors) == 1_000
        assert errors[7, "t", 999] is Code.request_timed_out
        assert len(cluster.context.markers.appended) < 1_000


async def test_more_partitions_than_the_limit_end_the_connection():
    async with broker() as cluster:
        topic = MarkedTopic("t", range(250_001))
        with pytest.raises(RequestRefused, match="limit"):
            start(cluster, RequestedMarker(7, 3, False, [topic], 5, 2))
