"""Goal: on a real disk, each acknowledgement leaves the socket after the bytes that it acknowledges
are durable, with the bytes before them in the log, the name of their file, and the file's owner.

Method: strace shows every write, sync and reply of a gateway and of a bookie under load. `Durable`
follows what a crash would keep, and each reply is held against it. The same load must find the
mistakes of `mistaken.py`, each in a run of its own. A gateway with io_uring shows what it submits
(`recorded.py`), because strace does not see into a ring.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import secrets
import struct
import time

import pytest

from gateway.wire.messages import decode_response, encode_request
from ledger.adapters.links.link_config import LinkConfig
from ledger.ports.bookies import BookieInfo, Status
from ledger.wire.bookie_frames import decode_add_statuses, decode_read_responses
from tests.batches import raw_batch, record
from tests.disk.mistaken import (
    MISTAKES,
    URING_MISTAKES,
    none,
    without_directory_sync_at_a_roll,
    without_dsync,
)
from tests.disk.trace import Durable, Replies, broken_promises, calls_of, traced
from tests.ledger.transports import bookies_of
from tests.peers.bookie import BookieProcess
from tests.peers.gateway import Gateway
from tests.peers.processes import free_port, wait_until
from tests.sim.bookie_world import entry_buffers

pytestmark = [pytest.mark.real_loop, pytest.mark.slow, pytest.mark.proof]

PRODUCE, OFFSET_COMMIT, CREATE_TOPICS = (0, 9), (8, 8), (19, 5)
LARGE_BYTES = 3 << 20  # above what is written directly: such a group takes the page cache
ROLLING = (64 << 20) // LARGE_BYTES + 2  # large records that fill a log file
PRODUCERS, RECORDS = 6, 15
READY_S_MAX = 60.0
PATIENT = LinkConfig(add_timeout_s=60.0, control_timeout_s=60.0)
KEY = b"k" * 20
FENCE = struct.Struct(">B3xIqq")  # docs/formats/log-file.md: the header of a record


def token():
    return f"token-{secrets.token_hex(8)}".encode()


# -- the gateway ----------------------------------------------------------------------------------


class TracedGateway(Gateway):
    """A gateway under strace, perhaps with a mistake."""

    def __init__(self, data, io, mistake):
        super().__init__(data, ["--io", io])
        self.trace = data.with_name("trace")
        self.mistake = mistake

    def argv(self):
        argv = super().argv()
        argv[2:3] = ["tests.disk.mistaken", self.mistake.__name__]
        return traced(argv, self.trace)


class Client:
    """One connection with one request in flight. `promised` is shared by all clients."""

    numbers = itertools.count(1_000_000)

    def __init__(self, port, promised):
        self.port = port
        self.promised = promised

    async def __aenter__(self):
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_):
        self._writer.close()

    async def ask(self, api, needle, error_of, **body):
        """Ask until it succeeds. The successful reply promises the needle."""
        until_s = time.monotonic() + READY_S_MAX
        while True:
            number = next(self.numbers)
            frame = encode_request(*api, number, "disk", body)
            self._writer.write(len(frame).to_bytes(4, "big") + frame)
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            reply = decode_response(*api, await self._reader.readexactly(size)).body
            if not error_of(reply):
                self.promised[number] = needle
                return
            assert time.monotonic() < until_s, f"still refused: {reply}"

    async def create(self, topic):
        configs = [{"name": "max.message.bytes", "value": str(2 * LARGE_BYTES)}]
        wanted = {"name": topic.decode(), "num_partitions": 2, "replication_factor": 1}
        await self.ask(
            CREATE_TOPICS,
            topic,
            lambda reply: reply.topics[0].error_code,
            topics=[wanted | {"assignments": [], "configs": configs}],
            timeout=10_000,
            validate_only=False,
        )

    async def produce(self, topic, partition, size):
        needle = token()
        stored = raw_batch(record(0, 0, None, needle + bytes(size)))
        data = [{"index": partition, "records": stored}]
        await self.ask(
            PRODUCE,
            needle,
            lambda reply: reply.responses[0].partition_responses[0].error_code,
            transactional_id=None,
            acks=-1,
            timeout=10_000,
            topic_data=[{"name": topic.decode(), "partition_data": data}],
        )

    async def commit(self, topic, offset):
        needle = token()
        partition = {"partition_index": 0, "committed_offset": offset}
        partition |= {"committed_leader_epoch": -1, "committed_metadata": needle.decode()}
        await self.ask(
            OFFSET_COMMIT,
            needle,
            lambda reply: reply.topics[0].partitions[0].error_code,
            group_id="group",
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=[{"name": topic.decode(), "partitions": [partition]}],
        )


async def use_gateway(port, promised, large):
    """Create a topic, write records side by side, commit offsets, then write `large` records."""
    topic = token()

    async def producer(partition, count, size):
        async with Client(port, promised) as client:
            for _ in range(count):
                await client.produce(topic, partition, size)

    async def committer():
        async with Client(port, promised) as client:
            for offset in range(RECORDS):
                await client.commit(topic, offset)

    async with Client(port, promised) as client:
        await client.create(topic)
    await asyncio.gather(committer(), *[producer(n % 2, RECORDS, 100) for n in range(PRODUCERS)])
    await producer(0, large, LARGE_BYTES)
    # A kill may cut off the trace of the last call, so one reply more follows that is not judged.
    async with Client(port, {}) as client:
        await client.create(token())


class KafkaReplies:
    """Cuts a stream into Kafka's frames."""

    def __init__(self):
        self._rest = b""

    def __call__(self, sent):
        self._rest += sent
        found = []
        while len(self._rest) >= 4 and len(self._rest) >= 4 + (size := self._size()):
            found.append(self._rest[4 : 4 + size])
            self._rest = self._rest[4 + size :]
        return found

    def _size(self):
        return int.from_bytes(self._rest[:4], "big")


def ended(server, trace):
    """Kill the server and wait for the end of its trace; return the calls."""
    server.kill()
    last = re.compile(rf"^{server.process.pid} +\+\+\+ killed", re.MULTILINE)
    wait_until(lambda: last.search(trace.read_text("latin-1")[-400:]), "strace to end")
    return calls_of(trace)


async def run_gateway(tmp_path, large, io, mistake=none):
    """Return the broken promises, their number, and the durable bytes."""
    data = tmp_path / "data"
    promised = {}
    with TracedGateway(data, io, mistake) as gateway:
        await use_gateway(gateway.port, promised, large)
        calls = ended(gateway, gateway.trace)
    durable = Durable(data)
    replies = Replies(gateway.port, KafkaReplies)

    def needles_of(reply):
        needle = promised.pop(int.from_bytes(reply[:4], "big"), None)
        return [] if needle is None else [needle]

    broken, count = broken_promises(calls, durable, replies, needles_of)
    assert not promised, "replies that the trace does not show"
    return broken, count, durable


def supports_direct_writes(path):
    try:
        os.close(os.open(path / "probe", os.O_WRONLY | os.O_CREAT | os.O_DIRECT))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("io", ["off", "uring"])
async def test_the_gateway_acknowledges_nothing_that_a_power_cut_would_take_back(tmp_path, io):
    broken, count, durable = await run_gateway(tmp_path, ROLLING, io)
    assert broken == []
    assert count >= 1 + RECORDS * (PRODUCERS + 1) + ROLLING
    files = {path.rpartition("/")[2] for path, _, _ in durable.found.values()}
    assert {"log-0000000000000001", "log-0000000000000002", "metadata.sqlite-wal"} <= files
    ways = {how for path, _, how in durable.found.values() if "/log-" in path}
    by = "io_uring " if io == "uring" else ""
    direct = {f"{by}O_DSYNC"} if supports_direct_writes(tmp_path) else set()
    assert ways == {f"{by}sync", *direct}


RUNS = [
    *[pytest.param("off", mistake) for mistake in MISTAKES],
    *[pytest.param("uring", mistake) for mistake in URING_MISTAKES],
]


@pytest.mark.parametrize(("io", "mistake"), RUNS)
async def test_a_missing_sync_is_found(tmp_path, io, mistake):
    large = ROLLING if mistake is without_directory_sync_at_a_roll else 1
    broken, _, _ = await run_gateway(tmp_path, large, io, mistake)
    harmless = mistake is without_dsync and not supports_direct_writes(tmp_path)
    assert bool(broken) is not harmless


# -- a bookie -------------------------------------------------------------------------------------


class TracedBookie(BookieProcess):
    """A bookie under strace."""

    @property
    def trace(self):
        return self.data.with_name("trace")

    def argv(self):
        return traced([*super().argv(), "--io", "off"], self.trace)


class GrpcMessages:
    """Cuts what a gRPC server sends into messages. Source: RFC 9113, frames; gRPC over HTTP2."""

    def __init__(self):
        self._rest = b""
        self._messages = {}  # HTTP/2 stream -> bytes of its messages

    def __call__(self, sent):
        self._rest += sent
        found = []
        while len(self._rest) >= 9:
            size, kind = int.from_bytes(self._rest[:3], "big"), self._rest[3]
            if len(self._rest) < 9 + size:
                break
            if kind == 0:
                found += self._cut(self._rest[5:9], self._rest[9 : 9 + size])
            self._rest = self._rest[9 + size :]
        return found

    def _cut(self, stream, data):
        rest = self._messages.get(stream, b"") + data
        found = []
        while len(rest) >= 5 and len(rest) >= 5 + (size := int.from_bytes(rest[1:5], "big")):
            found.append(rest[5 : 5 + size])
            rest = rest[5 + size :]
        self._messages[stream] = rest
        return found


class TcpMessages:
    """Cuts what a bookie sends over TCP into messages."""

    def __init__(self):
        self._rest = b""

    def __call__(self, sent):
        self._rest += sent
        found = []
        while len(self._rest) >= 4 + (size := int.from_bytes(self._rest[:4], "big")):
            found.append(self._rest[4 : 4 + size])
            self._rest = self._rest[4 + size :]
        return found


async def use_bookie(bookie, port):
    """Add entries to ledgers side by side, then fence them. Returns what each reply promises."""
    bookies = bookies_of(lambda: {bookie.id: BookieInfo("127.0.0.1", port)}, PATIENT)
    added, fenced = [], []

    async def write(ledger, sizes):
        for entry, size in enumerate(sizes):
            done = asyncio.get_running_loop().create_future()
            added.append(token())
            body = entry_buffers(ledger, entry, added[-1] + bytes(size))
            bookies.add(bookie.id, ledger, entry, KEY, body, done.set_result)
            assert await done is Status.OK

    await write(1, [100])
    await asyncio.gather(*[write(ledger, [100] * RECORDS) for ledger in range(2, 2 + PRODUCERS)])
    await write(1000, [LARGE_BYTES] * 2)
    for ledger in range(1, 2 + PRODUCERS):
        fenced.append(FENCE.pack(2, 0, ledger, -1))
        reply = await bookies.read(bookie.id, ledger, -1, fence_key=KEY)
        assert reply.status is Status.OK
    # A kill may cut off the trace of the last call, so one reply more follows that is not judged.
    assert (await bookies.read_lac(bookie.id, 1)).status is Status.OK
    await bookies.close()
    return added, fenced


async def test_a_bookie_acknowledges_no_add_and_no_fence_before_it_is_durable(
    zookeeper, tmp_path, transport
):
    chroot = zookeeper.servers + zookeeper.unused_chroot()
    grpc_port = free_port()
    options = ["--grpc-port", str(grpc_port)]
    with TracedBookie(tmp_path / "data", chroot, options, session="20s") as bookie:
        port = bookie.port if transport == "tcp" else grpc_port
        added, fenced = await use_bookie(bookie, port)
        calls = ended(bookie, bookie.trace)

    def needles_of(message):
        if message[:2] == b"\x01\x04":
            for first, length, status in decode_add_statuses(message):
                assert status is Status.OK
                yield from added[first : first + length]
        elif message[:2] == b"\x01\x06":
            for reply in decode_read_responses(message):
                yield fenced[reply.number]

    durable = Durable(tmp_path / "data", fenced)
    cutter = TcpMessages if transport == "tcp" else GrpcMessages
    broken, count = broken_promises(calls, durable, Replies(port, cutter), needles_of)
    assert broken == []
    assert count == len(added) + len(fenced)
