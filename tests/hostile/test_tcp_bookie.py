"""Goal: a bookie's TCP port survives peers that no client is: each bad connection is closed with
one log line, nothing is stored, and others are served. Method: a real bookie and raw sockets.
"""

import asyncio
import contextlib
import socket

import pytest

from ledger.adapters.links.link_config import MESSAGE_BYTES_MAX
from ledger.adapters.tcp.tcp_bookies import TcpBookies
from ledger.adapters.tcp.tcp_config import TcpClientConfig, TcpServerConfig
from ledger.bookie.tcp_server import TcpServer
from ledger.ids import BookieId
from ledger.ports.bookies import BookieInfo, Status
from ledger.wire import bookie_pb2 as pb
from ledger.wire.bookie_frames import (
    ADDS_MAX,
    REQUESTS_MAX,
    FrameKind,
    ReadOp,
    ReadRequest,
    decode_add_statuses,
    encode_hello,
    encode_read_requests,
)
from ledger.wire.tcp_frames import (
    FRAME_BYTES_MAX,
    NOT_ANSWERED,
    PONG_FRAME,
    decode_call,
    encode_call,
    frame,
    frames,
)
from tests.hostile.tcp_attack import (
    GOOD_ADD,
    Raw,
    Said,
    adds_message,
    attacked,
    begin,
    leap,
    raw_frame,
)
from tests.leaping_loop import leaping
from tests.ledger.bookie_rig import KEY
from tests.ledger.remote_world import Client, Served
from tests.ledger.test_remote_bookies import Holding
from tests.ledger.transports import on_transport
from tests.peers.processes import until
from tests.sim.bookie_world import entry_bytes

pytestmark = pytest.mark.real_loop

MIB = 1 << 20


@pytest.fixture(autouse=True)
def said(capfd):
    """No scenario makes either end complain in tracebacks."""
    heard = Said(capfd)
    yield heard
    assert "Traceback" not in heard.text
    assert "never retrieved" not in heard.text


@pytest.fixture(autouse=True)
def over_tcp():
    """`Served` and `Client` of every test here use TCP."""
    with on_transport("tcp"):
        yield


# -- frames that break the rules -------------------------------------------------------------------

BEGIN, PIECE = FrameKind.PIECES_BEGIN, FrameKind.PIECE


BIG = FRAME_BYTES_MAX + 1000
BAD_FRAMES = {
    "length 0": raw_frame(FrameKind.PING, length=0),
    "length 1": raw_frame(FrameKind.PING, length=1),
    "a length above the limit": raw_frame(FrameKind.ADDS, bytes(100), length=FRAME_BYTES_MAX + 1),
    "a length of 2 GiB": raw_frame(FrameKind.ADDS, length=2**31 - 1),
    "a negative length": raw_frame(FrameKind.ADDS, length=-1),
    "another version": raw_frame(FrameKind.PING, version=9),
    "v2 after v3": b"\0\0\0\x10\x0a\x0a" + bytes(14) + b"\0\0\0\x10\x02" + bytes(15),
    "kind 0": raw_frame(0, b"x"),
    "kind 99": raw_frame(99, b"x"),
    "a kind of bookies": raw_frame(FrameKind.ADD_STATUSES, bytes(14)),
    "a PONG": PONG_FRAME,
    "a PING with content": raw_frame(FrameKind.PING, b"x"),
    "a second HELLO": frame(encode_hello("again")),
    "a piece without a beginning": raw_frame(PIECE, b"x" * 50),
    "a message in pieces that is none": begin(200),
    "a message in pieces of 4 GiB": begin(2**32 - 1),
    "a message in pieces above the limit": begin(MESSAGE_BYTES_MAX + 1),
    "a beginning inside of another one": begin(BIG) + begin(BIG),
    "pieces of pieces": begin(BIG, inner=PIECE),
    "a piece beyond the end": begin(BIG, size=FRAME_BYTES_MAX - 8) + raw_frame(PIECE, bytes(2000)),
    "an empty piece": begin(BIG) + raw_frame(PIECE),
    "a kind in pieces that no client sends": begin(BIG, inner=FrameKind.READ_RESPONSES),
    "a call in pieces": begin(BIG, inner=FrameKind.CALL),
    "ledger -1": frame(adds_message((-1, 0, KEY, b"x" * 40))),
    "cut adds": frame(adds_message(GOOD_ADD)[:-1]),
    "too long adds": frame(adds_message(GOOD_ADD) + b"x"),
    "one bad of two": frame(adds_message(GOOD_ADD, (7, -1, KEY, b"x" * 40))),
    "a read of ledger -1": frame(encode_read_requests([ReadRequest(ReadOp.READ, 0, ledger=-1)])),
    "more adds than a message may have": frame(adds_message(*[(7, 0, KEY, b"")] * (ADDS_MAX + 1))),
    "more reads than a message may have": frame(
        encode_read_requests([ReadRequest(ReadOp.CANCEL, 0)] * (REQUESTS_MAX + 1))
    ),
    "an unknown read": raw_frame(FrameKind.READ_REQUESTS, b"\x63" + bytes(37)),
    "one number twice": frame(
        encode_read_requests([ReadRequest(ReadOp.WAIT_LAC, 0, 7, bound=60_000)] * 2)
    ),
    "an unknown call": frame(encode_call(FrameKind.CALL, 0, 99, b"")),
    "a call that does not parse": frame(encode_call(FrameKind.CALL, 0, 2, b"\xff" * 20)),
    "a call of ledger -5": frame(
        encode_call(FrameKind.CALL, 0, 2, pb.LedgerRequest(ledger=-5).SerializeToString())
    ),
    "one number of two calls": frame(encode_call(FrameKind.CALL, 0, 6, b"")) * 2,
    "the place of an entry -1": frame(
        encode_call(FrameKind.CALL, 0, 8, bytes((1,)) + b"b" + bytes(8) + b"\xff" * 8)
    ),
    "half a call": raw_frame(FrameKind.CALL, b"xx"),
}


@pytest.mark.parametrize("bad", BAD_FRAMES.values(), ids=BAD_FRAMES.keys())
async def test_a_bad_frame_ends_its_connection_with_one_line_and_no_other(tmp_path, said, bad):
    async with attacked(tmp_path) as one:
        other = await one.welcomed()
        raw = await one.welcomed()
        raw.send(bad)
        await raw.ended()
        assert len(said.lines) == 1
        assert "127.0.0.1" in said.lines[0]
        other.send(raw_frame(FrameKind.PING))
        assert await other.frame() == PONG_FRAME[4:]
        other.close()


@pytest.mark.parametrize("kind", [FrameKind.ADDS, FrameKind.READ_REQUESTS, FrameKind.CALL])
async def test_nothing_is_taken_before_the_hello(tmp_path, said, kind):
    async with attacked(tmp_path) as one:
        raw = await one.raw()
        raw.send(raw_frame(kind, bytes(30)))
        await raw.ended()
        assert "no HELLO" in said.lines[0]


FIRST_BYTES = {
    "BookKeeper's protocol v3": b"\0\0\0\x20\x0a" + bytes(31),
    "BookKeeper's protocol v2": b"\0\0\0\x20\x02" + bytes(31),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "an unknown protocol (first frame of 1195725856 bytes)": b"GET / HTTP/1.1\r\n\r\n",
    "an unknown protocol (first frame of 65537 bytes)": b"\0\1\0\1\1\1" + bytes(100),
    "an unknown protocol (0x63)": b"\0\0\0\x20\x63" + bytes(31),
}


@pytest.mark.parametrize("cut", [1, 5, 1000])
@pytest.mark.parametrize(("name", "first"), FIRST_BYTES.items(), ids=FIRST_BYTES.keys())
async def test_the_first_bytes_name_the_protocol_and_others_are_closed(
    tmp_path, said, name, first, cut
):
    async with attacked(tmp_path) as one:
        raw = await one.raw()
        with contextlib.suppress(ConnectionError):
            for at in range(0, len(first), cut):
                raw.send(first[at : at + cut])
                await raw.writer.drain()
        await raw.ended()
        assert len(said.lines) == 1
        assert name in said.lines[0]


async def test_a_hello_to_another_instance_is_refused_and_what_follows_it_too(tmp_path):
    async with attacked(tmp_path) as one:
        raw = await one.raw()
        raw.send(frame(encode_hello("bookie-00000000")), frame(adds_message(GOOD_ADD)))
        message = await raw.message()
        assert int.from_bytes(message[2:4], "big") == Status.WRONG_INSTANCE
        await raw.ended()


async def test_adds_beyond_the_credit_end_the_connection(tmp_path, said):
    async with attacked(tmp_path) as one:
        server = TcpServer(Holding(one.served.bookie), TcpServerConfig(queue_bytes_max=100_000))
        raw = await Raw.welcomed(await server.start("127.0.0.1", 0), one.served.id)
        assert raw.welcome.credit == 64 * 1024
        for number in range(3):  # the room is full behind the second one
            body = entry_bytes(7, number, bytes(90_000))
            raw.send(frame(adds_message((7, number, KEY, body), first=number)))
        await raw.ended()
        assert "beyond the credit" in said.lines[0]
        await server.stop(0)


async def test_a_connection_that_ends_inside_of_a_frame_is_logged(tmp_path, said):
    async with attacked(tmp_path) as one:
        raw = await one.welcomed()
        raw.send(frame(adds_message(GOOD_ADD))[:-1])
        raw.writer.write_eof()
        await raw.ended()
        assert "inside of a frame" in said.lines[0]


@pytest.mark.parametrize(
    "half",
    [b"\0", b"\0\0\0\x40\1", frame(adds_message((7, 0, KEY, bytes(90_000))))[:-1], begin(BIG)],
    ids=["one byte", "a head", "long adds", "a first piece"],
)
async def test_half_a_frame_and_then_silence_is_given_up(tmp_path, said, half):
    async with attacked(tmp_path, frame_timeout_s=0.3) as one:
        raw = await one.welcomed()
        raw.send(half)
        await raw.ended()
        assert "within the time limit" in said.lines[0]


@leaping
async def test_a_frame_that_comes_byte_by_byte_is_given_up(tmp_path, said):
    async with attacked(tmp_path, frame_timeout_s=20.0) as one:
        raw = await one.welcomed()
        slow = frame(adds_message(GOOD_ADD))
        sent = 0
        while not said.lines and sent < len(slow) - 1:
            raw.send(slow[sent : sent + 1])
            sent += 1
            await leap(one.server, 3.0)
        await raw.ended()
        assert 2 < sent < 10
        assert "within the time limit" in said.lines[0]


@pytest.mark.parametrize("between", ["pings", "small pieces"])
async def test_a_message_in_pieces_that_gets_no_further_is_given_up_whatever_else_comes(
    tmp_path, said, between
):
    """Else 16 clients could keep the room for unfinished frames from all others without end."""
    frames_s = {"pings": raw_frame(FrameKind.PING), "small pieces": raw_frame(PIECE, b"x")}
    async with attacked(tmp_path, frame_timeout_s=0.4) as one:
        raw = await one.welcomed()
        raw.send(begin(BIG))
        for _ in range(200):
            if said.lines:
                break
            raw.send(frames_s[between])
            await asyncio.sleep(0.05)
        assert said.lines, "ten seconds were enough"
        await raw.ended()
        assert "within the time limit" in said.lines[0]


@leaping
async def test_a_slow_message_in_pieces_is_taken(tmp_path):
    """A frame of 256 KiB has the time limit; a message of several has as many times that."""
    async with Served(tmp_path) as served, asyncio.timeout(300):
        server = TcpServer(served.bookie, TcpServerConfig(frame_timeout_s=30.0))
        raw = await Raw.welcomed(await server.start("127.0.0.1", 0), served.id)
        body = entry_bytes(7, 0, bytes(6 * FRAME_BYTES_MAX))
        *pieces, last = frames([adds_message((7, 0, KEY, body))])
        assert len(pieces) == 6
        for piece in pieces:
            before = server.unfinished
            raw.send(*piece)
            await until(lambda before=before: server.unfinished > before, "a piece to come")
            await leap(server, 20.0)
        raw.send(*last)
        (run,) = decode_add_statuses(await raw.message(FrameKind.ADD_STATUSES))
        assert run.status is Status.OK
        raw.close()
        await server.stop(0)


@leaping
async def test_a_client_that_says_nothing_is_let_go(tmp_path, said):
    async with attacked(tmp_path, silence_s=20.0, hello_timeout_s=20.0) as one:
        raws = [await one.raw(), await one.welcomed()]
        await until(lambda: len(one.server._connections) == 2, "both connections")
        for _ in range(2):  # the first look finds that bytes came, the second one that none did
            await leap(one.server, 21.0)
        for raw in raws:
            await raw.ended()
        assert "no HELLO" in said.text


@leaping
async def test_a_client_that_pings_is_kept(tmp_path):
    async with attacked(tmp_path, timeout_s=300, silence_s=30.0) as one:
        raw = await one.welcomed()
        for _ in range(6):
            raw.send(raw_frame(FrameKind.PING))
            assert await raw.frame() == PONG_FRAME[4:], "it was kept"
            await leap(one.server, 18.0)
        raw.close()


async def test_connections_are_limited_and_those_that_are_there_go_on(tmp_path, said):
    async with attacked(tmp_path, connections_max=5) as one:
        there = [await one.welcomed() for _ in range(5)]
        for _ in range(5):
            await (await one.raw()).ended()
        assert len(said.lines) == 1
        assert "too many connections" in said.lines[0]
        for raw in there:
            raw.send(raw_frame(FrameKind.PING))
            assert await raw.frame() == PONG_FRAME[4:]
            raw.close()
        await until(lambda: not one.server._connections, "they have gone")


async def test_unfinished_frames_of_all_connections_are_bounded(tmp_path, said):
    async with attacked(tmp_path, unfinished_bytes_max=MIB) as one:
        raws = [await one.welcomed() for _ in range(10)]
        for raw in raws:
            raw.send(frame(adds_message((7, 0, KEY, bytes(200_000))))[:-1])
        await until(lambda: len(one.server._connections) <= 5, "some are closed")
        assert one.server.unfinished <= MIB
        assert "too many bytes" in said.text
        for raw in raws:
            raw.close()


async def test_peers_that_reset_are_forgotten(tmp_path):
    async with attacked(tmp_path) as one:
        for number in range(60):
            raw = await (one.welcomed() if number % 2 else one.raw())
            found = raw.writer.get_extra_info("socket")
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            raw.send(frame(adds_message(GOOD_ADD))[: number % 9])
            raw.writer.transport.abort()


async def test_fences_reads_cancellations_and_calls_are_answered_while_adds_have_no_room(tmp_path):
    async with Served(tmp_path) as served, Client(served) as writer:
        assert await writer.add(served.id, 0) is Status.OK

        class Full(Holding):
            """Adds stay outside; all else is the bookie's."""

            def __getattr__(self, name):
                return getattr(self._bookie, name)

        holding = Full(served.bookie)
        server = TcpServer(holding, TcpServerConfig(queue_bytes_max=500_000))
        port = await server.start("127.0.0.1", 0)
        async with Client() as client, asyncio.timeout(60):
            client.places[served.id] = BookieInfo(port=port)
            told = [client.add(served.id, entry, bytes(100_000)) for entry in range(1, 100)]
            await until(lambda: server._window.used >= 500_000, "no more room")
            for _ in range(2):  # the first answer comes after all credit, the second after its adds
                read = await client.port.read(served.id, 7, 0)
                assert read.status is Status.OK
            held = len(holding.held)
            polled = asyncio.ensure_future(client.port.wait_lac(served.id, 7, 5, 30.0))
            assert (await client.port.read_lac(served.id, 7)).status is Status.OK
            polled.cancel()
            fenced = await client.port.read(served.id, 8, -1, fence_key=KEY)
            assert fenced.status is Status.NO_ENTRY
            assert (await client.port.stats(served.id)).status is Status.OK
            assert len(holding.held) == held, "and no add was taken meanwhile"
            while not all(one.done() for one in told):
                holding.open()
                await asyncio.sleep(0.01)
            assert {one.result() for one in told} == {Status.OK}
        await server.stop(0)


def reads(numbers, max_bytes=3 * MIB):
    wanted = [ReadRequest(ReadOp.READ_MANY, number, 7, 0, 3, max_bytes) for number in numbers]
    return frame(encode_read_requests(wanted))


async def test_a_reader_that_takes_no_responses_does_not_stop_adds(tmp_path):
    async with Served(tmp_path) as served, Client(served) as client, asyncio.timeout(60):
        for entry in range(4):
            assert await client.add(served.id, entry, bytes(MIB // 2)) is Status.OK
        raw = await Raw.welcomed(served.port, served.id)
        raw.writer.transport.pause_reading()
        raw.send(reads(range(200)))
        for entry in range(50):
            body = entry_bytes(9, entry, b"x")
            raw.send(frame(adds_message((9, entry, KEY, body), first=entry)))

        async def listed():
            return (await client.port.list_entries(served.id, 9)).runs

        while await listed() != ((0, 49),):
            await asyncio.sleep(0.01)
        raw.close()


async def test_statuses_of_adds_overtake_a_large_response(tmp_path):
    """The bookie's answers to 40 adds come between the pieces of reads that were asked before."""
    async with Served(tmp_path) as served, Client(served) as client, asyncio.timeout(60):
        for entry in range(4):
            assert await client.add(served.id, entry, bytes(4 * MIB)) is Status.OK
        raw = await Raw.welcomed(served.port, served.id)
        raw.writer.transport.pause_reading()
        raw.send(frame(encode_read_requests([ReadRequest(ReadOp.READ, 0, 7, 0)])))
        for entry in range(40):
            body = entry_bytes(9, entry, b"x")
            raw.send(frame(adds_message((9, entry, KEY, body), first=entry)))
        while (await client.port.list_entries(served.id, 9)).runs != ((0, 39),):
            await asyncio.sleep(0.01)
        raw.writer.transport.resume_reading()
        answered, pieces = 0, []
        while answered < 40:
            found = await raw.frame()
            if found[1] == FrameKind.ADD_STATUSES:
                answered += sum(run.length for run in decode_add_statuses(found))
            elif found[1] in (BEGIN, PIECE):
                pieces.append(len(found))
        assert sum(pieces) < 4 * MIB, "before the last piece"
        while sum(pieces) < 4 * MIB:
            pieces.append(len(await raw.frame()))
        assert max(pieces) <= FRAME_BYTES_MAX
        raw.close()


@leaping
async def test_a_client_that_takes_no_answer_is_disconnected_and_its_room_is_free(tmp_path, said):
    async with Served(tmp_path) as served, Client(served) as client, asyncio.timeout(100):
        for entry in range(4):
            assert await client.add(served.id, entry, bytes(MIB // 2)) is Status.OK
        server = TcpServer(served.bookie, TcpServerConfig(write_timeout_s=20.0))
        raw = await Raw.welcomed(await server.start("127.0.0.1", 0), served.id)
        raw.writer.transport.pause_reading()
        raw.send(reads(range(100)))
        await until(lambda: server._room.used > 0, "answers wait")
        (connection,) = server._connections
        await until(lambda: connection._paused, "the system to take no more")
        await leap(server, 21.0)
        await until(lambda: not server._connections, "it is disconnected")
        await until(lambda: server._room.used == 0, "its room is free")
        assert "takes no answers" in said.lines[0]
        raw.close()
        await server.stop(0)


async def test_short_answers_that_a_client_does_not_take_are_bounded_in_memory(tmp_path):
    """An answer of 23 bytes takes some hundred in memory."""
    async with Served(tmp_path) as served, asyncio.timeout(60):
        server = TcpServer(served.bookie, TcpServerConfig(answer_bytes_max=MIB))
        raw = await Raw.welcomed(await server.start("127.0.0.1", 0), served.id)
        raw.writer.transport.pause_reading()
        (connection,) = server._connections
        answers = connection._reads
        for sent, first in enumerate(range(0, 400_000, 4_000), 2):
            numbers = range(first, first + 4_000)
            absent = [ReadRequest(ReadOp.READ, number, 99, 0) for number in numbers]
            raw.send(frame(encode_read_requests(absent)))
            await until(lambda sent=sent: connection._reader.steps == sent, "the requests")
            await until(lambda: not answers._tasks, "what has room is answered")
            if answers._asked:
                break
        assert answers._asked, "some wait for room"
        assert len(answers._responses) < 3_000
        raw.close()
        await server.stop(0)


async def test_too_many_waiting_reads_end_the_connection(tmp_path, said):
    async with Served(tmp_path) as served, Client(served) as client, asyncio.timeout(60):
        for entry in range(4):
            assert await client.add(served.id, entry, bytes(MIB // 2)) is Status.OK
        raw = await Raw.welcomed(served.port, served.id)
        raw.writer.transport.pause_reading()
        for first in range(0, 20_000, 1000):
            raw.send(reads(range(first, first + 1000)))
        raw.writer.transport.resume_reading()
        await raw.ended()
        assert "read requests wait" in said.lines[0]


class Stuck:
    """A bookie whose disk never answers."""

    bookie_id = BookieId("stuck-00000000")

    under_way = 0

    async def stats(self):
        self.under_way += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.under_way -= 1


STATS = pb.StatsRequest(bookie=Stuck.bookie_id).SerializeToString()


async def test_a_call_without_an_answer_is_answered_when_its_time_is_up():
    server = TcpServer(Stuck(), TcpServerConfig(control_timeout_s=0.1))
    raw = await Raw.welcomed(await server.start("127.0.0.1", 0), Stuck.bookie_id)
    raw.send(frame(encode_call(FrameKind.CALL, 7, 6, STATS)))
    assert decode_call(await raw.message()) == (7, NOT_ANSWERED, b"")
    raw.close()
    await server.stop(0)


async def test_the_calls_of_a_client_that_left_end():
    stuck = Stuck()
    server = TcpServer(stuck, TcpServerConfig())
    raw = await Raw.welcomed(await server.start("127.0.0.1", 0), Stuck.bookie_id)
    raw.send(*[frame(encode_call(FrameKind.CALL, number, 6, STATS)) for number in range(10)])
    await until(lambda: stuck.under_way == 10, "the calls")
    raw.close()
    await until(lambda: not server._connections, "it has left")
    await until(lambda: stuck.under_way < 10, "their end", timeout_s=60.0)
    assert stuck.under_way == 0
    await server.stop(0)


async def test_too_many_calls_without_an_answer_end_the_connection(said):
    server = TcpServer(Stuck(), TcpServerConfig())
    raw = await Raw.welcomed(await server.start("127.0.0.1", 0), Stuck.bookie_id)
    raw.send(*[frame(encode_call(FrameKind.CALL, number, 6, STATS)) for number in range(257)])
    await raw.ended()
    assert "control call 256" in said.lines[0]
    await server.stop(0)


async def test_a_client_holds_back_calls_that_would_be_too_many():
    server = TcpServer(Stuck(), TcpServerConfig())
    places = {Stuck.bookie_id: BookieInfo(tcp_port=await server.start("127.0.0.1", 0))}
    port = TcpBookies(
        lambda: places, TcpClientConfig(control_timeout_s=0.5, connect_timeout_s=20.0)
    )
    calls = [port.stats(Stuck.bookie_id) for _ in range(400)]
    assert {reply.status for reply in await asyncio.gather(*calls)} == {Status.UNREACHABLE}
    assert len(server._connections) == 1, "the connection has lasted"
    await port.close()
    await server.stop(0)


async def test_calls_that_were_held_back_are_answered_when_the_connection_ends():
    server = TcpServer(Stuck(), TcpServerConfig())
    places = {Stuck.bookie_id: BookieInfo(tcp_port=await server.start("127.0.0.1", 0))}
    port = TcpBookies(lambda: places, TcpClientConfig(control_timeout_s=100.0))
    calls = [asyncio.ensure_future(port.stats(Stuck.bookie_id)) for _ in range(400)]
    await until(lambda: server._connections, "the connection")
    await server.stop(0.05)
    async with asyncio.timeout(60):
        replies = await asyncio.gather(*calls)
    assert {reply.status for reply in replies} == {Status.UNREACHABLE}
    await port.close()
