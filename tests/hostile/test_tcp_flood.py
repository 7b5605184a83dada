"""Goal: a bookie takes any number of hostile frames with flat memory and no traceback, and serves
others meanwhile. Method: a real bookie in a process of its own; connections that send frames drawn
by seed, each with a bad end; a client that adds and reads all the while.
"""

import asyncio
import contextlib
import random
import struct
from itertools import count

import pytest

from ledger.ports.bookies import BookieInfo, Status
from ledger.wire.bookie_frames import (
    ADDS_MAX,
    REQUESTS_MAX,
    FrameKind,
    ReadOp,
    ReadRequest,
    encode_read_requests,
)
from ledger.wire.tcp_frames import FRAME_BYTES_MAX, PING_FRAME, encode_call, frame, hello_frame
from tests.hostile.tcp_attack import adds_message, raw_frame
from tests.ledger.bookie_rig import KEY
from tests.ledger.remote_world import Child, Client
from tests.ledger.transports import on_transport
from tests.peers.processes import status_bytes

pytestmark = pytest.mark.real_loop

ATTACKERS = 16
READS = (ReadOp.READ, ReadOp.READ_MANY, ReadOp.WAIT_LAC)  # a fence would store something
FRAMES_MAX = 200  # of one connection
GROWTH_BYTES_MAX = 24 * 1024 * 1024  # what the allocator may keep; no frame stays
V2 = b"\0\0\0\x20\x02" + bytes(31)
V3 = b"\0\0\0\x20\x0a" + bytes(31)
TOO_MANY = (
    frame(adds_message(*[(7, 0, KEY, b"")] * (ADDS_MAX + 1))),
    frame(encode_read_requests([ReadRequest(ReadOp.CANCEL, 0)] * (REQUESTS_MAX + 1))),
)
ABSENT = frame(
    encode_read_requests([ReadRequest(ReadOp.READ, 10**6 + each, 10**9) for each in range(4000)])
)


def harmless(draw, number):
    """A frame that a bookie answers or ignores, whatever it is good for."""
    kind = draw.randrange(6)
    if kind == 0:
        return PING_FRAME
    if kind == 1:  # cancels what never was
        return frame(encode_read_requests([ReadRequest(ReadOp.CANCEL, draw.randrange(2**40))]))
    if kind == 2:
        first = draw.randrange(-1, 2**40)
        asked = ReadRequest(draw.choice(READS), number, draw.randrange(2**40), first)
        return frame(encode_read_requests([asked]))
    if kind == 3:
        return frame(encode_call(FrameKind.CALL, number, draw.randrange(1, 7), b""))
    body = draw.randbytes(draw.choice([0, 1, 31, 40, 3000]))
    return frame(adds_message((draw.randrange(2**40), number, KEY, body), first=number))


def bad(draw):
    """The last frame of a connection."""
    kind = draw.randrange(11)
    if kind == 0:
        return V2
    if kind == 1:
        return V3 + V2
    if kind == 2:  # a lying length
        return struct.pack(">IBB", draw.choice([0, 1, 2**31, 2**32 - 1, 300_000]), 1, 3)
    if kind == 3:  # cut
        whole = frame(adds_message((7, 0, KEY, bytes(draw.randrange(60_000)))))
        return whole[: draw.randrange(len(whole))]
    if kind == 4:
        return raw_frame(draw.randrange(256), draw.randbytes(20), version=draw.randrange(256))
    if kind == 5:  # a large message that never comes
        total = draw.choice([FRAME_BYTES_MAX + 1, 16 << 20, 2**32 - 1])
        return raw_frame(FrameKind.PIECES_BEGIN, struct.pack(">IBB", total, 1, 3) + bytes(500))
    if kind == 6:
        return raw_frame(FrameKind.PIECE, bytes(10))
    if kind == 7:
        return hello_frame("again")
    if kind == 8:
        return draw.randbytes(draw.randrange(300))
    return too_much(draw)


def too_much(draw):
    """More work than one message may bring, or reads whose short answers are not taken."""
    return draw.choice([*TOO_MANY, ABSENT])


async def attack(draw, port, bookie, frames):
    """Send about this many frames over connections, one after the other; returns their number."""
    sent = 0
    while sent < frames:
        number = draw.randrange(FRAMES_MAX)
        with contextlib.suppress(OSError):  # also of a socket that is shut down after its end
            await attack_once(draw, port, bookie, number)
        sent += number + 2
    return sent


async def attack_once(draw, port, bookie, frames):
    """Send this many frames and a bad one; slow peers leave in the middle of it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        if draw.random() < 0.95:
            writer.write(hello_frame(bookie))
        writer.write(b"".join(harmless(draw, number) for number in range(frames)) + bad(draw))
        if draw.random() < 0.7:
            writer.write_eof()
        async with asyncio.timeout(1.0):
            while await reader.read(1 << 16):
                pass
    finally:
        writer.transport.abort()


async def flood(tmp_path, frames, seed=1):
    with on_transport("tcp"), Child(tmp_path) as child:
        sent = await flood_child(child, frames, seed)
        output = child.output()
    assert "Traceback" not in output
    assert "closed the connection of a client" in output
    assert output.count("\n") < 50, "one line per kind and minute"
    return sent


async def flood_child(child, frames, seed):
    before, sent, entries = 0, 0, count()
    async with Client() as client:
        client.places[child.id] = BookieInfo(port=child.port)
        assert await client.add(child.id, next(entries)) is Status.OK
        for part in range(4):
            if part == 1:  # by then the allocator has grown to its working set
                before = status_bytes(child.process.pid, "VmRSS")
            attacks = [
                attack(random.Random(f"{seed}:{part}:{at}"), child.port, child.id, share)
                for at, share in enumerate([frames // 4 // ATTACKERS + 1] * ATTACKERS)
            ]
            under_way = asyncio.gather(*attacks)
            while not under_way.done():
                entry = next(entries)
                assert await client.add(child.id, entry) is Status.OK
                assert (await client.port.read(child.id, 7, entry)).status is Status.OK
            sent += sum(under_way.result())
        growth = status_bytes(child.process.pid, "VmRSS") - before
    assert growth < GROWTH_BYTES_MAX, f"{growth} bytes more after {sent} frames"
    return sent


async def test_10000_hostile_frames_leave_memory_flat_and_others_served(tmp_path):
    assert await flood(tmp_path, 10_000) >= 10_000


@pytest.mark.proof
@pytest.mark.timeout(900)
async def test_1000000_hostile_frames_leave_memory_flat_and_others_served(tmp_path):
    assert await flood(tmp_path, 1_000_000, seed=2) >= 1_000_000
