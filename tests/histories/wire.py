"""Kafka's protocol by hand, one socket to one named node: who answered what, and when."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from gateway.wire.messages import decode_response, encode_request
from tests.batches import raw_batch, record
from tests.histories.history import Key, place_of

PRODUCE, LIST_OFFSETS, METADATA, OFFSET_FETCH, INIT_PRODUCER_ID = 0, 2, 3, 9, 22
VERSIONS = {PRODUCE: 9, LIST_OFFSETS: 7, METADATA: 9, OFFSET_FETCH: 7, INIT_PRODUCER_ID: 4}
LATEST, EARLIEST = -1, -2
ANSWER_S_MAX = 5.0


class Answered(NamedTuple):
    """One response: its body is kio's. `at_s` is when its last byte was read."""

    key: int
    body: Any
    sent_s: float
    at_s: float


class Peer:
    """A connection. Requests go out at once; answers come in order, in the background.

    What was asked and never answered fails with ConnectionError once the connection is gone.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.closed = False
        self._waiting: dict[int, tuple[int, float, asyncio.Future[Answered]]] = {}
        self._ids = itertools.count(1)

    async def connect(self) -> Self:
        async with asyncio.timeout(ANSWER_S_MAX):
            self._reader, self._writer = await asyncio.open_connection(self.host, self.port)
        self._reading = asyncio.create_task(self._read())
        return self

    def send(self, key: int, body: dict[str, Any]) -> asyncio.Future[Answered]:
        """The future is the answer. Nothing waits: what the peer does not read stays here."""
        answer = asyncio.get_running_loop().create_future()
        if self.closed:
            answer.set_exception(ConnectionError("closed"))
            return answer
        number = next(self._ids)
        frame = encode_request(key, VERSIONS[key], number, "by hand", body)
        self._waiting[number] = (key, time.monotonic(), answer)
        self._writer.write(len(frame).to_bytes(4, "big") + frame)
        return answer

    async def ask(self, key: int, body: dict[str, Any], timeout_s: float = ANSWER_S_MAX) -> Any:
        """The body of the answer. Raises ConnectionError, TimeoutError."""
        async with asyncio.timeout(timeout_s):
            return (await self.send(key, body)).body

    def unanswered(self) -> list[asyncio.Future[Answered]]:
        return [answer for _, _, answer in self._waiting.values()]

    async def _read(self) -> None:
        try:
            while True:
                size = int.from_bytes(await self._reader.readexactly(4), "big")
                frame = await self._reader.readexactly(size)
                at_s = time.monotonic()
                number = int.from_bytes(frame[:4], "big")
                key, sent_s, answer = self._waiting.pop(number)
                body = decode_response(key, VERSIONS[key], frame).body
                if not answer.done():
                    answer.set_result(Answered(key, body, sent_s, at_s))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.closed = True
            self._writer.close()
            for _, _, answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(ConnectionError("the peer is gone"))
                    answer.exception()  # whoever does not ask has not forgotten it
            self._waiting.clear()

    async def close(self) -> None:
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class Peers:
    """A connection to each node, made when it is first asked; one that broke is made anew."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, int], Peer] = {}

    async def at(self, host: str, port: int) -> Peer:
        """Raises OSError, TimeoutError."""
        peer = self._made.get((host, port))
        if peer is None or peer.closed:
            peer = self._made[host, port] = await Peer(host, port).connect()
        return peer

    async def close(self) -> None:
        for peer in self._made.values():
            await peer.close()


class Topology(NamedTuple):
    """What Metadata says: where nodes are, and (leader, epoch, replicas) of each key."""

    nodes: dict[int, tuple[str, int]]
    partitions: dict[Key, tuple[int, int, tuple[int, ...]]]


async def read_topology(peer: Peer, topic: str, timeout_s: float = ANSWER_S_MAX) -> Topology:
    """Raises ConnectionError, TimeoutError."""
    wanted = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
    answer = await peer.ask(METADATA, wanted, timeout_s)
    nodes = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
    partitions = {
        f"{topic}:{row.partition_index}": (row.leader_id, row.leader_epoch, (*row.replica_nodes,))
        for found in answer.topics
        for row in found.partitions
    }
    return Topology(nodes, partitions)


def produce_body(
    key: Key, values: Sequence[int], *, producer: int = -1, epoch: int = -1, sequence: int = -1
) -> dict[str, Any]:
    """A Produce of one batch, acks=all; idempotent with a `producer`."""
    now_ms = int(time.time() * 1000)
    records = b"".join(record(at, 0, None, b"%d" % value) for at, value in enumerate(values))
    who = {"producer": producer, "epoch": epoch, "sequence": sequence}
    batch = raw_batch(records, len(values), base_timestamp=now_ms, **who)
    topic, partition = place_of(key)
    rows = [{"index": partition, "records": batch}]
    return {
        "transactional_id": None,
        "acks": -1,
        "timeout": 5_000,
        "topic_data": [{"name": topic, "partition_data": rows}],
    }


def list_offsets_body(keys: Sequence[Key], at: int) -> dict[str, Any]:
    """The first (EARLIEST) or next (LATEST) offsets of partitions of one topic."""
    topic = place_of(keys[0])[0]
    rows = [
        {"partition_index": place_of(key)[1], "current_leader_epoch": -1, "timestamp": at}
        for key in keys
    ]
    return {"replica_id": -1, "topics": [{"name": topic, "partitions": rows}]}


def offset_fetch_body(group: str, keys: Sequence[Key]) -> dict[str, Any]:
    topic = place_of(keys[0])[0]
    rows = [{"name": topic, "partition_indexes": [place_of(key)[1] for key in keys]}]
    return {"group_id": group, "topics": rows, "require_stable": False}
