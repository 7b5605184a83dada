"""The requests of members of groups as bytes, and connections that send them. Kept cheap.

A client of the bench shares the machine with the broker, so it packs and unpacks by hand: what it
costs is the same for both sides. Source: Kafka, ConsumerGroupHeartbeatRequest v1,
JoinGroupRequest v3, SyncGroupRequest v2, HeartbeatRequest v2 and LeaveGroupRequest v2.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

CONSUMER_HEARTBEAT, JOIN, SYNC, HEARTBEAT, LEAVE = (68, 1), (11, 3), (14, 2), (12, 2), (13, 2)
NONE, REBALANCE_IN_PROGRESS = 0, 27
_HEAD = struct.Struct(">ihhi")
_CLIENT = b"\x00\x0cbench-groups"


class Connection(asyncio.Protocol):
    """One connection; answers come in the order of the requests, without size and correlation."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._data = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        for each in self._waiting:
            if not each.done():
                each.set_exception(ConnectionError("the broker closed the connection"))
        self._waiting.clear()

    def data_received(self, data: bytes) -> None:
        """Take answers."""
        buffer = self._data
        buffer += data
        at = 0
        while len(buffer) - at >= 4:
            end = at + 4 + int.from_bytes(buffer[at : at + 4], "big")
            if len(buffer) < end:
                break
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_result(bytes(buffer[at + 8 : end]))
            at = end
        del buffer[:at]

    def ask(self, frame: bytes) -> asyncio.Future[bytes]:
        """Send a request that `framed` made."""
        assert self._transport is not None
        if self._transport.is_closing():
            raise ConnectionError("the broker closed the connection")
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._transport.write(frame)
        return answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def connected(address: str) -> Connection:
    """Return an open connection."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_connection(Connection, host, int(port))
    return protocol


def framed(api: tuple[int, int], body: bytes) -> bytes:
    """Return a whole request."""
    tags = b"\x00" if api == CONSUMER_HEARTBEAT else b""
    rest = _CLIENT + tags + body
    return _HEAD.pack(8 + len(rest), *api, 0) + rest


def _uvarint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _compact(text: str) -> bytes:
    data = text.encode()
    return _uvarint(len(data) + 1) + data


class Beat(NamedTuple):
    """An answer to a heartbeat of the consumer protocol. `assigned` is None if it shows none."""

    code: int
    epoch: int
    assigned: frozenset[int] | None


def consumer_heartbeat(
    group: str,
    member: str,
    epoch: int,
    *,
    topics: Sequence[str] | None = None,
    owned: tuple[UUID, Iterable[int]] | None = None,
) -> bytes:
    """Return a request. `topics` are those of a join, and `owned` what the member has now."""
    full = topics is not None or owned is not None
    body = _compact(group) + _compact(member) + struct.pack(">i", epoch) + b"\x00\x00"
    body += struct.pack(">i", 300_000 if full else -1)
    body += (
        b"\x00" if topics is None else _uvarint(len(topics) + 1) + b"".join(map(_compact, topics))
    )
    body += b"\x00\x00"  # no regular expression, and the assignor of the broker
    if owned is not None:
        topic_id, partitions = owned[0], sorted(owned[1])
        listed = struct.pack(f">{len(partitions)}i", *partitions)
        row = topic_id.bytes + _uvarint(len(partitions) + 1) + listed + b"\x00"
        body += b"\x02" + row if partitions else b"\x01"
    else:
        body += b"\x01" if topics is not None else b"\x00"
    return framed(CONSUMER_HEARTBEAT, body + b"\x00")


def parse_beat(answer: bytes) -> Beat:
    """Return an answer to a heartbeat of the consumer protocol, of one topic at most."""
    code = int.from_bytes(answer[5:7], "big", signed=True)
    at = 7
    for _ in range(2):  # the text of the error, and the member id
        size, at = _read_uvarint(answer, at)
        at += max(0, size - 1)
    epoch = int.from_bytes(answer[at : at + 4], "big", signed=True)
    at += 8
    if answer[at] == 0xFF:
        return Beat(code, epoch, None)
    topics, at = _read_uvarint(answer, at + 1)
    found: set[int] = set()
    for _ in range(topics - 1):
        count, at = _read_uvarint(answer, at + 16)
        found.update(struct.unpack_from(f">{count - 1}i", answer, at))
        at += 4 * (count - 1) + 1
    return Beat(code, epoch, frozenset(found))


def _read_uvarint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


# -- the classic protocol --------------------------------------------------------------------------


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _bytes(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


class Joined(NamedTuple):
    """An answer to JoinGroup. `members` are those that the leader assigns."""

    code: int
    generation: int
    leader: str
    member: str
    members: tuple[str, ...]


def join(group: str, member: str, session_ms: int, topic: str) -> bytes:
    """Return a JoinGroup of a consumer of one topic."""
    subscription = struct.pack(">hi", 0, 1) + _text(topic) + struct.pack(">i", -1)
    body = _text(group) + struct.pack(">ii", session_ms, 300_000) + _text(member)
    body += _text("consumer") + struct.pack(">i", 1) + _text("range") + _bytes(subscription)
    return framed(JOIN, body)


def parse_joined(answer: bytes) -> Joined:
    """Return an answer to JoinGroup."""
    code, generation = struct.unpack_from(">hi", answer, 4)
    texts: list[str] = []
    at = 10
    for _ in range(3):  # protocol, leader, member
        size = max(0, int.from_bytes(answer[at : at + 2], "big", signed=True))
        texts.append(answer[at + 2 : at + 2 + size].decode())
        at += 2 + size
    count = int.from_bytes(answer[at : at + 4], "big")
    at += 4
    members: list[str] = []
    for _ in range(count):
        size = int.from_bytes(answer[at : at + 2], "big")
        members.append(answer[at + 2 : at + 2 + size].decode())
        at += 2 + size
        at += 4 + int.from_bytes(answer[at : at + 4], "big")
    return Joined(code, generation, texts[1], texts[2], tuple(members))


def sync(group: str, generation: int, member: str, assigned: dict[str, bytes]) -> bytes:
    """Return a SyncGroup; `assigned` is empty except for the leader."""
    rows = b"".join(_text(name) + _bytes(data) for name, data in assigned.items())
    body = _text(group) + struct.pack(">i", generation) + _text(member)
    return framed(SYNC, body + struct.pack(">i", len(assigned)) + rows)


def heartbeat(group: str, generation: int, member: str) -> bytes:
    """Return a Heartbeat of a member of the classic protocol."""
    return framed(HEARTBEAT, _text(group) + struct.pack(">i", generation) + _text(member))


def leave(group: str, member: str) -> bytes:
    """Return a LeaveGroup of one member."""
    return framed(LEAVE, _text(group) + _text(member))


def parse_code(answer: bytes) -> int:
    """Return the code of an answer to Heartbeat, SyncGroup or LeaveGroup."""
    return int.from_bytes(answer[4:6], "big", signed=True)


def parse_synced(answer: bytes) -> tuple[int, bytes]:
    """Return the code, and the assignment."""
    return parse_code(answer), answer[10:]


def assignment(topic: str, partitions: Sequence[int]) -> bytes:
    """Return the partitions of a member as consumers of the classic protocol read them."""
    listed = struct.pack(f">{len(partitions)}i", *partitions)
    head = struct.pack(">hi", 0, 1) + _text(topic) + struct.pack(">i", len(partitions))
    return head + listed + struct.pack(">i", -1)
