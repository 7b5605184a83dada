"""Goal: requests that wait for a long time take little of the memory for requests.

Method: as in test_request_memory; a Fetch, or a cold request, is answered when the test says so.
ListOffsets requests reach a broker with topics, and Python counts the memory that they take.
"""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from gateway.config import ConnectionLimits
from gateway.handlers.api import Api, Reply
from gateway.server.registry import ConnectionRegistry
from gateway.wire.fetch_request import decode_fetch
from gateway.wire.list_offsets_request import decode_list_offsets
from tests.gateway.stream_cluster import started_cluster, times_of
from tests.gateway.wire_peer import connect, hub_for, request, turns
from tests.hostile.test_request_memory import MIB, with_bytes_behind


def queued_fetch(running):
    """Return a row whose Fetches run one at a time, until their futures in `running` are set."""

    def start():
        running.append(asyncio.get_running_loop().create_future())
        return running[-1]

    return Api(
        key=1,
        name="Fetch",
        versions=range(4, 19),
        handle=lambda request, _: request.peer.fetches.submit(start),
        decode=decode_fetch,
    )


async def test_bytes_behind_a_fetch_are_not_counted_while_it_waits():
    running = []
    hub = hub_for(queued_fetch(running), memory_bytes_max=32 * MIB, frame_bytes_max=MIB)
    wires = [connect(hub, host="10.6.6.6") for _ in range(100)]
    for wire in wires:
        wire.send(with_bytes_behind(request(1, 4, 1, {"topics": []}), MIB - 100))
    assert len(running) == 100
    assert hub.memory.used_bytes < 10_000
    for each in running:
        each.set_result([b"\0\0\0\5"])
    await turns()
    assert [len(wire.frames()) for wire in wires] == [1] * 100
    assert hub.memory.used_bytes == 0


async def test_a_connection_with_many_fetches_that_wait_is_read_later():
    running = []
    hub = hub_for(queued_fetch(running), memory_bytes_max=32 * MIB, frame_bytes_max=MIB)
    topic = {"topic": "t" * 20_000, "partitions": []}
    whole = b"".join(request(1, 4, number, {"topics": [topic] * 6}) for number in range(40))
    wires = [connect(hub, host="10.6.6.6") for _ in range(12)]
    for wire in wires:
        wire.send(whole)
    assert not any(wire.reading for wire in wires)
    assert not hub.memory.full("10.6.6.6")
    answered = 0
    for _ in range(40):
        for each in running:
            if not each.done():
                each.set_result([b"\0\0\0\5"])
        await turns(10)
        answered += sum(len(wire.frames()) for wire in wires)
        assert hub.memory.used_bytes <= 10 * MIB
        assert len(running) <= answered + 12
    assert answered == 12 * 40
    assert all(wire.reading for wire in wires)


async def test_a_connection_with_many_bytes_behind_a_slow_request_is_read_later():
    running = []

    async def slowly(request, ctx):
        running.append(asyncio.get_running_loop().create_future())
        return await running[-1]

    cold = Api(key=12, name="Heartbeat", versions=range(5), handle=slowly)
    hub = hub_for(cold, memory_bytes_max=32 * MIB, frame_bytes_max=MIB)
    body = {"group_id": "g" * 30_000, "generation_id": 1, "member_id": "m" * 30_000}
    whole = b"".join(request(12, 0, number, body) for number in range(40))
    wires = [connect(hub, host="10.6.6.6") for _ in range(12)]
    for wire in wires:
        wire.send(whole)
    await turns()
    assert not any(wire.reading for wire in wires)
    assert not hub.memory.full("10.6.6.6")
    answered = 0
    for _ in range(50):
        for each in running:
            if not each.done():
                each.set_result(Reply(error_code=0))
        await turns(10)
        answered += sum(len(wire.frames()) for wire in wires)
        assert hub.memory.used_bytes <= 8 * MIB
    assert answered == 12 * 40
    assert all(wire.reading for wire in wires)
    wires[0].send(whole)
    wires[0].lose()
    for each in running:
        if not each.done():
            each.set_result(Reply(error_code=0))
    await turns(10)
    assert hub.memory.used_bytes == 0


def offsets_of(partitions, number=1):
    """Return a ListOffsets request for the ends of this many partitions."""
    return request(2, 1, number, times_of({"t": [(at, -1) for at in range(partitions)]}))


async def bytes_at_most(cluster, requests, partitions):
    """Return the most memory that these requests of one connection take until all are answered."""
    wire = connect(ConnectionRegistry(cluster.dispatcher, ConnectionLimits()))
    whole = b"".join(offsets_of(partitions, number) for number in range(requests))
    tracemalloc.start()
    try:
        wire.send(whole)
        while requests:
            await asyncio.sleep(0)
            requests -= len(wire.frames())
        return tracemalloc.get_traced_memory()[1] - len(whole)
    finally:
        tracemalloc.stop()


async def test_long_requests_for_offsets_of_one_connection_run_one_after_another():
    async with started_cluster() as cluster:
        await cluster.topic()
        one = await bytes_at_most(cluster, 1, 10_000)
        assert await bytes_at_most(cluster, 8, 10_000) < 2 * one


@pytest.mark.parametrize(("connections", "each", "partitions"), [(30, 1, 20_000), (1, 90, 500)])
async def test_requests_for_offsets_of_one_address_take_its_share_of_the_memory(
    connections, each, partitions
):
    running = []

    def slowly(request, ctx):
        running.append(asyncio.get_running_loop().create_future())
        return running[-1]

    name = "ListOffsets"
    api = Api(key=2, name=name, versions=range(1, 12), handle=slowly, decode=decode_list_offsets)
    share = 10 * MIB
    hub = hub_for(api, memory_bytes_max=32 * MIB, frame_bytes_max=MIB)
    wires = [connect(hub, host="10.6.6.6") for _ in range(connections)]
    whole = offsets_of(partitions) * each
    for part in (whole[:-1], whole[-1:]):  # all may have a buffer before the first one runs
        for wire in wires:
            wire.send(part)
    await turns()
    held = 300 * partitions
    assert (len(running) - 1) * held < share
    begun = answered = 0
    while begun < len(running):
        for future in running[begun:]:
            future.set_result([b"\0\0\0\5"])
        begun = len(running)
        await turns(20)
        answered += sum(len(wire.frames()) for wire in wires)
    assert answered == connections * each
    assert hub.memory.used_bytes == 0
