"""Goal: answers of all clients together hold no more than the bound, and no share is lost.

Method: the room alone on virtual time; real bookies whose reads find the room full.
"""

import asyncio

import pytest

from ledger.adapters.grpc.grpc_config import GrpcServerConfig
from ledger.bookie.answer_room import AnswerRoom, AnswerShare
from ledger.bookie.server_streams import ServerReadStream
from ledger.ports.bookies import Status
from ledger.wire.bookie_frames import ReadOp, ReadRequest, encode_read_requests
from tests.ledger.bookie_rig import started_bookie

WAIT_S = 5.0


async def waiting(room, size):
    task = asyncio.ensure_future(room.take(size))
    await asyncio.sleep(0)
    return task


async def test_shares_get_room_in_order_and_a_small_one_does_not_pass_a_large_one():
    room = AnswerRoom(10, WAIT_S)
    assert await room.take(8)
    large, small = await waiting(room, 6), await waiting(room, 1)
    await asyncio.sleep(1)
    assert (large.done(), small.done(), room.used) == (False, False, 8)
    room.give_back(8)
    assert await large
    assert await small
    assert room.used == 7


async def test_who_waits_too_long_is_refused_and_lets_the_next_one_pass():
    room = AnswerRoom(10, WAIT_S)
    assert await room.take(8)
    large = await waiting(room, 6)
    await asyncio.sleep(1)
    small = await waiting(room, 2)
    assert not await large
    assert await small
    assert room.used == 10


async def test_an_answer_above_the_bound_is_read_alone():
    room = AnswerRoom(10, WAIT_S)
    assert await room.take(50)
    assert not await room.take(1)
    room.give_back(50)
    assert await room.take(1)
    assert not await room.take(50)
    assert room.used == 1


@pytest.mark.parametrize("admitted", [False, True])
async def test_who_is_cancelled_keeps_nothing(admitted):
    room = AnswerRoom(10, WAIT_S)
    assert await room.take(8)
    task, behind = await waiting(room, 6), await waiting(room, 2)
    if admitted:
        room.give_back(8)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert await behind
    assert room.used == (2 if admitted else 10)


async def test_every_kind_of_read_takes_the_bytes_of_its_entries_before_it_reads():
    async with started_bookie() as (rig, bookie):
        for entry in range(3):
            await rig.add(7, entry, bytes(1000), lac=entry - 1)
        room = AnswerRoom(10_000, WAIT_S)
        reads = (
            lambda share: bookie.read(7, 1, share),
            lambda share: bookie.read_many(7, 0, 1, 5000, share),
            lambda share: bookie.wait_lac(7, 0, 1.0, share),
        )
        for read in reads:
            share = AnswerShare(room)
            reply = await read(share)
            bodies = reply.bodies if hasattr(reply, "bodies") else (reply.body,)
            assert room.used == share.size == sum(map(len, bodies)) > 1000
            share.give_back()
        assert room.used == 0
        assert await room.take(9_500)
        refused = [await read(AnswerShare(room)) for read in reads]
        assert [reply.status for reply in refused] == [Status.OVERLOADED] * 2 + [Status.OK]
        assert (refused[2].body, refused[2].lac) == (b"", 1)
        assert room.used == 9_500


def asked(*numbers, op=ReadOp.READ):
    return encode_read_requests([ReadRequest(op, number, 7, 0) for number in numbers])


async def test_an_answer_keeps_its_room_until_it_is_written():
    async with started_bookie() as (rig, bookie):
        await rig.add(7, 0, bytes(1000))
        room = AnswerRoom(10_000, WAIT_S)
        stream = ServerReadStream(bookie, GrpcServerConfig(), room)
        await stream.on_message(asked(0, 1))
        await stream.next_message()
        used = room.used
        assert used > 2000
        following = asyncio.ensure_future(stream.next_message())
        await asyncio.sleep(0)
        assert room.used == 0
        following.cancel()


@pytest.mark.parametrize("when", ["waiting", "ready", "written"])
async def test_a_stream_that_ends_gives_everything_back(when):
    async with started_bookie() as (rig, bookie):
        await rig.add(7, 0, bytes(1000))
        room = AnswerRoom(5_000, WAIT_S)
        stream = ServerReadStream(bookie, GrpcServerConfig(), room)
        await stream.on_message(asked(*range(10)))
        await asyncio.sleep(WAIT_S * 2 if when == "ready" else 1.0)
        assert room.used > 3_000
        if when == "written":
            await stream.next_message()
        stream.close()
        await asyncio.sleep(1)
        assert room.used == 0


async def test_a_request_that_is_cancelled_while_it_waits_for_room_gives_it_back():
    async with started_bookie() as (rig, bookie):
        await rig.add(7, 0, bytes(1000))
        room = AnswerRoom(1_100, WAIT_S)
        stream = ServerReadStream(bookie, GrpcServerConfig(), room)
        await stream.on_message(asked(0, 1))
        await asyncio.sleep(1)
        await stream.on_message(asked(1, op=ReadOp.CANCEL))
        await stream.next_message()
        following = asyncio.ensure_future(stream.next_message())
        await asyncio.sleep(WAIT_S * 2)
        assert (room.used, following.done()) == (0, False)
        following.cancel()


class Endless:
    """A bookie whose reads take room and never end."""

    async def read(self, ledger, entry, room):
        assert await room.take(1000)
        await asyncio.Event().wait()


async def test_a_read_that_is_cut_off_gives_its_room_back():
    room = AnswerRoom(5_000, WAIT_S)
    stream = ServerReadStream(Endless(), GrpcServerConfig(), room)
    await stream.on_message(asked(0, 1))
    await asyncio.sleep(1)
    assert room.used == 2000
    stream.close()
    await asyncio.sleep(1)
    assert room.used == 0
