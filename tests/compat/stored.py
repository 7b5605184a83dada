"""What a broker hands out for a partition, as bytes: the batches that clients hide."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_ALL = 100_000_000


class Batch(NamedTuple):
    """The header fields that tests ask about."""

    first_offset: int
    records: int
    codec: str


def _fetch_v4(topic: str) -> bytes:
    name = topic.encode()
    body = struct.pack(">iiiib", -1, 500, 1, _ALL, 0)
    body += struct.pack(f">ih{len(name)}s", 1, len(name), name)
    body += struct.pack(">iiqi", 1, 0, 0, _ALL)
    request = struct.pack(">hhih5s", 1, 4, 11, 5, b"tests") + body
    return struct.pack(">i", len(request)) + request


def _receive(connection: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        chunk = connection.recv(count - len(received))
        assert chunk, "the broker closed the connection"
        received += chunk
    return bytes(received)


def stored_batches(port: int, topic: str) -> list[Batch]:
    """The batches of partition 0, read by one Fetch of version 4 from offset 0."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(_fetch_v4(topic))
        (size,) = struct.unpack(">i", _receive(connection, 4))
        answer = _receive(connection, size)
    # correlation, throttle, topics, name; partitions, partition, error, high watermark,
    # last stable offset, aborted transactions (none, or a null list), then the records.
    name_bytes = len(topic.encode())
    head = struct.calcsize(f">iiih{name_bytes}sii")
    error, _high, _stable, aborted, records_bytes = struct.unpack_from(">hqqii", answer, head)
    assert error == 0 and aborted <= 0, (error, aborted)
    start = head + struct.calcsize(">hqqii")
    return _batches(answer[start : start + records_bytes])


def _batches(records: bytes) -> list[Batch]:
    found = []
    position = 0
    while position < len(records):
        first_offset, length = struct.unpack_from(">qi", records, position)
        (attributes,) = struct.unpack_from(">h", records, position + 21)
        (count,) = struct.unpack_from(">i", records, position + 57)
        found.append(Batch(first_offset, count, CODECS[attributes & 7]))
        position += 12 + length
    return found
