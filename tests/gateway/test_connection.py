"""Goal: one connection answers in request order, and stops reading instead of hoarding.

Method: a `Connection` on a transport in memory (`wire_peer`), rows whose handlers the test decides,
virtual time where time matters.
"""

from __future__ import annotations

import asyncio

import pytest

from gateway.handlers.api import Api, ConnectionEnds, Reply
from gateway.wire.messages import decode_response
from tests.gateway.wire_peer import answers, connect, hub_for, request, turns

HEARTBEAT, PRODUCE, METADATA, LIST_OFFSETS, FETCH = 12, 0, 3, 2, 1
BEAT = {"group_id": "g", "generation_id": 1, "member_id": "m"}


def produce_body(acks=-1, records=b"x" * 70):
    return {
        "acks": acks,
        "timeout": 1000,
        "topic_data": [{"name": "t", "partition_data": [{"index": 4, "records": records}]}],
    }


def heartbeat(handle):
    return Api(key=HEARTBEAT, name="Heartbeat", versions=range(5), handle=handle)


def produce(handle):
    return Api(key=PRODUCE, name="Produce", versions=range(3, 14), handle=handle)


def fetch(handle):
    return Api(key=FETCH, name="Fetch", versions=range(4, 19), handle=handle)


def at_once(request, ctx):
    return Reply(error_code=0)


class Later:
    """A handler that answers when the test says so."""

    def __init__(self):
        self.futures = []
        self.seen = []

    def __call__(self, request, ctx):
        self.seen.append(request.correlation_id)
        future = asyncio.get_running_loop().create_future()
        self.futures.append(future)
        return future


def correlation_ids(wire):
    return [int.from_bytes(frame[:4], "big") for frame in wire.frames()]


async def test_a_reply_carries_the_requests_correlation_id_and_its_client_is_known():
    seen = []

    def handle(request, ctx):
        seen.append((request.client_id, request.peer.host, request.body.group_id))
        return Reply(error_code=27)

    wire = connect(hub_for(heartbeat(handle)))
    wire.send(request(HEARTBEAT, 4, 99, BEAT))
    [answer] = answers(HEARTBEAT, 4, wire)
    assert (answer.correlation_id, int(answer.body.error_code)) == (99, 27)
    assert seen == [("test", "10.0.0.1", "g")]


async def test_replies_leave_in_request_order_when_later_ones_are_ready_first():
    later = Later()
    wire = connect(hub_for(produce(later)))
    for number in range(3):
        wire.send(request(PRODUCE, 9, number, produce_body()))
    for place in (2, 1):
        later.futures[place].set_result([place.to_bytes(4, "big")])
        await turns()
        assert wire.frames() == []
    later.futures[0].set_result([(0).to_bytes(4, "big")])
    await turns()
    assert correlation_ids(wire) == [0, 1, 2]


async def test_an_answer_that_is_ready_waits_for_an_earlier_one_that_is_not():
    later = Later()
    wire = connect(hub_for(produce(later), heartbeat(at_once)))
    wire.send(request(PRODUCE, 9, 1, produce_body()) + request(HEARTBEAT, 0, 2, BEAT))
    await turns()
    assert wire.frames() == []
    later.futures[0].set_result([(1).to_bytes(4, "big")])
    await turns()
    assert correlation_ids(wire) == [1, 2]


async def test_many_replies_that_become_ready_in_one_turn_leave_with_one_write():
    later = Later()
    wire = connect(hub_for(produce(later)))
    for number in range(50):
        wire.send(request(PRODUCE, 9, number, produce_body()))
    for number, future in enumerate(later.futures):
        future.set_result([number.to_bytes(4, "big")])
    await turns()
    assert correlation_ids(wire) == list(range(50))
    assert wire.writes == 1


async def test_a_request_without_reply_leaves_no_gap():
    wire = connect(hub_for(produce(lambda *_: None), heartbeat(at_once)))
    wire.send(request(PRODUCE, 9, 1, produce_body(acks=0)) + request(HEARTBEAT, 0, 2, BEAT))
    assert correlation_ids(wire) == [2]


async def test_coroutines_of_one_connection_run_one_after_another():
    running, most = 0, 0

    async def handle(request, ctx):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1
        return Reply(error_code=request.correlation_id)

    wire = connect(hub_for(heartbeat(handle)))
    for number in range(5):
        wire.send(request(HEARTBEAT, 0, number, BEAT))
    await asyncio.sleep(6)
    assert [int(a.body.error_code) for a in answers(HEARTBEAT, 0, wire)] == [0, 1, 2, 3, 4]
    assert most == 1


async def test_a_quick_request_behind_a_slow_one_waits_for_its_turn():
    order = []

    async def slow(request, ctx):
        await asyncio.sleep(1)
        order.append("slow")
        return Reply()

    def quick(request, ctx):
        order.append("quick")
        return Reply()

    metadata = Api(key=METADATA, name="Metadata", versions=range(14), handle=quick)
    wire = connect(hub_for(heartbeat(slow), metadata))
    wire.send(request(HEARTBEAT, 0, 1, BEAT) + request(METADATA, 1, 2, {"topics": None}))
    await asyncio.sleep(2)
    assert order == ["slow", "quick"]
    assert correlation_ids(wire) == [1, 2]


async def test_produce_is_accepted_at_once_behind_a_slow_request():
    later = Later()

    async def slow(request, ctx):
        await asyncio.sleep(1)
        return Reply()

    wire = connect(hub_for(heartbeat(slow), produce(later)))
    wire.send(request(HEARTBEAT, 0, 1, BEAT) + request(PRODUCE, 9, 2, produce_body()))
    assert later.seen == [2]
    later.futures[0].set_result([(2).to_bytes(4, "big")])
    await asyncio.sleep(2)
    assert correlation_ids(wire) == [1, 2]


async def test_reading_stops_at_the_limit_of_requests_and_goes_on_when_replies_have_left():
    later = Later()
    wire = connect(hub_for(produce(later), requests_in_flight_max=10))
    for number in range(25):
        wire.send(request(PRODUCE, 9, number, produce_body()))
    await turns()
    assert len(later.seen) == 10
    assert not wire.reading
    for number in range(25):
        while number >= len(later.futures):
            await turns()
        later.futures[number].set_result([number.to_bytes(4, "big")])
        await turns()
    assert correlation_ids(wire) == list(range(25))
    assert wire.reading


async def test_reading_stops_while_the_peer_takes_no_replies():
    big = [b"\0\0\0\1" + bytes(400_000)]
    wire = connect(hub_for(fetch(lambda *_: list(big))), takes_replies=False)
    for number in range(4):
        wire.send(request(FETCH, 4, number, {"topics": []}))
    await turns()
    assert not wire.reading
    assert len(wire.unsent) < 1_000_000
    wire.take_all()
    await turns()
    assert len(wire.frames()) == 4


async def test_record_buffers_reach_the_transport_uncopied_and_in_place():
    wire = connect(hub_for(fetch(lambda *_: [b"head", memoryview(b"records"), b"tail"])))
    wire.send(request(FETCH, 4, 1, {"topics": []}))
    assert wire.frames() == [b"headrecordstail"]


async def test_a_large_request_waits_until_there_is_memory():
    later = Later()
    hub = hub_for(produce(later), frame_bytes_max=400_000, memory_bytes_max=1_000_000)
    first, second = connect(hub), connect(hub)
    first.send(request(PRODUCE, 9, 1, produce_body(records=bytes(300_000))))
    second.send(request(PRODUCE, 9, 2, produce_body(records=bytes(300_000))))
    await turns()
    assert later.seen == [1]
    later.futures[0].set_result([b"done"])
    await turns()
    assert later.seen == [1, 2]
    later.futures[1].set_result([b"done"])
    await turns()
    assert hub.memory.used_bytes == 0


async def test_the_work_of_a_lost_peer_goes_on_and_is_then_forgotten():
    later = Later()
    hub = hub_for(produce(later))
    wire = connect(hub)
    wire.send(request(PRODUCE, 9, 1, produce_body()))
    wire.lose(ConnectionResetError())
    assert not later.futures[0].cancelled()
    assert len(hub.connections) == 1
    later.futures[0].set_result([b"nobody reads this"])
    await turns()
    assert not hub.connections
    assert hub.memory.used_bytes == 0


async def test_a_fetch_of_a_lost_peer_stops_waiting():
    later = Later()
    hub = hub_for(fetch(later))
    wire = connect(hub)
    wire.send(request(FETCH, 4, 1, {"topics": []}))
    wire.lose()
    await turns()
    assert later.futures[0].cancelled()
    assert not hub.connections


async def test_a_search_of_a_lost_peer_is_cancelled():
    later = Later()
    hub = hub_for(Api(key=2, name="ListOffsets", versions=range(1, 12), handle=later))
    wire = connect(hub)
    wire.send(request(2, 1, 1, {"replica_id": -1, "topics": []}))
    wire.lose()
    await turns()
    assert later.futures[0].cancelled()
    assert not hub.connections


async def test_a_search_of_a_lost_peer_that_runs_in_its_turn_is_cancelled():
    later = Later()

    async def handle(request, ctx):
        return await later(request, ctx)

    hub = hub_for(Api(key=2, name="ListOffsets", versions=range(1, 12), handle=handle))
    wire = connect(hub)
    for number in range(2):
        wire.send(request(2, 1, number, {"replica_id": -1, "topics": []}))
    await turns()
    wire.lose()
    await turns()
    assert [each.cancelled() for each in later.futures] == [True]
    assert not hub.connections
    assert hub.memory.used_bytes == 0


async def test_requests_of_a_lost_peer_that_had_not_begun_never_begin():
    begun = []

    async def handle(request, ctx):
        begun.append(request.correlation_id)
        await asyncio.sleep(1)
        return Reply()

    hub = hub_for(heartbeat(handle))
    wire = connect(hub)
    for number in range(3):
        wire.send(request(HEARTBEAT, 0, number, BEAT))
    await turns()
    wire.lose()
    await asyncio.sleep(5)
    assert begun == [0]
    assert not hub.connections


async def test_an_answer_of_something_else_than_bytes_ends_the_connection_and_frees_its_memory():
    later = Later()
    hub = hub_for(produce(later))
    wire = connect(hub)
    for number in range(2):
        wire.send(request(PRODUCE, 9, number, produce_body()))
    assert hub.memory.used_bytes
    later.futures[0].set_result([5])
    await turns()
    assert wire.closed
    later.futures[1].set_result([b"late"])
    await turns()
    assert hub.memory.used_bytes == 0
    assert not hub.connections


async def test_a_handler_that_is_cancelled_by_what_it_awaits_leaves_nothing_behind():
    reports = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: reports.append(told))

    async def cancelled(request, ctx):
        awaited = asyncio.get_running_loop().create_future()
        awaited.cancel()
        await awaited

    hub = hub_for(heartbeat(cancelled))
    wire = connect(hub)
    wire.send(request(HEARTBEAT, 4, 1, BEAT) + request(HEARTBEAT, 4, 2, BEAT))
    await turns()
    assert wire.closed
    assert not hub.connections
    assert hub.memory.used_bytes == 0
    assert len(reports) == 1


class Broken(Exception):
    """A bug of ours."""


def fail(request, ctx):
    raise Broken


async def fail_later(request, ctx):
    await asyncio.sleep(0)
    raise Broken


def fail_in_a_future(request, ctx):
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_exception, Broken())
    return future


def answer_nonsense(request, ctx):
    return Reply(error_code="no number")


BROKEN = [fail, fail_later, fail_in_a_future, answer_nonsense]


@pytest.mark.parametrize("handle", BROKEN)
async def test_a_bug_is_answered_where_the_api_has_an_error_field_and_logged(handle, capsys):
    wire = connect(hub_for(heartbeat(handle)))
    wire.send(request(HEARTBEAT, 0, 1, BEAT))
    await turns()
    [answer] = answers(HEARTBEAT, 0, wire)
    assert int(answer.body.error_code) == -1
    assert not wire.closed
    assert "handler failed" in capsys.readouterr().err


async def test_a_bug_is_logged_once_a_minute_for_each_api_address_and_type(capsys):
    """A client that finds a bug would otherwise fill the disk, with names as long as it likes."""
    errors = [Broken, Broken, KeyError, Broken]

    def handle(request, ctx):
        raise errors[request.correlation_id]("x" * 100_000)

    registry = hub_for(heartbeat(handle))
    wires = [connect(registry), connect(registry), connect(registry, host="10.0.0.77")]
    for wire in wires:
        for number in range(len(errors)):
            wire.send(request(HEARTBEAT, 0, number, BEAT, client_id="me" * 15_000))
    await turns()
    lines = [line for line in capsys.readouterr().err.splitlines() if "handler failed" in line]
    assert len(lines) == 4  # two types of error from each of two addresses
    assert all("Traceback" in line and len(line) < 20_000 for line in lines)
    assert [len(answers(HEARTBEAT, 0, wire)) for wire in wires] == [4, 4, 4]


@pytest.mark.parametrize("handle", BROKEN[:3])
async def test_a_bug_ends_the_connection_where_the_api_has_none(handle):
    api = Api(key=LIST_OFFSETS, name="ListOffsets", versions=range(1, 12), handle=handle)
    wire = connect(hub_for(api))
    wire.send(request(LIST_OFFSETS, 1, 1, {"replica_id": -1}))
    await turns()
    assert wire.closed
    assert wire.frames() == []


@pytest.mark.parametrize("handle", BROKEN[:3])
async def test_a_bug_never_tells_a_producer_that_its_records_are_not_there(handle):
    wire = connect(hub_for(produce(handle)))
    wire.send(request(PRODUCE, 9, 1, produce_body()))
    await turns()
    [answer] = answers(PRODUCE, 9, wire)
    [partition] = answer.body.responses[0].partition_responses
    assert (partition.index, partition.error_code.name) == (4, "request_timed_out")


async def test_a_bug_in_produce_without_acks_ends_the_connection():
    wire = connect(hub_for(produce(fail)))
    wire.send(request(PRODUCE, 9, 1, produce_body(acks=0)))
    await turns()
    assert wire.closed


async def test_api_versions_of_the_future_is_answered_in_the_oldest_form():
    from gateway.handlers.k18_api_versions import API

    wire = connect(hub_for(API, heartbeat(at_once)))
    frame = bytes.fromhex("0012 0063 00000007 ffff 00")
    wire.send(len(frame).to_bytes(4, "big") + frame)
    [frame] = wire.frames()
    answer = decode_response(18, 0, frame)
    assert (answer.correlation_id, int(answer.body.error_code)) == (7, 35)
    assert [(row.api_key, row.max_version) for row in answer.body.api_keys] == [(18, 4)]


async def test_a_drained_connection_answers_what_it_was_asked_and_closes():
    later = Later()
    wire = connect(hub_for(produce(later)))
    wire.send(request(PRODUCE, 9, 1, produce_body()))
    wire.protocol.close_when_answered()
    wire.send(request(PRODUCE, 9, 2, produce_body()))
    await turns()
    assert not wire.closed
    later.futures[0].set_result([(1).to_bytes(4, "big")])
    await turns()
    assert correlation_ids(wire) == [1]
    assert wire.closed
    assert later.seen == [1]


async def test_a_request_that_ends_its_connection_lets_the_earlier_ones_be_answered(capsys):
    later = Later()
    wire = connect(hub_for(produce(later)))
    for number in range(3):
        wire.send(request(PRODUCE, 9, number, produce_body(acks=0 if number == 1 else -1)))
    later.futures[1].set_exception(ConnectionEnds("no leader"))
    await turns()
    assert not wire.closed
    wire.send(request(PRODUCE, 9, 3, produce_body()))
    assert len(later.futures) == 3  # nothing is read any more
    for number in (2, 0):
        later.futures[number].set_result([number.to_bytes(4, "big")])
    await turns()
    assert correlation_ids(wire) == [0]  # the connection ends before the reply to 2
    assert wire.closed
    assert "no leader" in capsys.readouterr().err


async def test_no_request_begins_behind_one_that_ends_its_connection():
    begun = []

    def handle(request, ctx):
        begun.append(request.correlation_id)
        raise ConnectionEnds("no leader")

    hub = hub_for(produce(handle))
    wire = connect(hub)
    wire.send(b"".join(request(PRODUCE, 9, number, produce_body(acks=0)) for number in range(3)))
    await turns()
    assert begun == [0]
    assert wire.closed
    assert not hub.connections
    assert hub.memory.used_bytes == 0
