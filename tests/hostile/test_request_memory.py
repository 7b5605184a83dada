"""Goal: peers that send large requests slowly, or never to their end, do not stop the others.

Method: as in test_frames: peers on transports in memory and virtual time. The memory is compared
with the bytes that have arrived; beside the slow peers another client sends large requests.
"""

from __future__ import annotations

import asyncio

from gateway.wire.frames import FIRST_BUFFER_BYTES
from tests.gateway.wire_peer import connect, hub_for, request, turns
from tests.hostile.test_frames import BEAT, HEARTBEAT, fetch, serves

MIB = 1024 * 1024


def large_request(size):
    """Return a framed Fetch of about `size` bytes."""
    topic = {"topic": "t" * 30_000, "partitions": []}
    return request(1, 4, 5, {"topics": [topic] * (size // 30_000)})


def connect_with_history(hub, host):
    """Return a connection that has made a request, and so may be slow with the next one."""
    wire = connect(hub, host=host)
    wire.send(request(12, 0, 1, BEAT))
    wire.frames()
    return wire


async def trickle(wires, seconds, bytes_per_s=20_000):
    """Let slow peers send a little each second."""
    for _ in range(seconds):
        for wire in wires:
            if not wire.closed:
                wire.send(bytes(bytes_per_s))
        await asyncio.sleep(1)


async def test_announced_frames_cost_what_has_arrived_and_large_requests_go_on():
    hub = hub_for(HEARTBEAT, fetch(lambda *_: [b"\0\0\0\5"]))
    hub.start()
    slow = [connect_with_history(hub, host="10.6.6.6") for _ in range(2)]
    for wire, size in zip(slow, (100 * MIB, 92 * MIB), strict=True):
        wire.send(size.to_bytes(4, "big") + bytes(200_000))
    await trickle(slow, 20)
    assert not any(wire.closed for wire in slow)
    assert hub.memory.used_bytes <= 4 * FIRST_BUFFER_BYTES
    for host in ("10.6.6.6", "10.9.9.9"):  # the same address, and another one
        producer = connect(hub, host=host)
        producer.send(large_request(300_000))
        assert len(producer.frames()) == 1
    hub.stop()


async def test_one_address_fills_its_part_and_others_send_large_requests():
    hub = hub_for(HEARTBEAT, fetch(lambda *_: [b"\0\0\0\5"]), frame_bytes_max=16 * MIB)
    greedy = [connect(hub, host="10.6.6.6") for _ in range(50)]
    for wire in greedy:
        wire.send((16 * MIB).to_bytes(4, "big") + bytes(12 * MIB))
    assert hub.memory.used_bytes <= hub.limits.request_bytes_max // 2
    producer = connect(hub, host="10.9.9.9")
    producer.send(large_request(15 * MIB))
    assert len(producer.frames()) == 1
    assert serves(hub)


async def test_one_address_has_a_part_of_the_memory_for_smaller_frames_too():
    hub = hub_for(HEARTBEAT, fetch(lambda *_: [b"\0\0\0\5"]), frame_bytes_max=8 * MIB)
    greedy = [connect(hub, host="10.6.6.6") for _ in range(300)]
    for wire in greedy:
        wire.send(MIB.to_bytes(4, "big") + bytes(200_000))
    assert hub.memory.used_bytes <= hub.limits.request_bytes_max * 3 // 4
    producer = connect(hub, host="10.9.9.9")
    producer.send(large_request(MIB - 60_000))
    assert len(producer.frames()) == 1


async def test_half_received_frames_that_use_up_the_memory_are_all_completed():
    limits = {"frame_bytes_max": 4 * MIB, "memory_bytes_max": 16 * MIB}
    hub = hub_for(HEARTBEAT, fetch(lambda *_: [b"\0\0\0\5"]), **limits)
    hub.start()
    senders = [connect(hub, host=f"10.6.6.{number}") for number in range(12)]
    whole = large_request(3 * MIB)
    for part in (whole[: 2 * MIB], whole[2 * MIB :]):  # together they exceed the memory
        for wire in senders:
            wire.send(part)
    await asyncio.sleep(300)
    answered = sum(len(wire.frames()) for wire in senders)
    assert answered == 12
    assert hub.memory.used_bytes == 0
    assert serves(hub)
    hub.stop()


async def test_slow_senders_that_use_up_the_memory_are_closed_first(capsys):
    limits = {"frame_bytes_max": 8 * MIB, "memory_bytes_max": 32 * MIB}
    hub = hub_for(HEARTBEAT, fetch(lambda *_: [b"\0\0\0\5"]), **limits)
    hub.start()
    slow = [connect_with_history(hub, host=f"10.6.6.{number % 3}") for number in range(12)]
    for wire in slow:
        wire.send((8 * MIB).to_bytes(4, "big") + bytes(5 * MIB))
    await trickle(slow, 2, 10)
    producer = connect(hub, host="10.9.9.9")
    producer.send(large_request(7 * MIB))
    assert producer.frames() == []
    await trickle(slow, 70, 10)
    await turns()
    assert len(producer.frames()) == 1
    assert any(wire.closed for wire in slow)
    assert "sends its request slowly" in capsys.readouterr().err
    hub.stop()


async def test_a_lost_peer_that_waited_for_memory_leaves_the_line():
    hub = hub_for(HEARTBEAT, frame_bytes_max=MIB, memory_bytes_max=2 * MIB)
    hub.memory.take(MIB)
    wire = connect(hub)
    wire.send((MIB).to_bytes(4, "big") + bytes(200_000))
    assert hub.memory.waits_since_s is not None
    wire.lose()
    assert hub.memory.waits_since_s is None
    hub.memory.give(MIB)
    assert hub.memory.used_bytes == 0


async def test_beginnings_of_frames_that_wait_are_bounded():
    hub = hub_for(HEARTBEAT, frame_bytes_max=MIB, memory_bytes_max=8 * MIB)
    hub.memory.take(4 * MIB)  # requests in flight
    wires = [connect(hub, host=f"10.6.6.{number}") for number in range(30)]
    for wire in wires:
        wire.send((MIB).to_bytes(4, "big") + bytes(200_000))
    await turns()
    assert 5 <= [wire.closed for wire in wires].count(False) <= 10
    assert hub.memory.used_bytes <= (4 + 1.25) * MIB
    hub.memory.give(4 * MIB)
    assert serves(hub)
