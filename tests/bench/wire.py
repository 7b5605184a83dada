"""How many microseconds the wire costs for each request, apart from the system calls.

`python -m tests.bench.wire` feeds whole batches of bytes into a `Connection` whose transport only
counts, and answers each Produce through a future as the real handler does. Read the figures as
ratios; the budget is 25 us for a 16 KiB Produce.
"""

from __future__ import annotations

import asyncio
import time

from gateway.config import ConnectionLimits
from gateway.handlers.api import Api, Reply
from gateway.server.connection import Connection
from gateway.server.dispatch import Dispatcher
from gateway.server.registry import ConnectionRegistry
from gateway.wire.fetch_reply import PartitionFetched, encode_fetch
from gateway.wire.messages import encode_request
from gateway.wire.produce_reply import PartitionProduced, encode_produce

IN_FLIGHT = 5
ROUNDS = 4_000


class Sink(asyncio.Transport):
    """Takes everything, counts it, never stops."""

    def __init__(self):
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written = 0

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def writelines(self, buffers):
        self.written += sum(map(len, buffers))

    def get_write_buffer_size(self):
        return 0

    def is_closing(self):
        return False

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass


def feed(connection, data):
    view = memoryview(data)
    while view:
        buffer = connection.get_buffer(-1)
        count = min(len(buffer), len(view))
        buffer[:count] = view[:count]
        connection.buffer_updated(count)
        view = view[count:]


def framed(frame):
    return len(frame).to_bytes(4, "big") + frame


def produce_request(version, record_bytes):
    topic = {
        "name": "orders",
        "topic_id": b"u" * 16,
        "partition_data": [{"index": 0, "records": b"x" * record_bytes}],
    }
    body = {"acks": -1, "timeout": 30_000, "topic_data": [topic]}
    return framed(encode_request(0, version, 7, "producer-1", body))


def fetch_request(version):
    partition = {"partition": 0, "fetch_offset": 5, "partition_max_bytes": 1 << 20}
    topic = {"topic": "orders", "topic_id": b"u" * 16, "partitions": [partition]}
    body = {"max_wait": 500, "min_bytes": 1, "topics": [topic], "forgotten_topics_data": []}
    return framed(encode_request(1, version, 7, "consumer-1", body))


async def produce(version, record_bytes):
    waiting = []

    def handle(request, ctx):
        [topic] = request.body.topic_data
        [partition] = topic.partition_data
        name = topic.topic_id if version >= 13 else topic.name
        future = asyncio.get_running_loop().create_future()
        waiting.append((future, request, name, partition.index))
        return future

    def answer():
        for future, request, name, index in waiting:
            answered = [(name, [PartitionProduced(index, 0, 7, -1, 0)])]
            future.set_result([encode_produce(version, request.correlation_id, answered)])
        waiting.clear()

    api = Api(key=0, name="Produce", versions=range(3, 14), handle=handle)
    return await measure(api, produce_request(version, record_bytes), answer)


async def fetch(version, record_bytes):
    records = [b"x" * record_bytes]

    def handle(request, ctx):
        [topic] = request.body.topics
        name = topic.topic_id if version >= 13 else topic.topic
        fetched = PartitionFetched(0, 0, 9, 9, 0, records, record_bytes)
        return encode_fetch(version, request.correlation_id, [(name, [fetched])])

    api = Api(key=1, name="Fetch", versions=range(4, 19), handle=handle)
    return await measure(api, fetch_request(version), lambda: None)


async def heartbeat():
    api = Api(key=12, name="Heartbeat", versions=range(5), handle=lambda *_: Reply(error_code=0))
    body = {"group_id": "group", "generation_id": 3, "member_id": "member-1"}
    return await measure(api, framed(encode_request(12, 4, 7, "consumer-1", body)), lambda: None)


async def measure(api, frame, answer):
    """Best of three, in microseconds for each request."""
    registry = ConnectionRegistry(Dispatcher({api.key: api}, None), ConnectionLimits())
    connection = Connection(registry)
    connection.connection_made(Sink())
    best = float("inf")
    for _ in range(3):
        started = time.process_time()
        for _ in range(ROUNDS):
            feed(connection, frame * IN_FLIGHT)
            answer()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        best = min(best, time.process_time() - started)
    return best / ROUNDS / IN_FLIGHT * 1e6


async def main():
    for version in (8, 11, 13):
        print(f"produce v{version} 16 KiB  {await produce(version, 16_384):6.1f} us")
    print(f"produce v11 1 KiB  {await produce(11, 1024):6.1f} us")
    for version in (11, 12, 17):
        print(f"fetch   v{version} 16 KiB  {await fetch(version, 16_384):6.1f} us")
    print(f"heartbeat v4       {await heartbeat():6.1f} us")


if __name__ == "__main__":
    try:
        import uvloop

        loop_factory = uvloop.new_event_loop
    except ImportError:
        loop_factory = None
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())
