"""Goal: requests to another gateway share one lasting connection, are answered in order, and none
waits for ever when that gateway is gone, late, or of an older release.

Method: a small broker on a loopback port answers as each test says; the links are the real ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.cluster.peer_links import LinkLimits, PeerLinks
from gateway.cluster.port import ClusterMember
from gateway.wire.messages import decode_request, encode_request_body, encode_response

pytestmark = [pytest.mark.real_loop, pytest.mark.timeout(30)]
API_VERSIONS, DESCRIBE_PRODUCERS, HEARTBEAT = 18, 61, 12
QUICK = LinkLimits(pause_s_first=0.001, pause_s_max=0.01)


def asked_for(name: str) -> Callable[[int], bytes]:
    topics = [{"name": name, "partition_indexes": [0]}]
    return lambda version: bytes(
        encode_request_body(DESCRIBE_PRODUCERS, version, {"topics": topics})
    )


class Broker:
    """Serves ApiVersions and DescribeProducers; `held` keeps its answers back until it is set."""

    def __init__(self) -> None:
        self.connections = 0
        self.requests: list[str] = []
        self.arrived = asyncio.Condition()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.writers: list[asyncio.StreamWriter] = []
        self.port = 0
        self.server: asyncio.Server | None = None

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self.server is not None
        self.server.close()
        self.drop()
        await self.server.wait_closed()

    def drop(self) -> None:
        writers, self.writers = self.writers, []
        for writer in writers:
            writer.transport.abort()

    async def wait_for(self, count: int) -> None:
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.requests) >= count)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        answers: asyncio.Queue[bytes] = asyncio.Queue()
        answering = asyncio.create_task(self._answer(answers, writer))
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                answers.put_nowait(await self._take(await reader.readexactly(size)))
        except (asyncio.IncompleteReadError, OSError):
            writer.close()
        finally:
            answering.cancel()

    async def _take(self, frame: bytes) -> bytes:
        key, version = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
        correlation_id = int.from_bytes(frame[4:8], "big")
        if key == API_VERSIONS:
            served = {"api_key": DESCRIBE_PRODUCERS, "min_version": 0, "max_version": 0}
            reply: dict[str, Any] = {"error_code": 0, "api_keys": [served]}
        else:
            header = 10 + int.from_bytes(frame[8:10], "big") + 1
            name = decode_request(key, version, frame, header).topics[0].name
            async with self.arrived:
                self.requests.append(name)
                self.arrived.notify_all()
            reply = {"topics": [{"name": name, "partitions": []}]}
        return b"".join(encode_response(key, version, correlation_id, reply))

    async def _answer(self, answers: asyncio.Queue[bytes], writer: asyncio.StreamWriter) -> None:
        first = True
        while True:
            answer = await answers.get()
            if not first:
                await self.go_on.wait()
            first = False  # the versions are never held
            writer.write(len(answer).to_bytes(4, "big") + answer)


class Cluster:
    def __init__(self, *members: ClusterMember) -> None:
        self.alive = list(members)

    def members(self) -> list[ClusterMember]:
        return self.alive


def member_at(port: int, token: str = "a") -> ClusterMember:
    return ClusterMember(1, "127.0.0.1", port, "", token)


@asynccontextmanager
async def running(
    limits: LinkLimits = QUICK,
) -> AsyncIterator[tuple[Broker, Cluster, PeerLinks]]:
    broker = Broker()
    await broker.start()
    cluster = Cluster(member_at(broker.port))
    links = PeerLinks(cluster, limits)
    try:
        async with asyncio.timeout(20):
            yield broker, cluster, links
    finally:
        await links.close()
        await broker.stop()


def ask(links: PeerLinks, name: str, node_id: int = 1) -> asyncio.Future[Any]:
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    links.ask(node_id, DESCRIBE_PRODUCERS, asked_for(name), answer.set_result)
    return answer


def name_of(answer: Any) -> str | None:
    return None if answer is None else answer.topics[0].name


async def test_many_requests_are_in_flight_on_one_connection_and_answered_in_order() -> None:
    async with running() as (broker, _, links):
        broker.go_on.clear()
        names = [f"t{number}" for number in range(QUICK.in_flight_max)]
        answers = [ask(links, name) for name in names]
        await broker.wait_for(len(names))
        assert not any(answer.done() for answer in answers)
        broker.go_on.set()
        assert [name_of(each) for each in await asyncio.gather(*answers)] == names
        assert name_of(await ask(links, "later")) == "later"
        assert broker.connections == 1


async def test_requests_beyond_those_in_flight_wait_their_turn() -> None:
    limits = LinkLimits(in_flight_max=2, waiting_max=10)
    async with running(limits) as (broker, _, links):
        broker.go_on.clear()
        answers = [ask(links, f"t{number}") for number in range(6)]
        await broker.wait_for(2)
        broker.go_on.set()
        assert [name_of(each) for each in await asyncio.gather(*answers)] == [
            f"t{number}" for number in range(6)
        ]


async def test_a_full_queue_refuses_at_once() -> None:
    limits = LinkLimits(in_flight_max=1, waiting_max=2)
    async with running(limits) as (broker, _, links):
        broker.go_on.clear()
        kept = [ask(links, "kept") for _ in range(2)]
        refused = ask(links, "refused")
        assert not refused.done(), "an answer came inside the call"
        assert await refused is None
        broker.go_on.set()
        assert [name_of(each) for each in await asyncio.gather(*kept)] == ["kept", "kept"]


async def test_a_lost_connection_answers_all_its_requests_and_the_next_one_opens_another() -> None:
    async with running() as (broker, _, links):
        broker.go_on.clear()
        answers = [ask(links, "lost") for _ in range(3)]
        await broker.wait_for(3)
        broker.drop()
        assert await asyncio.gather(*answers) == [None] * 3
        broker.go_on.set()
        assert name_of(await ask(links, "again")) == "again"
        assert broker.connections == 2


async def test_an_idle_connection_that_the_member_closed_is_replaced() -> None:
    async with running() as (broker, _, links):
        assert name_of(await ask(links, "first")) == "first"
        for writer in broker.writers:
            writer.close()
            await writer.wait_closed()
        # The request may have been sent before this side noticed the end of the connection.
        while (answer := await ask(links, "next")) is None:
            pass
        assert name_of(answer) == "next"
        assert broker.connections == 2


async def test_a_member_that_does_not_listen_is_asked_again_after_a_pause() -> None:
    async with running() as (broker, _, links):
        port = broker.port
        await broker.stop()
        assert await ask(links, "nobody") is None
        broker.port = port
        await broker.start()
        while (answer := await ask(links, "somebody")) is None:
            pass
        assert name_of(answer) == "somebody"


async def test_a_late_answer_ends_the_connection() -> None:
    limits = LinkLimits(answer_s_max=0.2, pause_s_first=0.001, pause_s_max=0.01)
    async with running(limits) as (broker, _, links):
        broker.go_on.clear()
        assert await ask(links, "late") is None
        broker.go_on.set()
        while (again := await ask(links, "again")) is None:  # late on a busy machine
            pass
        assert name_of(again) == "again"
        assert broker.connections >= 2


async def test_a_member_that_left_answers_nothing_more() -> None:
    async with running() as (broker, cluster, links):
        broker.go_on.clear()
        answer = ask(links, "gone")
        await broker.wait_for(1)
        cluster.alive = []
        links.on_members_changed()
        assert await answer is None
        assert await ask(links, "unknown") is None


async def test_a_member_that_started_again_gets_a_link_of_its_own() -> None:
    async with running() as (broker, cluster, links):
        assert name_of(await ask(links, "before")) == "before"
        cluster.alive = [member_at(broker.port, "b")]
        assert name_of(await ask(links, "after")) == "after"
        assert broker.connections == 2


async def test_an_api_that_the_member_does_not_serve_is_not_sent() -> None:
    async with running() as (broker, _, links):
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        links.ask(1, HEARTBEAT, lambda _: b"", answer.set_result)
        assert await answer is None
        assert name_of(await ask(links, "served")) == "served"
        assert broker.requests == ["served"]


@pytest.mark.parametrize("first", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x04\0\0\0\x09"])
async def test_a_peer_that_does_not_speak_kafkas_protocol_answers_nothing(first: bytes) -> None:
    writers: list[asyncio.StreamWriter] = []

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(first)
        await writer.drain()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    links = PeerLinks(Cluster(member_at(server.sockets[0].getsockname()[1])), QUICK)
    try:
        async with asyncio.timeout(20):
            assert await ask(links, "t") is None
    finally:
        await links.close()
        server.close()
        for writer in writers:
            writer.close()


async def test_a_closed_set_of_links_answers_what_is_unanswered() -> None:
    async with running() as (broker, _, links):
        broker.go_on.clear()
        answer = ask(links, "open")
        await broker.wait_for(1)
        await links.close()
        assert await answer is None
        assert await ask(links, "closed") is None
