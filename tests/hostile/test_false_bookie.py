"""Goal: a client survives a bookie that is none, or that says nothing: its connection is closed
with one log line, and all that is pending is answered once. Method: a server of our own frames.
"""

import asyncio
import contextlib
from dataclasses import replace
from itertools import count

import pytest

from ledger.adapters.links.link_config import MESSAGE_BYTES_MAX
from ledger.adapters.tcp.tcp_bookies import TcpBookies
from ledger.adapters.tcp.tcp_config import TcpClientConfig
from ledger.ids import BookieId
from ledger.ports.bookies import BookieInfo, Status
from ledger.wire import bookie_pb2 as pb
from ledger.wire.bookie_frames import (
    FrameKind,
    ReadResponse,
    encode_add_statuses,
    encode_read_responses,
)
from ledger.wire.tcp_frames import (
    Welcome,
    encode_add_credit,
    encode_call,
    encode_tcp_welcome,
    frame,
    frames,
)
from tests.hostile.tcp_attack import Raw, Said, begin, raw_frame
from tests.ledger.bookie_rig import KEY
from tests.sim.bookie_world import entry_buffers

pytestmark = pytest.mark.real_loop

MIB = 1 << 20
# Nobody connects a second time, and a busy machine may take its time for the first.
CONFIG = TcpClientConfig(connect_timeout_s=20.0, reconnect_s_min=60.0, reconnect_s_max=60.0)


@pytest.fixture(autouse=True)
def said(capfd):
    """No scenario makes either end complain in tracebacks."""
    heard = Said(capfd)
    yield heard
    assert "Traceback" not in heard.text
    assert "never retrieved" not in heard.text


class FalseBookie:
    """Greets each client properly, then sends what the test gives it after the first frame."""

    id = BookieId("false-00000000")

    def __init__(self, *answers, greeting=None):
        welcome = encode_tcp_welcome(Welcome(Status.OK, 1 << 20, 0, 1 << 20))
        self._greeting = frame(welcome) if greeting is None else greeting
        self._answers = answers
        self.connections = 0
        self.port = 0

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()

    async def _serve(self, reader, writer):
        self.connections += 1
        raw = Raw(reader, writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await raw.frame()
            raw.send(self._greeting)
            await raw.frame()
            raw.send(*self._answers)
            await reader.read()
        writer.close()


BAD_ANSWERS = {
    "an answer to an add never sent": frame(encode_add_statuses([(50, 1, 0)])),
    "an answer to a read never sent": frame(encode_read_responses([ReadResponse(50, Status.OK)])),
    "an answer to a call never sent": frame(encode_call(FrameKind.CALL_RESPONSE, 50, 0, b"")),
    "an unknown status": frame(encode_add_statuses([(0, 1, 777)])),
    "a second WELCOME": frame(encode_tcp_welcome(Welcome(Status.OK, 1, 0, 0))),
    "a kind of clients": raw_frame(FrameKind.ADDS, bytes(20)),
    "kind 99": raw_frame(99, bytes(20)),
    "another version": raw_frame(FrameKind.PONG, version=2),
    "a lying length": raw_frame(FrameKind.ADD_STATUSES, bytes(20), length=2**31 - 1),
    "a piece without a beginning": raw_frame(FrameKind.PIECE, b"x" * 50),
    "a message above the limit": begin(MESSAGE_BYTES_MAX + 1, inner=FrameKind.READ_RESPONSES),
    "half a credit": frame(encode_add_credit(5)[:-1]),
}


@pytest.mark.parametrize("bad", BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys())
async def test_a_bad_answer_ends_the_connection_and_answers_all_that_is_pending_once(said, bad):
    async with FalseBookie(bad) as bookie, asyncio.timeout(20):
        places = {bookie.id: BookieInfo(tcp_port=bookie.port)}
        port = TcpBookies(lambda: places, CONFIG)
        answers = []
        for entry in range(5):
            body = entry_buffers(7, entry, b"x")
            port.add(bookie.id, 7, entry, KEY, body, answers.append)
        replies = await asyncio.gather(port.read(bookie.id, 7, 0), port.read_lac(bookie.id, 7))
        assert [reply.status for reply in replies] == [Status.UNREACHABLE] * 2
        assert answers == [Status.UNREACHABLE] * 5
        assert len(said.lines) == 1
        await port.close()
        assert len(answers) == 5


@pytest.mark.parametrize(
    "greeting",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        raw_frame(FrameKind.WELCOME, b"x"),
        raw_frame(FrameKind.PONG),
        frame(encode_tcp_welcome(Welcome(Status.OK, 1, 0, 0))[:-1]),
    ],
    ids=["HTTP", "a short WELCOME", "no WELCOME", "a cut WELCOME"],
)
async def test_a_bad_greeting_is_no_connection(said, greeting):
    async with FalseBookie(greeting=greeting) as bookie, asyncio.timeout(20):
        places = {bookie.id: BookieInfo(tcp_port=bookie.port)}
        port = TcpBookies(lambda: places, CONFIG)
        assert (await port.read(bookie.id, 7, 0)).status is Status.UNREACHABLE
        assert len(said.lines) == 1
        await port.close()


async def test_a_long_response_is_one_buffer_and_its_bodies_are_views_of_it():
    body = bytes(range(256)) * 1024
    answer = encode_read_responses([ReadResponse(0, Status.OK, 5, [body] * 4)])
    pieces = [part for piece in frames([answer]) for part in piece]
    async with FalseBookie(*pieces) as bookie, asyncio.timeout(20):
        places = {bookie.id: BookieInfo(tcp_port=bookie.port)}
        port = TcpBookies(lambda: places, CONFIG)
        reply = await port.read_many(bookie.id, 7, 0, 3, 2 * MIB)
        assert [bytes(each) for each in reply.bodies] == [body] * 4
        assert len({id(each.obj) for each in reply.bodies}) == 1
        assert len(reply.bodies[0].obj) == len(answer)
        await port.close()


async def test_half_a_run_of_entries_is_no_answer():
    listed = pb.EntriesReply(status=Status.OK, runs=[1, 2, 3]).SerializeToString()
    answer = frame(encode_call(FrameKind.CALL_RESPONSE, 0, 0, listed))
    async with FalseBookie(answer) as bookie, asyncio.timeout(20):
        places = {bookie.id: BookieInfo(tcp_port=bookie.port)}
        port = TcpBookies(lambda: places, CONFIG)
        assert (await port.list_entries(bookie.id, 7)).status is Status.UNREACHABLE
        await port.close()


async def test_a_silent_bookie_is_pinged_and_then_given_up():
    heard = []

    async def serve(reader, writer):
        raw = Raw(reader, writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await raw.frame()
            raw.send(frame(encode_tcp_welcome(Welcome(Status.OK, 1 << 20, 0, 1 << 20))))
            for _ in count():
                heard.append((await raw.frame())[1])
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    places = {FalseBookie.id: BookieInfo(tcp_port=server.sockets[0].getsockname()[1])}
    config = replace(CONFIG, keepalive_s=0.2, keepalive_timeout_s=0.2)
    port = TcpBookies(lambda: places, config)
    async with asyncio.timeout(60):
        polled = await port.wait_lac(FalseBookie.id, 7, 0, 100.0)
    assert polled.status is Status.UNREACHABLE
    assert heard[:2] == [FrameKind.READ_REQUESTS, FrameKind.PING]
    await port.close()
    server.close()
