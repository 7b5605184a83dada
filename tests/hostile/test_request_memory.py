"""Goal: peers that send large requests slowly, or never to their end, do not stop the others.

Method: as in test_frames: peers on transports in memory and virtual time. The memory is compared
with the bytes that have arrived; beside the slow peers another client sends large requests.
"""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.address_share import share_of
from gateway.handlers.api import Peer
from gateway.log import REASONS_MAX
from gateway.wire.frames import FIRST_BUFFER_BYTES
from tests.gateway.wire_peer import connect, hub_for, request, turns
from tests.hostile.test_frames import BEAT, HEARTBEAT, fetch, never, serves

MIB = 1024 * 1024


def large_request(size):
    """Return a framed Fetch of about `size` bytes."""
    topic = {"topic": "t" * 30_000, "partitions": []}
    return request(1, 4, 5, {"topics": [topic] * (size // 30_000)})


def with_bytes_behind(framed, count):
    """Return the request with bytes behind its body, which Kafka ignores."""
    return (len(framed) - 4 + count).to_bytes(4, "big") + framed[4:] + bytes(count)


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
    hub.memory.take("10.5.5.5", MIB)
    wire = connect(hub)
    wire.send((MIB).to_bytes(4, "big") + bytes(200_000))
    assert hub.memory.waits_since_s is not None
    wire.lose()
    assert hub.memory.waits_since_s is None
    hub.memory.give("10.5.5.5", MIB)
    assert hub.memory.used_bytes == 0


async def test_beginnings_of_frames_that_wait_are_bounded():
    hub = hub_for(HEARTBEAT, frame_bytes_max=MIB, memory_bytes_max=8 * MIB)
    hub.memory.take("10.5.5.5", 4 * MIB)  # requests in flight
    wires = [connect(hub, host=f"10.6.6.{number}") for number in range(30)]
    for wire in wires:
        wire.send((MIB).to_bytes(4, "big") + bytes(200_000))
    await turns()
    assert not any(wire.closed for wire in wires)  # nothing stops their peers but this broker
    assert hub.memory.used_bytes <= (4 + 0.5) * MIB
    hub.memory.give("10.5.5.5", 4 * MIB)
    assert serves(hub)


def half_a_frame(hub, host, size=120_000):
    """Return a connection that has sent all but the last byte of a frame, below one scratch."""
    wire = connect(hub, host=host)
    wire.send(size.to_bytes(4, "big") + bytes(size - 1))
    return wire


async def answers_while_others_wait(hub, host):
    """Check that this address gets answers to requests that take a while."""
    wire = connect(hub, host=host)
    for number in range(5):
        wire.send(request(1, 4, number, {"topics": []}))
    await turns(20)
    assert len(wire.frames()) == 5
    wire.lose()


async def in_a_turn(request, ctx):
    await asyncio.sleep(0)
    return [b"\0\0\0\5"]


async def test_half_frames_below_the_scratch_stop_no_address(capsys):
    hub = hub_for(HEARTBEAT, fetch(in_a_turn), memory_bytes_max=32 * MIB, frame_bytes_max=MIB)
    idle = [half_a_frame(hub, "127.0.0.1") for _ in range(200)]
    honest = [connect(hub, host=host) for host in ("10.9.9.9", "127.0.0.1")]
    whole = large_request(100_000)
    for wire in honest:
        wire.send(whole[:-1])
    idle += [half_a_frame(hub, "127.0.0.1") for _ in range(20)]
    for wire in honest:  # a frame that goes on is completed, at the same address too
        wire.send(whole[-1:])
    await turns(20)
    assert [len(wire.frames()) for wire in honest] == [1, 1]
    assert hub.memory.used_bytes <= hub.limits.request_bytes_max // 4
    still_open = [not wire.closed for wire in idle]
    assert still_open == sorted(still_open)  # the oldest were closed
    assert 30 <= sum(still_open) <= 35
    for host in ("10.9.9.9", "127.0.0.1"):
        await answers_while_others_wait(hub, host)
    assert capsys.readouterr().err.count("half a frame while its address") == 1
    for wire in idle:
        wire.lose()
    assert hub.memory.used_bytes == 0


async def test_an_address_with_few_kept_bytes_is_never_asked_to_make_room():
    hub = hub_for(HEARTBEAT, memory_bytes_max=32 * MIB, frame_bytes_max=MIB)
    honest = half_a_frame(hub, "10.9.9.9", size=100_000)
    for number in range(300):
        half_a_frame(hub, f"10.6.6.{number % 3}")
    await turns()
    assert not honest.closed


async def test_requests_in_processing_have_a_share_for_each_address():
    hub = hub_for(HEARTBEAT, fetch(never), memory_bytes_max=32 * MIB, frame_bytes_max=MIB)
    greedy = [connect(hub, host="10.6.6.6") for _ in range(100)]
    for number, wire in enumerate(greedy):
        for _ in range(3):
            wire.send(large_request(100_000 + number))
    await turns()
    assert hub.memory.used_bytes <= hub.limits.request_bytes_max * 15 // 16
    assert hub.memory.full("10.6.6.6")
    assert not hub.memory.full("10.9.9.9")
    producer = connect(hub, host="10.9.9.9")
    for number in range(3):
        producer.send(request(1, 4, number, {"topics": []}))
    assert producer.reading
    for wire in greedy:
        wire.lose()
    producer.lose()
    await turns()
    assert hub.memory.used_bytes == 0


async def test_a_share_that_is_used_up_holds_no_other_address_in_the_line():
    hub = hub_for(HEARTBEAT, fetch(never), memory_bytes_max=32 * MIB, frame_bytes_max=MIB)
    hub.memory.take("10.6.6.6", 10 * MIB)
    hub.memory.take("10.7.7.7", 6 * MIB)
    greedy = [connect(hub, host="10.6.6.6") for _ in range(50)]
    honest = connect(hub, host="10.9.9.9")
    for wire in (*greedy, honest):
        wire.send(request(1, 4, 1, {"topics": []}))
        assert not wire.reading
    hub.memory.give("10.7.7.7", MIB)
    await turns()
    assert honest.reading
    assert not any(wire.reading for wire in greedy)
    hub.memory.give("10.6.6.6", MIB)


async def burst(hub, host, still_s):
    """Return a sender that used up the share of its address, and then stood still."""
    wire = connect_with_history(hub, host)
    wire.send((16 * MIB).to_bytes(4, "big") + bytes(12 * MIB))
    await asyncio.sleep(still_s)
    return wire


async def test_a_sender_that_stands_still_after_a_burst_keeps_no_other_waiting(capsys):
    limits = {"frame_bytes_max": 16 * MIB, "memory_bytes_max": 64 * MIB}
    hub = hub_for(HEARTBEAT, fetch(lambda *_: [b"\0\0\0\5"]), **limits)
    hub.start()
    await burst(hub, "10.6.6.6", still_s=4)
    producer = connect(hub, host="10.6.6.6")
    producer.send(large_request(12 * MIB))
    await turns(40)
    assert len(producer.frames()) == 1  # at once, the wait has fallen on the others
    assert "stands still" in capsys.readouterr().err
    hub.stop()


async def test_senders_that_stand_still_are_closed_from_the_largest_share_on():
    limits = {"frame_bytes_max": 16 * MIB, "memory_bytes_max": 128 * MIB}
    hub = hub_for(HEARTBEAT, fetch(lambda *_: [b"\0\0\0\5"]), **limits)
    hub.start()
    hub.memory.take("10.5.5.5", 20 * MIB)  # a request in processing
    small = connect_with_history(hub, "10.6.6.1")
    small.send((8 * MIB).to_bytes(4, "big") + bytes(5 * MIB))
    large = await burst(hub, "10.6.6.2", still_s=4)
    producer = connect(hub, host="10.9.9.9")
    producer.send(large_request(12 * MIB))
    await turns(40)
    assert len(producer.frames()) == 1
    assert large.closed
    assert not small.closed
    hub.memory.give("10.5.5.5", 20 * MIB)
    hub.stop()


async def test_a_sender_that_stands_still_is_kept_while_nobody_needs_its_memory():
    limits = {"frame_bytes_max": 16 * MIB, "memory_bytes_max": 64 * MIB}
    hub = hub_for(HEARTBEAT, fetch(lambda *_: [b"\0\0\0\5"]), **limits)
    hub.start()
    slow = await burst(hub, "10.6.6.6", still_s=4)
    producer = connect(hub, host="10.9.9.9")
    producer.send(large_request(MIB))
    assert len(producer.frames()) == 1
    await asyncio.sleep(10)
    assert not slow.closed
    hub.stop()


async def test_senders_that_go_on_are_not_closed_for_one_that_waits():
    limits = {"frame_bytes_max": 16 * MIB, "memory_bytes_max": 64 * MIB}
    hub = hub_for(HEARTBEAT, fetch(lambda *_: [b"\0\0\0\5"]), **limits)
    hub.start()
    sender = connect_with_history(hub, "10.6.6.6")
    whole = large_request(15 * MIB)
    sender.send(whole[: 8 * MIB])
    await asyncio.sleep(3)
    producer = connect(hub, host="10.6.6.6")
    for at in range(8 * MIB, len(whole), MIB):
        sender.send(whole[at : at + MIB])
        if at == 9 * MIB:
            producer.send(large_request(12 * MIB))
        await asyncio.sleep(0.9)
    await asyncio.sleep(1)
    assert len(sender.frames()) == 1
    assert len(producer.frames()) == 1
    hub.stop()


async def test_an_unanswered_request_excuses_no_half_frame():
    hub = hub_for(HEARTBEAT, fetch(never))
    hub.start()
    wire = connect_with_history(hub, "10.6.6.6")
    wire.send(request(1, 4, 1, {"topics": []}))
    wire.send((MIB).to_bytes(4, "big") + bytes(200_000))
    await asyncio.sleep(60)
    assert wire.closed
    hub.stop()


def slowly(request, ctx):
    """Answer after three seconds, as if all bookies stood still."""
    answered = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(3.0, answered.set_result, [b"\0\0\0\5"])
    return answered


@pytest.mark.parametrize("hosts", [1, 20])
@pytest.mark.parametrize(("memory_mib", "connections"), [(64, 100), (64, 400), (512, 800)])
async def test_whole_requests_that_wait_close_no_connection(memory_mib, connections, hosts):
    limits = {"frame_bytes_max": min(100, memory_mib // 4) * MIB}
    hub = hub_for(fetch(slowly), memory_bytes_max=memory_mib * MIB, **limits)
    hub.start()
    honest = [connect(hub, host=f"10.0.0.{number % hosts}") for number in range(connections)]
    whole = large_request(100_000)
    for _ in range(5):
        for wire in honest:
            wire.send(whole)
        await turns()
        assert hub.memory.used_bytes <= hub.limits.request_bytes_max + connections * 8 * 1024 + MIB
    await asyncio.sleep(200)
    assert not any(wire.closed for wire in honest)
    assert sum(len(wire.frames()) for wire in honest) == 5 * connections
    assert hub.memory.used_bytes == 0
    hub.stop()


async def test_a_connection_that_is_not_read_is_not_closed_for_its_half_frame():
    hub = hub_for(HEARTBEAT, fetch(never), memory_bytes_max=32 * MIB, frame_bytes_max=MIB)
    honest = [connect(hub, host="127.0.0.1", takes_replies=False) for _ in range(100)]
    for wire in honest:
        wire.send(request(1, 4, 1, {"topics": []}) + large_request(100_000)[:60_000])
        wire.protocol.pause_writing()
    idle = [half_a_frame(hub, "127.0.0.1") for _ in range(100)]
    await turns()
    assert not any(wire.closed for wire in honest)
    assert any(wire.closed for wire in idle)


async def test_a_burst_of_small_requests_takes_turns_and_closes_nobody():
    hub = hub_for(HEARTBEAT, memory_bytes_max=16 * MIB, frame_bytes_max=MIB)
    burst = request(12, 0, 1, BEAT) * 3000
    honest = [connect(hub, host="10.0.0.1") for _ in range(100)]
    for wire in honest:
        wire.send(burst)
    await turns(200)
    assert not any(wire.closed for wire in honest)
    assert [len(wire.frames()) for wire in honest] == [3000] * 100


@pytest.mark.parametrize("frames", [99, 100, 101, 112])
async def test_small_frames_of_one_address_refuse_no_large_frame_of_another(frames):
    hub = hub_for(HEARTBEAT, fetch(lambda *_: [b"\0\0\0\5"]))
    for _ in range(frames):
        wire = connect(hub, host="10.6.6.6")
        wire.send(MIB.to_bytes(4, "big") + bytes(MIB - 1))
        assert wire.reading
    producer = connect(hub, host="10.9.9.9")
    producer.send(large_request(2 * MIB))
    assert len(producer.frames()) == 1


async def test_addresses_of_one_network_have_one_share():
    hub = hub_for(HEARTBEAT, fetch(never), memory_bytes_max=32 * MIB, frame_bytes_max=MIB)
    for number in range(200):
        wire = connect(hub, host=f"2001:db8:0:1::{number:x}")
        wire.send(large_request(100_000))
    assert hub.memory.full("2001:db8:0:1::/64")
    same = connect(hub, host="2001:db8:0:1:ffff::1")
    other = connect(hub, host="2001:db8:0:2::1")
    fourth = connect(hub, host="10.9.9.9")
    for wire in (same, other, fourth):
        wire.send(request(1, 4, 1, {"topics": []}))
    assert [wire.reading for wire in (same, other, fourth)] == [False, True, True]


@pytest.mark.parametrize(
    ("host", "share"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:0:1:2:3:4:5", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("::1", "::1"),
        ("", ""),
        ("no address", "no address"),
    ],
)
def test_a_share_belongs_to_what_one_host_can_choose_from(host, share):
    assert share_of(host) == share


async def test_each_reason_is_logged_once_a_minute_for_an_address(capsys):
    hub = hub_for(HEARTBEAT)
    peer = Peer("10.6.6.6", 1, "", 0)
    for size in range(1000):
        hub.warn("connection refused", peer, f"frame of {size} bytes")
        hub.warn("connection refused", peer, f"reason {'x' * size}")
    hub.warn("connection closed", peer, "half a frame")
    hub.warn("connection closed", peer, "reads no replies")
    logged = capsys.readouterr().err
    assert logged.count("frame of ") == 1
    assert logged.count("half a frame") == logged.count("reads no replies") == 1
    assert logged.count("connection refused") == REASONS_MAX


async def test_small_frames_that_arrive_slowly_leave_after_seconds_if_their_address_waits(capsys):
    hub = hub_for(HEARTBEAT, fetch(lambda *_: [b"\0\0\0\5"]))
    hub.start()
    other = connect_with_history(hub, "10.7.7.7")
    other.send(MIB.to_bytes(4, "big") + bytes(200_000))
    slow = [connect_with_history(hub, "10.6.6.6") for _ in range(112)]
    for wire in slow:
        wire.send(MIB.to_bytes(4, "big") + bytes(200_000))
    producer = connect(hub, host="10.6.6.6")
    producer.send(large_request(300_000))
    assert producer.frames() == []
    await trickle([*slow, other], 4, 1)
    assert len(producer.frames()) == 1
    assert all(wire.closed for wire in slow)
    assert not other.closed  # nobody waits at its address
    assert "sends its request slowly" in capsys.readouterr().err
    hub.stop()


async def test_an_address_that_uses_its_share_is_named_once(capsys):
    hub = hub_for(HEARTBEAT, fetch(never), memory_bytes_max=32 * MIB, frame_bytes_max=MIB)
    hub.memory.take("10.6.6.6", 10 * MIB)
    for _ in range(50):
        connect(hub, host="10.6.6.6").send(request(1, 4, 1, {"topics": []}))
    [line] = capsys.readouterr().err.splitlines()
    assert "peer=10.6.6.6" in line
    assert "its address uses its share" in line
    hub.memory.take("10.7.7.7", 10 * MIB)
    connect(hub, host="10.9.9.9").send(request(1, 4, 1, {"topics": []}))
    assert "the memory for requests is used up" in capsys.readouterr().err


async def test_one_frame_of_the_largest_size_stops_no_small_request_of_its_address():
    limits = {"frame_bytes_max": 25 * MIB, "memory_bytes_max": 64 * MIB}
    hub = hub_for(HEARTBEAT, fetch(in_a_turn), **limits)
    large = connect(hub, host="10.6.6.6")
    whole = large_request(24 * MIB)
    whole = with_bytes_behind(whole, 25 * MIB + 4 - len(whole))
    large.send(whole[:-1])
    await answers_while_others_wait(hub, "10.6.6.6")
    producer = connect(hub, host="10.6.6.6")
    producer.send(large_request(300_000))
    await turns(20)
    assert len(producer.frames()) == 1
    large.send(whole[-1:])
    await turns(20)
    assert len(large.frames()) == 1


async def test_a_frame_that_becomes_a_request_is_counted_once(capsys):
    hub = hub_for(fetch(never), memory_bytes_max=32 * MIB, frame_bytes_max=5 * MIB)
    whole = large_request(5 * MIB)
    hub.memory.take("10.7.7.7", 12 * MIB - len(whole))
    wire = connect(hub, host="10.9.9.9")
    wire.send(whole)
    assert wire.reading
    assert "requests wait" not in capsys.readouterr().err


async def test_frames_that_only_their_address_can_complete_wait_for_its_share(capsys):
    hub = hub_for(HEARTBEAT, memory_bytes_max=64 * MIB, frame_bytes_max=8 * MIB)
    for _ in range(3):  # each could go on, but then none could be completed
        wire = connect(hub, host="10.6.6.6")
        wire.send((8 * MIB).to_bytes(4, "big") + bytes(3 * MIB))
    logged = capsys.readouterr().err
    assert "its address uses its share" in logged
    assert "memory for requests is used up" not in logged


async def test_an_address_that_waits_for_its_share_closes_slow_senders_of_its_own_only():
    hub = hub_for(HEARTBEAT, memory_bytes_max=64 * MIB, frame_bytes_max=8 * MIB)
    hub.start()
    hub.memory.take("10.6.6.6", 10 * MIB)
    own, other = (connect_with_history(hub, host) for host in ("10.6.6.6", "10.9.9.9"))
    small = connect_with_history(hub, "10.9.9.9")
    for wire in (own, other):
        wire.send((2 * MIB).to_bytes(4, "big") + bytes(300_000))
    small.send(MIB.to_bytes(4, "big") + bytes(300_000))
    waits = connect_with_history(hub, "10.6.6.6")
    waits.send((8 * MIB).to_bytes(4, "big") + bytes(2 * MIB))
    assert not waits.reading
    await trickle([own, other, small], 12, 10)
    assert own.closed
    assert not other.closed
    assert not small.closed
    hub.memory.give("10.6.6.6", 10 * MIB)
    hub.stop()


async def test_slow_senders_of_all_addresses_are_closed_for_one_that_waits_for_the_memory_of_all():
    hub = hub_for(
        HEARTBEAT,
        fetch(lambda *_: [b"\0\0\0\5"]),
        memory_bytes_max=64 * MIB,
        frame_bytes_max=8 * MIB,
    )
    hub.start()
    slow = [connect_with_history(hub, f"10.6.6.{number}") for number in range(3)]
    for wire in slow:
        wire.send((8 * MIB).to_bytes(4, "big") + bytes(5 * MIB))
    producer = connect(hub, host="10.9.9.9")
    producer.send(large_request(2 * MIB))
    assert producer.frames() == []
    await trickle(slow, 8, 10)
    assert len(producer.frames()) == 1
    assert all(wire.closed for wire in slow)
    hub.stop()


async def test_no_more_senders_are_closed_than_those_that_wait_need():
    limits = {"frame_bytes_max": 4 * MIB, "memory_bytes_max": 64 * MIB}
    hub = hub_for(HEARTBEAT, fetch(lambda *_: [b"\0\0\0\5"]), **limits)
    hub.start()
    still = [connect_with_history(hub, f"10.6.6.{number}") for number in range(10)]
    for wire in still:
        wire.send((4 * MIB).to_bytes(4, "big") + bytes(3 * MIB // 2))
    await asyncio.sleep(4)
    hub.memory.take("10.5.5.5", 8 * MIB)
    waiting = [connect(hub, host=f"10.7.7.{number}") for number in range(6)]
    for wire in waiting:
        wire.send(large_request(300_000))
    assert sum(wire.closed for wire in still) == 1  # its buffer is enough for all six
    await turns(40)
    assert [len(wire.frames()) for wire in waiting] == [1] * 6
    assert sum(wire.closed for wire in still) == 1
    hub.memory.give("10.5.5.5", 8 * MIB)
    hub.stop()


async def test_small_frames_that_are_announced_cost_what_has_arrived():
    hub = hub_for(HEARTBEAT, fetch(lambda *_: [b"\0\0\0\5"]))
    slow = [connect(hub, host="10.6.6.6") for _ in range(500)]
    for wire in slow:
        wire.send(MIB.to_bytes(4, "big") + bytes(100))
    assert hub.memory.used_bytes == 500 * 104
    producer = connect(hub, host="10.6.6.6")
    producer.send(large_request(300_000))
    assert len(producer.frames()) == 1
    for wire in slow:
        wire.send(bytes(MIB - 100))
    assert hub.memory.used_bytes == 0
