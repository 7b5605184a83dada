"""Goal: a connection that goes while its requests are under way is freed once they have ended.

Method: connections on a transport in memory, whose handlers wait, fail or end them; the collector
of cycles is off, so that only reference counts free an object.
"""

from __future__ import annotations

import asyncio
import gc

import pytest

from gateway.handlers.api import Api, ConnectionEnds, Reply
from gateway.server.connection import Connection
from tests.gateway.test_connection import (
    BEAT,
    FETCH,
    HEARTBEAT,
    LIST_OFFSETS,
    PRODUCE,
    fetch,
    heartbeat,
    produce,
    produce_body,
)
from tests.gateway.wire_peer import connect, hub_for, request, turns

FETCH_BODY = {
    "replica_id": -1,
    "max_wait": 1000,
    "min_bytes": 1,
    "max_bytes": 100,
    "isolation_level": 0,
    "session_id": 0,
    "session_epoch": -1,
    "topics": [],
    "forgotten_topics_data": [],
    "rack_id": "",
}
OFFSETS_BODY = {"replica_id": -1, "isolation_level": 0, "topics": []}
HALF = (100_000).to_bytes(4, "big") + b"\0" * 1_000


def list_offsets(handle):
    return Api(key=LIST_OFFSETS, name="ListOffsets", versions=range(1, 8), handle=handle)


class Handlers:
    """Handlers that wait until the test opens the gate."""

    def __init__(self):
        self.gate = asyncio.Event()
        self.futures = []

    def future(self, request, ctx):
        self.futures.append(asyncio.get_running_loop().create_future())
        return self.futures[-1]

    def in_line(self, request, ctx):
        return request.peer.fetches.submit(lambda: self.future(request, ctx))

    async def wait(self, request, ctx):
        await self.gate.wait()
        return Reply(error_code=0)

    async def wait_and_fail(self, request, ctx):
        await self.gate.wait()
        raise ValueError("a fault of the handler")

    def end(self, request, ctx):
        raise ConnectionEnds("it goes elsewhere")

    def fail(self, request, ctx):
        raise ValueError("a fault of the handler")

    def finish(self):
        """End what is under way: every other future with an error."""
        self.gate.set()
        for number, each in enumerate(self.futures):
            if each.done():
                continue
            if number % 2:
                each.set_exception(ValueError("a fault of the handler"))
            else:
                each.set_result([b"\0\0\0\1"])
        self.futures.clear()


def fetches(handlers):
    wire = connect(hub_for(fetch(handlers.future)))
    wire.send(request(FETCH, 11, 1, FETCH_BODY))
    return wire


def fetches_in_line(handlers):
    wire = connect(hub_for(fetch(handlers.in_line)))
    wire.send(b"".join(request(FETCH, 11, number, FETCH_BODY) for number in range(3)))
    return wire


def searches(handlers):
    wire = connect(hub_for(list_offsets(handlers.wait)))
    wire.send(b"".join(request(LIST_OFFSETS, 5, number, OFFSETS_BODY) for number in range(3)))
    return wire


def beats(handlers, handle):
    wire = connect(hub_for(heartbeat(handle)))
    wire.send(b"".join(request(HEARTBEAT, 0, number, BEAT) for number in range(3)))
    return wire


def beats_that_wait(handlers):
    return beats(handlers, handlers.wait)


def beats_that_fail_later(handlers):
    return beats(handlers, handlers.wait_and_fail)


def beats_that_fail(handlers):
    return beats(handlers, handlers.fail)


def beats_that_end_it(handlers):
    return beats(handlers, handlers.end)


def produces(handlers):
    wire = connect(hub_for(produce(handlers.future)))
    wire.send(b"".join(request(PRODUCE, 9, number, produce_body()) for number in range(3)))
    return wire


def produces_and_reads_nothing(handlers):
    wire = connect(hub_for(produce(lambda *_: [bytes(200_000)])), takes_replies=False)
    wire.send(b"".join(request(PRODUCE, 9, number, produce_body()) for number in range(3)))
    return wire


def half_a_frame(handlers):
    wire = connect(hub_for(produce(handlers.future)))
    wire.send(HALF)
    return wire


def waits_for_memory(handlers):
    hub = hub_for(produce(handlers.future), frame_bytes_max=400_000, memory_bytes_max=1_000_000)
    wire = connect(hub)
    for number in range(3):
        wire.send(request(PRODUCE, 9, number, produce_body(records=b"x" * 190_000)))
    assert hub.memory.waits_since_s is not None
    return wire


def produces_what_has_no_frame(handlers):
    wire = connect(hub_for(produce(handlers.future)))
    wire.send(b"".join(request(PRODUCE, 9, number, produce_body()) for number in range(2)))
    handlers.futures[0].set_result([5])
    return wire


def unknown(handlers):
    wire = connect(hub_for(produce(handlers.future)))
    wire.send(request(PRODUCE, 9, 1, produce_body()) + request(HEARTBEAT, 0, 2, BEAT))
    return wire


CASES = [
    fetches,
    fetches_in_line,
    searches,
    beats_that_wait,
    beats_that_fail_later,
    beats_that_fail,
    beats_that_end_it,
    produces,
    produces_and_reads_nothing,
    half_a_frame,
    waits_for_memory,
    produces_what_has_no_frame,
    unknown,
]


def alive():
    return sum(isinstance(each, Connection) for each in gc.get_objects())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_a_connection_is_freed_once_its_requests_have_ended(case, no_collector):
    before, handlers = alive(), Handlers()
    wire = case(handlers)
    await turns()
    registry = wire.protocol._registry
    wire.lose()
    del wire
    await turns()
    handlers.finish()
    await turns()
    assert not registry.connections
    assert (registry.memory.used_bytes, registry.replies.used_bytes) == (0, 0)
    assert alive() == before
