"""Goal: the memory of a reply is taken before its records are read, and always comes back.

Method: fetches over real streams on virtual time, and the bytes that are taken after each step.
Then a real gateway, whose resident memory is compared with its setting.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from gateway.config import ConnectionLimits
from gateway.handlers import k00_produce, k01_fetch
from gateway.handlers.api import Peer
from gateway.wire.messages import decode_response, encode_request
from ledger.streams.config import StreamLimits
from ledger.streams.read_cursor import PINNED_MAX
from tests.gateway.stream_cluster import FETCH, started_cluster
from tests.gateway.test_fetch import batch, offsets, one, request
from tests.gateway.test_fetch_kept import answer, connection
from tests.gateway.wire_peer import request as framed
from tests.gateway.wire_peer import turns
from tests.peers.gateway import Gateway
from tests.peers.processes import status_bytes

MIB = 1024 * 1024
COLD = StreamLimits(tail_cache_bytes=0, read_chunk_bytes=MIB)
LARGE = batch(size=300_000)
PRODUCE = k00_produce.API.key


async def large_topic(cluster, batches=40, name="t"):
    partition = await cluster.topic(name)
    for _ in range(batches):
        await cluster.sent(partition, LARGE)
    return partition


def asked(cluster, offset=0, topic="t", index=0, settings=None, **fields):
    """Ask for one partition. Returns the request and the handler's result."""
    body = request(cluster, {topic: {index: (offset, settings or {})}}, **fields)
    return cluster.ask(FETCH, 18, **body)


ALL = {"partition_max_bytes": 50 * MIB}


async def test_the_reply_of_a_cold_fetch_holds_its_bytes_until_it_is_dropped():
    async with started_cluster(limits=COLD) as cluster:
        await large_topic(cluster)
        memory = cluster.context.reply_memory
        _, result = asked(cluster, settings=ALL)
        reply = await result
        records_bytes = 40 * len(LARGE)
        assert memory.used_bytes == records_bytes
        del result
        reply.release()
        assert memory.used_bytes == 0


async def test_a_reply_that_nobody_takes_returns_its_memory():
    async with started_cluster(limits=COLD) as cluster:
        await large_topic(cluster)
        _, result = asked(cluster, settings=ALL)
        await result
        del result
        await turns()
        assert cluster.context.reply_memory.used_bytes == 0


async def test_a_response_is_smaller_when_little_memory_is_free():
    async with started_cluster(limits=COLD) as cluster:
        await large_topic(cluster)
        memory = cluster.context.reply_memory
        assert memory.try_take(memory.bytes_max - 16 * MIB)
        found, _ = await one(cluster, 0, settings=ALL)
        size = len(found.records)
        assert MIB < size <= 2 * MIB
        assert offsets(found) == [2 * at for at in range(size // len(LARGE))]


async def test_a_fetch_waits_for_memory_and_takes_nothing_if_its_client_leaves():
    async with started_cluster(limits=COLD) as cluster:
        await large_topic(cluster)
        memory = cluster.context.reply_memory
        assert memory.try_take(memory.bytes_max)
        _, left = asked(cluster, settings=ALL)
        _, stays = asked(cluster, settings=ALL)
        await asyncio.sleep(5)
        assert not left.done()
        assert not stays.done()
        left.cancel()
        await turns()
        memory.give(memory.bytes_max)
        assert len(await stays) > 0
        del stays
        await turns()
        assert memory.used_bytes == 0


async def test_addresses_have_memory_of_reads_in_turn():
    async with started_cluster(limits=COLD) as cluster:
        await large_topic(cluster)
        memory = cluster.context.reply_memory
        assert memory.try_take(memory.bytes_max)

        def fetching(host):
            peer = Peer(host, 50_000, "127.0.0.1", 9_092)
            fields = request(cluster, {"t": {0: (0, {"partition_max_bytes": MIB})}})
            frame = encode_request(FETCH, 18, 7, "client", fields)
            return cluster.dispatcher.start(*cluster.dispatcher.open(frame, peer))

        greedy = [fetching(f"2001:db8::{number:x}") for number in range(1, 21)]
        await asyncio.sleep(1)
        honest = fetching("10.9.9.9")
        await asyncio.sleep(1)
        memory.give(2 * MIB)  # enough for two reads
        await asyncio.sleep(1)
        assert honest.done()
        assert sum(each.done() for each in greedy) == 1
        for each in greedy:
            each.cancel()


async def test_a_fetch_that_is_cut_off_while_it_reads_returns_its_memory():
    async with started_cluster(limits=COLD) as cluster:
        await large_topic(cluster)
        memory = cluster.context.reply_memory
        cluster.port.read_delay_s = 1
        _, result = asked(cluster, settings=ALL)
        await asyncio.sleep(0.1)
        assert memory.used_bytes > MIB
        result.cancel()
        await turns()
        assert memory.used_bytes == 0


async def test_a_fetch_that_is_cut_off_between_two_partitions_returns_the_memory_of_the_first():
    async with started_cluster(limits=COLD) as cluster:
        await cluster.topic(partitions=2)
        for index in range(2):
            await cluster.sent(await cluster.partition("t", index), LARGE)
        memory = cluster.context.reply_memory
        cluster.port.read_delay_s = 1
        body = request(cluster, {"t": dict.fromkeys(range(2), (0, ALL))}, min_bytes=10 * MIB)
        _, result = cluster.ask(FETCH, 18, **body)
        await asyncio.sleep(1.5)
        assert cluster.port.reads == 2
        result.cancel()
        await turns()
        assert memory.used_bytes == 0


async def test_a_fetch_that_waits_for_records_holds_none():
    async with started_cluster(limits=COLD) as cluster:
        partition = await large_topic(cluster, batches=3)
        memory = cluster.context.reply_memory
        _, result = asked(cluster, settings=ALL, min_bytes=4 * len(LARGE), wait_ms=20_000)
        await asyncio.sleep(1)
        assert memory.used_bytes == 0
        await cluster.sent(partition, LARGE)
        reply = await result
        assert memory.used_bytes == 4 * len(LARGE)
        reply.release()
        _, result = asked(cluster, settings=ALL, min_bytes=9 * len(LARGE), wait_ms=20_000)
        await asyncio.sleep(1)
        assert memory.used_bytes == 0
        result.cancel()
        await turns()
        assert memory.used_bytes == 0


async def test_a_fetch_that_cannot_be_encoded_returns_its_memory(monkeypatch):
    async with started_cluster() as cluster:
        partition = await cluster.topic("t", partitions=1)
        await cluster.sent(partition, batch(records=20_000))

        def broken(*_, **__):
            raise RuntimeError("unexpected")

        monkeypatch.setattr(k01_fetch, "encode_fetch", broken)
        fields = request(cluster, {"t": {0: (0, {})}}, 11, wait_ms=0)
        fields["topics"][0]["partitions"][0]["partition_max_bytes"] = 1 << 20
        with pytest.raises(RuntimeError):
            await answer(cluster, connection(), fields, 11)
        assert cluster.context.reply_memory.used_bytes == 0


async def test_records_in_memory_wait_for_memory_too_if_they_are_large():
    async with started_cluster() as cluster:
        await large_topic(cluster)
        memory = cluster.context.reply_memory
        assert memory.try_take(memory.bytes_max)
        _, large = asked(cluster, settings=ALL)
        await asyncio.sleep(1)
        assert not large.done()
        memory.give(memory.bytes_max)
        await large
        await cluster.sent(await cluster.topic("small"), batch())
        assert memory.try_take(memory.bytes_max - memory.used_bytes)
        _, small = asked(cluster, topic="small")
        assert not isinstance(small, asyncio.Future)


async def test_small_records_do_not_keep_the_chunks_that_were_read_for_them():
    async with started_cluster(limits=COLD) as cluster:
        await large_topic(cluster)
        _, result = asked(cluster, settings={"partition_max_bytes": 1})
        kept = [
            len(part.obj) if isinstance(part, memoryview) else len(part) for part in await result
        ]
        assert len(LARGE) <= sum(kept) < PINNED_MAX * len(LARGE)


# -- a real gateway -------------------------------------------------------------------------------

BUDGET = 256 * MIB
READERS = 20
PIPELINED = 40


class Client:
    """A client on a plain socket, which takes only as many bytes as the test reads."""

    def __init__(self, port):
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(60)
        self.socket.connect(("127.0.0.1", port))

    def read(self, count):
        data = bytearray()
        while len(data) < count:
            part = self.socket.recv(min(MIB, count - len(data)))
            if not part:
                raise EOFError
            data += part
        return data

    def reply_bytes(self):
        """Read the size of the next reply."""
        return int.from_bytes(self.read(4), "big")

    def ask(self, key, version, body):
        self.socket.sendall(framed(key, version, 1, body))
        return decode_response(key, version, bytes(self.read(self.reply_bytes()))).body


def fetch_request(number):
    partition = {
        "partition": 0,
        "fetch_offset": 0,
        "log_start_offset": -1,
        "current_leader_epoch": -1,
        "partition_max_bytes": 50 * MIB,
    }
    body = {
        "replica_id": -1,
        "max_wait": 500,
        "min_bytes": 1,
        "max_bytes": 50 * MIB,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": "big", "partitions": [partition]}],
        "forgotten_topics_data": [],
    }
    return framed(FETCH, 10, number, body)


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A gateway with a partition of 64 MB, of which its cache holds half."""
    data = tmp_path_factory.mktemp("data")
    with Gateway(data, ["--memory", f"{BUDGET // MIB}MiB"]) as gateway:
        client = Client(gateway.port)
        client.ask(3, 4, {"topics": [{"name": "big"}], "allow_auto_topic_creation": True})
        for _ in range(64):
            records = batch(size=1_000_000)
            topic = {"name": "big", "partition_data": [{"index": 0, "records": records}]}
            error = None
            while error != 0:
                answer = client.ask(
                    PRODUCE, 7, {"acks": -1, "timeout": 30_000, "topic_data": [topic]}
                )
                error = int(answer.responses[0].partition_responses[0].error_code)
        yield gateway


def test_readers_that_read_nothing_take_no_more_memory_than_the_setting(filled):
    pid = filled.process.pid
    before = status_bytes(pid, "VmRSS")
    readers = [Client(filled.port) for _ in range(READERS)]
    sizes: list[int] = []
    for number, reader in enumerate(readers):
        reader.socket.sendall(fetch_request(number))
        sizes.append(reader.reply_bytes())  # then its records were read
    largest = status_bytes(pid, "VmHWM")
    reply_bytes_max = ConnectionLimits(memory_bytes_max=BUDGET).reply_bytes_max
    in_sockets = READERS * 4 * MIB  # what the kernel has taken is not counted any more
    assert reply_bytes_max // 2 <= sum(sizes) <= reply_bytes_max + in_sockets
    assert largest - before <= BUDGET * 1.1
    assert largest <= BUDGET + 64 * MIB
    for reader, size in zip(readers, sizes, strict=True):
        reader.read(size)
    again = Client(filled.port)
    again.socket.sendall(fetch_request(0))
    assert again.reply_bytes() >= 4 * MIB


def test_pipelined_fetches_of_one_connection_take_no_more_memory_than_the_setting(filled):
    pid = filled.process.pid
    before = status_bytes(pid, "VmRSS")
    client = Client(filled.port)
    for number in range(PIPELINED):
        client.socket.sendall(fetch_request(number))
    # A client may not request far more than it reads. Its last requests may not be read then.
    with contextlib.suppress(EOFError, ConnectionResetError):
        for _ in range(PIPELINED):
            client.read(client.reply_bytes())
    largest = status_bytes(pid, "VmHWM")
    assert largest - before <= BUDGET * 1.1
    assert largest <= BUDGET + 64 * MIB
