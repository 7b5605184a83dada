"""Fills a topic as a producer at saturation does, at nearly no CPU of its own.

Each leader has one connection with five requests in flight, as Java's producer has. A request has
one batch for each partition of that leader. All are made once and sent again and again, so almost
all of the CPU is the servers'.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Sequence

from tests.batches import HEADER_BYTES, raw_batch, record
from tests.bench.cluster.sides import Side, leaders
from tests.bench.neighbours_hostile import PRODUCE, framed

BATCH_BYTES = 16 * 1024  # batch.size, Java's default
IN_FLIGHT = 5  # max.in.flight.requests.per.connection
FILL_S_MAX = 120.0
VERSION = 3
# A partition of a response of version 3: index, error, base offset, log append time.
_PARTITION = struct.Struct(">ihqq")


def batch(record_bytes: int, batch_bytes: int = BATCH_BYTES) -> tuple[bytes, int]:
    """Return a batch of about this size, and how many records are in it."""
    draw = random.Random(7)
    value = bytes(draw.randrange(65, 91) for _ in range(record_bytes))
    count = max(1, (batch_bytes - HEADER_BYTES) // len(record(0, 0, None, value)))
    records = b"".join(record(at, 0, None, value) for at in range(count))
    return raw_batch(records, count, base_timestamp=int(time.time() * 1000)), count


def _request(topic: str, partitions: Sequence[int], records: bytes) -> bytes:
    entries = [{"index": each, "records": records} for each in partitions]
    data = [{"name": topic, "partition_data": entries}]
    body = {"transactional_id": None, "acks": -1, "timeout": 30_000, "topic_data": data}
    return framed(PRODUCE, VERSION, body)


class _Link:
    """One connection to a leader, and the thread that keeps it busy."""

    def __init__(
        self, port: int, topic: str, partitions: Sequence[int], records: bytes, times: int
    ) -> None:
        self._topic, self._partitions, self._times = topic, partitions, times
        self._frame = _request(topic, partitions, records)
        self._socket = socket.create_connection(("127.0.0.1", port), FILL_S_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.failed: Exception | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            with self._socket:
                self._fill()
        except (OSError, AssertionError) as error:
            self.failed = error

    def _fill(self) -> None:
        for sent in range(self._times + IN_FLIGHT):
            if sent >= IN_FLIGHT:
                self._check(self._receive())
            if sent < self._times:
                self._socket.sendall(self._frame)

    def _receive(self) -> bytes:
        size = int.from_bytes(self._exactly(4), "big")
        return self._exactly(size)

    def _exactly(self, count: int) -> bytes:
        found = self._socket.recv(count, socket.MSG_WAITALL)
        assert len(found) == count, "the server closed the connection"
        return found

    def _check(self, response: bytes) -> None:
        """Every batch was acknowledged."""
        at = 4 + 4 + 2 + len(self._topic) + 4
        for _ in self._partitions:
            index, error, _, _ = _PARTITION.unpack_from(response, at)
            assert not error, f"partition {index} of {self._topic} returned error {error}"
            at += _PARTITION.size


def fill(
    side: Side, topic: str, partitions: int, record_bytes: int, records: int, batch_bytes: int
) -> int:
    """Write at least `records` to the topic; return how many there are.

    Raises RuntimeError if a request fails, or if it takes longer than FILL_S_MAX.
    """
    data, count = batch(record_bytes, batch_bytes)
    times = -(-records // (count * partitions))
    owned: dict[int, list[int]] = {}
    for partition, port in leaders(side, topic).items():
        owned.setdefault(port, []).append(partition)
    links = [_Link(port, topic, some, data, times) for port, some in owned.items()]
    deadline_s = time.monotonic() + FILL_S_MAX
    for link in links:
        link.thread.join(max(0.0, deadline_s - time.monotonic()))
        if link.thread.is_alive():
            raise RuntimeError(f"{side.name}: {topic} was not filled in {FILL_S_MAX:.0f} s")
        if link.failed is not None:
            raise RuntimeError(f"{side.name}: {topic} was not filled: {link.failed}")
    return times * count * partitions
