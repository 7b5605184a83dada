"""Hostile requests, one after the other, while an honest client pings: how long it waits, and how
much memory the broker takes.

Each attack runs on raw connections of this process, against a broker with one cold topic of 64 MB.
The honest client is a process of its own, so that the attack's Python does not delay it.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple, Self

import zstandard

from gateway.wire.messages import encode_request
from tests.batches import plain_batch, raw_batch, record
from tests.bench.sides import create_topic
from tests.peers.broker import Broker
from tests.peers.processes import status_bytes, wait_until

ANSWER_S_MAX = 60.0
ATTACK_S_MAX = 8.0
COLD, COLD_BATCHES = "cold", 64
HONEST = "honest"
PRODUCE, FETCH, LIST_OFFSETS, METADATA, JOIN, SYNC, API_VERSIONS = 0, 1, 2, 3, 11, 14, 18

_PINGER = """
import select, socket, sys, time
port, kind = int(sys.argv[1]), sys.argv[2]
frame = sys.stdin.buffer.read(int(sys.argv[3]))
link = socket.create_connection(("127.0.0.1", port), timeout=120)
link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
def receive(count):
    parts = b""
    while len(parts) < count:
        part = link.recv(count - len(parts))
        assert part, "closed"
        parts += part
    return parts
print("ready", flush=True)
while True:
    started = time.monotonic()
    link.sendall(frame)
    receive(int.from_bytes(receive(4), "big"))
    print(f"{time.monotonic() - started:.4f}", flush=True)
    select.select([], [], [], 0.01)
"""


def framed(key: int, version: int, body: dict[str, Any]) -> bytes:
    frame = encode_request(key, version, 7, "bench", body)
    return len(frame).to_bytes(4, "big") + frame


class Link:
    """A raw connection."""

    def __init__(self, port: int, receive_bytes: int = 0) -> None:
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(ANSWER_S_MAX)
        self.socket.connect(("127.0.0.1", port))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_quietly(self, data: bytes) -> None:
        """Send, unless the broker has closed the connection."""
        with contextlib.suppress(OSError):
            self.send(data)

    def ask(self, data: bytes) -> bytes:
        """Return the reply. Raises ConnectionError if the broker closes the connection."""
        self.send(data)
        return self.receive(int.from_bytes(self.receive(4), "big"))

    def receive(self, count: int) -> bytes:
        parts: list[bytes] = []
        left = count
        while left:
            part = self.socket.recv(min(left, 1 << 20))
            if not part:
                raise ConnectionError("the broker closed the connection")
            parts.append(part)
            left -= len(part)
        return b"".join(parts)


def hold(links: list[Link], seconds: float) -> list[Link]:
    """Read nothing for this time, or until the broker has closed every connection.

    Return the links that are still open.
    """
    closed = select.poll()
    by_number = {link.socket.fileno(): link for link in links}
    for number in by_number:
        closed.register(number, select.POLLRDHUP)
    until = time.monotonic() + seconds
    while by_number and (left := until - time.monotonic()) > 0:
        for number, _ in closed.poll(1000 * left):
            closed.unregister(number)
            del by_number[number]
    return list(by_number.values())


def produce(topic: str, batch: bytes, acks: int = -1) -> bytes:
    partition = {"index": 0, "records": batch}
    data = [{"name": topic, "partition_data": [partition]}]
    return framed(PRODUCE, 7, {"acks": acks, "timeout": 30_000, "topic_data": data})


def fetch(topic: str, indexes: range, bytes_max: int, *, session_epoch: int = -1) -> bytes:
    entries = [
        {"partition": index, "fetch_offset": 0, "partition_max_bytes": bytes_max}
        for index in indexes
    ]
    body = {
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 50 << 20,
        "session_epoch": session_epoch,
        "topics": [{"topic": topic, "partitions": entries}],
    }
    return framed(FETCH, 7, body)


def list_offsets(topic: str, count: int, at_ms: int) -> bytes:
    entry = {"partition_index": 0, "timestamp": at_ms}
    topics = [{"name": topic, "partitions": [entry] * count}]
    return framed(LIST_OFFSETS, 1, {"replica_id": -1, "topics": topics})


def metadata(names: list[str], *, create: bool) -> bytes:
    topics = [{"name": name} for name in names]
    return framed(METADATA, 4, {"topics": topics, "allow_auto_topic_creation": create})


# -- the attacks ----------------------------------------------------------------------------------


def _bomb(*, keyed: bool) -> bytes:
    """A small batch of millions of records, whose header has a later timestamp than they have."""
    one = b"\x0e\0\0\0\x02k\x01\0" if keyed else b"\x0c\0\0\0\x01\x01\0"
    count = (16 << 20) // len(one)
    now_ms = int(time.time() * 1000)
    packed = zstandard.ZstdCompressor().compress(one * count)
    return raw_batch(
        packed, count, attributes=4, base_timestamp=now_ms, max_timestamp=now_ms + 1000
    )


def repeated_list_offsets(port: int) -> None:
    """One partition, named 100,000 times by timestamp; the client leaves."""
    with Link(port) as link:
        link.send(list_offsets(HONEST, 100_000, int(time.time() * 1000) - 1))
        hold([link], 0.5)


def bombs_by_timestamp(port: int) -> None:
    """Searches by timestamp in batches that unpack to 16 MiB."""
    with Link(port) as link:
        for _ in range(5):
            link.ask(produce("bombs", _bomb(keyed=False)))
        link.ask(list_offsets("bombs", 1, int(time.time() * 1000) + 600))


def bomb_to_compacted(port: int) -> None:
    with Link(port) as link:
        link.ask(produce("compacted", _bomb(keyed=True)))


def pipelined_cold_fetches(port: int) -> None:
    """40 Fetches of 50 MB on one connection, whose client reads nothing."""
    with Link(port, receive_bytes=4096) as link:
        link.send(fetch(COLD, range(1), 50 << 20) * 40)
        hold([link], ATTACK_S_MAX)


def slow_readers(port: int) -> None:
    """20 clients that ask for 50 MB and read nothing."""
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(Link(port, receive_bytes=4096)) for _ in range(20)]
        for link in links:
            link.send(fetch(COLD, range(1), 50 << 20))
        hold(links, ATTACK_S_MAX)


def session_of_unknown_partitions(port: int) -> None:
    for _ in range(3):
        with Link(port) as link:
            link.ask(fetch("nosuch", range(240_000), 1, session_epoch=0))


def large_memberships(port: int) -> None:
    """60 members join a group with 1 MB of metadata each; the leader syncs."""
    filler = os.urandom(1_000_000)
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(Link(port)) for _ in range(60)]
        for link in links:
            join = {
                "group_id": "large",
                "session_timeout_ms": 30_000,
                "rebalance_timeout_ms": 3_000,
                "member_id": "",
                "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": filler}],
            }
            link.send(framed(JOIN, 1, join))
        for link in links:
            link.socket.settimeout(ATTACK_S_MAX)
            with contextlib.suppress(OSError):
                reply = link.receive(int.from_bytes(link.receive(4), "big"))
                _sync(link, reply)


def _sync(link: Link, reply: bytes) -> None:
    """Sync as the member that a JoinGroup response names, with an assignment of its own."""
    generation, protocol_bytes = struct.unpack_from(">ih", reply, 6)
    at = 12 + protocol_bytes
    leader_bytes = int.from_bytes(reply[at : at + 2], "big")
    at += 2 + leader_bytes
    member_bytes = int.from_bytes(reply[at : at + 2], "big")
    member = reply[at + 2 : at + 2 + member_bytes].decode()
    sync = {
        "group_id": "large",
        "generation_id": generation,
        "member_id": member,
        "assignments": [{"member_id": member, "assignment": b"x" * 100}],
    }
    link.send(framed(SYNC, 1, sync))


def slow_senders(port: int) -> None:
    """Two clients that begin frames of 90 MiB and send them slowly."""
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(Link(port)) for _ in range(2)]
        for link in links:
            link.send((90 << 20).to_bytes(4, "big") + struct.pack(">hhihh", 0, 7, 1, -1, -1))
        until = time.monotonic() + ATTACK_S_MAX
        while (links := hold(links, 0.3)) and time.monotonic() < until:
            for link in links:
                link.send_quietly(bytes(6_000))


def many_unknown_produced(port: int) -> None:
    batch = plain_batch([1000])
    entries = [{"index": index, "records": batch} for index in range(60_000)]
    data = [{"name": "nosuch", "partition_data": entries}]
    with Link(port) as link:
        link.ask(framed(PRODUCE, 7, {"acks": -1, "timeout": 5_000, "topic_data": data}))


def many_unknown_described(port: int) -> None:
    with Link(port) as link:
        link.ask(metadata([f"nosuch-{at:06d}" for at in range(240_000)], create=False))


def many_topics_created(port: int) -> None:
    with Link(port) as link:
        link.ask(metadata([f"made-{at:06d}" for at in range(1_000)], create=True))


ATTACKS: tuple[Callable[[int], None], ...] = (
    repeated_list_offsets,
    bombs_by_timestamp,
    bomb_to_compacted,
    pipelined_cold_fetches,
    slow_readers,
    session_of_unknown_partitions,
    large_memberships,
    slow_senders,
    many_unknown_produced,
    many_unknown_described,
    many_topics_created,
)


# -- the honest client ----------------------------------------------------------------------------


class Pinger:
    """A process that sends the same request again and again, and writes how long each took."""

    def __init__(self, port: int, frame: bytes, name: str) -> None:
        argv = [sys.executable, "-c", _PINGER, str(port), name, str(len(frame))]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._waits: list[float] = []
        assert self._process.stdin is not None
        self._process.stdin.write(frame)
        self._process.stdin.flush()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line[:1].isdigit():
                self._waits.append(float(line))

    @property
    def answers(self) -> int:
        return len(self._waits)

    def wait_answers(self, count: int) -> None:
        """Wait for so many further answers."""
        first = self.answers
        wait_until(lambda: self.answers >= first + count, "an honest client", 120.0)

    def reset(self) -> None:
        self._waits.clear()

    def longest_s(self) -> float:
        """Return the longest wait since `reset`."""
        return max(self._waits)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reading.join()


class Attacked(NamedTuple):
    """What one attack did to others."""

    longest_wait_s: float
    resident_mb: float


def prepare(broker: Broker) -> None:
    """Create the topics, and 64 MB in the cold one."""
    for topic in (COLD, HONEST, "bombs"):
        create_topic(broker, topic, 1)
    create_topic(broker, "compacted", 1, {"cleanup.policy": "compact"})
    value = os.urandom(1_000_000)
    with Link(broker.port) as link:
        for _ in range(COLD_BATCHES):
            link.ask(produce(COLD, raw_batch(record(0, 0, None, value))))
        records = b"".join(record(at, at, None, b"x" * 100) for at in range(5_000))
        now_ms = int(time.time() * 1000)
        link.ask(
            produce(
                HONEST,
                raw_batch(
                    records, 5_000, base_timestamp=now_ms - 9_000, max_timestamp=now_ms - 4_001
                ),
            )
        )


@contextlib.contextmanager
def _pingers(port: int) -> Generator[list[Pinger]]:
    """One client that asks for versions, and one that produces 300 kB."""
    frames = {
        "versions": framed(API_VERSIONS, 0, {}),
        "produce": produce(HONEST, raw_batch(record(0, 0, None, bytes(300_000)))),
    }
    pingers = [Pinger(port, frame, name) for name, frame in frames.items()]
    try:
        yield pingers
    finally:
        for pinger in pingers:
            pinger.end()


def attacked(broker: Broker, attack: Callable[[int], None]) -> Attacked:
    """Run one attack beside two honest clients; return what they and the memory showed."""
    pid = broker.process.pid
    with _pingers(broker.port) as pingers:
        wait_until(lambda: all(each.answers >= 10 for each in pingers), "honest clients to begin")
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # forget the largest resident size
        for pinger in pingers:
            pinger.reset()
        with contextlib.suppress(OSError):  # the broker may close the connection, or be too slow
            attack(broker.port)
        for pinger in pingers:
            pinger.wait_answers(5)
        resident_mb = status_bytes(pid, "VmHWM") / (1 << 20)
        return Attacked(max(pinger.longest_s() for pinger in pingers), resident_mb)
