"""Goal: no bytes, pace or silence of one peer affects another, costs memory or logs a traceback.

Method: hostile peers on transports in memory, virtual time for slow ones, and beside each of them
another client whose requests must be answered as always.
"""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.handlers.api import Api, Reply
from gateway.handlers.k18_api_versions import API as API_VERSIONS
from gateway.server.connection import FRAMES_PER_TURN_MAX
from gateway.wire.frames import FIRST_BUFFER_BYTES
from tests.gateway.wire_peer import answers, connect, hub_for, request, turns

HEARTBEAT = Api(key=12, name="Heartbeat", versions=range(5), handle=lambda *_: Reply(error_code=0))
BEAT = {"group_id": "g", "generation_id": 1, "member_id": "m"}


def never(request, ctx):
    return asyncio.get_running_loop().create_future()


def fetch(handle):
    return Api(key=1, name="Fetch", versions=range(4, 19), handle=handle)


def serves(hub):
    """Check that another client's request is answered."""
    neighbour = connect(hub, host="10.9.9.9")
    neighbour.send(request(12, 0, 77, BEAT))
    [answer] = answers(12, 0, neighbour)
    assert answer.correlation_id == 77
    neighbour.lose()
    return True


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 7, 100 * 1024 * 1024 + 1, 2**31 - 1])
async def test_an_impossible_size_ends_the_connection_and_takes_no_memory(size):
    hub = hub_for(HEARTBEAT)
    wire = connect(hub)
    wire.send(size.to_bytes(4, "big", signed=True) + b"x" * 100)
    await turns()
    assert wire.closed
    assert hub.memory.used_bytes == 0
    assert not hub.connections
    assert serves(hub)


@pytest.mark.parametrize(
    ("hello", "hint"),
    [
        (b"GET / HTTP/1.1\r\nHost: kafka:9092\r\n\r\n", "HTTP"),
        (b"POST /topics HTTP/1.1\r\n\r\n", "HTTP"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/2"),
        (bytes.fromhex("16030100c8010000c40303") + bytes(190), "TLS"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH"),
    ],
)
async def test_another_protocol_is_named_in_the_log_and_closed(hello, hint, capsys):
    hub = hub_for(HEARTBEAT)
    wire = connect(hub)
    wire.send(hello)
    await turns()
    assert wire.closed
    assert wire.frames() == []
    assert serves(hub)
    log = capsys.readouterr().err
    assert hint in log
    assert "Traceback" not in log


async def test_one_address_fills_no_log(capsys):
    hub = hub_for(HEARTBEAT)
    for _ in range(50):
        connect(hub).send(b"GET / HTTP/1.1\r\n\r\n")
    await turns()
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.slow
@settings(suppress_health_check=list(HealthCheck), deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=5), st.booleans())
async def test_random_bytes_end_one_connection_at_most(chunks, with_size):
    hub = hub_for(HEARTBEAT, API_VERSIONS)
    wire = connect(hub)
    for chunk in chunks:
        if not wire.closed:
            wire.send(len(chunk).to_bytes(4, "big") + chunk if with_size else chunk)
        await turns()
    assert serves(hub)
    wire.lose()
    assert hub.memory.used_bytes == 0


async def test_requests_before_the_bad_one_are_still_answered():
    wire = connect(hub_for(HEARTBEAT))
    wire.send(request(12, 0, 1, BEAT) + request(12, 0, 2, BEAT) + b"\xff\xff\xff\xff")
    await turns()
    assert [answer.correlation_id for answer in answers(12, 0, wire)] == [1, 2]
    assert wire.closed


async def test_a_request_of_an_unknown_api_ends_its_connection():
    for key, version in ((12, 5), (12, -1), (4, 0), (999, 0), (-5, 0)):
        hub = hub_for(HEARTBEAT)
        wire = connect(hub)
        frame = key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big", signed=True)
        wire.send(b"\0\0\0\x0a" + frame + b"\0\0\0\1\xff\xff")
        await turns()
        assert wire.closed
        assert serves(hub)


async def closed_after_s(send, *, limit_s, apis=(HEARTBEAT,), **limits):
    """Return after how many virtual seconds a peer that runs `send` is disconnected, or None."""
    hub = hub_for(*apis, **limits)
    hub.start()
    wire = connect(hub)
    task = asyncio.create_task(send(wire))
    loop = asyncio.get_running_loop()
    while not wire.closed and loop.time() < limit_s:
        await asyncio.sleep(0.5)
    task.cancel()
    assert serves(hub)
    hub.stop()
    return loop.time() if wire.closed else None


async def test_a_peer_that_never_asks_is_cut_off():
    async def nothing(wire):
        await asyncio.sleep(0)

    assert 10 <= await closed_after_s(nothing, limit_s=100) <= 12


async def test_half_a_frame_and_then_silence_is_cut_off():
    async def half(wire):
        wire.send(request(12, 0, 1, BEAT))
        wire.send(request(12, 0, 2, BEAT)[:-5])

    assert 30 <= await closed_after_s(half, limit_s=100) <= 33


@pytest.mark.parametrize("size", [200, 1_000_000])
async def test_a_byte_a_second_is_cut_off(size):
    async def drip(wire):
        wire.send(request(12, 0, 1, BEAT))
        for byte in size.to_bytes(4, "big") + bytes(size):
            wire.send(bytes([byte]))
            await asyncio.sleep(1)

    assert 30 <= await closed_after_s(drip, limit_s=200) <= 34


async def test_a_large_frame_at_an_honest_pace_is_let_finish():
    async def steady(wire):
        body = {"group_id": "g" * 30_000, "generation_id": 1, "member_id": "m" * 30_000}
        data = request(12, 0, 1, body)
        wire.send(request(12, 0, 0, BEAT))
        for start in range(0, len(data), 1000):
            wire.send(data[start : start + 1000])
            await asyncio.sleep(0.5)
        while True:
            wire.send(request(12, 0, 2, BEAT))
            await asyncio.sleep(30)

    assert await closed_after_s(steady, limit_s=300) is None


async def test_a_process_that_stood_still_blames_no_peer_for_that_time():
    """The bytes that came meanwhile are read only after the check."""
    hub = hub_for(HEARTBEAT)
    wire = connect(hub)
    wire.send(request(12, 0, 1, BEAT))
    wire.send(request(12, 0, 2, BEAT)[:-5])
    now_s = hub.loop.time() + 1
    wire.protocol.check(now_s)
    wire.protocol.check(now_s + 100)
    assert not wire.closed
    for second in range(40):  # awake again
        wire.protocol.check(now_s + 101 + second)
    assert wire.closed


async def test_an_idle_connection_is_closed_after_its_time():
    async def once(wire):
        wire.send(request(12, 0, 1, BEAT))

    assert 600 <= await closed_after_s(once, limit_s=700) <= 603


async def test_a_peer_that_waits_for_our_answer_is_not_idle():
    async def long_poll(wire):
        wire.send(request(1, 4, 1, {"topics": []}))

    apis = (HEARTBEAT, fetch(never))
    assert await closed_after_s(long_poll, limit_s=2_000, apis=apis) is None


async def test_a_peer_that_never_reads_is_cut_off():
    async def deaf(wire):
        wire.takes_replies = False
        wire.send(request(1, 4, 1, {"topics": []}))

    apis = (HEARTBEAT, fetch(lambda *_: [b"\0\0\0\1", bytes(1_000_000)]))
    assert 30 <= await closed_after_s(deaf, limit_s=100, apis=apis) <= 33


async def test_a_peer_that_reads_slowly_is_not_cut_off():
    async def slow(wire):
        wire.takes_replies = False
        wire.send(request(1, 4, 1, {"topics": []}))
        for _ in range(200):
            del wire.unsent[:1000]
            await asyncio.sleep(1)

    apis = (HEARTBEAT, fetch(lambda *_: [b"\0\0\0\1", bytes(1_000_000)]))
    assert await closed_after_s(slow, limit_s=150, apis=apis) is None


def answers_to_come():
    """Return a list, and a handler that appends a future of its answer to the list."""
    futures = []

    def later(request, ctx):
        futures.append(asyncio.get_running_loop().create_future())
        return futures[-1]

    return futures, later


async def test_replies_that_a_peer_does_not_read_are_bounded():
    futures, later = answers_to_come()
    hub = hub_for(HEARTBEAT, fetch(later))
    wire = connect(hub, takes_replies=False)
    for number in range(100):
        wire.send(request(1, 4, number, {"topics": []}))
    megabyte = bytes(1024 * 1024)
    most = 0
    for future in futures:
        if not future.done():
            future.set_result([b"\0\0\0\1", megabyte])
        await turns()
        most = max(most, len(wire.unsent))
    assert wire.closed
    assert most <= hub.limits.write_buffer_bytes_max + 2 * len(megabyte)
    assert serves(hub)


async def test_large_answers_behind_a_slow_one_are_bounded():
    futures, later = answers_to_come()
    hub = hub_for(HEARTBEAT, fetch(later))
    wire = connect(hub)
    for number in range(100):
        wire.send(request(1, 4, number, {"topics": []}))
    megabyte = [bytes(1024 * 1024)]
    answered = 0
    for future in futures[1:]:  # the first reply is missing
        if not future.done():
            future.set_result(megabyte)
            answered += 1
        await turns()
    assert wire.closed
    assert answered <= 18
    assert serves(hub)


async def test_one_large_answer_may_wait_for_a_slow_one():
    futures, later = answers_to_come()
    wire = connect(hub_for(HEARTBEAT, fetch(later)))
    for number in range(3):
        wire.send(request(1, 4, number, {"topics": []}))
    futures[2].set_result([bytes(50 * 1024 * 1024)])
    await turns()
    assert not wire.reading  # no request is accepted meanwhile
    futures[1].set_result([b"small"])
    futures[0].set_result([b"small"])
    await turns()
    assert len(wire.frames()) == 3
    assert wire.reading


async def test_a_flood_is_taken_in_turns_and_answered_in_order():
    hub = hub_for(HEARTBEAT)
    flood = connect(hub)
    flood.send(b"".join(request(12, 0, number, BEAT) for number in range(10_000)))
    taken = answers(12, 0, flood)
    assert len(taken) == FRAMES_PER_TURN_MAX  # then another client has its turn
    assert serves(hub)
    while len(taken) < 10_000:
        await asyncio.sleep(0)
        taken += answers(12, 0, flood)
    assert [answer.correlation_id for answer in taken] == list(range(10_000))


async def test_a_flood_has_a_hundred_requests_in_flight_and_no_more():
    seen = []

    def waits(request, ctx):
        seen.append(request.correlation_id)
        return never(request, ctx)

    hub = hub_for(HEARTBEAT, fetch(waits))
    flood = connect(hub)
    flood.send(b"".join(request(1, 4, number, {"topics": []}) for number in range(10_000)))
    await turns(200)
    assert len(seen) == 100
    assert not flood.reading
    assert serves(hub)


async def test_one_address_has_its_share_of_connections_and_loopback_is_exempt():
    hub = hub_for(HEARTBEAT, connections_per_address_max=3, connections_max=20)
    crowd = [connect(hub, host="10.1.1.1") for _ in range(5)]
    await turns()
    assert [wire.closed for wire in crowd] == [False] * 3 + [True] * 2
    local = [connect(hub, host="127.0.0.1") for _ in range(5)]
    await turns()
    assert not any(wire.closed for wire in local)
    assert serves(hub)


async def test_connections_have_a_limit_and_a_place_is_free_again_when_one_ends():
    hub = hub_for(HEARTBEAT, connections_max=2)
    first, second, third = (connect(hub) for _ in range(3))
    await turns()
    assert (first.closed, second.closed, third.closed) == (False, False, True)
    first.lose()
    assert not connect(hub).closed


async def test_a_peer_that_leaves_in_the_middle_of_a_frame_leaves_nothing_behind(capsys):
    hub = hub_for(HEARTBEAT)
    data = len(bytes(5_000_000)).to_bytes(4, "big") + bytes(200_000)
    for error in (None, ConnectionResetError(), BrokenPipeError()):
        wire = connect(hub)
        wire.send(data)
        assert hub.memory.used_bytes == FIRST_BUFFER_BYTES
        wire.lose(error)
        assert hub.memory.used_bytes == 0
    assert not hub.connections
    assert capsys.readouterr().err == ""


async def test_a_peer_that_waits_for_memory_is_not_blamed_for_its_silence():
    hub = hub_for(HEARTBEAT, frame_bytes_max=1_000_000, memory_bytes_max=2_000_000)
    hub.start()
    hub.memory.take("10.5.5.5", 600_000)  # a request of another client, in flight
    patient = connect(hub)
    large = request(1, 4, 1, {"topics": [{"topic": "t" * 30_000, "partitions": []}] * 20})
    patient.send(large)
    await asyncio.sleep(60)
    assert not patient.closed
    hub.stop()


async def test_each_large_answer_that_was_let_wait_leaves_the_bound_as_it_was():
    futures, later = answers_to_come()
    hub = hub_for(HEARTBEAT, fetch(later))
    wire = connect(hub)
    for number in range(2):
        wire.send(request(1, 4, number, {"topics": []}))
    futures[1].set_result([bytes(50 * 1024 * 1024)])
    futures[0].set_result([b"small"])
    await turns()
    assert wire.reading
    wire.send(request(1, 4, 2, {"topics": []}))
    for number in range(3, 43):
        wire.send(request(1, 4, number, {"topics": []}))
    megabyte = [bytes(1024 * 1024)]
    answered = 0
    for future in futures[3:]:  # the reply before them is missing
        if not future.done():
            future.set_result(megabyte)
            answered += 1
        await turns()
    assert wire.closed
    assert answered <= 18
    assert serves(hub)
