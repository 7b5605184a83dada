"""Goal: replies that a peer reads slowly are counted until they are sent, and then forgotten.

Method: connections on transports in memory that take bytes when the test says so; the memory of
replies is compared with the bytes that the peer has not taken. Real sockets on both loops follow.
"""

from __future__ import annotations

import asyncio
import socket

import pytest

from gateway.server.send_queue import CHUNK_BYTES, LAST_BYTES_MAX
from gateway.server.timeouts import PRESSED_S_MAX
from gateway.topics.reply_memory import ReservedReply
from tests.gateway.test_connection import FETCH, Later, fetch
from tests.gateway.test_server import LOOPS, framed, serving
from tests.gateway.wire_peer import connect, hub_for, request, turns

MIB = 1024 * 1024
FRAME_HEAD_BYTES = 4
EMPTY = {"topics": []}


def parts(count, size=100_000):
    """Return the buffers of a large reply."""
    return [bytes([number % 256]) * size for number in range(count)]


def ask(wire, number):
    wire.send(request(FETCH, 4, number, EMPTY))


async def test_a_large_reply_is_handed_over_in_chunks_and_counted_until_it_is_sent():
    later = Later()
    hub = hub_for(fetch(later))
    wire = connect(hub, takes_replies=False)
    ask(wire, 1)
    later.futures[0].set_result(parts(100))
    await turns()
    assert len(wire.unsent) <= CHUNK_BYTES + LAST_BYTES_MAX + 100_000
    assert hub.replies.used_bytes == 10_000_004
    left = hub.replies.used_bytes
    wire.take_some(400_000)  # a transport keeps the whole chunk until all of it is sent
    await asyncio.sleep(1)
    wire.protocol.check(asyncio.get_running_loop().time())
    assert hub.replies.used_bytes == left
    while wire.unsent:
        wire.take_some()
        assert hub.replies.used_bytes < left
        assert hub.replies.used_bytes >= len(wire.unsent)
        left = hub.replies.used_bytes
    assert left == 0
    assert wire.frames() == [b"".join(parts(100))]
    await turns()
    assert wire.reading


async def test_a_reply_behind_an_unanswered_request_is_counted():
    later = Later()
    hub = hub_for(fetch(later))
    wire = connect(hub)
    for number in range(2):
        ask(wire, number)
    later.futures[1].set_result(parts(10))
    await turns()
    assert hub.replies.used_bytes == 1_000_000
    later.futures[0].set_result([b"small"])
    await turns()
    assert hub.replies.used_bytes == 0
    assert len(wire.frames()) == 2


@pytest.mark.parametrize("waits", [False, True])
async def test_the_memory_of_a_lost_peer_comes_back(waits):
    later = Later()
    hub = hub_for(fetch(later))
    wire = connect(hub, takes_replies=False)
    for number in range(2):
        ask(wire, number)
    later.futures[int(waits)].set_result(parts(50))
    await turns()
    assert hub.replies.used_bytes >= 5_000_000
    wire.lose()
    await turns()
    assert hub.replies.used_bytes == 0
    assert not hub.connections


async def test_a_reservation_passes_from_the_read_to_the_connection():
    later = Later()
    hub = hub_for(fetch(later))
    wire = connect(hub, takes_replies=False)
    ask(wire, 1)
    assert hub.replies.try_take(8_000_000)
    later.futures[0].set_result(ReservedReply(parts(60), 8_000_000, hub.replies))
    await turns()
    assert hub.replies.used_bytes == 6_000_004
    wire.lose()
    await turns()
    assert hub.replies.used_bytes == 0


async def test_a_reservation_for_a_lost_peer_is_returned():
    later = Later()
    hub = hub_for(fetch(later))
    wire = connect(hub)
    ask(wire, 1)
    assert hub.replies.try_take(8_000_000)
    later.futures[0].set_result(ReservedReply(parts(60), 8_000_000, hub.replies))
    wire.lose()
    await turns()
    assert hub.replies.used_bytes == 0
    assert not hub.connections


async def test_small_replies_that_a_peer_does_not_take_are_counted_within_a_second():
    later = Later()
    hub = hub_for(fetch(later))
    hub.start()
    wire = connect(hub, takes_replies=False)
    ask(wire, 1)
    later.futures[0].set_result([bytes(50_000)])
    await asyncio.sleep(1.5)
    assert hub.replies.used_bytes == 50_004
    wire.take_all()
    await asyncio.sleep(1)
    assert hub.replies.used_bytes == 0
    hub.stop()


async def test_a_drained_connection_sends_a_large_reply_to_its_end():
    later = Later()
    wire = connect(hub_for(fetch(later)), takes_replies=False)
    ask(wire, 1)
    wire.protocol.close_when_answered()
    later.futures[0].set_result(parts(100))
    await turns()
    assert not wire.closed
    while wire.unsent:
        assert not wire.closed
        wire.take_some()
    assert wire.closed
    assert wire.frames() == [b"".join(parts(100))]


@pytest.mark.parametrize("buffers", [3, 100])
async def test_a_closing_connection_ends_although_its_peer_reads_nothing(buffers):
    later = Later()
    hub = hub_for(fetch(later))
    hub.start()
    wire = connect(hub, takes_replies=False)
    ask(wire, 1)
    wire.protocol.close_when_answered()
    later.futures[0].set_result(parts(buffers))
    await asyncio.sleep(hub.limits.frame_s_max + 3)
    assert wire.closed
    assert hub.replies.used_bytes == 0
    assert not hub.connections
    hub.stop()


async def test_a_read_that_waits_too_long_ends_the_connection_with_the_largest_replies():
    later = Later()
    hub = hub_for(fetch(later), memory_bytes_max=64 * MIB, frame_bytes_max=MIB)
    hub.start()
    wires = [connect(hub, takes_replies=False) for _ in range(3)]
    for number, wire in enumerate(wires):
        ask(wire, number)
        later.futures[number].set_result(parts((40, 200, 60)[number]))
    await turns()
    left = 100 * 100_000 + 2 * FRAME_HEAD_BYTES  # held once the largest is gone
    waiting = asyncio.create_task(hub.replies.take(hub.replies.bytes_max - left))
    await asyncio.sleep(PRESSED_S_MAX - 1)
    assert not waiting.done()
    assert [wire.closed for wire in wires] == [False] * 3
    await asyncio.sleep(3)
    assert waiting.done()
    assert [wire.closed for wire in wires] == [False, True, False]
    assert hub.replies.used_bytes == hub.replies.bytes_max
    hub.stop()


@pytest.mark.parametrize("loop_factory", LOOPS)
async def test_a_slow_reader_on_a_socket_receives_everything_and_is_counted(loop_factory):
    reply = parts(400)
    server = await serving(fetch(lambda *_: list(reply)))
    memory = server.registry.replies
    loop = asyncio.get_running_loop()
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.connect(("127.0.0.1", server.port))
        peer.setblocking(False)
        await loop.sock_sendall(peer, framed(FETCH, 4, 1, EMPTY))
        received = bytearray(await loop.sock_recv(peer, 4096))
        assert memory.used_bytes > 30_000_000
        counted = memory.used_bytes
        while len(received) < 4 + 400 * 100_000:
            received += await loop.sock_recv(peer, 1 << 20)
            assert memory.used_bytes <= counted
            counted = memory.used_bytes
    assert received[4:] == b"".join(reply)
    await server.stop()
    assert memory.used_bytes == 0
