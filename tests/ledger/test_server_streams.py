"""Goal: whatever a client has asked before, its fence takes effect at once and is answered.
Statuses of adds fit into frames, however many wait.

Method: the bookie's ends of streams over a bookie on simulated ground, without a connection.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ledger.adapters.grpc.grpc_config import GrpcServerConfig
from ledger.bookie.answer_room import AnswerRoom, AnswerShare
from ledger.bookie.server_streams import InboundWindow, ServerAddStream, ServerReadStream
from ledger.ports.bookies import Status
from ledger.wire.bookie_frames import (
    ReadOp,
    ReadRequest,
    decode_add_statuses,
    decode_read_responses,
    encode_read_requests,
)
from ledger.wire.tcp_frames import frame
from tests.ledger.bookie_rig import KEY, started_bookie
from tests.sim.bookie_world import entry_bytes

WAIT_S = 5.0
NARROW = replace(GrpcServerConfig(), answer_bytes_max=2000)


def reads(count, first=0):
    asked = [ReadRequest(ReadOp.READ, number, 7, 0) for number in range(first, first + count)]
    return encode_read_requests(asked)


def fence(number, ledger=7):
    return encode_read_requests([ReadRequest(ReadOp.FENCE_AND_READ, number, ledger, -1, key=KEY)])


async def responses_of(stream, *, wait_s=1.0):
    """The responses that are ready after so many seconds, by number."""
    await asyncio.sleep(wait_s)
    found = {}
    while (parts := stream.pop()) is not None:
        stream.written()
        found |= {each.number: each for each in decode_read_responses(b"".join(parts))}
    return found


@pytest.mark.parametrize("transport", ["tcp", "grpc"])
async def test_a_fence_does_not_wait_for_the_answers_that_its_client_leaves(transport):
    async with started_bookie() as (rig, bookie):
        await rig.add(7, 0, bytes(1000))
        stream = ServerReadStream(bookie, NARROW, AnswerRoom(1 << 30, WAIT_S))
        for number in range(3):
            if transport == "tcp":
                stream.take(reads(1, number))
            elif number < 2:
                await stream.on_message(reads(1, number))
            await asyncio.sleep(1)
        assert not stream._window.has_space
        if transport == "tcp":
            stream.take(fence(20))
        else:
            async with asyncio.timeout(1):
                await stream.on_message(fence(20))
        await asyncio.sleep(1)
        assert bookie.storage.index.state(7).fence_logged
        assert (await responses_of(stream))[20].status is Status.OK


async def test_a_durable_fence_is_answered_although_answers_have_no_room():
    async with started_bookie() as (rig, bookie):
        for entry in range(3):
            await rig.add(7, entry, bytes(1000))
        room = AnswerRoom(10_000, WAIT_S)
        assert await room.take(9_500)
        waiting = AnswerShare(room)
        behind = asyncio.ensure_future(waiting.take(5_000))
        stream = ServerReadStream(bookie, GrpcServerConfig(), room)
        stream.take(reads(1))
        stream.take(fence(1))
        found = await responses_of(stream, wait_s=2 * WAIT_S)
        assert not await behind
        assert found[0].status is Status.OVERLOADED
        assert found[1].status is Status.OK
        assert b"".join(found[1].bodies) == entry_bytes(7, 2, bytes(1000))
        assert room.used == 9_500, "written, so its bytes are free"


async def test_the_answers_to_fences_have_a_bound_too():
    room = AnswerRoom(10, WAIT_S, reserve_bytes=5)
    assert await room.take(10)
    assert await room.take(4, fence=True)
    second, third = [asyncio.ensure_future(room.take(3, fence=True)) for _ in range(2)]
    other = asyncio.ensure_future(room.take(1))
    await asyncio.sleep(1)
    assert (room.used, second.done(), third.done()) == (14, False, False)
    room.give_back(2)
    await asyncio.sleep(0.1)
    assert (second.done(), third.done(), other.done()) == (True, False, False)
    room.give_back(13)
    assert await asyncio.gather(second, third, other) == [True] * 3
    assert room.used == 6


async def test_statuses_that_no_frame_holds_are_sent_in_several():
    async with started_bookie() as (_, bookie):
        notified = []
        stream = ServerAddStream(bookie, InboundWindow(1 << 30), lambda: notified.append(1))
        ranges = [(2 * number, 1, Status.OK) for number in range(40_000)]
        for number, _, status in ranges:
            stream._window.acquire(1)
            stream._on_added(number, 1, status)
        found = []
        while True:
            notified.clear()
            message = stream.pop()
            if message is None:
                break
            assert len(frame(message)) == len(message) + 4
            found += decode_add_statuses(message)
            assert bool(notified) == (len(found) < len(ranges)), "the rest is written too"
        assert found == ranges
