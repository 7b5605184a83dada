"""Goal: the listener serves real sockets on both event loops, and drains before it stops.

Method: a server with rows of the test's own on a free loopback port; peers are plain sockets of the
same loop.
"""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest
import uvloop

from gateway.config import ConnectionLimits
from gateway.handlers.api import Api, Reply
from gateway.server.dispatch import Dispatcher
from gateway.server.listener import Server
from gateway.wire.messages import encode_request
from tests.gateway.captured import without_clients

BEAT = {"group_id": "g", "generation_id": 1, "member_id": "m"}
pytestmark = pytest.mark.timeout(30)
LOOPS = [
    pytest.param(factory, marks=pytest.mark.real_loop(loop=factory))
    for factory in (asyncio.new_event_loop, uvloop.new_event_loop)
]


async def serving(*apis, **limits):
    server = Server(Dispatcher({api.key: api for api in apis}, None), ConnectionLimits(**limits))
    await server.start("127.0.0.1", 0)
    return server


def heartbeat(handle=lambda *_: Reply(error_code=0)):
    return Api(key=12, name="Heartbeat", versions=range(5), handle=handle)


def framed(key, version, correlation_id, body):
    frame = encode_request(key, version, correlation_id, "test", body)
    return len(frame).to_bytes(4, "big") + frame


async def frame_from(reader):
    size = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(size)


@pytest.mark.parametrize("loop_factory", LOOPS)
async def test_pipelined_requests_are_answered_in_order(loop_factory):
    server = await serving(heartbeat())
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"".join(framed(12, 0, number, BEAT) for number in range(1000)))
    for number in range(1000):
        assert (await frame_from(reader))[:4] == number.to_bytes(4, "big")
    writer.close()
    await server.stop()


@pytest.mark.parametrize("loop_factory", LOOPS)
async def test_a_large_request_and_a_large_answer_arrive_whole(loop_factory):
    records = bytes(range(256)) * 40_000

    def handle(request, ctx):
        [partition] = request.body.topic_data[0].partition_data
        return [b"head", partition.records[:5_000_000], memoryview(partition.records)[:99]]

    api = Api(key=0, name="Produce", versions=range(3, 14), handle=handle)
    server = await serving(api)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    partition = {"index": 0, "records": records}
    topic = {"name": "t", "partition_data": [partition]}
    body = {"acks": 1, "timeout": 1, "topic_data": [topic]}
    writer.write(framed(0, 9, 1, body))
    assert await frame_from(reader) == b"head" + records[:5_000_000] + records[:99]
    assert server.registry.memory.used_bytes == 0
    writer.close()
    await server.stop()


@pytest.mark.parametrize("loop_factory", LOOPS)
async def test_peers_that_reset_say_nothing_on_stderr_and_hurt_nobody(loop_factory, capfd):
    server = await serving(heartbeat())
    for data in (b"", b"\0\0", framed(12, 0, 1, BEAT)[:-3], framed(12, 0, 1, BEAT) * 500):
        peer = socket.create_connection(("127.0.0.1", server.port))
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.sendall(data)
        await asyncio.sleep(0)
        peer.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(framed(12, 0, 5, BEAT))
    await frame_from(reader)
    while len(server.registry.connections) > 1:
        await asyncio.sleep(0)
    writer.close()
    await server.stop()
    assert without_clients(capfd.readouterr().err) == ""


@pytest.mark.parametrize("loop_factory", LOOPS)
async def test_stopping_answers_what_was_asked_and_closes(loop_factory):
    asked = asyncio.get_running_loop().create_future()
    answer = asyncio.get_running_loop().create_future()

    def handle(request, ctx):
        asked.set_result(None)
        return answer

    server = await serving(heartbeat(handle))
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(framed(12, 0, 7, BEAT))
    await asked
    stopping = asyncio.create_task(server.stop())
    assert await idle_reader.read() == b""
    assert not stopping.done()
    answer.set_result(Reply(error_code=0))
    assert (await frame_from(reader))[:4] == (7).to_bytes(4, "big")
    assert await reader.read() == b""
    await stopping
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", server.port)
    for each in (writer, idle_writer):
        each.close()


@pytest.mark.parametrize("loop_factory", LOOPS)
async def test_stopping_does_not_wait_for_ever(loop_factory):
    server = await serving(heartbeat(lambda *_: asyncio.get_running_loop().create_future()))
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(framed(12, 0, 7, BEAT))
    while not server.registry.memory.used_bytes:
        await asyncio.sleep(0)
    await server.stop(drain_s=0.05)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await frame_from(reader)
    writer.close()
