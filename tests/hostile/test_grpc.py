"""Goal: a bookie survives peers that no client is: it logs nothing of theirs, says nothing that
could be taken for an answer about entries, keeps its memory, and serves the others meanwhile.
Method: a real bookie on a port; raw gRPC calls, raw sockets and certificates of our own making.
After every scenario a well-behaved client must be served, and stderr must hold no traceback.
"""

import asyncio
import contextlib
import itertools
import random
import socket
from contextlib import asynccontextmanager

import pytest

from ledger.adapters.grpc.grpc_config import GrpcServerConfig
from ledger.adapters.grpc.grpc_library import aio, grpc
from ledger.adapters.links.link_config import MESSAGE_BYTES_MAX
from ledger.bookie.grpc_server import BookieServer
from ledger.ports.bookies import BookieInfo, Status
from ledger.wire import bookie_pb2 as pb
from ledger.wire.bookie_frames import (
    AddBatchWriter,
    AddStatusRange,
    ReadOp,
    ReadRequest,
    decode_add_statuses,
    decode_read_responses,
    decode_welcome,
    encode_hello,
    encode_read_requests,
)
from ledger.wire.locate_frames import decode_locate_reply, encode_locate
from tests.ledger.bookie_rig import KEY, OTHER_KEY
from tests.ledger.remote_world import CONFIG, Client, Served
from tests.peers.processes import until
from tests.sim.bookie_world import entry_bytes

pytestmark = pytest.mark.real_loop

SERVICE = "/ledger.wire.Bookie/"
UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
BIG = 512 * 1024
OWN_LINK = ("grpc.use_local_subchannel_pool", 1)
TAKEN_BYTES_MAX = 4 * 1024 * 1024  # answers in the buffers of a connection that nobody reads


@pytest.fixture(autouse=True)
def stderr(capfd):
    """No scenario makes the server complain in tracebacks."""
    yield
    told = capfd.readouterr().err
    assert "Traceback" not in told
    assert "never retrieved" not in told


class Attack:
    """A raw channel to the bookie, and what the bookie had logged before."""

    def __init__(self, served):
        self.served = served
        self.channel = aio.insecure_channel(f"127.0.0.1:{served.port}", UNLIMITED)
        self.before = self.logged()

    def logged(self):
        return self.served.bookie.groups, self.served.log_bytes(), self.served.bookie.ledgers()

    def stream(self, name="Adds"):
        return self.channel.stream_stream(SERVICE + name)()

    async def welcomed(self, name="Adds"):
        """A stream after a proper hello."""
        call = self.stream(name)
        await call.write(encode_hello(self.served.id))
        assert decode_welcome(await call.read())[0] is Status.OK
        return call

    async def call(self, method, request=b"", **how):
        return await self.channel.unary_unary(method)(request, **how)


@asynccontextmanager
async def attacked(path, *, config=CONFIG, server=None):
    """An attack on a served bookie, which must log nothing and serve a client afterwards."""
    async with asyncio.timeout(60), Served(path, config, server) as served:
        one = Attack(served)
        yield one
        await one.channel.close()
        assert one.logged() == one.before
        async with Client(served) as client:
            assert await client.add(served.id, 0) is Status.OK


async def status_of(call):
    """How the bookie ended the stream."""
    with contextlib.suppress(aio.AioRpcError):
        while await call.read() is not aio.EOF:
            pass
    return await call.code()


def adds_message(*adds, first=0):
    writer = AddBatchWriter(first)
    for ledger, entry, key, body in adds:
        writer.add(ledger, entry, key, [body], len(body), False)
    return writer.encode()


GOOD_ADD = (7, 0, KEY, entry_bytes(7, 0, b"x"))


@pytest.mark.parametrize("method", [SERVICE + "Format", "/other.Service/Adds", "/", "Adds"])
async def test_an_unknown_method_is_unimplemented(tmp_path, method):
    async with attacked(tmp_path) as one:
        with pytest.raises(aio.AioRpcError) as refused:
            await one.call(method)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("name", ["Adds", "Reads"])
async def test_a_message_larger_than_the_largest_entry_ends_the_stream(tmp_path, name):
    async with attacked(tmp_path) as one:
        call = await one.welcomed(name)
        await call.write(bytes(MESSAGE_BYTES_MAX + 1))
        assert await status_of(call) is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_larger_control_message_is_refused(tmp_path):
    async with attacked(tmp_path) as one:
        with pytest.raises(aio.AioRpcError) as refused:
            await one.call(SERVICE + "WriteLac", bytes(MESSAGE_BYTES_MAX + 1))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("name", ["Adds", "Reads"])
async def test_garbage_ends_the_stream_before_and_after_the_hello(tmp_path, name):
    async with attacked(tmp_path) as one:
        draw = random.Random(1)
        for size in (0, 1, 2, 3, 17, 60, 5000):
            for begin in (one.stream, one.welcomed):
                made = begin(name)
                call = await made if asyncio.iscoroutine(made) else made
                await call.write(draw.randbytes(size))
                assert await status_of(call) is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "message",
    [
        adds_message((-1, 0, KEY, b"x" * 40)),
        adds_message((7, -1, KEY, b"x" * 40)),
        adds_message(GOOD_ADD)[:-1],
        adds_message(GOOD_ADD) + b"x",
        adds_message(GOOD_ADD, (7, -1, KEY, b"x" * 40)),  # then the good one does not count
        encode_hello("again"),
    ],
    ids=["ledger -1", "entry -1", "cut", "too long", "one bad of two", "a second hello"],
)
async def test_adds_that_break_the_rules_end_the_stream_and_none_counts(tmp_path, message):
    async with attacked(tmp_path) as one:
        call = await one.welcomed()
        await call.write(message)
        assert await status_of(call) is grpc.StatusCode.INVALID_ARGUMENT


async def test_adds_without_a_hello_end_the_stream(tmp_path):
    async with attacked(tmp_path) as one:
        call = one.stream()
        await call.write(adds_message(GOOD_ADD))
        assert await status_of(call) is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_hello_to_another_instance_is_refused_and_what_follows_it_too(tmp_path):
    async with attacked(tmp_path) as one:
        for name in ("Adds", "Reads"):
            call = one.stream(name)
            await call.write(encode_hello("bookie-00000000"))
            with contextlib.suppress(aio.AioRpcError, asyncio.InvalidStateError):
                await call.write(adds_message(GOOD_ADD))
            assert decode_welcome(await call.read())[0] is Status.WRONG_INSTANCE
            assert await status_of(call) is grpc.StatusCode.OK
        for method in ("WriteLac", "EndLimbo"):
            request = pb.LedgerRequest(bookie="other", ledger=7, master_key=KEY, lac=3)
            reply = await one.call(SERVICE + method, request.SerializeToString())
            assert pb.StatusReply.FromString(reply).status == Status.WRONG_INSTANCE


async def test_bodies_that_are_no_entries_are_refused_one_by_one(tmp_path):
    async with attacked(tmp_path) as one:
        call = await one.welcomed()
        bodies = [b"", b"x", b"x" * 31, entry_bytes(8, 0, b"x"), entry_bytes(7, 1, b"x")]
        await call.write(adds_message(*[(7, 0, KEY, body) for body in bodies]))
        assert decode_add_statuses(await call.read()) == [
            AddStatusRange(0, len(bodies), Status.BAD_REQUEST)
        ]
        call.cancel()


async def test_a_wrong_key_or_another_payload_changes_nothing(tmp_path):
    async with Served(tmp_path) as served, Client(served) as client:
        await client.add(served.id, 0)
        one = Attack(served)
        call = await one.welcomed()
        other = (7, 0, KEY, entry_bytes(7, 0, b"y"))
        stolen = (7, 1, OTHER_KEY, entry_bytes(7, 1, b"y"))
        await call.write(adds_message(stolen, other))
        answers = {}
        while len(answers) < 2:
            for first, _, status in decode_add_statuses(await call.read()):
                answers[first] = status
        assert answers == {0: Status.UNAUTHORIZED, 1: Status.BAD_REQUEST}
        fence = ReadRequest(ReadOp.FENCE_AND_READ, 1, 7, -1, key=OTHER_KEY)
        reads = await one.welcomed("Reads")
        await reads.write(encode_read_requests([fence]))
        assert decode_read_responses(await reads.read())[0].status is Status.UNAUTHORIZED
        assert one.logged() == one.before
        await one.channel.close()
        assert await client.add(served.id, 1) is Status.OK


async def test_questions_that_break_the_rules_end_the_stream(tmp_path):
    async with attacked(tmp_path) as one:
        bad = [
            [ReadRequest(ReadOp.READ, 0, ledger=-1)],
            [ReadRequest(ReadOp.READ, 0, first=-2)],
            [
                ReadRequest(ReadOp.WAIT_LAC, 0, 7, bound=60_000),
                ReadRequest(ReadOp.READ, 0, 7),
            ],  # one number
        ]
        for questions in bad:
            call = await one.welcomed("Reads")
            await call.write(encode_read_requests(questions))
            assert await status_of(call) is grpc.StatusCode.INVALID_ARGUMENT


async def test_control_calls_that_do_not_parse_are_invalid(tmp_path):
    async with attacked(tmp_path) as one:
        bad = [b"\xff" * 20, pb.LedgerRequest(bookie=one.served.id, ledger=-5).SerializeToString()]
        bad.append(pb.LedgerRequest(bookie=one.served.id, lac=-2).SerializeToString())
        calls = itertools.product(("ReadLac", "WriteLac", "ListEntries", "EndLimbo"), bad)
        for method, request in [*calls, ("Info", bad[0]), ("Stats", bad[0])]:
            with pytest.raises(aio.AioRpcError) as refused:
                await one.call(SERVICE + method, request)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_place_asked_for_in_bytes_that_do_not_parse_is_invalid(tmp_path):
    async with attacked(tmp_path) as one:
        good = encode_locate(one.served.id, 7, 0)
        for request in (b"", b"\xff" * 20, good[:-1], good + b"x", good[:-8] + b"\xff" * 8):
            with pytest.raises(aio.AioRpcError) as refused:
                await one.call(SERVICE + "Locate", request)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        other = await one.call(SERVICE + "Locate", encode_locate("other", 7, 0))
        assert decode_locate_reply(other).status is Status.WRONG_INSTANCE


async def test_who_a_bookie_is_may_be_asked_by_anybody(tmp_path):
    async with attacked(tmp_path) as one:
        info = pb.InfoReply.FromString(await one.call(SERVICE + "Info"))
        assert (info.bookie, info.frame_version, info.writable) == (one.served.id, 1, True)


async def test_a_stream_that_never_says_hello_is_ended(tmp_path):
    async with attacked(tmp_path, server=GrpcServerConfig(hello_timeout_s=0.2)) as one:
        call = one.stream()
        await call.wait_for_connection()
        assert await status_of(call) is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_call_without_a_deadline_gets_one(tmp_path):
    class Stuck:
        """A bookie whose disk never answers."""

        bookie_id = "stuck-00000000"

        async def stats(self):
            await asyncio.Event().wait()

    server = BookieServer(Stuck(), GrpcServerConfig(control_timeout_s=0.1))
    port = await server.start("127.0.0.1", 0)
    channel = aio.insecure_channel(f"127.0.0.1:{port}")
    request = pb.StatsRequest(bookie="stuck-00000000").SerializeToString()
    with pytest.raises(aio.AioRpcError) as refused:
        await channel.unary_unary(SERVICE + "Stats")(request)
    assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await channel.close()
    await server.stop(0)


async def test_bytes_of_other_protocols_are_hung_up_on(tmp_path):
    async with attacked(tmp_path) as one:
        draw = random.Random(2)
        for greeting in (
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + draw.randbytes(400),
            draw.randbytes(2000),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + draw.randbytes(500),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", one.served.port)
            writer.write(greeting)
            with contextlib.suppress(ConnectionError):
                await asyncio.wait_for(reader.read(), 60)  # until it hangs up
            writer.close()


async def test_connections_that_say_nothing_are_closed_and_others_are_served(tmp_path):
    async with attacked(tmp_path, server=GrpcServerConfig(hello_timeout_s=0.5)) as one:
        idle = [await asyncio.open_connection("127.0.0.1", one.served.port) for _ in range(100)]
        half = b"PRI * HTTP/2.0\r\n"
        for _, writer in idle[::2]:
            writer.write(half)
        called = await one.call(SERVICE + "Info", wait_for_ready=True)
        info = pb.InfoReply.FromString(called)
        assert info.bookie == one.served.id
        for reader, writer in idle:
            with contextlib.suppress(ConnectionError):
                await reader.read()  # until it is closed
            writer.close()


async def test_peers_that_reset_are_forgotten(tmp_path):
    async with attacked(tmp_path) as one:
        for _ in range(30):
            call = await one.welcomed(random.choice(["Adds", "Reads"]))
            call.cancel()
        for _ in range(30):
            reset = socket.create_connection(("127.0.0.1", one.served.port))
            reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            reset.close()


async def test_a_flood_of_streams_on_one_connection_waits_and_others_are_served(tmp_path):
    async with attacked(tmp_path, server=GrpcServerConfig(streams_per_connection_max=20)) as one:
        calls = [one.stream() for _ in range(100)]
        opened = [asyncio.ensure_future(_hello(call, one.served.id)) for call in calls]
        await until(lambda: count_done(opened) >= 20, "as many as are allowed")
        async with Client(one.served) as client:
            assert (await client.port.stats(one.served.id)).status is Status.OK
        assert count_done(opened) == 20
        for one_opened in opened:
            one_opened.cancel()
        await asyncio.gather(*opened, return_exceptions=True)


def count_done(futures):
    return sum(one.done() for one in futures)


async def _hello(call, bookie):
    await call.write(encode_hello(bookie))
    await call.read()


async def test_more_calls_than_are_allowed_are_refused_and_those_that_are_there_go_on(tmp_path):
    server = GrpcServerConfig(calls_max=6)
    async with Served(tmp_path, server=server) as served, Client(served) as client:
        await client.add(served.id, 0)
        one = Attack(served)
        calls = [one.stream() for _ in range(20)]
        for call in calls:
            with contextlib.suppress(aio.AioRpcError, asyncio.InvalidStateError):
                await call.write(encode_hello(served.id))
        await until(lambda: sum(call.done() for call in calls) >= 16, "the others are refused")
        # INTERNAL: this end was still writing when it was refused.
        refusals = {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL}
        assert {await call.code() for call in calls if call.done()} <= refusals
        assert await client.add(served.id, 1) is Status.OK
        for call in calls:
            call.cancel()
        await one.channel.close()


class CountingReads:
    """The real bookie; counts bytes that its reads gave."""

    def __init__(self, bookie):
        self.bookie_id = bookie.bookie_id
        self._bookie = bookie
        self.read_bytes = 0
        self.statuses = []

    async def read_many(self, *what, **how):
        reply = await self._bookie.read_many(*what, **how)
        self.read_bytes += sum(map(len, reply.bodies))
        self.statuses.append(reply.status)
        return reply


@pytest.mark.slow
async def test_a_reader_that_takes_no_answers_is_not_read_for(tmp_path):
    async with Served(tmp_path) as served, Client(served) as client:
        told = [client.add(served.id, entry, bytes(BIG)) for entry in range(4)]
        assert set(await asyncio.gather(*told)) == {Status.OK}
        counting = CountingReads(served.bookie)
        server = BookieServer(counting, GrpcServerConfig(answer_bytes_max=2 * BIG))
        port = await server.start("127.0.0.1", 0)
        channel = aio.insecure_channel(f"127.0.0.1:{port}", UNLIMITED)
        call = channel.stream_stream(SERVICE + "Reads")()
        await call.write(encode_hello(served.id))
        await call.read()
        questions = [
            ReadRequest(ReadOp.READ_MANY, number, 7, 0, 3, 5 * BIG) for number in range(500)
        ]
        await call.write(encode_read_requests(questions))
        seen = -1
        while seen != counting.read_bytes:  # until it reads no more
            seen = counting.read_bytes
            await asyncio.sleep(0.3)
        assert seen < 500 * 4 * BIG / 20
        numbers = set()
        while len(numbers) < 500:
            numbers |= {answer.number for answer in decode_read_responses(await call.read())}
        assert counting.read_bytes >= 500 * 4 * BIG
        call.cancel()
        await channel.close()
        await server.stop(0)


@asynccontextmanager
async def slow_readers(path, *, streams=10, questions=20, **limits):
    """Clients that ask for 1 MiB each time and take no answer, at a server of their own."""
    async with asyncio.timeout(60), Served(path) as served, Client(served) as client:
        told = [client.add(served.id, entry, bytes(BIG)) for entry in range(2)]
        assert set(await asyncio.gather(*told)) == {Status.OK}
        counting = CountingReads(served.bookie)
        server = BookieServer(counting, GrpcServerConfig(answers_wait_s=0.05, **limits))
        client.places[served.id] = BookieInfo(port=await server.start("127.0.0.1", 0))
        address = f"127.0.0.1:{client.places[served.id].port}"
        channels = [aio.insecure_channel(address, [*UNLIMITED, OWN_LINK]) for _ in range(streams)]
        calls = [channel.stream_stream(SERVICE + "Reads")() for channel in channels]
        for call in calls:
            await call.write(encode_hello(served.id))
            assert decode_welcome(await call.read())[0] is Status.OK
            wanted = [
                ReadRequest(ReadOp.READ_MANY, at, 7, 0, 1, 3 * BIG) for at in range(questions)
            ]
            await call.write(encode_read_requests(wanted))
        yield server, counting, calls, client, served
        for channel in channels:
            await channel.close()
        await until(lambda: server._room.used == 0, "the room of those who left")
        reply = await client.port.read_many(served.id, 7, 0, 1, 3 * BIG)
        assert reply.status is Status.OK
        await server.stop(0)


async def test_many_slow_readers_together_hold_no_more_than_the_bound(tmp_path):
    bound = 8 * BIG
    async with slow_readers(tmp_path, answers_bytes_max=bound) as (server, counting, calls, *_):
        await until(lambda: len(counting.statuses) == 10 * 20, "each read is answered or refused")
        assert server._room.used <= bound
        assert set(counting.statuses) == {Status.OK, Status.OVERLOADED}
        # Each connection took some answers into its buffers.
        assert counting.read_bytes <= bound + len(calls) * TAKEN_BYTES_MAX


async def test_a_client_that_takes_no_answer_loses_its_stream_and_its_room(tmp_path):
    limits = {"answers_bytes_max": 4 * BIG, "write_timeout_s": 0.5}
    async with slow_readers(tmp_path, **limits) as (server, counting, _, client, served):
        await until(lambda: Status.OVERLOADED in counting.statuses, "the room is taken")
        while True:
            reply = await client.port.read_many(served.id, 7, 0, 1, 3 * BIG)
            if reply.status is Status.OK:
                break
            assert reply.status is Status.OVERLOADED
        await until(lambda: server._room.used == 0, "those who take nothing are let go")
